"""Detects a blocked event loop; a thread publishes the status while the loop is blocked.

One daemon thread per process watches every loop that has a listener. While a loop is
blocked (a stall), another thread opens its own connections and runs a small event loop,
in which the listener publishes the status.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from bls_agent.connection.after_fork import register
from bls_agent.core.codec import cut_text
from bls_agent.core.errors import BlsError, RedisUnavailableError
from bls_agent.core.redaction import redact_traceback
from bls_agent.runtime.loop_thread import LoopThread

if TYPE_CHECKING:
    import asyncio

    from bls_agent.connection.agent_connections import AgentConnections

logger: logging.Logger = logging.getLogger(__name__)

SHORTEST: Final = 0.02  # shortest time in seconds between two increases of a counter
LONGEST: Final = 1.0  # longest time in seconds between two increases of a counter
QUICK: Final = 0.02  # seconds between two checks of a blocked loop
FRAMES: Final = 5  # stack frames of a blocked loop in the warning of this module
OWN_FRAMES: Final = 3  # stack frames of the program in the agent's log
LONGEST_PLACE: Final = 400  # most bytes of the text about these frames
_STANDARD: Final = str(Path(os.__file__).parent) + os.sep
_PACKAGE: Final = str(Path(__file__).parents[1]) + os.sep
SETTLE_PAUSE: Final = 0.25  # seconds between two tries to kill lost connections
RETRY: Final = 0.5  # seconds after a failed write


@dataclass
class StallCounts:
    """How often an event loop was blocked, and the longest time in seconds."""

    stalls: int = 0
    longest: float = 0.0


@dataclass
class StallTimer:
    """Measures how long a loop is blocked, by a counter that the loop increases.

    Time in which the checking thread itself did not run is not counted.
    """

    seen: int = -1  # the loop's counter at the last check
    seconds: float = 0.0  # for how long the counter has not changed

    def check(self, count: int, elapsed: float, asked: float, longest: float) -> None:
        """Check the loop's counter, ``elapsed`` seconds after the last check.

        ``asked`` are the seconds that the thread wanted to wait. If more time has
        passed, at most ``longest`` more seconds count, because the process may have
        been frozen.
        """
        if count != self.seen:
            self.seen, self.seconds = count, 0.0
        else:
            self.seconds += min(elapsed, asked + longest)


class StallListener(Protocol):
    """What an agent does during a stall; a thread of the watchdog calls its methods."""

    name: str  # shown in the log of the program
    counts: StallCounts  # updated by the watchdog
    stall_after: float  # seconds after which a blocked loop counts as a stall
    # Seconds after which a thread publishes for a blocked loop. The time may be shorter
    # than stall_after, so that the status does not expire.
    publish_after: float
    interval: float  # seconds between two writes

    def connect(self) -> AgentConnections:
        """Make connections for the thread, without opening them."""
        ...

    def on_stall(self, place: str) -> None:
        """React to a loop that was blocked for ``stall_after`` seconds.

        ``place`` names the lines of the program that the loop's thread executes.
        """
        ...

    async def publish(self, connections: AgentConnections) -> None:
        """Write the state once, or raise BlsError."""
        ...

    def on_recovery(self, seconds: float) -> None:
        """React to a loop that runs again.

        No write of the thread can arrive any more, unless the server refuses to end a
        lost connection. ``seconds`` is the time for which the loop was blocked, or 0 if
        this did not count as a stall.
        """
        ...


class LoopWatch:
    """Watches the loop of one listener, from :meth:`begin` to :meth:`end`.

    While the loop runs, a timer in the loop increases a counter, which the watchdog's
    thread reads. During a stall another thread publishes the status.
    """

    def __init__(self, listener: StallListener) -> None:
        self.listener = listener
        self.closed: bool = True  # if true, no thread may begin to publish
        # Whether a thread publishes, or may have a write that has not arrived yet.
        self.publishing: bool = False
        self.period: float = LONGEST  # seconds between two increases of the counter
        self._shortest = 0.0  # seconds until a thread publishes for a blocked loop
        self._timer = StallTimer()  # used by the watchdog's thread
        self._count = 0
        self._at = 0.0  # monotonic seconds of the last count
        self._thread = 0  # identifier of the loop's thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._poke = anyio.Event()  # set to publish at once

    def begin(self) -> None:
        """Start the timer in the running event loop, and watch this loop."""
        import asyncio  # noqa: PLC0415 - the import takes 20 ms

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
        """Stop watching; return when no write of the thread can arrive any more."""
        self.drop()
        _WATCHDOG.wake.set()
        while self.publishing:  # noqa: ASYNC110 - a thread cannot set an anyio event
            await anyio.sleep(0.005)

    def drop(self) -> None:
        """Stop watching without waiting; callable in any thread and in a finaliser."""
        self.closed = True

    @property
    def is_over(self) -> bool:
        return self.closed or self._loop is None or self._loop.is_closed()

    def check(self, elapsed: float, asked: float) -> None:
        """Check the counter; start to publish if the loop is blocked for too long."""
        self._timer.check(self._count, elapsed, asked, 5 * self.period)
        if self.publishing or not self._is_late(self._shortest):
            return
        # Set before ``closed`` is read, because end() sets ``closed`` before it reads
        # this.
        self.publishing = True
        if self.closed or not self._start_thread():
            self.publishing = False

    def _start_thread(self) -> bool:
        """Publish in a loop of another thread; return whether the thread has started.

        A process at its limit of threads or open files cannot start a thread. Then the
        next check tries it again. The log has no line about it, because the log may be
        what blocks the loop.
        """
        thread = LoopThread("bls-agent stalled loop")
        try:
            thread.start()
        except (RuntimeError, OSError):
            return False
        thread.stop_after(thread.begin(self._run))
        return True

    def _is_late(self, seconds: float) -> bool:
        """Return whether the next increase of the counter is overdue by ``seconds``."""
        return self._timer.seconds >= seconds + self.period

    async def _run(self) -> None:
        try:
            await self._publish()
        except BaseException as error:  # noqa: BLE001 - the error ends the thread
            self.drop()
            if not sys.is_finalizing():
                text = "the status of a stalled process cannot be written any more\n%s"
                logger.error(text, redact_traceback(error))  # noqa: TRY400 - the text has a redacted traceback
        finally:
            self.publishing = False

    async def _publish(self) -> None:
        """Publish until the loop runs; return when no write can arrive any more."""
        connections = self.listener.connect()
        connections.throttled_log.silence()  # a log handler may be what blocks the loop
        count, began, seconds, reported = self._count, self._at, 0.0, False
        try:
            async with anyio.create_task_group() as publishing:
                publishing.start_soon(self._publish_again, connections)
                while self._count == count and not self.is_over:
                    if not reported and self._is_late(self.listener.stall_after):
                        reported = True
                        self._report(_read_stack(self._thread))
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

    def _report(self, stack: list[tuple[str, str]]) -> None:
        listener = self.listener
        listener.counts.stalls += 1
        listener.on_stall(find_own_place(stack))
        where = _join_frames(stack[:FRAMES])
        text = "%s: the event loop has not moved for %g s; it stands in %s"
        # Logged in a thread, because the loop may be blocked inside a log handler.
        # Without a thread this line is lost, but not the record in the agent's log.
        with suppress(RuntimeError):
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
        """Make the server end the connections that were lost during a write.

        The server can then no longer execute a write of these connections.
        """
        live = connections.liveness
        if live.unanswered:
            await live.drop()
        owed = list(live.orphans.waiting)
        while owed:
            try:
                await connections.kill_orphans(live, kill=True)
            except RedisUnavailableError:
                if self.closed:
                    return  # give up, because end() waits for this thread
                live.orphans.restore(owed)
                await anyio.sleep(SETTLE_PAUSE)
            else:
                return


class _Watchdog:
    """The thread that checks all watches; it ends with the last watch.

    The watchdog has only weak references to the watches, because only their loops keep
    them alive. So the garbage collector can remove an agent that was never closed.
    """

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Set up the object without a thread and watches, also in a forked child."""
        self._watches: dict[int, weakref.ref[LoopWatch]] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.wake = threading.Event()

    def add(self, watch: LoopWatch) -> None:
        register(self)
        with self._lock:
            self._watches[id(watch)] = weakref.ref(watch)
            if self._thread is None:
                self._thread = self._start_thread()
        self.wake.set()

    def _start_thread(self) -> threading.Thread | None:
        thread = threading.Thread(
            target=self._run, name="bls-agent watchdog", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the process is at its limit of threads
            logger.warning(
                "stalls of event loops are not detected until the next agent starts: %s",
                error,
            )
            return None
        return thread

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
        except BaseException as error:  # noqa: BLE001 - the error ends the thread
            self._thread = None  # the next add() starts a new thread
            if not sys.is_finalizing():
                text = "the watchdog failed\n%s"
                logger.error(text, redact_traceback(error))  # noqa: TRY400 - the text has a redacted traceback

    def _open(self) -> list[LoopWatch]:
        """Return the watches that still run; if there are none, let the thread end."""
        with self._lock:
            found = [reference() for reference in self._watches.values()]
            watches = [watch for watch in found if watch and not watch.is_over]
            self._watches = {id(watch): weakref.ref(watch) for watch in watches}
            if not watches:
                self._thread = None
            return watches


def _read_stack(thread: int) -> list[tuple[str, str]]:
    """Return file and line of a thread's frames, innermost first, without values."""
    # A garbage collection inside of this call can block every thread for ever, because
    # CPython 3.11 makes frames while it holds a lock that a finaliser may need.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        frame = sys._current_frames().get(thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - documented
    finally:
        if was_enabled:
            gc.enable()
    stack: list[tuple[str, str]] = []
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        stack.append((file, f"{file}:{frame.f_lineno} {name}"))
        frame = frame.f_back
    return stack


def find_own_place(stack: list[tuple[str, str]]) -> str:
    """Return the innermost frames of the program's own code, which its developers know.

    If there are none, return frames of installed packages. If there are none either,
    return frames of Python and of this package.
    """
    nearest = min((_distance(file) for file, _ in stack), default=0)
    own = [one for one in stack if _distance(one[0]) == nearest]
    return cut_text(_join_frames(own[:OWN_FRAMES]), LONGEST_PLACE)


def _distance(file: str) -> int:
    if file.startswith((_PACKAGE, "<frozen ")):
        return 2
    if "site-packages" in file or "dist-packages" in file:
        return 1
    return 2 if file.startswith(_STANDARD) else 0


def _join_frames(stack: list[tuple[str, str]]) -> str:
    places = ", called by ".join(place for _, place in stack)
    return places or "nowhere: its thread has ended"


_WATCHDOG: Final = _Watchdog()
