"""``bls-agent call``: send a command and wait for its outcome."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bls_agent.cli.command import command, new_app
from bls_agent.cli.exits import Exit
from bls_agent.cli.invocation import Invocation
from bls_agent.cli.naming import ProjectArgument, normalise
from bls_agent.cli.printable import json_text
from bls_agent.cli.sending import (
    ArgOption,
    ArgsFileOption,
    CommandArgument,
    ForceOption,
    JsonArgsOption,
    RecordOption,
    gather_args,
    refusing_unseen,
)

if TYPE_CHECKING:
    from bls_agent.console import Console
    from bls_agent.project.messages import Outcome

__all__ = ["call"]

app = new_app()


@command(app, "call")
async def call(
    invocation: Invocation,
    project: ProjectArgument,
    name: CommandArgument,
    arg: ArgOption = None,
    json_args: JsonArgsOption = None,
    args_file: ArgsFileOption = "",
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", metavar="SECONDS", help="opt_timeout")
    ] = 10.0,
    broadcast: Annotated[
        bool, typer.Option("--broadcast", help="opt_call_all")
    ] = False,
    record: RecordOption = False,
    force: ForceOption = False,
) -> Exit:
    """Wait for the outcome; 0 if the command succeeded, else 1."""
    args = gather_args(arg or (), json_args, args_file)
    project = normalise(invocation, project)
    options: dict[str, Any] = {
        "args": args,
        "timeout": _checked(timeout),
        "create": force,
        "record": record,
    }
    async with invocation.console() as console:
        with (
            invocation.waiting("waiting_outcome", seconds=f"{timeout:g}"),
            _interrupted(invocation),
        ):
            async with refusing_unseen(console):
                if broadcast:
                    return await _call_all(invocation, console, project, name, options)
                outcome = await console.call(project, name, **options)
    _show(invocation, outcome, "")
    return Exit.DONE if outcome.succeeded else Exit.FAILED


def _checked(timeout: float) -> float:
    from bls_agent.settings import check_seconds

    return check_seconds("timeout", timeout)


@contextmanager
def _interrupted(invocation: Invocation) -> Generator[None]:
    """Say to somebody who waits no longer that the command is not taken back."""
    import anyio

    try:
        yield
    except anyio.get_cancelled_exc_class():
        invocation.hint("perhaps_running")
        raise


async def _call_all(
    invocation: Invocation,
    console: Console,
    project: str,
    name: str,
    options: dict[str, Any],
) -> Exit:
    expected = await console.instances(project)
    outcomes = await console.call_all(project, name, **options)
    for instance, outcome in outcomes.items():
        _show(invocation, outcome, instance)
    missing = sorted(expected.keys() - outcomes.keys())
    for instance in missing:
        if invocation.json:
            invocation.out.json({"instance": instance, "outcome": None})
        invocation.warn("no_answer", instance=instance)
    well = not missing and all(outcome.succeeded for outcome in outcomes.values())
    return Exit.DONE if well else Exit.FAILED


def _show(invocation: Invocation, outcome: Outcome, instance: str) -> None:
    """Write one outcome: kind, time and what came of it."""
    told: dict[str, Any] = {"instance": instance} if instance else {}
    told |= outcome.metadata
    what = outcome.result if outcome.succeeded else outcome.error
    shown = "" if what is None else json_text(what)
    if invocation.json:
        invocation.out.json(told)
    elif not invocation.out.terminal:
        cells = [outcome.kind.value, f"{outcome.duration_ms:g}", shown]
        invocation.out.line(*([instance] if instance else []), *cells, between="\t")
    else:
        style = "green" if outcome.succeeded else "bold red"
        head = f"{instance}: " if instance else ""
        word = invocation.texts[f"outcome_{outcome.kind.value}"]
        took = invocation.say("took", ms=f"{outcome.duration_ms:g}")
        invocation.out.line(head, (word, style), f" {took}  ", shown)
    if outcome.truncated:
        invocation.warn("result_cut", bytes=f"{outcome.truncated:,}")
