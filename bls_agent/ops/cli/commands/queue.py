"""``bls-agent queue``: the commands that wait for a project."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from bls_agent.ops.cli.command import command, new_app
from bls_agent.ops.cli.exits import Exit
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.naming import ProjectArgument, hint_likely, normalise
from bls_agent.ops.cli.printable import json_text
from bls_agent.ops.cli.screen import Column
from bls_agent.ops.cli.sending import describe_command

__all__ = ["queue"]

app = new_app()


@command(app, "queue")
async def queue(
    invocation: Invocation,
    project: ProjectArgument,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="opt_queue_limit")
    ] = 200,
) -> Exit:
    """List what waits, the next one first."""
    project = normalise(invocation, project)
    async with invocation.console() as console:
        with invocation.waiting("waiting_redis"):
            waiting = await console.queue(project, limit)
            if not waiting:
                await hint_likely(invocation, console, project)
    told = [describe_command(one, console) for one in waiting]
    if invocation.json:
        for one in told:
            invocation.out.json(one)
        return Exit.DONE
    texts = invocation.texts
    names = ("time", "id", "command", "args", "source")
    rows = [[_cell(one[name]) for name in _FIELDS] for one in told]
    invocation.out.table([Column(texts[f"queue_{name}"], 8) for name in names], rows)
    if not waiting:
        invocation.hint("nothing_waits", project=project)
    return Exit.DONE


_FIELDS: Final = ("timestamp", "id", "command", "args", "source")


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)
