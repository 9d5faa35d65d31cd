"""``bls-agent workers``: whose heartbeats are there, and whether they can be believed."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bls_agent.ops.cli.command import command, new_app
from bls_agent.ops.cli.exits import Exit, Failure
from bls_agent.ops.cli.invocation import Invocation

if TYPE_CHECKING:
    from rich.table import Table

    from bls_agent.core.errors import RedisUnavailableError
    from bls_agent.workers import Worker, WorkerChange, WorkerRegistry

__all__ = ["workers"]

RATIOS: Final = {"id": 3, "status": 2, "problem": 2, "says": 4}

app = new_app()


def _complete_kind(incomplete: str) -> list[str]:
    from bls_agent.ops.cli.roster import KIND_NAMES

    return [name for name in KIND_NAMES if name.startswith(incomplete)]


@command(app, "workers")
async def workers(
    invocation: Invocation,
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="arg_kind", autocompletion=_complete_kind),
    ] = "",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="opt_watch_workers")
    ] = False,
) -> Exit:
    """List the workers; 3 if one of them is not well."""
    from bls_agent.ops.cli.live import show_live, wants_live
    from bls_agent.ops.cli.roster import is_well
    from bls_agent.workers import WorkerRegistry

    row = _row_of(kind)
    async with WorkerRegistry(invocation.redis) as registry:
        if watch and wants_live(invocation.out) and not invocation.json:
            board = _Board(invocation, registry, row)
            await show_live(invocation.out, board.table, board.watch)
            return Exit.DONE
        if watch:
            await _print_changes(invocation, registry, row)
        with invocation.waiting("waiting_redis"):
            found = await registry.alive(row)
    _show(invocation, found)
    return Exit.DONE if all(map(is_well, found)) else Exit.UNHEALTHY


def _row_of(word: str) -> str | None:
    """Find the kind that is meant.

    Raises:
        Failure: There is none, or it may be several.
    """
    from bls_agent.ops.cli.roster import KIND_NAMES, find_kinds

    rows = find_kinds(word)
    if not word or len(rows) == 1:
        return rows[0] if rows else None
    likely = get_close_matches(word, KIND_NAMES)
    raise Failure(
        "no_such_kind",
        Exit.USAGE,
        hint="did_you_mean" if likely else "hint_kinds",
        word=word,
        names=", ".join(likely or KIND_NAMES),
    )


def _show(invocation: Invocation, found: list[Worker]) -> None:
    from bls_agent.ops.cli.roster import (
        FIELDS,
        arrange_workers,
        count_workers,
        describe_worker,
        worker_cells,
        worker_fields,
    )
    from bls_agent.ops.cli.screen import Column

    out, texts = invocation.out, invocation.texts
    ordered = arrange_workers(found)
    if invocation.json:
        for worker in ordered:
            out.json(describe_worker(worker))
        return
    fields = worker_fields(out.columns) if out.terminal else list(FIELDS)
    out.table(
        [Column(texts[f"workers_{field}"], 6) for field in fields],
        [worker_cells(one, texts, fields, people=out.terminal) for one in ordered],
    )
    if not ordered:
        invocation.hint("no_workers")
    elif out.terminal:
        invocation.hint("plain", text=count_workers(ordered, texts))


async def _print_changes(
    invocation: Invocation, registry: WorkerRegistry, row: str | None
) -> None:
    """Print each change until somebody ends it; outages are told and waited out."""
    async for change in registry.watch(row):
        if change.error is not None:
            invocation.warn("away", kind=change.error.kind)
        elif change.worker is None:
            invocation.hint("back")
        else:
            _print_change(invocation, change.what, change.worker)


def _print_change(invocation: Invocation, what: str, worker: Worker) -> None:
    from bls_agent.ops.cli.roster import FIELDS, describe_worker, worker_cells
    from bls_agent.ops.cli.words import now_clock

    out, texts = invocation.out, invocation.texts
    if invocation.json:
        out.json(describe_worker(worker, what=what, seenAt=now_clock(iso=True)))
        return
    people = out.terminal
    out.line(
        (now_clock(iso=not people), "dim"),
        texts[f"worker_change_{what}"] if people else what,
        *worker_cells(worker, texts, list(FIELDS), people=people),
        between="  " if people else "\t",
    )


class _Board:
    """The live table: who is known, and how it is drawn."""

    def __init__(
        self, invocation: Invocation, registry: WorkerRegistry, row: str | None
    ) -> None:
        self._invocation = invocation
        self._registry = registry
        self._row = row
        self._seen: dict[str, tuple[Worker, float]] = {}  # and when
        self._outage: RedisUnavailableError | None = None
        self._known = False

    async def watch(self, redraw: Callable[[], None]) -> None:
        """Follow what happens; drawn is once a second, and when Redis goes away."""
        from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

        try:
            await self._registry.alive(self._row)  # a watch over nobody tells nothing
            self._known = True
        except RedisRefusedError:
            raise
        except RedisUnavailableError as error:
            self._outage = error
        async for change in self._registry.watch(self._row, refreshes=True):
            self._note(change)
            if change.worker is None:
                redraw()

    def _note(self, change: WorkerChange) -> None:
        import anyio

        self._outage, self._known = change.error, self._known or change.error is None
        worker = change.worker
        if worker is not None and change.what != "left":
            self._seen[worker.key] = worker, anyio.current_time()
        elif worker is not None:
            self._seen.pop(worker.key, None)

    def table(self, columns: int, lines: int) -> Table:
        """Make the table for so many columns and lines."""
        import anyio

        from bls_agent.ops.cli.live import AROUND, Heading, live_table
        from bls_agent.ops.cli.roster import (
            arrange_workers,
            worker_cells,
            worker_fields,
        )

        texts, now = self._invocation.texts, anyio.current_time()
        ordered = arrange_workers(worker for worker, _ in self._seen.values())
        room = max(1, lines - AROUND)
        fields = worker_fields(columns)
        rows = [
            worker_cells(one, texts, fields, later=now - self._seen[one.key][1])
            for one in ordered[:room]
        ]
        more = len(ordered) - room
        return live_table(
            (self._head(ordered), "yellow" if self._outage else "dim"),
            [Heading(texts[f"workers_{field}"], RATIOS.get(field)) for field in fields],
            rows,
            texts["top_more"].format(count=more) if more > 0 else "",
        )

    def _head(self, ordered: list[Worker]) -> str:
        from bls_agent.ops.cli.roster import count_workers
        from bls_agent.ops.terminal import visible

        if self._outage is not None:
            return self._invocation.say("away", kind=visible(self._outage.kind))
        if not self._known:
            return self._invocation.say("waiting_redis")
        counted = count_workers(ordered, self._invocation.texts)
        return f"{counted} · {self._invocation.say('top_quit')}"
