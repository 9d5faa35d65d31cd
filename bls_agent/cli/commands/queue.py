"""``bls-agent queue``: the commands that wait for a project; take one of them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bls_agent.cli.command import command, new_app
from bls_agent.cli.exits import Exit, Failure
from bls_agent.cli.invocation import Invocation
from bls_agent.cli.naming import ProjectArgument, hint_likely, normalise
from bls_agent.cli.printable import json_text
from bls_agent.cli.screen import Column

if TYPE_CHECKING:
    from bls_agent.console import Console
    from bls_agent.project.messages import Command

__all__ = ["queue"]

app = new_app()


@command(app, "queue")
async def queue(
    invocation: Invocation,
    project: ProjectArgument,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="opt_queue_limit")
    ] = 200,
    withdraw: Annotated[
        str, typer.Option("--withdraw", metavar="ID", help="opt_withdraw")
    ] = "",
) -> Exit:
    """List what waits, the next one first; with --withdraw take one back."""
    project = normalise(invocation, project)
    async with invocation.console() as console:
        with invocation.waiting("waiting_redis"):
            if withdraw:
                return await _withdraw(invocation, console, project, withdraw)
            waiting = await console.queue(project, limit)
            if not waiting:
                await hint_likely(invocation, console, project)
    if invocation.json:
        for one in waiting:
            invocation.out.json(_describe(one))
        return Exit.DONE
    texts = invocation.texts
    names = ("time", "id", "command", "args", "source")
    rows = [[_cell(_describe(one)[name]) for name in _FIELDS] for one in waiting]
    invocation.out.table([Column(texts[f"queue_{name}"], 8) for name in names], rows)
    if not waiting:
        invocation.hint("nothing_waits", project=project)
    return Exit.DONE


_FIELDS = ("timestamp", "id", "command", "args", "source")


async def _withdraw(
    invocation: Invocation, console: Console, project: str, number: str
) -> Exit:
    withdrawn = await console.withdraw(project, number)
    if withdrawn is None:
        raise Failure("not_waiting", id=number, project=project)
    said = invocation.say(
        "withdrawn", command=withdrawn.command, id=number, project=project
    )
    invocation.result({"projectName": project, **_describe(withdrawn)}, said)
    return Exit.DONE


def _describe(one: Command) -> dict[str, Any]:
    """Give the fields of a command, without the secrets in its arguments."""
    from bls_agent.redaction import DEFAULT

    return {
        "id": one.id,
        "timestamp": one.timestamp,
        "source": one.source,
        "command": one.command,
        "args": DEFAULT.tree(one.args),
    }


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)
