"""``bls-agent send``: put a command into a project's control list."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from bls_agent.ops.cli.command import command, new_app
from bls_agent.ops.cli.exits import Exit
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.naming import ProjectArgument, normalise
from bls_agent.ops.cli.sending import (
    SOURCE,
    ArgOption,
    ArgsFileOption,
    CommandArgument,
    ForceOption,
    JsonArgsOption,
    RecordOption,
    TextOption,
    gather_args,
    refusing_unseen,
)

if TYPE_CHECKING:
    from bls_agent.console import Console

__all__ = ["send"]

app = new_app()


@command(app, "send")
async def send(
    invocation: Invocation,
    project: ProjectArgument,
    name: CommandArgument,
    arg: ArgOption = None,
    string: TextOption = None,
    json_args: JsonArgsOption = None,
    args_file: ArgsFileOption = "",
    id: Annotated[str, typer.Option("--id", metavar="ID", help="opt_id")] = "",  # noqa: A002 - the contract's name
    broadcast: Annotated[
        bool, typer.Option("--broadcast", help="opt_broadcast")
    ] = False,
    record: RecordOption = False,
    force: ForceOption = False,
) -> Exit:
    """Send and go: nobody waits for the outcome."""
    args = gather_args(arg or (), json_args, args_file, string or ())
    project = normalise(invocation, project)
    async with invocation.console() as console:
        with invocation.waiting("waiting_redis"):
            async with refusing_unseen(console):
                sent = await console.send(
                    project,
                    name,
                    args,
                    id=id or None,
                    broadcast=broadcast,
                    create=force,
                    record=record,
                    source=SOURCE,
                )
            await _hint_offline(invocation, console, project)
    told = {"projectName": project, "id": sent.id, "command": name, "args": sent.args}
    if not invocation.out.terminal:
        invocation.result(told, sent.id)
        return Exit.DONE
    said = invocation.say("sent", command=name, project=project, id=sent.id)
    invocation.result(told, said)
    return Exit.DONE


async def _hint_offline(invocation: Invocation, console: Console, project: str) -> None:
    """Say that nobody runs the command now."""
    from bls_agent.core.errors import BlsError
    from bls_agent.project.messages import Status

    with suppress(BlsError):  # it is sent, and nobody may know more
        if await console.status(project) in (None, Status.OFFLINE):
            invocation.hint("sent_offline", project=project)
