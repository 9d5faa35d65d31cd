"""``bls-agent commands``, ``send``, ``call``, ``wait``."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, Final, TypeAlias

import anyio
from typer import Argument, Option

from bls_agent.console import Console
from bls_agent.core.checks import check_seconds
from bls_agent.core.codec import decode, decode_object
from bls_agent.core.errors import (
    BlsError,
    DecodeError,
    NoOutcomeError,
    UnknownProjectError,
)
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import (
    Exit,
    Failure,
    find_likely,
    hint_likely,
    likely_names,
    misspelt,
    normalise,
)
from bls_agent.ops.cli.options import (
    CommandArgument,
    ProjectArgument,
    TimeoutOption,
)
from bls_agent.ops.cli.output import Invocation
from bls_agent.ops.fields import (
    Field,
    list_nested,
    read_commands,
    read_fields,
    show_number,
)
from bls_agent.ops.terminal import json_text
from bls_agent.project.messages import Outcome, Status

SOURCE: Final = "bls-agent cli"  # the `source` of a command
NEWEST: Final = 10_000  # records that are searched for an outcome

# Consecutive frames of this package in a traceback.
OWN_FRAMES: Final = re.compile(
    r'(?m)(?:^  File "[^"]*[/\\]bls_agent[/\\][^"]*", line .*\n(?:    .*\n?)*)+'
)

_Schema: TypeAlias = Mapping[str, Any]
_ArgOption: TypeAlias = Annotated[
    list[str] | None, Option("--arg", "-a", metavar="NAME=VALUE")
]
_TextOption: TypeAlias = Annotated[
    list[str] | None, Option("--string", "-s", metavar="NAME=TEXT")
]
_ArgsOption: TypeAlias = Annotated[str | None, Option(metavar="{…}")]


@command("commands")
async def commands(
    invocation: Invocation,
    project: ProjectArgument,
    name: CommandArgument = "",
    timeout: TimeoutOption = 10.0,
    *,
    no_record: bool = False,
) -> Exit:
    """Ask the agent for ``help`` and print the signatures, or one command in full."""
    project = normalise(invocation, project)
    outcome = await fetch_help(invocation, project, timeout, no_record=no_record)
    if not outcome.succeeded or outcome.truncated:
        _show_outcome(invocation, outcome)
        return Exit.FAILED
    found = read_commands(outcome.result)
    if name and name not in found:
        likely = find_likely(name, found)
        raise misspelt("no_such_command_there", likely, "", word=name)
    chosen = [found[name]] if name else [*found.values()]
    if invocation.json:
        for one in chosen:
            invocation.out.json(one)
    elif name:
        _show_one(invocation, found[name])
    else:
        texts = invocation.texts
        titles = [texts["column_command"], texts["column_description"]]
        rows = [
            (signature(one), str(one.get("description") or "").partition("\n")[0])
            for one in chosen
        ]
        invocation.out.table(rows, titles)
    return Exit.DONE


async def fetch_help(
    invocation: Invocation, project: str, timeout: float, *, no_record: bool
) -> Outcome:
    """Call ``help`` of a project and return the outcome.

    Raise ``Failure`` if the project does not exist, or if no outcome arrives in time.
    """
    seconds = check_seconds("timeout", timeout)
    how: Any = {"timeout": seconds, "source": SOURCE, "record": not no_record}
    async with _asking(invocation, project, seconds) as console:
        return await console.call(project, "help", **how)


def _show_one(invocation: Invocation, command: _Schema) -> None:
    texts, out = invocation.texts, invocation.out
    if out.terminal:
        out.line((signature(command), "bold"))
        out.paragraph(str(command.get("description") or ""))
    needed = texts["argument_required"]
    rows = [
        [
            path,
            _type_of(one),
            _default_of(one) or needed * one.required,
            one.description,
        ]
        for path, one in list_nested(read_fields(command.get("parameters")) or ())
    ]
    if rows:
        names = ("argument", "type", "default", "description")
        out.table(rows, [texts[f"column_{name}"] for name in names])


def signature(command: _Schema) -> str:
    """Return a command in the form ``reload(force: boolean = false)``."""
    fields = read_fields(command.get("parameters", {}))
    words = ["…"] if fields is None else map(_describe_field, fields)
    return f"{command.get('name')}({', '.join(words)})"


def _describe_field(field: Field) -> str:
    default = _default_of(field)
    optional = "" if default or field.required else "?"
    return f"{field.name}{optional}: {field.type}{default and f' = {default}'}"


def _default_of(field: Field) -> str:
    return "".join(map(json_text, field.default))


def _type_of(field: Field) -> str:
    return f"{field.type}, {field.limits}" if field.limits else field.type


@command("send")
async def send(
    invocation: Invocation,
    project: ProjectArgument,
    name: CommandArgument,
    arg: _ArgOption = None,
    string: _TextOption = None,
    args: _ArgsOption = None,
    *,
    id: Annotated[str, Option(metavar="ID")] = "",  # noqa: A002 - the protocol's name
    broadcast: bool = False,
    no_record: bool = False,
    force: bool = False,
) -> Exit:
    gathered = _gather_args(args, arg or (), string or ())
    project = normalise(invocation, project)
    async with _asking(invocation, project) as console:
        sent = await console.send(
            project,
            name,
            gathered,
            id=id or None,
            broadcast=broadcast,
            create=force,
            record=not no_record,
            source=SOURCE,
        )
        with suppress(BlsError):  # the command is sent, even if this read fails
            if await console.status(project) in (None, Status.OFFLINE):
                invocation.hint("sent_offline", project=project)
    record = {"projectName": project, "id": sent.id, "command": name, "args": sent.args}
    sentence = invocation.say("sent", command=name, project=project, id=sent.id)
    invocation.record(record, sentence if invocation.out.terminal else sent.id)
    return Exit.DONE


def _gather_args(
    text: str | None, pairs: Sequence[str], strings: Sequence[str] = ()
) -> dict[str, Any]:
    """Merge a command's arguments; pairs override the object in ``text``.

    In ``pairs``, the value of ``name=value`` is JSON if it is valid JSON, and otherwise
    text. In ``strings``, the value is always text.
    """
    single: dict[str, Any] = {}
    for read, given in ((_read_value, pairs), (str, strings)):
        for pair in given:
            name, equals, value = pair.partition("=")
            if not equals or not name.strip():
                raise Failure("bad_pair", Exit.USAGE, hint="hint_pair", pair=pair)
            if name in single:
                raise Failure("pair_twice", Exit.USAGE, hint="hint_list", name=name)
            single[name] = read(value)
    try:
        found = {} if text is None else decode_object(_encode(text))
    except DecodeError as error:
        reason = error.detail or error.reason
        raise Failure(
            "bad_object", Exit.USAGE, hint="hint_object", reason=reason
        ) from None
    return found | single


def _read_value(text: str) -> Any:
    try:
        return decode(_encode(text))
    except DecodeError:
        return text


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@asynccontextmanager
async def _asking(
    invocation: Invocation, project: str, seconds: float | None = None
) -> AsyncGenerator[Console]:
    """Open the console to send a command.

    If the caller also waits for the outcome, ``seconds`` is the length of the wait.
    Raises ``Failure`` if the project does not exist, or if no outcome arrives.
    """
    text = "waiting_redis" if seconds is None else "waiting_outcome"
    with invocation.waiting(text, seconds=f"{seconds or 0:g}"):
        async with invocation.console() as console:
            try:
                yield console
            except UnknownProjectError as error:
                names = ", ".join(await likely_names(console, project))
                hint = "hint_likely_or_force" if names else "hint_force"
                raise Failure(
                    "unseen", hint=hint, project=project, names=names
                ) from error
            except NoOutcomeError as error:
                raise _no_outcome(invocation, project, error, seconds or 0) from None


@command("call")
async def call(
    invocation: Invocation,
    project: ProjectArgument,
    name: CommandArgument,
    arg: _ArgOption = None,
    string: _TextOption = None,
    args: _ArgsOption = None,
    timeout: TimeoutOption = 10.0,
    *,
    broadcast: bool = False,
    no_record: bool = False,
    force: bool = False,
) -> Exit:
    """Send a command and print its outcome; exit 0 if it succeeded, otherwise 1."""
    gathered = _gather_args(args, arg or (), string or ())
    project = normalise(invocation, project)
    options: dict[str, Any] = {
        "args": gathered,
        "timeout": check_seconds("timeout", timeout),
        "create": force,
        "record": not no_record,
        "source": SOURCE,
    }
    async with _asking(invocation, project, options["timeout"]) as console:
        if broadcast:
            return await _call_all(invocation, console, project, name, options)
        outcome = await console.call(project, name, **options)
    _show_outcome(invocation, outcome)
    return Exit.DONE if outcome.succeeded else Exit.FAILED


def _no_outcome(
    invocation: Invocation, project: str, error: NoOutcomeError, waited: float
) -> Failure:
    since = invocation.say("since", time=error.since) if error.since else ""
    return Failure(
        f"no_outcome_{error.state}" if error.state else "no_outcome",
        hint="" if error.state == "offline" else "hint_wait_longer",
        id=error.command_id,
        since=since,
        project=shlex.quote(project),
        seconds=f"{max(60.0, 6 * waited):g}",
    )


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
        _show_outcome(invocation, outcome, instance)
    missing = sorted(expected.keys() - outcomes.keys())
    for instance in missing:
        if invocation.json:
            invocation.out.json({"instance": instance, "outcome": None})
        invocation.warn("no_answer", instance=instance)
    well = not missing and all(outcome.succeeded for outcome in outcomes.values())
    return Exit.DONE if well else Exit.FAILED


def _show_outcome(
    invocation: Invocation, outcome: Outcome, instance: str | None = None
) -> None:
    """Print an outcome, for a broadcast with its instance (``""`` if it is unknown)."""
    record: dict[str, Any] = {} if instance is None else {"instance": instance}
    record |= outcome.metadata
    what = outcome.result if outcome.succeeded else outcome.error
    shown = "" if what is None else json_text(what)
    if invocation.json:
        invocation.out.json(record)
    elif not invocation.out.terminal:
        cells = [outcome.kind.value, show_number(outcome.duration_ms), shown]
        first = [] if instance is None else [instance or "-"]
        invocation.out.fields(*first, *cells)
    else:
        style = "green" if outcome.succeeded else "bold red"
        head = f"{instance}: " if instance else ""
        word = invocation.texts[f"outcome_{outcome.kind.value}"]
        took = invocation.say("took", ms=show_number(outcome.duration_ms))
        failed = not outcome.succeeded and "message" in outcome.error
        beside = "" if failed else f"  {shown}"
        invocation.out.line(head, (word, style), f" {took}{beside}")
        if failed:
            _show_failure(invocation, outcome.error)
    if outcome.truncated:
        invocation.warn("result_cut", bytes=f"{outcome.truncated:,}")


def _show_failure(invocation: Invocation, error: Mapping[str, Any]) -> None:
    """Write the message, the traceback line by line, and the other metadata."""
    out = invocation.out
    out.paragraph(f"{error.get('type', '')}: {error['message']}".removeprefix(": "))
    for name, value in error.items():
        if name == "traceback":
            folded = invocation.texts["frames_folded"]
            for line in _fold_frames(str(value), folded).splitlines():
                out.line((line, "dim"))
        elif name not in {"type", "message", "fields"}:  # the message names the fields
            out.line((f"{name}: ", "dim"), json_text(value))


def _fold_frames(trace: str, text: str) -> str:
    """Replace the frames of this package in a traceback by their number."""

    def fold(found: re.Match[str]) -> str:
        return text.format(count=found[0].count('  File "')) + "\n"

    return OWN_FRAMES.sub(fold, trace)


@command("wait")
async def wait(
    invocation: Invocation,
    project: ProjectArgument,
    id: Annotated[str, Argument(metavar="ID")],  # noqa: A002 - the protocol's name
    timeout: TimeoutOption = 60.0,
) -> Exit:
    """Print the outcome of a sent command; exit 0 if it succeeded, otherwise 1."""
    seconds = check_seconds("timeout", timeout)
    project = normalise(invocation, project)
    if not id:  # records of other programs may have no id
        raise Failure("empty_id", Exit.USAGE)
    with invocation.waiting("waiting_outcome", seconds=f"{seconds:g}"):
        async with invocation.console() as console:
            if not await console.exists(project):  # an error at once during an outage
                await hint_likely(invocation, console, project)
            with anyio.move_on_after(seconds):
                async for entry in console.follow_logs(project, last=NEWEST):
                    outcome = entry.outcome
                    if outcome is not None and outcome.command_id == id:
                        _show_outcome(invocation, outcome)
                        return Exit.DONE if outcome.succeeded else Exit.FAILED
    raise _no_outcome(invocation, project, NoOutcomeError("", id, seconds), seconds)
