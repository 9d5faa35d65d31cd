"""Whether Redis answers: asked at most once a second, whoever wants to know."""

from __future__ import annotations

import secrets
from typing import Final

import anyio

from bls_agent.console import Console
from bls_agent.errors import ContractError, RedisRefusedError, RedisUnavailableError

__all__ = ["RedisHealth"]

FRESH: Final = 1.0  # seconds


class RedisHealth:
    """Asks Redis for a status that nobody has."""

    def __init__(self, console: Console) -> None:
        """Remember whom to ask."""
        self._console = console
        self._project = f"health-{secrets.token_hex(4)}"
        self._lock = anyio.Lock()
        self._at = float("-inf")
        self._fault: RedisUnavailableError | None = None

    async def fault(self) -> RedisUnavailableError | None:
        """Say why Redis does not answer, ``None`` if it does."""
        async with self._lock:
            if anyio.current_time() - self._at > FRESH:
                self._fault = await self._ask()
                self._at = anyio.current_time()
            return self._fault

    async def _ask(self) -> RedisUnavailableError | None:
        try:
            await self._console.status(self._project)
        except RedisRefusedError as error:
            # Who may not read this one key was answered all the same.
            return None if error.kind == "no_permission" else error
        except RedisUnavailableError as error:
            return error
        except ContractError:
            return None
        return None
