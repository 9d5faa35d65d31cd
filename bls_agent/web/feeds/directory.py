"""Which projects there are, without searching all keys for each question."""

from __future__ import annotations

from typing import Final

import anyio

from bls_agent.console import Console
from bls_agent.errors import ContractError
from bls_agent.project.messages import Status

__all__ = ["Directory"]

FRESH: Final = 3.0  # seconds for which a search is believed


class Directory:
    """Knows projects by their keys; searches at most once in a while."""

    def __init__(self, console: Console) -> None:
        """Remember whom to ask."""
        self._console = console
        self._lock = anyio.Lock()
        self._at = float("-inf")
        self._found: dict[str, Status | None] = {}

    async def all(self) -> dict[str, Status | None]:
        """Give all projects, as of a moment ago.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        async with self._lock:
            if anyio.current_time() - self._at > FRESH:
                self._found = await self._console.projects()
                self._at = anyio.current_time()
            return self._found

    async def knows(self, project: str) -> bool:
        """Tell whether there is a project: one of its three keys.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        try:
            if await self._console.status(project) is not None:
                return True
            if await self._console.logs(project, 1):
                return True
        except ContractError:
            return True  # the key is there, whatever it holds
        return project in await self.all()  # it may have a control list alone
