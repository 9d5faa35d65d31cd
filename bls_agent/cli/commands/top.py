"""``bls-agent top``: all projects in one live table, the worst first."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bls_agent.cli.command import command, new_app
from bls_agent.cli.exits import Exit
from bls_agent.cli.invocation import Invocation

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from bls_agent.errors import RedisUnavailableError
    from bls_agent.fleet import Fleet, FleetChange, ProjectView

__all__ = ["top"]

PERIOD: Final = 1.0  # seconds between two drawings: ages pass by themselves
AROUND: Final = 3  # lines of the screen that are no project: summary, heading, footer

app = new_app()


@command(app, "top")
async def top(
    invocation: Invocation,
    once: Annotated[bool, typer.Option("--once", help="opt_once")] = False,
) -> Exit:
    """Show the fleet until q or Ctrl-C; once where nobody looks on."""
    from bls_agent.fleet import Fleet

    live = invocation.out.terminal and os.environ.get("TERM") != "dumb"
    async with Fleet(invocation.redis) as fleet:
        if live and not once and not invocation.json:
            await _Board(invocation, fleet).run()
            return Exit.DONE
        with invocation.waiting("waiting_redis"):
            views = await fleet.look()
    _show_once(invocation, list(views.values()))
    return Exit.DONE


def _show_once(invocation: Invocation, views: list[ProjectView]) -> None:
    from bls_agent.cli.board import FIELDS, arrange, cells_of, fields_for, summary
    from bls_agent.cli.screen import Column
    from bls_agent.cli.views import describe_view

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
        import anyio
        from rich.console import Console
        from rich.live import Live

        colours = self._invocation.out.colours
        console = Console(
            markup=False,
            emoji=False,
            highlight=False,
            no_color=not colours,
            color_system="standard" if colours else None,
            legacy_windows=False,
        )
        with (
            _keys_pressed() as keys,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, live)
                tasks.start_soon(self._tick, live)
                await _wait_for_q(keys)
                tasks.cancel_scope.cancel()

    async def _watch(self, live: Live) -> None:
        async for change in self._fleet.watch():
            self._note(change)
            self._draw(live)

    def _note(self, change: FleetChange) -> None:
        self._outage = change.unavailable
        self._known = self._known or change.unavailable is None
        self._views.update(change.views)
        for project in change.gone:
            self._views.pop(project, None)

    async def _tick(self, live: Live) -> None:
        import anyio

        while True:
            self._draw(live)
            await anyio.sleep(PERIOD)

    def _draw(self, live: Live) -> None:
        size = live.console.size
        live.update(self._table(size.width, size.height), refresh=True)

    def _table(self, columns: int, lines: int) -> Table:
        from rich.table import Table
        from rich.text import Text

        from bls_agent.cli.board import arrange, cells_of, fields_for, summary
        from bls_agent.terminal import visible

        texts = self._invocation.texts
        ordered = arrange(self._views.values())
        room = max(1, lines - AROUND)
        fields = fields_for(columns)
        table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
        table.title = Text(
            self._head(summary(ordered, texts)), "yellow" if self._outage else "dim"
        )
        table.title_justify = "left"
        for field in fields:
            ratio = {"project": 3, "status": 2, "last_error": 4}.get(field)
            table.add_column(
                Text(texts[f"top_{field}"]),
                no_wrap=True,
                overflow="ellipsis",
                ratio=ratio,
            )
        for view in ordered[:room]:
            cells = cells_of(view, texts, fields)
            pairs = [(cell, "") if isinstance(cell, str) else cell for cell in cells]
            table.add_row(*(Text(visible(text), style) for text, style in pairs))
        if len(ordered) > room:
            more = texts["top_more"].format(count=len(ordered) - room)
            table.add_row(Text(more, "dim"))
        return table

    def _head(self, counted: str) -> str:
        from bls_agent.terminal import visible

        if self._outage is not None:
            return self._invocation.say("away", kind=visible(self._outage.kind))
        if not self._known:
            return self._invocation.say("waiting_redis")
        return f"{counted} · {self._invocation.say('top_quit')}"


@contextmanager
def _keys_pressed() -> Generator[int | None]:
    """Let single keys be read from the terminal; ``None`` where there is none."""
    if sys.platform == "win32" or sys.stdin is None or not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)  # Ctrl-C stays Ctrl-C
        yield number
    finally:
        with suppress(termios.error):
            termios.tcsetattr(number, termios.TCSADRAIN, before)


async def _wait_for_q(number: int | None) -> None:
    """Wait until q is pressed, or the terminal has gone."""
    import anyio

    if number is None:
        await anyio.sleep_forever()
        return
    pressed = b"any"
    while pressed and pressed.lower() not in (b"q", b"\x04"):
        await anyio.wait_readable(number)
        with suppress(BlockingIOError):
            pressed = _read_keys(number)


def _read_keys(number: int) -> bytes:
    try:
        return os.read(number, 64)
    except BlockingIOError:
        raise
    except OSError:  # EIO: nobody holds the other end any more
        return b""
