"""``bls-agent queue``, ``withdraw``, ``requeue``, ``discard``."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from typer import Argument, Option

from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import (
    Exit,
    Failure,
    failure_in,
    hint_likely,
    normalise,
)
from bls_agent.ops.cli.options import ProjectArgument
from bls_agent.ops.cli.output import Invocation
from bls_agent.ops.cli.tables import Layout, Table
from bls_agent.ops.terminal import json_text

# The fields of a command, in a row and in JSON.
FIELDS: Final[dict[str, int]] = dict.fromkeys(
    ("time", "id", "command", "args", "source"), 0
)
QUEUE: Final = Layout("queue", FIELDS)
IN_HAND: Final = Layout("queue", {"instance": 0, "alive": 0} | FIELDS)


@command("queue")
async def queue(
    invocation: Invocation,
    project: ProjectArgument,
    limit: Annotated[int, Option("--limit", "-n", metavar="N", min=1)] = 200,
    *,
    dead: bool = False,
    in_hand: bool = False,
) -> Exit:
    """List the waiting commands, dead letters, or commands that a process has taken."""
    if dead and in_hand:
        raise Failure("queue_which", Exit.USAGE)
    project = normalise(invocation, project)
    records: list[dict[str, Any]] = []
    async with invocation.console() as console:
        redactor = console.redactor
        with invocation.waiting("waiting_redis"):
            if in_hand:
                for one in await console.in_hand(project, limit):
                    process = {"instance": one.instance, "alive": one.alive}
                    records += (process | c.describe(redactor) for c in one.commands)
            else:
                read = console.dead_letters if dead else console.queue
                records += (c.describe(redactor) for c in await read(project, limit))
            if not records:
                await hint_likely(invocation, console, project)
    empty = (
        "nothing_dead" if dead else "nothing_in_hand" if in_hand else "nothing_waits"
    )
    layout = IN_HAND if in_hand else QUEUE
    table = Table(invocation, layout, dict, _cells, records)
    table.write(empty=empty, project=project)
    return Exit.DONE


def _cells(record: dict[str, Any]) -> dict[str, str]:
    values = record | {"time": record["timestamp"]}
    return {
        name: value if isinstance(value, str) else json_text(value)
        for name, value in values.items()
    }


@command("withdraw")
async def withdraw(
    invocation: Invocation,
    project: ProjectArgument,
    number: Annotated[str, Argument(metavar="ID")],
) -> Exit:
    """Remove a command from the queue; exit 1 if the command no longer waits."""
    project = normalise(invocation, project)
    async with invocation.console() as console:
        with invocation.waiting("waiting_redis"):
            found = await console.withdraw(project, number)
            if found is None:
                raise await failure_in(console, project, "not_waiting", number)
    sentence = invocation.say(
        "withdrawn", command=found.command, id=number, project=project
    )
    record = {"projectName": project, **found.describe(console.redactor)}
    invocation.record(record, sentence)
    return Exit.DONE


_LetterArgument = Annotated[str, Argument(metavar="ID")]


@command("requeue")
async def requeue(
    invocation: Invocation,
    project: ProjectArgument,
    letter: _LetterArgument = "",
    *,
    all: bool = False,  # noqa: A002 - the option's name
    no_record: bool = False,
) -> Exit:
    return await _settle(
        invocation, project, letter, "requeue", every=all, record=not no_record
    )


@command("discard")
async def discard(
    invocation: Invocation,
    project: ProjectArgument,
    letter: _LetterArgument = "",
    *,
    all: bool = False,  # noqa: A002 - the option's name
    no_record: bool = False,
) -> Exit:
    return await _settle(
        invocation, project, letter, "discard", every=all, record=not no_record
    )


async def _settle(
    invocation: Invocation,
    project: str,
    letter: str,
    how: Literal["requeue", "discard"],
    *,
    every: bool,
    record: bool,
) -> Exit:
    """Queue dead letters again or discard them; exit 1 if there are none."""
    if bool(letter) == every:
        raise Failure("letter_which", Exit.USAGE, hint="hint_letters")
    project = normalise(invocation, project)
    async with invocation.console() as console:
        settle = console.requeue if how == "requeue" else console.discard
        with invocation.waiting("waiting_redis"):
            settled = await settle(project, letter or None, all=every, record=record)
            if not settled:
                text = "nothing_dead" if every else "not_dead"
                raise await failure_in(console, project, text, letter)
    records = [one.describe(console.redactor) for one in settled]
    Table(invocation, QUEUE, dict, _cells, records).write()
    done = "requeued" if how == "requeue" else "discarded"
    invocation.hint(done, count=len(settled))
    return Exit.DONE
