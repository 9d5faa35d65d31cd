"""``bls-agent runs``: which runs there are, and what happens in one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bls_agent.ops.cli.command import command, new_app, subcommands
from bls_agent.ops.cli.exits import Exit, Failure
from bls_agent.ops.cli.invocation import Invocation

if TYPE_CHECKING:
    from rich.table import Table

    from bls_agent.core.errors import RedisUnavailableError
    from bls_agent.runs import (
        EventStore,
        Followed,
        Follower,
        RunList,
        RunSummary,
        StreamEvent,
    )

__all__ = ["follow", "list_runs", "runs"]

LOOK: Final = 1.0  # seconds between two looks whether Redis still answers
INTERVAL: Final = 2.0  # seconds between two looks at all runs, at least
REST: Final = 4.0  # times as long as a look took
RATIOS: Final = {"last": 2, "about": 5}
PLACES: Final = {"start": "0-0", "now": "$"}

app = new_app()

LimitOption = Annotated[
    int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="opt_runs")
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="opt_watch_runs")]


def _now() -> float:
    return time.time()  # noqa: TID251 - the outermost place


@subcommands(app)
async def runs(invocation: Invocation) -> Exit:
    """List the runs, if nothing else is asked for."""
    return await list_runs(invocation)


@command(app, "list")
async def list_runs(
    invocation: Invocation, limit: LimitOption = 100, watch: WatchOption = False
) -> Exit:
    """List the runs, the newest first; 3 if one of them has lost its writer."""
    from bls_agent.ops.cli.live import show_live, wants_live
    from bls_agent.ops.cli.run_rows import is_well
    from bls_agent.runs import EventStore

    async with EventStore(invocation.redis, timeout=10.0) as store:
        if watch and wants_live(invocation.out) and not invocation.json:
            board = _Board(invocation, store, limit)
            await show_live(invocation.out, board.table, board.watch)
            return Exit.DONE
        if watch:
            await _print_changes(invocation, store, limit)
        with invocation.waiting("waiting_redis"):
            found = await store.runs(limit)
    _show(invocation, found)
    return Exit.DONE if all(map(is_well, found)) else Exit.UNHEALTHY


def _show(invocation: Invocation, found: RunList) -> None:
    from bls_agent.ops.cli.run_rows import (
        FIELDS,
        count_runs,
        describe_run,
        run_cells,
        run_fields,
        say_left_out,
    )
    from bls_agent.ops.cli.screen import Column

    out, texts, now = invocation.out, invocation.texts, _now()
    if invocation.json:
        for run in found:
            out.json(describe_run(run))
    else:
        fields = run_fields(out.columns) if out.terminal else list(FIELDS)
        out.table(
            [Column(texts[f"runs_{field}"], 6) for field in fields],
            [run_cells(one, texts, fields, now, people=out.terminal) for one in found],
        )
        if not found.total:
            invocation.hint("no_runs")
        elif out.terminal:
            invocation.hint("plain", text=count_runs(found, texts))
    if found.left_out:
        told = say_left_out(sorted(found.left_out.items()), texts)
        invocation.hint("runs_left_out", told=told)


async def _print_changes(invocation: Invocation, store: EventStore, limit: int) -> None:
    """Print each run that is new or has changed until somebody ends it."""
    from bls_agent.ops.cli.run_rows import FIELDS, describe_run, run_cells

    out, texts = invocation.out, invocation.texts
    known: dict[int, tuple[str, str]] = {}

    def show(found: RunList) -> None:
        for run in reversed(found.runs):
            says = run.state.value, run.last_id
            if known.get(run.run_id) == says:
                continue
            if invocation.json:
                out.json(describe_run(run))
            else:
                cells = run_cells(run, texts, [*FIELDS], _now(), people=out.terminal)
                out.line(*cells, between="  " if out.terminal else "\t")
        known.clear()
        known.update((one.run_id, (one.state.value, one.last_id)) for one in found)

    def away(error: RedisUnavailableError | None) -> None:
        _say_outage(invocation, error)

    await _look_again(store, limit, show, away)


async def _look_again(
    store: EventStore,
    limit: int,
    show: Callable[[RunList], None],
    tell: Callable[[RedisUnavailableError | None], None],
) -> None:
    """Look at all runs again and again; an outage and its end are told once.

    Raises:
        RedisRefusedError: Redis refuses for good.
    """
    import anyio

    from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

    away = False
    while True:
        began = anyio.current_time()
        try:
            found = await store.runs(limit)
        except RedisRefusedError:
            raise
        except RedisUnavailableError as error:
            if not away:
                tell(error)
            away = True
        else:
            if away:
                tell(None)
            away = False
            show(found)
        took = anyio.current_time() - began
        await anyio.sleep(max(INTERVAL, REST * took))


def _say_outage(invocation: Invocation, error: RedisUnavailableError | None) -> None:
    if error is None:
        invocation.hint("back")
    else:
        invocation.warn("away", kind=error.kind)


class _Board:
    """The live table: which runs are known, and how they are drawn."""

    def __init__(self, invocation: Invocation, store: EventStore, limit: int) -> None:
        self._invocation = invocation
        self._store = store
        self._limit = limit
        self._found: RunList | None = None
        self._outage: RedisUnavailableError | None = None

    async def watch(self, redraw: Callable[[], None]) -> None:
        """Look again and again; drawn is once a second, and when something was seen."""

        def show(found: RunList) -> None:
            self._found = found
            redraw()

        def tell(error: RedisUnavailableError | None) -> None:
            self._outage = error
            redraw()

        await _look_again(self._store, self._limit, show, tell)

    def table(self, columns: int, lines: int) -> Table:
        """Make the table for so many columns and lines."""
        from bls_agent.ops.cli.live import AROUND, Heading, live_table
        from bls_agent.ops.cli.run_rows import run_cells, run_fields

        texts, now = self._invocation.texts, _now()
        fields = run_fields(columns)
        runs: list[RunSummary] = [*(self._found or ())]
        room = max(1, lines - AROUND)
        more = (self._found.total if self._found else 0) - min(room, len(runs))
        return live_table(
            (self._head(), "yellow" if self._outage else "dim"),
            [Heading(texts[f"runs_{field}"], RATIOS.get(field)) for field in fields],
            [run_cells(one, texts, fields, now) for one in runs[:room]],
            texts["top_more"].format(count=more) if more > 0 else "",
        )

    def _head(self) -> str:
        from bls_agent.ops.cli.run_rows import count_runs
        from bls_agent.ops.terminal import visible

        if self._outage is not None:
            return self._invocation.say("away", kind=visible(self._outage.kind))
        if self._found is None:
            return self._invocation.say("waiting_redis")
        counted = count_runs(self._found, self._invocation.texts)
        return f"{counted} · {self._invocation.say('top_quit')}"


@command(app, "follow")
async def follow(
    invocation: Invocation,
    run: Annotated[int, typer.Argument(metavar="ID", min=0, help="arg_run")],
    begin: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="opt_from")
    ] = "start",
    raw: Annotated[bool, typer.Option("--raw", help="opt_raw_run")] = False,
) -> Exit:
    """Print the events of a run as they come, until it ends."""
    from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
    from bls_agent.runs import EventStore
    from bls_agent.runs.event_ids import find_id

    if begin not in PLACES and find_id(begin) is None:
        raise Failure("bad_place", Exit.USAGE, place=begin)
    async with EventStore(invocation.redis) as store:
        follower = store.follow(run, PLACES.get(begin, begin))
        try:
            if not await store.exists(run):
                invocation.hint("waiting_run", run=run)
        except RedisRefusedError:
            raise
        except RedisUnavailableError as error:
            if begin == "now":  # nobody knows where that is
                raise
            _say_outage(invocation, error)
            await _print_run(invocation, follower, _Printer(invocation, raw=raw), error)
        else:
            await _print_run(invocation, follower, _Printer(invocation, raw=raw))
    return Exit.DONE


async def _print_run(
    invocation: Invocation,
    follower: Follower,
    printer: _Printer,
    outage: RedisUnavailableError | None = None,
) -> None:
    """Print what comes; an outage and its end are told once."""
    from bls_agent.runs import FollowEnd

    while True:
        found = await follower.batch(LOOK)
        if (follower.unavailable is None) != (outage is None):
            outage = follower.unavailable
            printer.end_line()
            _say_outage(invocation, outage)
        for one in found:
            printer.write(one)
        if follower.ended and not found:
            printer.end_line()
            is_gone = follower.end is FollowEnd.GONE
            invocation.hint("run_gone" if is_gone else "run_closed")
            return


class _Printer:
    """Writes what happens in the way that the reader can use."""

    def __init__(self, invocation: Invocation, *, raw: bool) -> None:
        self._invocation = invocation
        self._joins = invocation.out.terminal and not (raw or invocation.json)
        self._speaker: object = None  # whose text is being written
        self._fresh = True  # at the beginning of a line

    def write(self, one: Followed) -> None:
        from bls_agent.ops.cli.run_lines import for_people, for_pipe, text_of
        from bls_agent.runs import Gap, StreamEvent

        out, texts = self._invocation.out, self._invocation.texts
        event = one if isinstance(one, StreamEvent) else None
        text = text_of(event) if event is not None and self._joins else None
        if event is not None and text is not None:
            self._speak(event, text)
            return
        self.end_line()
        if self._invocation.json:
            name = "gap" if isinstance(one, Gap) else "writer_lost"
            out.json(event.to_dict() if event else {name: one.to_dict()})
        elif out.terminal:
            out.line(*for_people(one, texts))
        else:
            out.line(*for_pipe(one), between="\t")

    def _speak(self, event: StreamEvent, text: str) -> None:
        """Go on with somebody's text, or begin it below a line that says whose it is."""
        from bls_agent.ops.cli.run_lines import for_people, text_lines

        out = self._invocation.out
        speaker = tuple(sorted((event.source or {}).items()))
        if self._speaker != speaker:
            self.end_line()
            out.line(*for_people(event, self._invocation.texts, data=False))
            self._speaker = speaker
        if text:
            out.draw(text_lines(text))
            self._fresh = text.endswith("\n")

    def end_line(self) -> None:
        """Let nothing else stand behind somebody's text."""
        if not self._fresh:
            self._invocation.out.draw("\n")
        self._speaker, self._fresh = None, True
