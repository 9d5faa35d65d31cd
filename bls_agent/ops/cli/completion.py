"""What a shell is offered where a project's name, or a command's, belongs."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import typer

if TYPE_CHECKING:
    from bls_agent.console import Console
    from bls_agent.crawl.overview import QueueOverview

__all__ = [
    "complete_command",
    "complete_crawl_project",
    "complete_project",
    "complete_spider",
    "told_commands",
]

RECORDS: Final = 1_000  # of a log, in which commands are looked for
BUILTINS: Final = ("ping", "help", "stats", "set_log_level")
# Seconds: a shell that waits is worse than one that knows nothing.
DEADLINE: Final = 0.5

T = TypeVar("T")


def complete_project(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the projects at the Redis that is named; none if it does not answer."""

    async def find(console: Console) -> list[str]:
        return [*await console.projects()]

    return _offer(context, incomplete, find, _make_console)


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

    return _offer(context, incomplete, find, _make_console)


def complete_crawl_project(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the projects that have crawl queues."""

    async def find(overview: QueueOverview) -> list[str]:
        return [*dict.fromkeys(one.project for one in await overview.find())]

    return _offer(context, incomplete, find, _make_overview)


def complete_spider(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the spiders of all projects: the parser forgets what stands before --spider."""

    async def find(overview: QueueOverview) -> list[str]:
        found = await overview.find()
        return [*dict.fromkeys(one.spider for one in found if one.spider)]

    return _offer(context, incomplete, find, _make_overview)


def told_commands(result: object) -> dict[str, dict[str, Any]]:
    """Read what an agent answers to ``help``: each command by its name."""
    items = cast("list[object]", result) if isinstance(result, list) else []
    told = [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]
    return {str(one["name"]): one for one in told if "name" in one}


def _make_console(redis: str) -> Console:
    from bls_agent.console import Console

    return Console(redis, timeout=DEADLINE)


def _make_overview(redis: str) -> QueueOverview:
    from bls_agent.crawl.overview import QueueOverview

    return QueueOverview(redis, timeout=DEADLINE)


def _offer(
    context: typer.Context,
    incomplete: str,
    find: Callable[[T], Awaitable[list[str]]],
    make: Callable[[str], AbstractAsyncContextManager[T]],
) -> list[str]:
    try:
        names = _find_names(_redis_of(context), find, make)
    except Exception:  # noqa: BLE001 - whatever it is, a shell shows nothing of it
        return []
    return [
        name for name in names if name.startswith(incomplete) and name.isprintable()
    ]


def _redis_of(context: typer.Context) -> str | None:
    here, above = context.params.get("redis"), context.find_root().params.get("redis")
    return here or above or None


def _find_names(
    redis: str | None,
    find: Callable[[T], Awaitable[list[str]]],
    make: Callable[[str], AbstractAsyncContextManager[T]],
) -> list[str]:
    import anyio

    from bls_agent.core.settings import Settings

    # Made beforehand: loading the client is no time in which the server was silent.
    made = make(redis or Settings.from_env(os.environ).redis_url)

    async def ask() -> list[str]:
        with anyio.move_on_after(DEADLINE):
            async with made as opened:
                return await find(opened)
        return []

    return anyio.run(ask)
