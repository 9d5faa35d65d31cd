"""Events of a run per second: ``add_many`` and ``emit`` beside a bare pipeline of XADD."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from typing import Any, Final

from benchmarks.figures.figure import Figure
from benchmarks.stage import BenchmarkError, Performance, Stage
from benchmarks.summary import Goal, Round
from bls_agent.core.keys import RUN_EVENTS

__all__ = ["FIGURE", "new_run", "remove_run"]

ADD_MANY, EMIT, BARE = "add_many", "emit, then flush", "bare pipeline"
RATE: Final = "events/s"
SUBJECTS: Final = {
    ADD_MANY: ("run_writer", {"way": "add_many"}),
    EMIT: ("run_writer", {"way": "emit"}),
    BARE: ("run_writer_bare", {}),
}
COUNT: Final = 5_000  # events at once: they fit into the default buffer
BATCH: Final = 500  # of the bare pipeline, as ours


def new_run() -> int:
    """Make up the id of a run that nobody has."""
    return secrets.randbelow(2**62)


def remove_run(stage: Stage, run_id: int) -> None:
    """Remove the events of a run; its books expire by themselves."""
    stage.redis.unlink(RUN_EVENTS.build(run_id=run_id))


def play(stage: Stage) -> Round:
    """Let all three write the same events, wave by wave in turn."""
    waves = 1 if stage.quick else 8
    runs = {name: new_run() for name in SUBJECTS}
    with ExitStack() as stack:
        performances: dict[str, Performance] = {}
        for name, (subject, told) in SUBJECTS.items():
            performances[name] = stack.enter_context(
                stage.perform(
                    subject, run=runs[name], count=COUNT, waves=waves,
                    batch=BATCH, **told,
                )
            )  # fmt: skip
            performances[name].hear("ready")
        for _ in range(waves):
            for performance in performances.values():
                performance.take_turn()
        seconds = {name: one.result()["seconds"] for name, one in performances.items()}
        for run_id in runs.values():
            check_run(stage, run_id, waves * COUNT)
            remove_run(stage, run_id)
    return {name: {RATE: waves * COUNT / each} for name, each in seconds.items()}


def check_run(stage: Stage, run_id: int, expected: int) -> None:
    """Make sure that all events were written: the last one has the last number.

    Raises:
        BenchmarkError: Some are missing.
    """
    found: Any = stage.redis.xrevrange(RUN_EVENTS.build(run_id=run_id), count=1)
    last = int(found[0][1][b"sequence"]) if found else 0
    if last < expected:
        message = f"the last event is number {last:,} instead of {expected:,}"
        raise BenchmarkError(message)


FIGURE = Figure(
    name="runs-writing",
    title="Events of a run written per second",
    about=(
        f"{COUNT:,} events of about 300 bytes, 8 times: as `NewEvent`s to "
        "`EventStore.add_many`; to `RunWriter.emit` one by one, and then "
        "`flush` until the last one is in Redis; and by a bare pipeline of redis-py, "
        f"{BATCH} in a write, each an `XADD` with `MAXLEN ~ 10000` of fields that were "
        "prepared before: it checks nothing, encodes nothing, counts no sequence, and "
        "would not notice that a batch whose answer was lost is there already."
    ),
    rounds=5,
    play=play,
    goals=(
        Goal("events/s with `add_many`", ADD_MANY, RATE, "at least", 0.8, (BARE,)),
        Goal("events/s with `emit`", EMIT, RATE, "at least", 0.8, (BARE,)),
    ),
)
