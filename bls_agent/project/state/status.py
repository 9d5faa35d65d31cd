"""The project's status: decided here, kept alive by SET … EX (contract 002, 2.1)."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.backoff import Backoff, jittered
from bls_agent.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.project.messages import Status
from bls_agent.wakeup import Wakeup

if TYPE_CHECKING:
    from bls_agent.complaints import Complaints
    from bls_agent.project.state.status_writer import StatusWriter

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
    """

    HOST: Final = "host"

    def __init__(self) -> None:
        """Begin as 在线."""
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

    def withdraw(self, source: str) -> None:
        """Forget what a source has said; from anywhere, never waits."""
        self._said.pop(source, None)

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
    """Writes the status at once when it changes and refreshes it before it expires."""

    def __init__(
        self,
        writer: StatusWriter,
        board: StatusBoard,
        *,
        interval: float,
        backoff: Backoff,
        complaints: Complaints,
        counts: StatusCounts,
    ) -> None:
        """Remember where to and how often.

        Args:
            writer: What brings it to its key.
            board: What to write.
            interval: Seconds between two refreshes.
            backoff: Paces the tries after a refused write.
            complaints: Tells the host of a write that failed.
            counts: Where writes and failures are counted.
        """
        self._writer = writer
        self._board = board
        self._interval = interval
        self._backoff = backoff
        self._complaints = complaints
        self._rng = random.Random()  # noqa: S311 - jitter, not secrets
        self._wakeup = Wakeup()
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
        if self._board.status(time.monotonic()) is not self._writer.written:
            self._wakeup.set()

    def open_error_window(self, seconds: float | None) -> Callable[[], None] | None:
        """Let errors speak on the board, and give what notes one; ``None`` for never."""
        if seconds is None:
            return None
        return ErrorWindow(self._board, seconds, self.look).note

    @property
    def written(self) -> bool:
        """Whether a status of this life has been written."""
        return self._writer.written is not None

    async def end(self, last_word: Status) -> None:
        """Stop refreshing and write the last word, which stays.

        Raises:
            RedisUnavailableError: Not written, or perhaps; try again.
            WrongTypeError: The key holds another type; it was left alone.
        """
        self._ended = True
        await self._writer.write_last(last_word)
        self._counts.writes += 1

    async def run(self) -> None:
        """Keep the status alive until cancelled."""
        self._wakeup.bind()
        try:
            while not self._ended:
                try:
                    status = self._board.status(time.monotonic())
                    await self._writer.write(status)
                    self._counts.writes += 1
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
        if self._board.status(now) is not self._writer.written:
            return  # it has changed while it was written
        refresh = jittered(self._interval, self._rng)
        await self._wakeup.wait(min(refresh, self._board.next_change(now) - now))

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
        self._complaints.say("the status cannot be written", error)
        await anyio.sleep(delay)
