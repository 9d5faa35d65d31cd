"""What a shell is offered where a project's name belongs."""

from __future__ import annotations

import os
from typing import Final

import typer

__all__ = ["complete_project"]

# Seconds: a shell that waits is worse than one that knows nothing.
DEADLINE: Final = 0.5


def complete_project(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the projects at the Redis that is named; none if it does not answer."""
    try:
        names = _find_names(_redis_of(context))
    except Exception:  # noqa: BLE001 - whatever it is, a shell shows nothing of it
        return []
    return [
        name for name in names if name.startswith(incomplete) and name.isprintable()
    ]


def _redis_of(context: typer.Context) -> str | None:
    here, above = context.params.get("redis"), context.find_root().params.get("redis")
    return here or above or None


def _find_names(redis: str | None) -> list[str]:
    import anyio

    from bls_agent.console import Console
    from bls_agent.settings import Settings

    # Made beforehand: loading the client is no time in which the server was silent.
    url = redis or Settings.from_env(os.environ).redis_url
    made = Console(url, timeout=DEADLINE)

    async def ask() -> list[str]:
        with anyio.move_on_after(DEADLINE):
            async with made as console:
                return [*await console.projects()]
        return []

    return anyio.run(ask)
