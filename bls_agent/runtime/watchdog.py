"""Notices an event loop that stands still; meanwhile a thread publishes for it.

One daemon thread per process watches every loop that has a listener; a loop has one
timer, however many agents it runs. Only during a stall the thread opens connections,
of its own, and runs a small event loop in which the listeners publish.
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
    from bls_agent.connection.endpoint import Endpoint

__all__ = ["LoopWatch", "StallCounts", "StallListener", "StallTimer"]

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

    Time in which the thread itself stood still is not counted: after a suspend or a
    debugger the loop gets its time to move.
    """

    seen: int = -1  # the loop's count at the last check
    seconds: float = 0.0  # for how long it has not changed

    def check(self, count: int, elapsed: float, asked: float, longest: float) -> None:
        """Check the loop's count once more, ``elapsed`` seconds after the last check.

        ``asked`` seconds were to pass between the two; at most ``longest`` more may be
        due to a busy machine.
        """
        if count != self.seen:
            self.seen, self.seconds = count, 0.0
        else:
            self.seconds += min(elapsed, asked + longest)


class StallListener(Protocol):
    """Publishes for a stalled loop. All methods are called in the watchdog's thread."""

    name: str  # in the host's log
    endpoint: Endpoint  # where to publish
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
    """Watches the loop of one listener, from :meth:`begin` to :meth:`end`."""

    def __init__(self, listener: StallListener) -> None:
        self.listener = listener
        self.closed = True  # no publishing is begun for it any more
        # Whether the thread publishes for it, or may have something in flight.
        self.publishing = False
        self._monitor: _LoopMonitor | None = None
        self._poke = anyio.Event()  # set when it has to be published at once

    def begin(self) -> None:
        """Watch the running event loop from now on."""
        import asyncio  # noqa: PLC0415 - 20 ms, not at import

        self.closed = False
        self._monitor = _WATCHDOG.add(self, asyncio.get_running_loop())

    async def end(self) -> None:
        """Stop, and wait until no write of the thread can arrive any more."""
        self.drop()
        _WATCHDOG.wake.set()
        while self.publishing:  # noqa: ASYNC110 - a thread sets no event
            await anyio.sleep(0.005)

    def drop(self) -> None:
        """Stop, without waiting; from anywhere, also from a finaliser."""
        self.closed = True
        if self._monitor is not None:
            self._monitor.watches.pop(id(self), None)

    async def publish(
        self, monitor: _LoopMonitor, connections: AgentConnections
    ) -> None:
        """Publish until the loop moves; then make sure that nothing is in flight."""
        count, began, seconds, reported = monitor.count, monitor.at, 0.0, False
        try:
            async with anyio.create_task_group() as publishing:
                publishing.start_soon(self._publish_again, connections)
                while not self.closed and monitor.stands_at(count):
                    if not reported and monitor.is_late(self.listener.stall_after):
                        reported = True
                        self._report(_describe_place(monitor.thread))
                        self._poke.set()
                    await anyio.sleep(QUICK)
                publishing.cancel_scope.cancel()
            if reported and not monitor.loop.is_closed():
                seconds = time.monotonic() - began - monitor.period
                counts = self.listener.counts
                counts.longest = max(counts.longest, seconds)
            await self._settle(connections)
        finally:
            self.listener.on_recovery(seconds)

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
        owed = list(live.lost)
        while owed:
            try:
                await connections.forget_lost(live, kill=True)
            except RedisUnavailableError:
                if self.closed:
                    return  # it cannot be known any more, and end() waits
                live.lost = owed + [lost for lost in live.lost if lost not in owed]
                await anyio.sleep(SETTLE_PAUSE)
            else:
                return


class _LoopMonitor:
    """A timer that counts in one event loop as long as the loop moves."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.count = 0  # how often the timer has fired
        self.at = time.monotonic()  # monotonic seconds of the last time
        self.thread = 0  # identifier of the loop's thread
        self.period = LONGEST  # seconds between two counts
        # The timer ends with the last of them.
        self.watches: dict[int, LoopWatch] = {}
        self.timer = StallTimer()  # used by the watchdog's thread
        self._handle: asyncio.TimerHandle | None = None

    def add(self, watch: LoopWatch, shortest: float) -> None:
        """Count for one watch more, often enough for so many seconds; in the loop."""
        self.period = min(self.period, max(SHORTEST, shortest / 10))
        self.watches[id(watch)] = watch
        if self._handle is not None:
            self._handle.cancel()
        self._tick()

    def _tick(self) -> None:
        self.count += 1
        self.at = time.monotonic()
        self.thread = threading.get_ident()
        self._handle = None
        if self.watches:
            self._handle = self.loop.call_later(self.period, self._tick)

    def stands_at(self, count: int) -> bool:
        """Whether the loop has not moved since this count, and is not closed."""
        return self.count == count and not self.loop.is_closed()

    def is_late(self, seconds: float) -> bool:
        """Whether the loop has been late for so long, beyond the timer's period."""
        return self.timer.seconds >= seconds + self.period


class _Watchdog:
    """The thread and the loops it watches; it ends with the last of them.

    It holds monitors weakly, their loops and watches hold them: so no agent is kept.
    """

    def __init__(self) -> None:
        self.forget_parent()

    def forget_parent(self) -> None:
        """Have no thread and nothing to watch, as at first and in a forked child."""
        self._monitors: dict[int, weakref.ref[_LoopMonitor]] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.wake = threading.Event()
        self._checked = time.monotonic()
        self._connections: dict[object, AgentConnections] = {}
        self._publishers = 0

    def add(self, watch: LoopWatch, loop: asyncio.AbstractEventLoop) -> _LoopMonitor:
        """Watch a loop for one more listener; called in the loop's thread."""
        register(self)
        with self._lock:
            known = (one for one in self._list_monitors() if one.loop is loop)
            monitor = next(known, None) or _LoopMonitor(loop)
            listener = watch.listener
            monitor.add(watch, min(listener.stall_after, listener.publish_after))
            self._monitors[id(monitor)] = weakref.ref(monitor)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="bls-agent watchdog", daemon=True
                )
                self._thread.start()
        self.wake.set()
        return monitor

    def _run(self) -> None:
        try:
            while self._has_work():
                periods = [one.period for one in self._list_monitors()]
                asked = min(periods, default=QUICK)
                self.wake.wait(asked)
                self.wake.clear()
                self._check(asked)
                if self._due():
                    anyio.run(self._publish)
        except BaseException as error:  # noqa: BLE001 - it ends the thread
            self._thread = None  # the next agent that opens has a new one
            if not sys.is_finalizing():
                text = "the watchdog failed\n%s"
                logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted

    def _has_work(self) -> bool:
        with self._lock:
            for number, reference in self._monitors.copy().items():
                monitor = reference()
                if monitor is None or not monitor.watches or monitor.loop.is_closed():
                    self._monitors.pop(number, None)
            if not self._monitors:
                self._thread = None
            return bool(self._monitors)

    def _list_monitors(self) -> list[_LoopMonitor]:
        found = [reference() for reference in self._monitors.copy().values()]
        return [one for one in found if one and not one.loop.is_closed()]

    def _check(self, asked: float) -> None:
        now = time.monotonic()
        elapsed, self._checked = now - self._checked, now
        for monitor in self._list_monitors():
            monitor.timer.check(monitor.count, elapsed, asked, 5 * monitor.period)

    def _due(self) -> list[tuple[LoopWatch, _LoopMonitor]]:
        return [
            (watch, monitor)
            for monitor in self._list_monitors()
            if monitor.timer.seconds > monitor.period  # else no listener can be due
            for watch in monitor.watches.copy().values()
            if not watch.publishing
            and monitor.is_late(
                min(watch.listener.stall_after, watch.listener.publish_after)
            )
        ]

    async def _publish(self) -> None:
        """While a loop stands still, check on and let its listeners publish."""
        try:
            async with anyio.create_task_group() as publishers:
                while True:
                    for watch, monitor in self._due():
                        watch.publishing = True  # set before closed is read: see end()
                        if watch.closed:
                            watch.publishing = False
                        else:
                            found = self._connections_for(watch.listener)
                            publishers.start_soon(
                                self._publish_for, watch, monitor, found
                            )
                            self._publishers += 1
                    if not self._publishers:
                        break
                    await anyio.sleep(QUICK)
                    self._check(QUICK)
        finally:
            with anyio.CancelScope(shield=True):
                for connections in self._connections.values():
                    await connections.aclose()
            self._connections = {}

    async def _publish_for(
        self, watch: LoopWatch, monitor: _LoopMonitor, connections: AgentConnections
    ) -> None:
        try:
            await watch.publish(monitor, connections)
        except Exception as error:  # noqa: BLE001 - ours: the others go on
            watch.drop()
            text = "a stalled agent cannot be spoken for any more\n%s"
            logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
        finally:
            watch.publishing = False
            self._publishers -= 1

    def _connections_for(self, listener: StallListener) -> AgentConnections:
        endpoint = listener.endpoint
        key = (endpoint.address, endpoint.likeness or id(endpoint))
        if key not in self._connections:
            made = self._connections[key] = listener.connect()
            made.complaints.quiet = True  # the log may be what the loop waits for
        return self._connections[key]


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
