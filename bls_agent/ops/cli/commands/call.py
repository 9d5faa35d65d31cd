"""``bls-agent call``: send a command and wait for its outcome."""

from __future__ import annotations

import re
import shlex
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from bls_agent.ops.cli.command import command, new_app
from bls_agent.ops.cli.exits import Exit, Failure
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.naming import ProjectArgument, normalise
from bls_agent.ops.cli.printable import json_text
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
    from bls_agent.core.errors import NoOutcomeError
    from bls_agent.project.messages import Outcome

__all__ = ["call", "no_outcome", "show_outcome"]

WORD: Final = re.compile(r"[\w.-]+")  # what no shell takes for more
FRAME: Final = re.compile(r'  File ".*?([/\\]bls_agent[/\\][^"]*)?", line ')

app = new_app()


@command(app, "call")
async def call(
    invocation: Invocation,
    project: ProjectArgument,
    name: CommandArgument,
    arg: ArgOption = None,
    string: TextOption = None,
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
    from bls_agent.core.errors import NoOutcomeError

    args = gather_args(arg or (), json_args, args_file, string or ())
    project = normalise(invocation, project)
    options: dict[str, Any] = {
        "args": args,
        "timeout": _checked(timeout),
        "create": force,
        "record": record,
        "source": SOURCE,
    }
    async with invocation.console() as console:
        with (
            invocation.waiting("waiting_outcome", seconds=f"{timeout:g}"),
            _interrupted(invocation),
        ):
            try:
                async with refusing_unseen(console):
                    if broadcast:
                        return await _call_all(
                            invocation, console, project, name, options
                        )
                    outcome = await console.call(project, name, **options)
            except NoOutcomeError as error:
                raise no_outcome(invocation, project, error, timeout) from None
    show_outcome(invocation, outcome)
    _hint_text(invocation, args, outcome)
    return Exit.DONE if outcome.succeeded else Exit.FAILED


def no_outcome(
    invocation: Invocation, project: str, error: NoOutcomeError, waited: float
) -> Failure:
    """Make the end of a command that has waited in vain; says how to wait longer."""
    since = invocation.say("since", time=error.since) if error.since else ""
    return Failure(
        f"no_outcome_{error.state}" if error.state else "no_outcome",
        hint="" if error.state == "offline" else "hint_wait_longer",
        id=error.command_id,
        since=since,
        project=project if WORD.fullmatch(project) else shlex.quote(project),
        seconds=f"{max(60.0, 6 * waited):g}",
    )


def _checked(timeout: float) -> float:
    from bls_agent.core.settings import check_seconds

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
        show_outcome(invocation, outcome, instance)
    missing = sorted(expected.keys() - outcomes.keys())
    for instance in missing:
        if invocation.json:
            invocation.out.json({"instance": instance, "outcome": None})
        invocation.warn("no_answer", instance=instance)
    well = not missing and all(outcome.succeeded for outcome in outcomes.values())
    return Exit.DONE if well else Exit.FAILED


def _hint_text(invocation: Invocation, args: dict[str, Any], outcome: Outcome) -> None:
    """Say how a text is sent that looks like a number, where one was expected."""
    fields = outcome.error.get("fields")
    wrongs = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    for name, wrong in wrongs.items():
        sent = args.get(name)
        scalar = sent is None or isinstance(sent, bool | int | float)
        if scalar and name in args and str(wrong).startswith("must be a string"):
            invocation.hint("hint_string", name=name, value=json_text(sent))


def show_outcome(invocation: Invocation, outcome: Outcome, instance: str = "") -> None:
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
        failed = not outcome.succeeded and "message" in outcome.error
        first = "" if failed else f"  {shown}"
        invocation.out.line(head, (word, style), f" {took}{first}")
        if failed:
            _show_failure(invocation, outcome.error)
    if outcome.truncated:
        invocation.warn("result_cut", bytes=f"{outcome.truncated:,}")


def _show_failure(invocation: Invocation, error: Mapping[str, Any]) -> None:
    """Write message and traceback in lines, then what else the agent tells."""
    out = invocation.out
    out.paragraph(f"{error.get('type', '')}: {error['message']}".removeprefix(": "))
    for name, told in error.items():
        if name == "traceback":
            for line in _folded(str(told), invocation.texts["frames_folded"]):
                out.line((line, "dim"))
        elif name not in {"type", "message", "fields"}:  # the message names the fields
            out.line((f"{name}: ", "dim"), json_text(told))


def _folded(trace: str, text: str) -> Generator[str]:
    """Give a traceback without the frames of this package; each gap is counted."""
    left_out = 0
    ours = False
    for line in trace.splitlines():
        if frame := FRAME.match(line):
            ours = frame[1] is not None
            left_out += ours
        elif not line.startswith("    "):  # no longer of this frame
            ours = False
        if ours:
            continue
        if left_out:
            yield text.format(count=left_out)
            left_out = 0
        yield line
