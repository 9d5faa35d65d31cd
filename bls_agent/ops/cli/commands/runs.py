"""``bls-agent runs``: list runs, and follow the events of one run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final

from typer import Argument, Option

from bls_agent.core.codec import cut_text, format_timestamp
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit, Failure
from bls_agent.ops.cli.options import LimitOption, WatchOption
from bls_agent.ops.cli.output import Invocation, span, unix_now
from bls_agent.ops.cli.tables import Layout, Table, wants_live
from bls_agent.ops.terminal import Cell, clock_of, json_text, visible_lines
from bls_agent.ops.texts import Texts
from bls_agent.runs import (
    EventStore,
    Followed,
    FollowEnd,
    Follower,
    Gap,
    RunList,
    RunState,
    RunSummary,
    StreamEvent,
)
from bls_agent.runs.events import find_id

LOOK: Final = 1.0  # seconds between two checks whether Redis still answers
PLACES: Final = {"start": "0-0", "now": "$"}
RUNS: Final = Layout(
    "runs",
    {
        "id": 0,
        "state": 0,
        "events": 40,
        "age": 0,
        "started": 90,
        "ttl": 100,
        "last": 70,
        "about": 60,
    },
)
STATE_STYLES: Final = {
    RunState.RUNNING: "green",
    RunState.OPEN: "cyan",
    RunState.LOST: "bold yellow",
    RunState.COMPLETED: "",
    RunState.FAILED: "bold red",
    RunState.CANCELLED: "dim",
    RunState.CLOSED: "dim",
}
LONGEST: Final = 200  # bytes of a run's task, error or last event, at a terminal
LATEST: Final = 253_402_300_800.0  # the year 10,000, because datetime ends in 9999
LONGEST_DATA: Final = 400  # bytes of an event's data at a terminal
LONGEST_NAME: Final = 60
TEXT_FIELDS: Final = ("content", "delta", "text", "token", "chunk")
EVENT_STYLES: Final = {
    "lifecycle": "cyan",
    "llm": "magenta",
    "dispatch": "blue",
    "agent": "green",
    "system": "dim",
}
BAD: Final = frozenset({"failed", "error"})


@command("runs list", default=True)
async def list_runs(
    invocation: Invocation,
    limit: LimitOption = 100,
    watch: WatchOption = False,
) -> Exit:
    """List the runs, the newest first; exit 3 if a run has lost its writer."""
    texts, people = invocation.texts, invocation.out.terminal
    order = -1 if watch and not wants_live(invocation) else 1

    def cells(run: RunSummary) -> Mapping[str, Cell]:
        return run_cells(run, texts, unix_now(), people=people)

    def fill(found: RunList) -> None:
        more = found.total - len(found)
        table.fill(found.runs[::order], count_runs(found, texts), more)

    table = Table[RunSummary](invocation, RUNS, _describe_run, cells)
    async with EventStore(invocation.redis, timeout=10.0) as store:
        if watch:
            look = partial(store.runs, limit)
            await table.watch(
                look, fill, lambda run: (run.run_id, (run.state, run.last_id))
            )
            return Exit.DONE
        with invocation.waiting("waiting_redis"):
            found = await store.runs(limit)
    fill(found)
    table.write(empty="" if found.total else "no_runs")
    if found.left_out:
        counts = ", ".join(
            texts[f"runs_left_out_{why}"].format(count=count)
            for why, count in sorted(found.left_out.items())
        )
        invocation.hint("runs_left_out", told=counts)
    return Exit.DONE if all(map(is_well, found)) else Exit.UNHEALTHY


def is_well(run: RunSummary) -> bool:
    """Return whether the writer of a run is alive, or has ended the run."""
    return run.state is not RunState.LOST


def run_cells(
    run: RunSummary, texts: Texts, now: float, *, people: bool = True
) -> Mapping[str, Cell]:
    """Return the cells of a run; for people, in their language and shortened."""
    state, style = run.state, STATE_STYLES[run.state]
    shown = texts[f"run_state_{state.value}"] if people else state.value
    about = (
        f"{run.task}: {run.error}" if run.task and run.error else run.error or run.task
    )
    started, last = _known(run.started_at), _known(run.last_at)
    age, begun = _stamp(last), _stamp(started)
    if people and last is not None:
        age = span(now - last)
    if people and started is not None:
        begun = clock_of(begun)
    return {
        "id": str(run.run_id),
        "state": (shown, style) if style else shown,
        "events": str(run.length),
        "age": age,
        "started": begun,
        "ttl": span(run.ttl) if people or run.ttl is None else f"{run.ttl:.0f}",
        "last": cut_text(run.last, LONGEST) if people else run.last,
        "about": cut_text(about, LONGEST) if people else about,
    }


def _known(at: float | None) -> float | None:
    return None if at is None or at >= LATEST else at


def _stamp(at: float | None) -> str:
    return "-" if at is None else format_timestamp(at)


def _describe_run(run: RunSummary) -> dict[str, Any]:
    return {**run.to_dict(), "healthy": is_well(run)}


def count_runs(found: RunList, texts: Texts) -> str:
    states = [run.state for run in found]
    summary = texts["runs_summary"].format(
        count=found.total,
        running=states.count(RunState.RUNNING),
        lost=states.count(RunState.LOST),
        failed=states.count(RunState.FAILED),
    )
    more = found.total - len(found)
    return (
        f"{summary} · {texts['runs_more'].format(count=more)}" if more > 0 else summary
    )


@command("runs follow")
async def follow(
    invocation: Invocation,
    run: Annotated[int, Argument(metavar="ID", min=0)],
    begin: Annotated[str, Option("--from", metavar="PLACE")] = "start",
    *,
    raw: bool = False,
) -> Exit:
    """Print the events of a run as they arrive, until the run ends."""
    if begin not in PLACES and find_id(begin) is None:
        raise Failure("bad_place", Exit.USAGE, place=begin)
    async with EventStore(invocation.redis) as store:
        follower = store.follow(run, PLACES.get(begin, begin))
        try:
            if not await store.exists(run):
                invocation.hint("waiting_run", run=run)
        except RedisUnavailableError as error:
            # Only "now" needs Redis at once. From any other position, the follower waits.
            if begin == "now" or isinstance(error, RedisRefusedError):
                raise
        await _print_run(invocation, follower, raw=raw)
    return Exit.DONE


async def _print_run(invocation: Invocation, follower: Follower, *, raw: bool) -> None:
    """Print events as they arrive; report an outage once, and its end once."""
    printer = _Printer(invocation, raw=raw)
    outage: RedisUnavailableError | None = None
    while True:
        found = await follower.batch(LOOK)
        if (follower.unavailable is None) != (outage is None):
            outage = follower.unavailable
            printer.end_line()
            invocation.tell_outage(outage)
        for one in found:
            printer.write(one)
        if follower.ended and not found:
            printer.end_line()
            has_vanished = follower.end is FollowEnd.GONE
            invocation.hint("run_gone" if has_vanished else "run_closed")
            return


class _Printer:
    def __init__(self, invocation: Invocation, *, raw: bool) -> None:
        self._invocation = invocation
        self._joins = invocation.out.terminal and not (raw or invocation.json)
        self._source: object = (
            None  # source of the streamed text that is continued; None if there is none
        )
        self._fresh = True  # whether the cursor is at the beginning of a line

    def write(self, one: Followed) -> None:
        out, texts = self._invocation.out, self._invocation.texts
        event = one if isinstance(one, StreamEvent) else None
        text = text_of(event) if event is not None and self._joins else None
        if event is not None and text is not None:
            self._continue_text(event, text)
            return
        self.end_line()
        if self._invocation.json:
            name = "gap" if isinstance(one, Gap) else "writer_lost"
            out.json(event.to_dict() if event else {name: one.to_dict()})
        elif out.terminal:
            out.line(*for_people(one, texts))
        else:
            out.fields(*for_pipe(one))

    def _continue_text(self, event: StreamEvent, text: str) -> None:
        """Append to the text of a source; begin a new source with a line for its name."""
        out = self._invocation.out
        source = tuple(sorted((event.source or {}).items()))
        if self._source != source:
            self.end_line()
            out.line(*for_people(event, self._invocation.texts, data=False))
            self._source = source
        if text:
            out.draw(visible_lines(text))
            self._fresh = text.endswith("\n")

    def end_line(self) -> None:
        if not self._fresh:
            self._invocation.out.draw("\n")
        self._source, self._fresh = None, True


def text_of(event: StreamEvent) -> str | None:
    """Return the text that a language model streamed; ``None`` for other events."""
    if event.name != "llm.stream":
        return None
    values = (event.data.get(name) for name in TEXT_FIELDS)
    return next((text for text in values if isinstance(text, str)), None)


def _source_of(event: StreamEvent) -> str:
    source = event.source or {}
    names = ("agent_name", "agent_id", "agent_type", "team_name")
    return next((source[name] for name in names if source.get(name)), "")


def for_people(one: Followed, texts: Texts, *, data: bool = True) -> list[Cell]:
    """Format an item of a follower as one line for a terminal."""
    if isinstance(one, StreamEvent):
        return _event_line(one, data=data)
    if isinstance(one, Gap):
        name = "run_gap" if one.missing is None else "run_gap_counted"
        why = texts[f"run_gap_{one.reason.value}"]
        sentence = texts[name].format(count=one.missing, why=why)
    else:
        sentence = texts["run_writer_lost"]
    return [(f"── {sentence} ──", "yellow")]


def _event_line(event: StreamEvent, *, data: bool) -> list[Cell]:
    bad = event.action in BAD
    style = "bold red" if bad else EVENT_STYLES.get(event.category, "")
    line: list[Cell] = [
        (clock_of(event.timestamp, "%H:%M:%S.%f", 12), "dim"),
        f" {event.sequence:>4} ",
        (cut_text(event.name, LONGEST_NAME), style),
    ]
    if source := _source_of(event):
        line += [" ", (cut_text(source, LONGEST_NAME), "bold")]
    if data and event.data:
        line += ["  ", (cut_text(json_text(event.data), LONGEST_DATA), "dim")]
    if event.faults:
        line += ["  ", (f"({', '.join(event.faults)}?)", "yellow")]
    return line


def for_pipe(one: Followed) -> list[Cell]:
    """Format an item for a pipe: id, time, number, source, name, data, all in full."""
    if isinstance(one, StreamEvent):
        number = str(one.sequence)
        data = json_text(one.data)
        return [one.id, one.timestamp or "-", number, _source_of(one), one.name, data]
    name = "gap" if isinstance(one, Gap) else "writer_lost"
    return [one.after, "-", "-", "", name, json_text(one.to_dict())]
