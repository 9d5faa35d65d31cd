"""``bls-agent withdraw``: take a command back before an agent takes it."""

from __future__ import annotations

from typing import Annotated

import typer

from bls_agent.ops.cli.command import command, new_app
from bls_agent.ops.cli.exits import Exit, Failure
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.naming import ProjectArgument, normalise
from bls_agent.ops.cli.sending import describe_command

__all__ = ["withdraw"]

app = new_app()


@command(app, "withdraw")
async def withdraw(
    invocation: Invocation,
    project: ProjectArgument,
    number: Annotated[str, typer.Argument(metavar="ID", help="arg_command_id")],
) -> Exit:
    """Take it out of the queue; exit code 1 if it does not wait there any more."""
    project = normalise(invocation, project)
    async with invocation.console() as console:
        with invocation.waiting("waiting_redis"):
            found = await console.withdraw(project, number)
    if found is None:
        raise Failure("not_waiting", id=number, project=project)
    said = invocation.say(
        "withdrawn", command=found.command, id=number, project=project
    )
    invocation.result(
        {"projectName": project, **describe_command(found, console)}, said
    )
    return Exit.DONE
