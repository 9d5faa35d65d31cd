"""``bls-agent send``: put a command into a project's control list."""

from __future__ import annotations

from typing import Annotated

import typer

from bls_agent.cli.command import command, new_app
from bls_agent.cli.exits import Exit
from bls_agent.cli.invocation import Invocation
from bls_agent.cli.naming import ProjectArgument, normalise
from bls_agent.cli.sending import (
    ArgOption,
    ArgsFileOption,
    CommandArgument,
    ForceOption,
    JsonArgsOption,
    NoRecordOption,
    gather_args,
    recording,
    refuse_unseen,
)

__all__ = ["send"]

app = new_app()


@command(app, "send")
async def send(
    invocation: Invocation,
    project: ProjectArgument,
    name: CommandArgument,
    arg: ArgOption = None,
    json_args: JsonArgsOption = None,
    args_file: ArgsFileOption = "",
    id: Annotated[str, typer.Option("--id", metavar="ID", help="opt_id")] = "",  # noqa: A002 - the contract's name
    broadcast: Annotated[
        bool, typer.Option("--broadcast", help="opt_broadcast")
    ] = False,
    no_record: NoRecordOption = False,
    force: ForceOption = False,
) -> Exit:
    """Send and go: nobody waits for the outcome."""
    args = gather_args(arg or (), json_args, args_file)
    project = normalise(invocation, project)
    async with invocation.console() as console:
        with invocation.waiting("waiting_redis"):
            if not force:
                await refuse_unseen(console, project, name)
            with recording(project, record=not no_record) as who:
                sent = await console.send(
                    project,
                    name,
                    args,
                    id=id or None,
                    broadcast=broadcast,
                    sent_by=who,
                )
    told = {"projectName": project, "id": sent.id, "command": name, "args": sent.args}
    if not invocation.out.terminal:
        invocation.result(told, sent.id)
        return Exit.DONE
    said = invocation.say("sent", command=name, project=project, id=sent.id)
    invocation.result(told, said)
    return Exit.DONE
