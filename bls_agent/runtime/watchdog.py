"""Notices an event loop that stands still; meanwhile a thread publishes for it.

One daemon thread per process watches every loop that has a listener. During a stall
another thread opens connections of its own and runs a small event loop, in which the
listener publishes.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from bls_agent.connection.after_fork import register
from bls_agent.core.errors import BlsError, RedisUnavailableError
from bls_agent.core.redaction import redact_traceback

if TYPE_CHECKING:
    import asyncio

    from bls_agent.connection.agent_connections import AgentConnections

logger = logging.getLogger(__name__)

SHORTEST: Final = 0.02  # seconds between two counts of a loop's timer
LONGEST: Final = 1.0
QUICK: Final = 0.02  # seconds between two checks of a loop that stands still
FRAMES: Final = 5  # that are shown of the place where it stands
SETTLE_PAUSE: Final = 0.25  # seconds between two tries to have nothing in flight
RETRY: Final = 0.5  # seconds after a failed write


@dataclass
class StallCounts:
    """How often an event loop stood still, and the longest time in seconds."""

    stalls: int = 0
    longest: float = 0.0


@dataclass
class StallTimer:
    """How long a loop has stood still, judged by counts that a thread reads repeatedly.

    Time in which the thread itself stood still, as in a suspend, is not counted.
    """

    seen: int = -1  # the loop's count at the last check
    seconds: float = 0.0  # for how long it has not changed

    def check(self, count: int, elapsed: float, asked: float, longest: float) -> None:
        """Check the loop's count once more, ``elapsed`` seconds after the last check.

        ``asked`` were to pass; at most ``longest`` more may be due to a busy machine.
        """
        if count != self.seen:
            self.seen, self.seconds = count, 0.0
        else:
            self.seconds += min(elapsed, asked + longest)


class StallListener(Protocol):
    """Publishes for a stalled loop. All methods are called in a thread of the watchdog."""

    name: str  # in the host's log
    counts: StallCounts  # the watchdog counts here
    stall_after: float  # seconds of standing still from which on it is a stall
    # Seconds of standing still after which what the loop wrote last has to be
    # refreshed; may be shorter.
    publish_after: float
    interval: float  # seconds between two writes

    def connect(self) -> AgentConnections:
        """Make connections for the thread; nothing is opened yet."""
        ...

    def on_stall(self) -> None:
        """The loop has stood still for ``stall_after`` seconds."""
        ...

    async def publish(self, connections: AgentConnections) -> None:
        """Write the state once, or raise BlsError."""
        ...

    def on_recovery(self, seconds: float) -> None:
        """The loop moves, and no write of the thread can arrive any more.

        It stood still for ``seconds``; 0 if that was no stall.
        """
        ...


class LoopWatch:
    """Watches the loop of one listener, from :meth:`begin` to :meth:`end`.

    A timer counts in the loop as long as the loop moves; the watchdog's thread reads
    the count. During a stall a thread of its own publishes.
    """

    def __init__(self, listener: StallListener) -> None:
        self.listener = listener
        self.closed = True  # no publishing is begun for it any more
        # Whether a thread publishes for it, or may have something in flight.
        self.publishing = False
        self.period = LONGEST  # seconds between two counts
        self._shortest = 0.0  # seconds of standing still until it is published
        self._timer = StallTimer()  # used by the watchdog's thread
        self._count = 0
        self._at = 0.0  # monotonic seconds of the last count
        self._thread = 0  # identifier of the loop's thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._poke = anyio.Event()  # set when it has to be published at once

    def begin(self) -> None:
        """Watch the running event loop."""
        import asyncio  # noqa: PLC0415 - 20 ms, not at import

        if self._handle is not None:
            self._handle.cancel()
        self.closed = False
        self._shortest = min(self.listener.stall_after, self.listener.publish_after)
        self.period = min(LONGEST, max(SHORTEST, self._shortest / 10))
        self._loop = asyncio.get_running_loop()
        self._tick()
        _WATCHDOG.add(self)

    def _tick(self) -> None:
        self._count += 1
        self._at = time.monotonic()
        self._thread = threading.get_ident()
        self._handle = None
        if self._loop is not None and not self.closed:
            self._handle = self._loop.call_later(self.period, self._tick)

    async def end(self) -> None:
        """Stop, and wait until no write of the thread can arrive any more."""
        self.drop()
        _WATCHDOG.wake.set()
        while self.publishing:  # noqa: ASYNC110 - a thread sets no event
            await anyio.sleep(0.005)

    def drop(self) -> None:
        """Stop, without waiting; from anywhere, also from a finaliser."""
        self.closed = True

    @property
    def is_over(self) -> bool:
        return self.closed or self._loop is None or self._loop.is_closed()

    def check(self, elapsed: float, asked: float) -> None:
        """Check the loop's count; if it has stood too long, begin to publish."""
        self._timer.check(self._count, elapsed, asked, 5 * self.period)
        if self.publishing or not self._is_late(self._shortest):
            return
        self.publishing = True  # set before closed is read: see end()
        if self.closed:
            self.publishing = False
            return
        threading.Thread(
            target=self._run, name="bls-agent stalled loop", daemon=True
        ).start()

    def _is_late(self, seconds: float) -> bool:
        """Whether the loop has been late for so long, beyond the timer's period."""
        return self._timer.seconds >= seconds + self.period

    def _run(self) -> None:
        try:
            anyio.run(self._publish)
        except BaseException as error:  # noqa: BLE001 - it ends the thread
            self.drop()
            if not sys.is_finalizing():
                text = "the status of a stalled process cannot be written any more\n%s"
                logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
        finally:
            self.publishing = False

    async def _publish(self) -> None:
        """Publish until the loop moves; then make sure that nothing is in flight."""
        connections = self.listener.connect()
        connections.throttled_log.silence()  # the log may be what the loop waits for
        count, began, seconds, reported = self._count, self._at, 0.0, False
        try:
            async with anyio.create_task_group() as publishing:
                publishing.start_soon(self._publish_again, connections)
                while self._count == count and not self.is_over:
                    if not reported and self._is_late(self.listener.stall_after):
                        reported = True
                        self._report(_describe_place(self._thread))
                        self._poke.set()
                    await anyio.sleep(QUICK)
                publishing.cancel_scope.cancel()
            if reported and self._loop is not None and not self._loop.is_closed():
                seconds = time.monotonic() - began - self.period
                counts = self.listener.counts
                counts.longest = max(counts.longest, seconds)
            await self._settle(connections)
        finally:
            self.listener.on_recovery(seconds)
            with anyio.CancelScope(shield=True):
                await connections.aclose()

    def _report(self, where: str) -> None:
        listener = self.listener
        listener.counts.stalls += 1
        listener.on_stall()
        text = "%s: the event loop has not moved for %g s; it stands in %s"
        # In a thread that may be held: the loop may be standing in a handler of the log.
        threading.Thread(
            target=logger.warning,
            args=(text, listener.name, listener.stall_after, where),
            name="bls-agent stall",
            daemon=True,
        ).start()

    async def _publish_again(self, connections: AgentConnections) -> None:
        while True:
            self._poke = anyio.Event()
            pause = self.listener.interval
            try:
                await self.listener.publish(connections)
            except BlsError:
                pause = min(RETRY, pause)
            with anyio.move_on_after(pause):
                await self._poke.wait()

    async def _settle(self, connections: AgentConnections) -> None:
        """Kill at the server the connections that were cut in the middle of a write."""
        live = connections.liveness
        if live.unanswered:
            await live.drop()
        owed = list(live.orphans.waiting)
        while owed:
            try:
                await connections.kill_orphans(live, kill=True)
            except RedisUnavailableError:
                if self.closed:
                    return  # it cannot be known any more, and end() waits
                live.orphans.restore(owed)
                await anyio.sleep(SETTLE_PAUSE)
            else:
                return


class _Watchdog:
    """The thread, and the loops that it watches; it ends with the last of them.

    It holds the watches weakly, their loops hold them: so no agent is kept.
    """

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Have no thread and nothing to watch, as at first and in a forked child."""
        self._watches: dict[int, weakref.ref[LoopWatch]] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.wake = threading.Event()

    def add(self, watch: LoopWatch) -> None:
        register(self)
        with self._lock:
            self._watches[id(watch)] = weakref.ref(watch)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="bls-agent watchdog", daemon=True
                )
                self._thread.start()
        self.wake.set()

    def _run(self) -> None:
        try:
            checked = time.monotonic()
            while periods := [watch.period for watch in self._open()]:
                asked = min(periods)
                self.wake.wait(asked)
                self.wake.clear()
                now = time.monotonic()
                elapsed, checked = now - checked, now
                for watch in self._open():
                    watch.check(elapsed, asked)
        except BaseException as error:  # noqa: BLE001 - it ends the thread
            self._thread = None  # the next agent that opens has a new one
            if not sys.is_finalizing():
                text = "the watchdog failed\n%s"
                logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted

    def _open(self) -> list[LoopWatch]:
        """Return what is to be watched; without any, the thread ends."""
        with self._lock:
            found = [reference() for reference in self._watches.values()]
            watches = [watch for watch in found if watch and not watch.is_over]
            self._watches = {id(watch): weakref.ref(watch) for watch in watches}
            if not watches:
                self._thread = None
            return watches


def _describe_place(thread: int) -> str:
    """Name the innermost frames of a thread, without values."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - documented
    places: list[str] = []
    while frame is not None and len(places) < FRAMES:
        code = frame.f_code
        places.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return ", called by ".join(places) or "nowhere: its thread has ended"


_WATCHDOG: Final = _Watchdog()
