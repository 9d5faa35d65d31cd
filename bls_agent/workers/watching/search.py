"""Searching for new keys again and again, without ever doing only that."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Final

import anyio

__all__ = ["Search"]

EVERY: Final = 2.0  # seconds from the end of a search to the next one, at least
REST: Final = 4.0  # times as long as a search took
SHARE: Final = 0.2  # of the time from look to look


class Search:
    """A search through all keys that takes a part of each look.

    The first one is done at once. The others take a fifth of the time at most while they
    are under way, and then rest four times as long as they took.
    """

    def __init__(
        self, scan: Callable[[], AsyncGenerator[dict[bytes, str]]], interval: float
    ) -> None:
        """Remember how to search; nothing is asked yet.

        Args:
            scan: Begins a search, which gives what each of its steps has found.
            interval: Seconds between two looks.
        """
        self._scan = scan
        self._share = interval * SHARE
        self._steps: AsyncGenerator[dict[bytes, str]] | None = None
        self._complete = False
        self._spent = 0.0  # seconds of the search that is under way
        self._due_at = float("-inf")

    async def advance(self) -> dict[bytes, str]:
        """Search for as long as this look allows.

        Returns:
            Key → kind, of what was found now.

        Raises:
            RedisUnavailableError: Redis cannot answer; then :meth:`end` it.
        """
        found: dict[bytes, str] = {}
        began = anyio.current_time()
        if self._steps is None:
            if began < self._due_at:
                return found
            self._steps, self._spent = self._scan(), 0.0
        async for keys in self._steps:
            found |= keys
            spent = anyio.current_time() - began
            if self._complete and spent >= self._share:
                self._spent += spent
                return found
        now = anyio.current_time()
        self._spent += now - began
        self._steps, self._complete = None, True
        self._due_at = now + max(EVERY, REST * self._spent)
        return found

    async def end(self) -> None:
        """Give up the search that is under way; the next one begins at once."""
        steps, self._steps = self._steps, None
        self._due_at = float("-inf")
        if steps is not None:
            await steps.aclose()
