"""Options and arguments of several commands, and their shell completion."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
    cast,
)

from typer import Argument, Context, Option

if TYPE_CHECKING:
    from bls_agent.console import Console

RECORDS: Final = 1_000  # of a log that are searched for commands
# Seconds: a shell that waits is worse than one that knows nothing.
DEADLINE: Final = 0.5

_BEGINS_JSON: Final = ("{", "[", '"', "")  # an empty text is reported later

T = TypeVar("T")


def arrange(arguments: Sequence[str]) -> list[str]:
    """Rename ``--json`` to ``--json-args`` where a value that begins like JSON follows.

    ``send`` and ``call`` take a command's arguments so. No parser knows an option with
    two meanings.
    """
    arranged = list(arguments)
    if not {"send", "call"}.intersection(arguments):
        return arranged
    for index, word in enumerate(arguments):
        if word == "--":  # nothing behind it is an option
            break
        name, equals, value = word.partition("=")
        if not equals:
            value = next(iter(arguments[index + 1 :]), "none")
        begins = value.lstrip()[:1]
        if name == "--json" and begins in _BEGINS_JSON:
            arranged[index] = word.replace("--json", "--json-args", 1)
    return arranged


def complete_project(context: Context, incomplete: str) -> list[str]:
    """Offer the projects in Redis; none if it does not answer."""
    return offer(context, incomplete, _make_console, lambda made: made.projects())


def complete_command(context: Context, incomplete: str) -> list[str]:
    """Offer the commands of the newest answer to ``help``, and those run since.

    Both are read from the project's log; nothing is sent.
    """
    from bls_agent.core.settings import BUILTINS

    async def find(console: Console) -> list[str]:
        found = [*BUILTINS]
        for entry in await console.logs(context.params.get("project") or "", RECORDS):
            outcome = entry.outcome
            if outcome is None or outcome.kind.value in {"unknown", "discarded"}:
                continue
            found.append(outcome.command)
            if outcome.command == "help":
                found += told_commands(outcome.result)
        return found

    return offer(context, incomplete, _make_console, find)


def told_commands(result: object) -> dict[str, dict[str, Any]]:
    """Read an agent's answer to ``help``: each command by its name."""
    items = cast("list[object]", result) if isinstance(result, list) else []
    commands = [
        cast("dict[str, Any]", item) for item in items if isinstance(item, dict)
    ]
    return {str(one["name"]): one for one in commands if "name" in one}


def _make_console(redis: str, *, timeout: float) -> Console:
    from bls_agent.console import Console

    return Console(redis, timeout=timeout)


def offer(
    context: Context,
    incomplete: str,
    make: Callable[..., AbstractAsyncContextManager[T]],
    find: Callable[[T], Awaitable[Iterable[str]]],
) -> list[str]:
    """Offer the names that are found in Redis; none if it does not answer in time."""
    import anyio

    from bls_agent.core.settings import Settings

    async def ask(made: AbstractAsyncContextManager[T]) -> Iterable[str]:
        with anyio.move_on_after(DEADLINE):
            async with made as opened:
                return await find(opened)
        return ()

    given = context.params.get("redis") or context.find_root().params.get("redis")
    try:
        # Made beforehand: loading the client must not count as the server's silence.
        url = given or Settings.from_env(os.environ).redis_url
        made = make(url, timeout=DEADLINE)
        names = dict.fromkeys(anyio.run(ask, made))
    except Exception:  # noqa: BLE001 - whatever it is, a shell shows nothing of it
        return []
    return [
        name for name in names if name.startswith(incomplete) and name.isprintable()
    ]


RedisOption: TypeAlias = Annotated[str, Option(metavar="URL", show_default=False)]
JsonOption: TypeAlias = Annotated[bool, Option("--json")]
LangOption: TypeAlias = Annotated[Literal["zh", "en"] | None, Option(metavar="zh|en")]
ProjectArgument: TypeAlias = Annotated[
    str, Argument(metavar="PROJECT", autocompletion=complete_project)
]
CommandArgument: TypeAlias = Annotated[
    str, Argument(metavar="COMMAND", autocompletion=complete_command)
]
LimitOption: TypeAlias = Annotated[
    int, Option("--limit", "-n", metavar="N", min=1, max=10_000)
]
TimeoutOption: TypeAlias = Annotated[
    float, Option("--timeout", "-t", metavar="SECONDS")
]
WatchOption: TypeAlias = Annotated[bool, Option("--watch", "-w")]
