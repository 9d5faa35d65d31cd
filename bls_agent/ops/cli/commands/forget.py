"""``bls-agent forget``: delete every key of a project that is not there any more."""

from __future__ import annotations

from typing import Annotated

import typer

from bls_agent.ops.cli.command import command, new_app
from bls_agent.ops.cli.exits import Exit, Failure
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.naming import ProjectArgument, normalise, unknown_project

__all__ = ["forget"]

app = new_app()


@command(app, "forget")
async def forget(
    invocation: Invocation,
    project: ProjectArgument,
    force: Annotated[bool, typer.Option("--force", help="opt_forget_force")] = False,
) -> Exit:
    """Delete status, log, waiting commands, and our own keys beside them."""
    from bls_agent.core.errors import LeaseHeldError

    project = normalise(invocation, project)
    async with invocation.console() as console:
        with invocation.waiting("waiting_redis"):
            try:
                deleted = await console.forget(project, force=force)
            except LeaseHeldError as error:
                raise Failure(
                    "still_online", hint="hint_still_online", project=project
                ) from error
            if not deleted:
                raise await unknown_project(console, project)
    if invocation.json:
        invocation.out.json({"projectName": project, "deleted": deleted})
        return Exit.DONE
    for key in deleted:
        invocation.out.line(key)
    invocation.hint("forgotten", count=len(deleted), project=project)
    return Exit.DONE
