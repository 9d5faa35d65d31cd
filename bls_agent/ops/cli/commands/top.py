"""``bls-agent top``: all projects in one live table, the worst first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bls_agent.ops.cli.command import command, new_app
from bls_agent.ops.cli.exits import Exit
from bls_agent.ops.cli.invocation import Invocation

if TYPE_CHECKING:
    from rich.table import Table

    from bls_agent.core.errors import RedisUnavailableError
    from bls_agent.ops.fleet import Fleet, FleetChange, ProjectView

__all__ = ["top"]

RATIOS: Final = {"project": 3, "status": 2, "last_error": 4}

app = new_app()


@command(app, "top")
async def top(
    invocation: Invocation,
    once: Annotated[bool, typer.Option("--once", help="opt_once")] = False,
) -> Exit:
    """Show the fleet until q or Ctrl-C; once where nobody looks on."""
    from bls_agent.ops.cli.live import wants_live
    from bls_agent.ops.fleet import Fleet

    async with Fleet(invocation.redis) as fleet:
        if wants_live(invocation.out) and not once and not invocation.json:
            await _Board(invocation, fleet).run()
            return Exit.DONE
        with invocation.waiting("waiting_redis"):
            views = await fleet.look()
    _show_once(invocation, list(views.values()))
    return Exit.DONE


def _show_once(invocation: Invocation, views: list[ProjectView]) -> None:
    from bls_agent.ops.cli.board import FIELDS, arrange, cells_of, fields_for, summary
    from bls_agent.ops.cli.screen import Column
    from bls_agent.ops.cli.views import describe_view

    out, texts = invocation.out, invocation.texts
    ordered = arrange(views)
    if invocation.json:
        for view in ordered:
            out.json(describe_view(view))
        return
    fields = fields_for(out.columns) if out.terminal else list(FIELDS)
    columns = [Column(texts[f"top_{field}"], 6) for field in fields]
    rows = [cells_of(view, texts, fields, people=out.terminal) for view in ordered]
    out.table(columns, rows)
    if out.terminal:
        invocation.hint("plain", text=summary(ordered, texts))


class _Board:
    """The live table: what is known, and how it is drawn."""

    def __init__(self, invocation: Invocation, fleet: Fleet) -> None:
        self._invocation = invocation
        self._fleet = fleet
        self._views: dict[str, ProjectView] = {}
        self._outage: RedisUnavailableError | None = None
        self._known = False

    async def run(self) -> None:
        """Draw until q is pressed."""
        from bls_agent.ops.cli.live import show_live

        await show_live(self._invocation.out, self._table, self._watch)

    async def _watch(self, redraw: Callable[[], None]) -> None:
        async for change in self._fleet.watch():
            self._note(change)
            redraw()

    def _note(self, change: FleetChange) -> None:
        self._outage = change.unavailable
        self._known = self._known or change.unavailable is None
        self._views.update(change.views)
        for project in change.gone:
            self._views.pop(project, None)

    def _table(self, columns: int, lines: int) -> Table:
        from bls_agent.ops.cli.board import arrange, cells_of, fields_for, summary
        from bls_agent.ops.cli.live import AROUND, Heading, live_table

        texts = self._invocation.texts
        ordered = arrange(self._views.values())
        room = max(1, lines - AROUND)
        fields = fields_for(columns)
        more = len(ordered) - room
        return live_table(
            (self._head(summary(ordered, texts)), "yellow" if self._outage else "dim"),
            [Heading(texts[f"top_{field}"], RATIOS.get(field)) for field in fields],
            [cells_of(view, texts, fields) for view in ordered[:room]],
            texts["top_more"].format(count=more) if more > 0 else "",
        )

    def _head(self, counted: str) -> str:
        from bls_agent.ops.terminal import visible

        if self._outage is not None:
            return self._invocation.say("away", kind=visible(self._outage.kind))
        if not self._known:
            return self._invocation.say("waiting_redis")
        return f"{counted} · {self._invocation.say('top_quit')}"
