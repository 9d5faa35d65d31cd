"""What ``send`` and ``call`` share: the arguments of a command, and who sends it."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from bls_agent.ops.cli.completion import complete_command
from bls_agent.ops.cli.exits import Exit, Failure

if TYPE_CHECKING:
    from bls_agent.console import Console
    from bls_agent.project.messages import Command

__all__ = [
    "SOURCE",
    "ArgOption",
    "ArgsFileOption",
    "CommandArgument",
    "ForceOption",
    "JsonArgsOption",
    "RecordOption",
    "TextOption",
    "describe_command",
    "gather_args",
    "refusing_unseen",
]

CommandArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="COMMAND", help="arg_command", autocompletion=complete_command
    ),
]
ArgOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--arg", "-a", metavar="NAME=VALUE", help="opt_arg"),
]
TextOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--string", "-s", metavar="NAME=TEXT", help="opt_string"),
]
JsonArgsOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--json-args", metavar="{…}", help="opt_json_args"),
]
ArgsFileOption: TypeAlias = Annotated[
    str, typer.Option("--args-file", metavar="FILE", help="opt_args_file")
]
RecordOption: TypeAlias = Annotated[bool, typer.Option("--record", help="opt_record")]

ForceOption: TypeAlias = Annotated[bool, typer.Option("--force", help="opt_force")]

SOURCE: Final = "bls-agent cli"  # what a command says of where it comes from
LONGEST_FILE: Final = 64 * 1024 * 1024


def gather_args(
    pairs: Sequence[str],
    text: str | None,
    file: str = "",
    strings: Sequence[str] = (),
) -> dict[str, Any]:
    """Put a command's arguments together: the file, then the object, then the pairs.

    A value of ``name=value`` is JSON if it can be read as JSON, else it is text; text
    that looks like JSON is given among ``strings``, which are never read as JSON.

    Raises:
        Failure: Something of it cannot be understood.
    """
    found: dict[str, Any] = {}
    if file:
        found |= _read_object(_read_file(file), "--args-file")
    if text is not None:
        found |= _read_object(text.encode("utf-8", "surrogateescape"), "--json")
    single: dict[str, Any] = {}
    given = [(pair, _read_value) for pair in pairs]
    texts: list[tuple[str, Callable[[str], Any]]] = [(pair, str) for pair in strings]
    for pair, read in [*given, *texts]:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise Failure("bad_pair", Exit.USAGE, hint="hint_pair", pair=pair)
        if name in single:
            raise Failure("pair_twice", Exit.USAGE, hint="hint_list", name=name)
        single[name] = read(value)
    return found | single


def _read_value(text: str) -> Any:
    from bls_agent.core.codec import decode
    from bls_agent.core.errors import DecodeError

    try:
        return decode(text.encode("utf-8", "surrogateescape"))
    except DecodeError:
        return text


def _read_object(payload: bytes, origin: str) -> dict[str, Any]:
    from bls_agent.core.codec import decode_object
    from bls_agent.core.errors import DecodeError

    try:
        return decode_object(payload)
    except DecodeError as error:
        raise Failure(
            "bad_object",
            Exit.USAGE,
            hint="hint_object",
            origin=origin,
            reason=error.detail or error.reason,
        ) from None


def _read_file(name: str) -> bytes:
    try:
        if name == "-":
            return sys.stdin.buffer.read(LONGEST_FILE)
        with open(name, "rb") as file:  # noqa: PTH123 - as it was typed
            return file.read(LONGEST_FILE)
    except OSError as error:
        reason = error.strerror or str(error)
        raise Failure("no_file", Exit.USAGE, file=name, reason=reason) from None


def describe_command(one: Command, console: Console) -> dict[str, Any]:
    """Give the fields of a command that waits, without the secrets in its arguments."""
    return {
        "id": one.id,
        "timestamp": one.timestamp,
        "source": one.source,
        "command": one.command,
        "args": console.redactor.tree(one.args),
    }


@asynccontextmanager
async def refusing_unseen(console: Console) -> AsyncGenerator[None]:
    """Name the projects that somebody may have meant, where there is none of a name.

    Raises:
        Failure: The project has no key.
    """
    from bls_agent.core.errors import UnknownProjectError
    from bls_agent.ops.cli.naming import likely_names

    try:
        yield
    except UnknownProjectError as error:
        names = ", ".join(await likely_names(console, error.project))
        hint = "hint_likely_or_force" if names else "hint_force"
        raise Failure(
            "unseen", hint=hint, project=error.project, names=names
        ) from error
