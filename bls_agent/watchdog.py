"""Notices an event loop that stands still, and lets somebody speak for it meanwhile.

One daemon thread per process looks after every loop in which something is watched. A
loop has one beat, a timer that counts, however many agents live in it. Only while a
loop stands still the thread opens connections, of its own, and runs a small event loop
in which those speak who cannot speak in theirs.

What decides is apart from the thread: see ``pulse.py``.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from bls_agent.connection import Connections
from bls_agent.endpoint import Endpoint
from bls_agent.errors import BlsError, RedisUnavailableError
from bls_agent.forking import register
from bls_agent.pulse import Beat
from bls_agent.redaction import redact_traceback

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - see Watch.begin

__all__ = ["Ward", "Watch"]

logger = logging.getLogger(__name__)

QUICK: Final = 0.02  # seconds between two looks at a loop that stands still
FRAMES: Final = 5  # that are told of the place where it stands
SETTLE_PAUSE: Final = 0.25  # seconds between two tries to have nothing in flight
RETRY: Final = 0.5  # seconds after a word that could not be written


class Ward(Protocol):
    """Who is spoken for. All of it is called in the watchdog's thread.

    Attributes:
        endpoint: Where to speak.
        stall_after: Seconds of standing still from which on it is a stall.
        speak_after: Seconds of standing still after which the last word of its own
            has to be refreshed; may be shorter.
        interval: Seconds between two words.
    """

    endpoint: Endpoint
    stall_after: float
    speak_after: float
    interval: float

    def connect(self) -> Connections:
        """Make connections for the thread; nothing is opened yet."""
        ...

    async def speak(self, connections: Connections) -> None:
        """Say how it is, once.

        Raises:
            BlsError: It could not be said.
        """
        ...

    def begin_stall(self, where: str) -> None:
        """Note that its loop stands still, and where."""
        ...

    def take_over(self) -> None:
        """Note that the thread begins to speak."""
        ...

    def give_back(self, seconds: float) -> None:
        """Note that the loop moves and that nothing of the thread can arrive any more.

        Args:
            seconds: How long it stood still; 0 if that was no stall.
        """
        ...


class Watch:
    """Looks after the loop of one ward, from :meth:`begin` to :meth:`end`.

    Attributes:
        ward: Who is spoken for.
        closed: Whether nothing is begun for it any more.
        speaking: Whether the thread speaks for it, or may have something in flight.
    """

    def __init__(self, ward: Ward) -> None:
        """Remember whom; nothing is begun yet."""
        self.ward = ward
        self.closed = True
        self.speaking = False
        self._beat: Beat[Watch] | None = None

    def begin(self) -> None:
        """Look after the running event loop from now on."""
        import asyncio  # noqa: PLC0415, TID251 - 20 ms, not at import

        self.closed = False
        self._beat = _WATCHDOG.add(self, asyncio.get_running_loop())

    async def end(self) -> None:
        """Stop, and wait until nothing of the thread can arrive any more."""
        self.drop()
        _WATCHDOG.wake()
        while self.speaking:  # noqa: ASYNC110 - a thread tells no event
            await anyio.sleep(0.005)

    def drop(self) -> None:
        """Stop, without waiting; from anywhere, also from a finaliser."""
        self.closed = True
        if self._beat is not None:
            self._beat.watches.pop(id(self), None)


class _Watchdog:
    """The thread and the loops it looks after.

    It holds beats weakly, their loops and watches hold them: an agent and a loop that
    everybody has forgotten are not kept by it. It ends when nobody is left.
    """

    def __init__(self) -> None:
        self.forget_parent()

    def forget_parent(self) -> None:
        """Have no thread and nobody to look after, as a forked child has."""
        self._beats: dict[int, weakref.ref[Beat[Watch]]] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._looked = time.monotonic()
        self._lines: dict[object, Connections] = {}
        self._speakers = 0

    def add(self, watch: Watch, loop: asyncio.AbstractEventLoop) -> Beat[Watch]:
        """Look after one more; in its loop's thread."""
        register(self)
        with self._lock:
            beats = [reference() for reference in self._beats.copy().values()]
            beat = next((b for b in beats if b and b.loop is loop), None) or Beat[
                Watch
            ](loop)
            beat.add(watch, min(watch.ward.stall_after, watch.ward.speak_after))
            self._beats[id(beat)] = weakref.ref(beat)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="bls-agent watchdog", daemon=True
                )
                self._thread.start()
        self.wake()
        return beat

    def wake(self) -> None:
        """Have the thread look now."""
        self._wake.set()

    def _run(self) -> None:
        try:
            while self._has_work():
                asked = self._pause()
                self._wake.wait(asked)
                self._wake.clear()
                self._look(asked)
                if self._due():
                    anyio.run(self._speak)
        except BaseException as error:  # noqa: BLE001 - a thread's last word
            self._thread = None  # the next agent that opens has a new one
            if not sys.is_finalizing():
                text = "the watchdog failed\n%s"
                logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted

    def _has_work(self) -> bool:
        with self._lock:
            for number, reference in self._beats.copy().items():
                beat = reference()
                if beat is None or not beat.watches or beat.loop.is_closed():
                    self._beats.pop(number, None)
            if not self._beats:
                self._thread = None
            return bool(self._beats)

    def _list_beats(self) -> list[Beat[Watch]]:
        beats = [reference() for reference in self._beats.copy().values()]
        return [beat for beat in beats if beat and not beat.loop.is_closed()]

    def _pause(self) -> float:
        return min((beat.period for beat in self._list_beats()), default=QUICK)

    def _look(self, asked: float) -> None:
        now = time.monotonic()
        elapsed, self._looked = now - self._looked, now
        for beat in self._list_beats():
            beat.stillness.look(beat.count, elapsed, asked, 5 * beat.period)

    def _due(self) -> list[tuple[Watch, Beat[Watch]]]:
        return [
            (watch, beat)
            for beat in self._list_beats()
            if beat.stillness.seconds > beat.period  # else nobody has to be asked
            for watch in beat.watches.copy().values()
            if not watch.speaking
            and beat.stands(min(watch.ward.stall_after, watch.ward.speak_after))
        ]

    async def _speak(self) -> None:
        """Live while a loop stands still: look on, and let everybody speak."""
        try:
            async with anyio.create_task_group() as speakers:
                while True:
                    for watch, beat in self._due():
                        watch.speaking = True  # first this, then the look: see end()
                        if watch.closed:
                            watch.speaking = False
                        else:
                            line = self._line_to(watch.ward)
                            speakers.start_soon(self._speak_for, watch, beat, line)
                            self._speakers += 1
                    if not self._speakers:
                        break
                    await anyio.sleep(QUICK)
                    self._look(QUICK)
        finally:
            with anyio.CancelScope(shield=True):
                for line in self._lines.values():
                    await line.aclose()
            self._lines = {}

    async def _speak_for(
        self, watch: Watch, beat: Beat[Watch], line: Connections
    ) -> None:
        try:
            await _Stall(watch, beat, line).run()
        except Exception as error:  # noqa: BLE001 - ours: the others go on
            watch.drop()
            text = "a stalled agent cannot be spoken for any more\n%s"
            logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
        finally:
            watch.speaking = False
            self._speakers -= 1

    def _line_to(self, ward: Ward) -> Connections:
        """Give the connection to an endpoint: one for all who speak there."""
        endpoint = ward.endpoint
        key = (endpoint.address, endpoint.likeness or id(endpoint))
        if key not in self._lines:
            self._lines[key] = ward.connect()
            self._lines[
                key
            ].complaints.quiet = True  # the log may be what the loop waits for
        return self._lines[key]


class _Stall:
    """One time that a loop stands still, from the first word for it to its return."""

    def __init__(self, watch: Watch, beat: Beat[Watch], line: Connections) -> None:
        self._watch = watch
        self._ward = watch.ward
        self._beat = beat
        self._line = line
        self._count = beat.count
        self._began = beat.at
        self._told = False
        self._poke = anyio.Event()

    async def run(self) -> None:
        """Speak until the loop moves; then make sure that nothing is in flight."""
        seconds = 0.0
        self._ward.take_over()
        try:
            self._tell_if_due()
            async with anyio.create_task_group() as talking:
                talking.start_soon(self._talk)
                while self._stands():
                    self._tell_if_due()
                    await anyio.sleep(QUICK)
                talking.cancel_scope.cancel()
            if self._told and not self._beat.loop.is_closed():
                seconds = time.monotonic() - self._began - self._beat.period
            await self._settle()
        finally:
            self._ward.give_back(seconds)

    def _stands(self) -> bool:
        if self._watch.closed or self._beat.loop.is_closed():
            return False
        return self._beat.count == self._count

    def _tell_if_due(self) -> None:
        if not self._told and self._beat.stands(self._ward.stall_after):
            self._told = True
            self._ward.begin_stall(_tell_place(self._beat.thread))
            self._poke.set()

    async def _talk(self) -> None:
        while True:
            self._poke = anyio.Event()
            pause = self._ward.interval
            try:
                await self._ward.speak(self._line)
            except BlsError:
                pause = min(RETRY, pause)
            with anyio.move_on_after(pause):
                await self._poke.wait()

    async def _settle(self) -> None:
        """Kill at the server what was cut off in the middle of a word."""
        live = self._line.liveness
        owed = list(live.lost)
        while owed:
            try:
                await self._line.forget_lost(live, kill=True)
            except RedisUnavailableError:
                if self._watch.closed:
                    return  # nobody can know any more, and somebody waits
                live.lost = owed + [lost for lost in live.lost if lost not in owed]
                await anyio.sleep(SETTLE_PAUSE)
            else:
                return


def _tell_place(thread: int) -> str:
    """Say where a thread stands: its innermost frames, no values."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - documented
    places: list[str] = []
    while frame is not None and len(places) < FRAMES:
        code = frame.f_code
        places.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return ", called by ".join(places) or "nowhere: its thread has ended"


_WATCHDOG: Final = _Watchdog()
