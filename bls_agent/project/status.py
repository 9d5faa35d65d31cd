"""The project's status: decided here, kept alive by SET … EX (contract 002, 2.1)."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio

from bls_agent.backoff import Backoff, jittered
from bls_agent.connection import Connections
from bls_agent.endpoint import Argument
from bls_agent.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.project.messages import Status
from bls_agent.wakeup import Wakeup

__all__ = ["ErrorWindow", "StatusBoard", "StatusCounts", "StatusReporter"]


class StatusBoard:
    """What each source says of the state of this process; the worst one counts.

    A source other than the host only complains: while it says 在线 it adds nothing, so
    that a host that has set 离线 stays 离线.

    There is no lock on purpose. ``set_status`` and ``log.error`` may be called in a
    signal handler, a finaliser or a callback of the garbage collector, which interrupt
    any line here in the same thread: a lock that this thread holds already would never
    come free. So a word is one assignment of a key, which is atomic and loses nobody
    else's, and who reads copies the whole first.

    Attributes:
        refused: Values that were no status.
    """

    HOST: Final = "host"

    def __init__(self) -> None:
        """Begin as 在线."""
        self.refused = 0
        self._said: dict[str, tuple[Status, float]] = {
            self.HOST: (Status.ONLINE, math.inf)
        }

    def put(self, source: str, status: Status, *, until: float = math.inf) -> None:
        """Note what a source says; from anywhere, never waits.

        Args:
            source: Who.
            status: What.
            until: Monotonic seconds from which on it says 在线 again by itself.
        """
        self._said[source] = (status, until)

    def forget_sources(self) -> None:
        """Begin afresh: only what the host has set still stands."""
        for source in self._said.copy():
            if source != self.HOST:
                self._said.pop(source, None)

    def list_sources(self, now: float) -> dict[str, Status]:
        """Give what each source says at this moment, in order of their first word."""
        return {
            source: status if now < until else Status.ONLINE
            for source, (status, until) in self._said.copy().items()
        }

    def speaker(self, now: float) -> tuple[str, Status]:
        """Give the source that says the worst, the first of several, and its word."""
        sources = self.list_sources(now)
        first = (self.HOST, sources[self.HOST])
        for source, status in sources.items():
            if status is not Status.ONLINE and status.severity > first[1].severity:
                first = (source, status)
        return first

    def status(self, now: float) -> Status:
        """Give the worst of all sources at this moment."""
        return self.speaker(now)[1]

    def next_change(self, now: float) -> float:
        """Give the next moment at which a source changes by itself, or infinity."""
        moments = [until for _, until in self._said.copy().values()]
        return min(until for until in moments if until > now)


class ErrorWindow:
    """Turns 在线 into 报错 until some time has passed without an error record."""

    SOURCE: Final = "error window"

    def __init__(
        self, board: StatusBoard, seconds: float, look: Callable[[], None]
    ) -> None:
        """Remember the parts; nothing has happened yet.

        Args:
            board: Where it speaks.
            seconds: How long an error counts.
            look: Has the board looked at after a change.
        """
        self._board = board
        self._seconds = seconds
        self._look = look
        board.put(self.SOURCE, Status.ONLINE)

    def note(self) -> None:
        """Note an error; from anywhere, also from what interrupts this very line."""
        until = time.monotonic() + self._seconds
        self._board.put(self.SOURCE, Status.ERROR, until=until)
        self._look()


@dataclass
class StatusCounts:
    """What the reporter did."""

    writes: int = 0
    failures: int = 0


class StatusReporter:
    """Writes the status at once when it changes and refreshes it before it expires.

    A key that holds another type is never overwritten: ``SET … GET`` fails on it
    without writing. Under out-of-memory, where SET is refused, EXPIRE keeps a status
    alive that is still true.
    """

    def __init__(
        self,
        connections: Connections,
        board: StatusBoard,
        *,
        key: str,
        interval: float,
        ttl: int,
        backoff: Backoff,
        counts: StatusCounts,
    ) -> None:
        """Remember where to and how often.

        Args:
            connections: The agent's wires.
            board: What to write.
            key: The status key.
            interval: Seconds between two refreshes.
            ttl: Seconds a written status lives.
            backoff: Paces the tries after a refused write.
            counts: Where writes and failures are counted.
        """
        self._connections = connections
        self._board = board
        self._key = key
        self._interval = interval
        self._ttl = ttl
        self._backoff = backoff
        self._rng = random.Random()  # noqa: S311 - jitter, not secrets
        self._wakeup = Wakeup()
        self._guard = True  # SET … GET is known here
        self._written: Status | None = None
        self._ended = False
        self._counts = counts
        self.published = anyio.Event()

    def changed(self) -> None:
        """Have the status written soon; from any thread, never waits."""
        self._wakeup.set()

    def look(self) -> None:
        """Have the status written soon if it is not the one that stands there.

        From anywhere, never waits. Who speaks puts a word first and looks then,
        :meth:`run` writes first and looks then: one of them sees the other.
        """
        if self._board.status(time.monotonic()) is not self._written:
            self._wakeup.set()

    def open_error_window(self, seconds: float | None) -> Callable[[], None] | None:
        """Let errors speak on the board, and give what notes one; ``None`` for never."""
        if seconds is None:
            return None
        return ErrorWindow(self._board, seconds, self.look).note

    @property
    def written(self) -> bool:
        """Whether a status of this life has been written."""
        return self._written is not None

    async def end(self, last_word: Status) -> None:
        """Stop refreshing and write the last word, which stays.

        Raises:
            RedisUnavailableError: Not written, or perhaps; try again.
            WrongTypeError: The key holds another type; it was left alone.
        """
        self._ended = True
        live = self._connections.liveness
        while True:
            # A refresh that was lost on the way must not arrive after the last word.
            await self._connections.forget_lost(live, kill=True)
            await self.write(last_word, ttl=None)
            if not live.lost:
                return

    async def run(self) -> None:
        """Keep the status alive until cancelled."""
        self._wakeup.bind()
        try:
            while not self._ended:
                try:
                    status = self._board.status(time.monotonic())
                    await self.write(status, ttl=self._ttl)
                except (RedisUnavailableError, WrongTypeError) as error:
                    await self._after_failure(error)
                else:
                    self._backoff.succeeded()
                    self.published.set()
                    await self._wait()
        finally:
            self._wakeup.unbind()

    async def _wait(self) -> None:
        """Wait until a refresh is due or the status may have changed."""
        now = time.monotonic()
        if self._board.status(now) is not self._written:
            return  # it has changed while it was written
        refresh = jittered(self._interval, self._rng)
        await self._wakeup.wait(min(refresh, self._board.next_change(now) - now))

    async def write(self, status: Status, *, ttl: int | None) -> None:
        """Write one status.

        Args:
            status: Which.
            ttl: Seconds until it expires; ``None`` for the last word, which stays.

        Raises:
            RedisUnavailableError: Not written, or perhaps; writing again is harmless.
            WrongTypeError: The key holds another type; it was left alone.
        """
        try:
            await self._set(status, ttl)
        except RedisUnavailableError as error:
            if error.kind == "wrong_type":
                raise WrongTypeError(self._key, "string") from error
            if error.kind != "out_of_memory" or ttl is None or self._ended:
                raise  # a TTL must not be put on the last word
            if self._written is not status:
                raise  # EXPIRE would keep a status alive that is not true
            await self._connections.liveness.call("EXPIRE", self._key, ttl)
        self._written = status
        self._counts.writes += 1

    async def _set(self, status: Status, ttl: int | None) -> None:
        expiry: tuple[Argument, ...] = ("EX", ttl) if ttl else ()
        call = self._connections.liveness.call
        if self._guard:
            try:
                await call("SET", self._key, status.value, *expiry, "GET")
            except RedisUnavailableError as error:
                # Before Redis 6.2, or without the right to read the key.
                if error.kind not in ("unsupported", "no_permission"):
                    raise
                await self._look_at_type()
            else:
                return
        if ttl and self._ended:
            return  # this refresh would follow the last word
        await call("SET", self._key, status.value, *expiry)
        self._guard = False

    async def _look_at_type(self) -> None:
        """Look once, where SET … GET cannot guard each write."""
        try:
            found = await self._connections.liveness.call("TYPE", self._key)
        except RedisRefusedError:
            return  # without the right to look; it was said
        if found not in (b"string", b"none"):
            raise WrongTypeError(self._key, "string")

    async def _after_failure(
        self, error: RedisUnavailableError | WrongTypeError
    ) -> None:
        self._counts.failures += 1
        permanent = not isinstance(error, RedisUnavailableError) or isinstance(
            error, RedisRefusedError
        )
        delay = self._backoff.failed(permanent=permanent)
        connecting = isinstance(error, RedisUnavailableError) and error.connecting
        if connecting:  # the gate has paced it, and has said so
            return
        self._connections.complaints.say("the status cannot be written", error)
        await anyio.sleep(delay)
