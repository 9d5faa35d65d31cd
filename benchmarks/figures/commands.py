"""Commands per second: an agent beside a bare BLPOP loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from benchmarks.figures.figure import Figure
from benchmarks.stage import BenchmarkError, Stage
from benchmarks.summary import Goal, Round
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE

__all__ = ["FIGURE", "Parts", "check_outcomes", "make_commands", "take_turns"]

RATE = "commands/s"
PIECES, COUNT = 6, 1_500  # the console list holds all of their outcomes
ONE, EIGHT = "bls-agent, prefetch=1", "bls-agent, prefetch=8"
RELIABLE, RELIABLE_EIGHT, RELIABLE_MANY = (
    f"bls-agent, reliable, prefetch={number}" for number in (1, 8, 32)
)
BARE, BARE_WITH_OUTCOMES = "bare loop", "bare loop with outcome records"


def make_commands(count: int) -> list[bytes]:
    """Give commands that do nothing, as a console writes them."""
    return [
        json.dumps(
            {
                "id": f"cmd-{number}",
                "timestamp": "2026-01-12T12:35:00.000Z",
                "source": "BLS Project Console",
                "command": "nothing",
            }
        ).encode()
        for number in range(count)
    ]


def check_outcomes(stage: Stage, project: str, count: int) -> None:
    """Make sure that each command has its outcome record in Redis.

    Raises:
        BenchmarkError: It has not; the run does not count.
    """
    found = {
        metadata["commandId"]
        for record in stage.records(project)
        if (metadata := json.loads(record).get("metadata", {})).get("outcome")
        == "succeeded"
    }
    if len(found) != count:
        message = f"{len(found)} outcome records for {count} commands"
        raise BenchmarkError(message)


Parts = Mapping[str, tuple[str, dict[str, Any]]]  # name → subject and its options


def play(stage: Stage) -> Round:
    """Let the subjects empty their lists in turn, piece by piece."""
    parts: Parts = {
        ONE: ("commands_agent", {"prefetch": 1}),
        BARE: ("commands_bare", {"outcomes": False}),
        EIGHT: ("commands_agent", {"prefetch": 8}),
        RELIABLE: ("commands_agent", {"prefetch": 1, "mode": "reliable"}),
        RELIABLE_EIGHT: ("commands_agent", {"prefetch": 8, "mode": "reliable"}),
        RELIABLE_MANY: ("commands_agent", {"prefetch": 32, "mode": "reliable"}),
        BARE_WITH_OUTCOMES: ("commands_bare", {"outcomes": True}),
    }
    return {
        name: {RATE: each["count"] / each["seconds"]}
        for name, each in take_turns(stage, parts).items()
    }


def take_turns(stage: Stage, parts: Parts, pieces: int = PIECES) -> Round:
    """Give each subject its commands in turn; return what each has measured."""
    pieces, count = (1, 1_000) if stage.quick else (pieces, COUNT)
    commands = make_commands(count * pieces)
    with ExitStack() as stack:
        projects = {name: stack.enter_context(stage.project()) for name in parts}
        subjects = {
            name: stack.enter_context(
                stage.perform(
                    subject,
                    project=projects[name],
                    control=CONTROL.build(project=projects[name]),
                    console=PROJECT_CONSOLE.build(project=projects[name]),
                    pieces=pieces,
                    count=count,
                    **options,
                )
            )
            for name, (subject, options) in parts.items()
        }
        for subject in subjects.values():
            subject.hear("ready")
        for start in range(0, len(commands), count):
            for name, subject in subjects.items():
                stage.push(projects[name], commands[start : start + count])
                subject.take_turn()
        measured = {name: each.result() for name, each in subjects.items()}
        for name in set(parts) - {BARE}:
            check_outcomes(stage, projects[name], len(commands))
    return {name: {**each, "count": len(commands)} for name, each in measured.items()}


FIGURE = Figure(
    name="commands",
    title="Commands per second",
    about=(
        f"{COUNT:,} commands without arguments come into the list with one `RPUSH`, to "
        f"each of the seven in turn, {PIECES} times; the handler is an async function that "
        "returns at once. The clock runs from the first handler until, for the agent, the "
        "last outcome record is in Redis. The bare loop is `BLPOP`, "
        "`orjson.loads`, a dictionary of handlers; it reports nothing, except in the "
        "last row, where it writes the same outcome records one by one. Mode `reliable` "
        "acknowledges each command on top, with the request that takes the next ones."
    ),
    rounds=5,
    play=play,
    goals=(
        Goal("commands/s at `prefetch=1`", ONE, RATE, "at least", 0.85, (BARE,)),
        Goal("commands/s at `prefetch=8`", EIGHT, RATE, "at least", 2.8, (BARE,)),
        Goal("`reliable` at `prefetch=1`", RELIABLE, RATE, "at least", 0.55, (BARE,)),
        Goal(
            "`reliable` at `prefetch=8`", RELIABLE_EIGHT, RATE, "at least", 1.8, (BARE,)
        ),
        Goal(
            "`reliable` at `prefetch=32`", RELIABLE_MANY, RATE, "at least", 2.3, (BARE,)
        ),
    ),
)
