"""Options and arguments of several commands, and their shell completion."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import (
    TYPE_CHECKING,
    Annotated,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
)

from typer import Argument, Context, Option

if TYPE_CHECKING:
    from bls_agent.console import Console

RECORDS: Final = 1_000  # records of a log that are searched for commands
# Most seconds for a completion, because a slow completion is worse than none.
DEADLINE: Final = 0.5

T = TypeVar("T")


def complete_project(context: Context, incomplete: str) -> list[str]:
    """Return the projects in Redis, or nothing if Redis does not answer."""
    return offer(context, incomplete, _make_console, lambda made: made.projects())


def complete_command(context: Context, incomplete: str) -> list[str]:
    """Return the built-in commands, and the commands in the project's log.

    The log has the outcomes of earlier commands and of ``help``. No command is sent.
    """
    from bls_agent.core.settings import BUILTINS
    from bls_agent.ops.fields import read_commands

    async def find(console: Console) -> list[str]:
        found = [*BUILTINS]
        for entry in await console.logs(context.params.get("project") or "", RECORDS):
            outcome = entry.outcome
            if outcome is None or outcome.kind.value in {"unknown", "discarded"}:
                continue
            found.append(outcome.command)
            if outcome.command == "help":
                found += read_commands(outcome.result)
        return found

    return offer(context, incomplete, _make_console, find)


def _make_console(redis: str, *, timeout: float) -> Console:
    from bls_agent.console import Console

    return Console(redis, timeout=timeout)


def offer(
    context: Context,
    incomplete: str,
    make: Callable[..., AbstractAsyncContextManager[T]],
    find: Callable[[T], Awaitable[Iterable[str]]],
) -> list[str]:
    """Return the names found in Redis, or nothing if Redis does not answer in time."""
    import anyio

    from bls_agent.core.settings import Settings

    async def ask(made: AbstractAsyncContextManager[T]) -> Iterable[str]:
        with anyio.move_on_after(DEADLINE):
            async with made as opened:
                return await find(opened)
        return ()

    given = context.params.get("redis") or context.find_root().params.get("redis")
    try:
        # The client is made before the deadline begins, because its modules load slowly.
        url = given or Settings.from_env(os.environ).redis_url
        made = make(url, timeout=DEADLINE)
        names = dict.fromkeys(anyio.run(ask, made))
    except Exception:  # noqa: BLE001 - a completion must show no error
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
