"""How one status reaches its key (contract 002, section 2.1), over whatever connection.

Used by the reporter, from the event loop, and by the watchdog's thread while that loop
stands still.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from typing import Final

import anyio

from bls_agent.connection import Connections
from bls_agent.endpoint import Request
from bls_agent.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.project.messages import Status
from bls_agent.project.state.rivals import Glance, Rivals
from bls_agent.project.state.roster import Roster

__all__ = ["StatusWriter"]

# SET … GET: before Redis 6.2, or without the right to read the key.
_UNGUARDED: Final = ("unsupported", "no_permission")


class StatusWriter:
    """Writes the status of one project, never over a key of another type.

    ``SET … GET`` fails on another type without writing. Under out-of-memory, where SET
    is refused, EXPIRE keeps a status alive that is still true. One of several replicas
    speaks through the roster instead (see ``roster.py``).

    Attributes:
        written: The status that was written last over this connection.
        rivals: What tells that somebody else writes here.
    """

    def __init__(
        self,
        connections: Connections,
        key: str,
        *,
        ttl: int,
        roster: Roster | None = None,
        on_rival: Callable[[], None] | None = None,
    ) -> None:
        """Remember where to.

        Args:
            connections: The wires; the liveness wire is used.
            key: The status key.
            ttl: Seconds a written status lives.
            roster: Through what one of several replicas speaks.
            on_rival: Called when a write met somebody else's.
        """
        self._connections = connections
        self._key = key
        self._ttl = ttl
        self._roster = roster
        self._on_rival = on_rival
        self._guard = True  # SET … GET is known here
        self._can_ask_ttl = True
        self._turn = anyio.Lock()
        self._ended = False
        self.rivals = Rivals()
        self.written: Status | None = None

    def over(self, connections: Connections) -> StatusWriter:
        """Give one that writes the same key over other connections."""
        other = copy(self)
        other._connections = connections  # noqa: SLF001 - its own kind
        other._on_rival = None  # noqa: SLF001 - as above
        other._turn = anyio.Lock()  # noqa: SLF001 - as above; in another loop
        other.rivals = Rivals()
        return other

    async def write(self, status: Status) -> None:
        """Write a status that expires after ``ttl`` seconds; not behind the last word.

        Raises:
            RedisUnavailableError: Not written, or perhaps; writing again is harmless.
            WrongTypeError: The key holds another type; it was left alone.
        """
        async with self._turn:
            if not self._ended:
                await self._write(status)

    async def _write(self, status: Status) -> None:
        try:
            if self._roster is None or not await self._speak(status, self._ttl):
                await self._set(status)
        except RedisUnavailableError as error:
            self.rivals.forget()
            if error.kind == "wrong_type":
                raise WrongTypeError(self._key, "string") from error
            if error.kind != "out_of_memory" or self.written is not status:
                raise  # EXPIRE would keep a status alive that is not true
            await self._connections.liveness.call("EXPIRE", self._key, self._ttl)
        self.written = status

    async def write_last(self, last_word: Status) -> None:
        """Write what stays, after everything that was lost on the way.

        Raises:
            RedisUnavailableError: Not written, or perhaps; try again.
            WrongTypeError: The key holds another type; it was left alone.
        """
        self._ended = True
        async with self._turn:  # one that is under way has several requests, perhaps
            await self._write_last(last_word)

    async def _write_last(self, last_word: Status) -> None:
        live = self._connections.liveness
        while True:
            # A refresh that was lost on the way must not arrive after the last word.
            await self._connections.forget_lost(live, kill=True)
            try:
                if self._roster is None or not await self._speak(last_word, 0):
                    await self._call_guarded("SET", self._key, last_word.value)
            except RedisUnavailableError as error:
                if error.kind == "wrong_type":
                    raise WrongTypeError(self._key, "string") from error
                raise
            if not live.lost:
                return

    async def _speak(self, status: Status, ttl: int) -> bool:
        """Say it as one of several; false where that is refused, from now on."""
        assert self._roster is not None  # noqa: S101 - for the type checker
        live = self._connections.liveness
        if await self._roster.speak(live, status, ttl):
            return True
        self._roster = None
        self._on_rival = None
        return False

    async def _set(self, status: Status) -> None:
        """Write it with its TTL, and look at what stood there."""
        wire = self._connections.liveness
        epoch, asked = self.rivals.epoch, time.monotonic()
        request = ("SET", self._key, status.value, "EX", self._ttl)
        if self._on_rival is None or not self._can_ask_ttl:
            remaining: int | None = None
            value = await self._call_guarded(*request)
        else:
            remaining, value = await self._look_and_set(request)
        now = time.monotonic()
        glance = Glance(asked, now, wire.generation, value, remaining)
        met = self.rivals.note(glance, status.value.encode(), self._ttl, epoch)
        if met and self._on_rival is not None:
            on_rival, self._on_rival = self._on_rival, None
            on_rival()

    async def _look_and_set(self, request: Request) -> tuple[int | None, bytes | None]:
        """Ask PTTL in front of the write, in one round trip."""
        guarded = (*request, "GET") if self._guard else request
        remaining, reply = await self._connections.liveness.call_many(
            [("PTTL", self._key), guarded]
        )
        if isinstance(remaining, RedisUnavailableError):
            self._can_ask_ttl, remaining = False, None
        if isinstance(reply, RedisUnavailableError):
            if not self._guard or reply.kind not in _UNGUARDED:
                raise reply
            await self._call_unguarded(*request)
            return remaining, None
        return remaining, reply if self._guard else None

    async def _call_guarded(self, *request: str | int) -> bytes | None:
        """SET with GET where that is known; gives the value that stood there."""
        if self._guard:
            try:
                found: bytes | None = await self._connections.liveness.call(
                    *request, "GET"
                )
            except RedisUnavailableError as error:
                if error.kind not in _UNGUARDED:
                    raise
            else:
                return found
        await self._call_unguarded(*request)
        return None

    async def _call_unguarded(self, *request: str | float | bytes) -> None:
        if self._guard:
            await self._look_at_type()
        await self._connections.liveness.call(*request)
        self._guard = False

    async def _look_at_type(self) -> None:
        """Look once, where SET … GET cannot guard each write."""
        try:
            found = await self._connections.liveness.call("TYPE", self._key)
        except RedisRefusedError:
            return  # without the right to look; it was said
        if found not in (b"string", b"none"):
            raise WrongTypeError(self._key, "string")
