"""What a shell is offered where a project's name, or a command's, belongs."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

import typer

if TYPE_CHECKING:
    from bls_agent.console import Console

__all__ = ["complete_command", "complete_project", "told_commands"]

RECORDS: Final = 1_000  # of a log, in which commands are looked for
BUILTINS: Final = ("ping", "help", "stats", "set_log_level")
# Seconds: a shell that waits is worse than one that knows nothing.
DEADLINE: Final = 0.5


def complete_project(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the projects at the Redis that is named; none if it does not answer."""

    async def find(console: Console) -> list[str]:
        return [*await console.projects()]

    return _offer(context, incomplete, find)


def complete_command(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the commands that the project's log tells of; nothing is sent for it.

    Those of the last answer to ``help``, and those that have been run since.
    """

    async def find(console: Console) -> list[str]:
        found: dict[str, None] = dict.fromkeys(BUILTINS)
        for entry in await console.logs(context.params.get("project") or "", RECORDS):
            outcome = entry.outcome
            if outcome is None or outcome.kind.value in {"unknown", "discarded"}:
                continue
            found[outcome.command] = None
            if outcome.command == "help":
                found |= dict.fromkeys(told_commands(outcome.result))
        return [*found]

    return _offer(context, incomplete, find)


def told_commands(result: object) -> dict[str, dict[str, Any]]:
    """Read what an agent answers to ``help``: each command by its name."""
    items = cast("list[object]", result) if isinstance(result, list) else []
    told = [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]
    return {str(one["name"]): one for one in told if "name" in one}


def _offer(
    context: typer.Context,
    incomplete: str,
    find: Callable[[Console], Awaitable[list[str]]],
) -> list[str]:
    try:
        names = _find_names(_redis_of(context), find)
    except Exception:  # noqa: BLE001 - whatever it is, a shell shows nothing of it
        return []
    return [
        name for name in names if name.startswith(incomplete) and name.isprintable()
    ]


def _redis_of(context: typer.Context) -> str | None:
    here, above = context.params.get("redis"), context.find_root().params.get("redis")
    return here or above or None


def _find_names(
    redis: str | None, find: Callable[[Console], Awaitable[list[str]]]
) -> list[str]:
    import anyio

    from bls_agent.console import Console
    from bls_agent.settings import Settings

    # Made beforehand: loading the client is no time in which the server was silent.
    url = redis or Settings.from_env(os.environ).redis_url
    made = Console(url, timeout=DEADLINE)

    async def ask() -> list[str]:
        with anyio.move_on_after(DEADLINE):
            async with made as console:
                return await find(console)
        return []

    return anyio.run(ask)
