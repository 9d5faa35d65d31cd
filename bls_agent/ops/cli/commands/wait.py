"""``bls-agent wait``: the outcome of a command that was sent before."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from bls_agent.ops.cli.command import command, new_app
from bls_agent.ops.cli.commands.call import no_outcome, show_outcome
from bls_agent.ops.cli.exits import Exit
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.naming import ProjectArgument, normalise

__all__ = ["wait"]

NEWEST: Final = 10_000  # records in which an outcome is looked for that is there

app = new_app()


@command(app, "wait")
async def wait(
    invocation: Invocation,
    project: ProjectArgument,
    id: Annotated[str, typer.Argument(metavar="ID", help="arg_id")],  # noqa: A002 - the contract's name
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", metavar="SECONDS", help="opt_timeout")
    ] = 60.0,
) -> Exit:
    """Print the outcome; 0 if the command succeeded, else 1."""
    import anyio

    from bls_agent.core.errors import NoOutcomeError
    from bls_agent.core.settings import check_seconds

    seconds = check_seconds("timeout", timeout)
    project = normalise(invocation, project)
    with invocation.waiting("waiting_outcome", seconds=f"{seconds:g}"):
        async with invocation.console() as console:
            await console.status(project)  # an outage now is no reason to wait
            with anyio.move_on_after(seconds):
                async for entry in console.follow_logs(project, last=NEWEST):
                    outcome = entry.outcome
                    if outcome is not None and outcome.command_id == id:
                        show_outcome(invocation, outcome)
                        return Exit.DONE if outcome.succeeded else Exit.FAILED
    raise no_outcome(invocation, project, NoOutcomeError("", id, seconds), seconds)
