"""Commands that every agent answers, unless ``builtins=False`` or the host has its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from bls_agent.core.codec import JSONObject
from bls_agent.project.commands.router import Router
from bls_agent.project.log.log import LogStream
from bls_agent.project.messages import Level

__all__ = ["add_builtins"]


def add_builtins(
    router: Router, stream: LogStream, read_stats: Callable[[], JSONObject]
) -> None:
    """Register ``ping``, ``help``, ``stats`` and ``set_log_level``."""

    async def ping() -> JSONObject:
        """Answer, to show that commands arrive and are run."""
        return {"pong": True}

    async def help() -> list[JSONObject]:  # noqa: A001 - the command's name
        """List the commands with their parameters as JSON Schema."""
        return [handler.describe() for handler in router.list_handlers()]

    async def stats() -> JSONObject:
        """Give every counter and state of the agent."""
        return read_stats()

    async def set_log_level(
        level: Literal["debug", "info", "warn", "error"], seconds: float | None = None
    ) -> JSONObject:
        """Change the lowest level that is shipped, for some seconds or for good."""
        before = stream.level
        stream.set_level(Level(level), seconds)
        return {"level": level, "before": before.value, "seconds": seconds}

    commands: list[Callable[..., Any]] = [ping, help, stats, set_log_level]
    for function in commands:
        router.add(function.__name__, function, function, builtin=True)
