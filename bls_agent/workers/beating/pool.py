"""All heartbeats of one event loop and one Redis: one connection, one task, few writes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.after_fork import register
from bls_agent.backoff import Backoff
from bls_agent.complaints import Complaints
from bls_agent.endpoint import Endpoint, Reply
from bls_agent.errors import BlsError, RedisRefusedError, RedisUnavailableError
from bls_agent.lease import boot_seconds
from bls_agent.redaction import redact_traceback
from bls_agent.tasks import ThreadSafeEvent, start_background
from bls_agent.watchdog import LoopWatch, StallCounts
from bls_agent.workers.beating.life import Life
from bls_agent.workers.beating.schedule import Schedule
from bls_agent.workers.beating.stalled import StalledHeartbeats
from bls_agent.workers.beating.writer import NAME, HeartbeatWriter

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - a task of asyncio's

__all__ = ["HeartbeatPool"]

logger = logging.getLogger(__name__)

TOGETHER: Final = 0.25  # seconds: what is due so soon goes along
BATCH: Final = 500  # heartbeats that are written before the host gets its turn
COALESCE: Final = 0.1  # seconds between two writes of one heartbeat
CAP: Final = 2.0  # seconds between two tries while Redis is away
RETRY: Final = 1.0  # seconds after a fault of ours
GRACE: Final = 0.5  # seconds beyond its timeout that an end may take

_HOPELESS: Final = ("no_permission", "unknown_command", "refused")


class HeartbeatPool:
    """Writes many heartbeats from one task over one connection.

    Attributes:
        stalls: How often the event loop stood still.
        is_gone: Whether it does nothing any more: its task has ended, or it is a forked
            child's copy.
        users: Heartbeats that are open.
        loop: Where it lives, once it does.
    """

    def __init__(
        self, endpoint: Endpoint, *, timeout: float, stall_after: float | None
    ) -> None:
        """Remember where to; :meth:`start` begins.

        Args:
            endpoint: Where Redis is.
            timeout: Deadline of one request in seconds.
            stall_after: Seconds of standing still from which on the event loop does not
                count as running; ``None`` for never.
        """
        self._timeout = timeout
        self._writer = HeartbeatWriter(endpoint, timeout=timeout)
        self._wakeup = ThreadSafeEvent()
        self._schedule: Schedule[Life] = Schedule()
        self._hastened: deque[Life] = deque()
        self._ending: list[Life] = []
        self._backoff = Backoff(cap=CAP)
        self._retry_at = 0.0
        self._away_since: float | None = None
        self._told_away = self._told_plain = False
        self._generation = 0
        self._complaints = Complaints()
        self._task: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._ended = anyio.Event()
        self.is_gone = False
        self.users = 0
        self.lives: dict[int, Life] = {}
        self.stalls = StallCounts()
        self._watch: LoopWatch | None = None
        if stall_after is not None:
            ward = StalledHeartbeats(
                endpoint, self, timeout=timeout, stall_after=stall_after
            )
            self._watch = LoopWatch(ward)
            self._ward = ward

    def start(self) -> None:
        """Begin, in the running event loop."""
        import asyncio  # noqa: PLC0415, TID251 - 20 ms, not at import

        register(self)
        self.loop = asyncio.get_running_loop()
        self._task = start_background(self._run, NAME)
        self._task.add_done_callback(self._is_over)

    def _is_over(self, _: asyncio.Task[None]) -> None:
        # A task that is cancelled before it began runs nothing of its own, no finally.
        self.is_gone = True
        for life in self._ending:
            life.ended.set()
        self._ended.set()

    @property
    def is_elsewhere(self) -> bool:
        """Whether it lives in another event loop than the one that runs here."""
        import asyncio  # noqa: PLC0415, TID251 - as above

        return self.loop is not asyncio.get_running_loop()

    @property
    def is_abandoned(self) -> bool:
        """Whether its event loop was closed before its end."""
        return self.loop is not None and self.loop.is_closed()

    def bury(self) -> None:
        """Let go of everything: the event loop was closed, and will not run any more."""
        self.is_gone = True
        self.lives = {}
        if self._watch is not None:
            self._watch.drop()
        self._writer.forget_loop()

    def forget_parent(self) -> None:
        """In a forked child: the heartbeats are the parent's."""
        self.is_gone = True
        self.lives = {}
        self._schedule = Schedule()

    def add(self, life: Life) -> None:
        """Keep one more alive; its first beat is due."""
        self.lives[id(life)] = life
        now = anyio.current_time()
        self._schedule.put(life, now)
        if now < self._retry_at:  # Redis is away, and the host does not wait for it
            life.judged.set()
        if self._watch is not None and self._ward.hurry(life.claim.ttl):
            self._watch.begin()
        self._wakeup.set()

    def hasten(self, life: Life) -> None:
        """Have a beat written soon; from any thread, never waits."""
        if not life.hastened and not self.is_gone:
            life.hastened = True
            self._hastened.append(life)
            self._wakeup.set()

    def hasten_all(self) -> None:
        """Have every beat written soon; from any thread, never waits."""
        self._hasten_each(list(self.lives.values()))

    def _hasten_each(self, lives: Sequence[Life]) -> None:
        for life in lives:
            self.hasten(life)

    def drop(self, life: Life) -> None:
        """Let go of one that is not ours, without a word to Redis."""
        life.claim.end()
        life.decided.set()
        self.lives.pop(id(life), None)
        self._schedule.remove(life)

    async def end(self, life: Life) -> None:
        """Remove one from Redis if it is ours; within ``timeout`` + 0.5 s."""
        self.drop(life)
        if self.is_gone:
            return
        self._ending.append(life)
        self._wakeup.set()
        with anyio.move_on_after(self._timeout + GRACE):
            await life.ended.wait()
        life.ended.set()  # who is cancelled here has not given up: winding up sees to it
        if life in self._ending:
            self._ending.remove(life)

    async def aclose(self) -> None:
        """End the task and close the connection."""
        self._closing = True
        try:
            if self._watch is not None:
                with anyio.move_on_after(GRACE):
                    await self._watch.end()
        finally:
            if self._task is not None:
                self._task.cancel()
                await self._ended.wait()

    async def _run(self) -> None:
        self._wakeup.bind()
        try:
            while not self.is_gone:
                try:
                    await self._wait()
                    if not self.is_gone:
                        await self._tick()
                except Exception as error:  # noqa: BLE001 - ours: the others go on
                    text = "a beat of the heartbeats failed\n%s"
                    logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
                    await anyio.sleep(RETRY + self._backoff.failed())
        finally:
            self._wakeup.unbind()
            if self._watch is not None:
                self._watch.drop()
            if not self.is_gone:
                with anyio.CancelScope(shield=True):
                    await self._wind_up()

    async def _wind_up(self) -> None:
        """Remove what nobody will remove any more, and close the connection."""
        lives = list(self.lives.values())
        if lives and not self._closing:
            logger.warning("the task of the heartbeats was cancelled and has ended")
            for life in lives:
                self.drop(life)
            self._ending += lives
        with anyio.move_on_after(self._timeout + GRACE):
            await self._end_those()
        await self._writer.aclose()

    async def _wait(self) -> None:
        """Wait until a beat is due, or an end is wanted."""
        while True:
            self._take_hastened()
            now, due = anyio.current_time(), self._schedule.next()
            if self._ending:
                return
            due = None if due is None else max(due, self._retry_at)
            if due is not None and due <= now:
                await anyio.lowlevel.checkpoint()
                return
            await self._wakeup.wait(None if due is None else due - now)

    def _take_hastened(self) -> None:
        now = anyio.current_time()
        while self._hastened:
            life = self._hastened.popleft()
            life.hastened = False
            # What is said meanwhile goes with the next beat that may be written.
            if id(life) in self.lives and not life.rests:
                self._schedule.hasten(life, max(now, life.sent_at + COALESCE))

    async def _tick(self) -> None:
        await self._end_those()
        if anyio.current_time() < self._retry_at:
            return
        due, now = self._take_due(), boot_seconds()
        plain = [life for life in due if life.asks_plainly(now)]
        try:
            await self._beat([life for life in due if not life.asks_plainly(now)])
            await self._beat_plainly(plain)
        except BaseException:  # a fault of ours: it must not end the others
            for life in due:
                life.claim.record_failure(ambiguous=True)
                self._put(life, RETRY)
            raise

    async def _end_those(self) -> None:
        ending, self._ending = self._ending, []
        try:
            if ending:
                await self._writer.end(ending)
        except BaseException:  # somebody waits: winding up is not too late for them
            self._ending += [life for life in ending if not life.ended.is_set()]
            raise

    def _take_due(self) -> list[Life]:
        now = anyio.current_time()
        due: list[Life] = []
        for life in self._schedule.take(now + TOGETHER, BATCH):
            if life.sent_at + COALESCE <= now:
                due.append(life)
                life.sent_at = now
            else:
                self._schedule.put(life, life.sent_at + COALESCE)
        return due

    async def _beat(self, lives: Sequence[Life]) -> None:
        if lives:
            sent_at = boot_seconds()
            try:
                replies = await self._writer.beat(lives)
            except RedisUnavailableError as error:
                self._fail(lives, error)
            else:
                self._hear(lives, replies, sent_at=sent_at)

    async def _beat_plainly(self, lives: Sequence[Life]) -> None:
        if lives:
            try:
                replies = await self._writer.beat_plainly(lives)
            except RedisUnavailableError as error:
                self._fail(lives, error)
            else:
                self._hear(lives, replies, sent_at=None)

    def _hear(
        self, lives: Sequence[Life], replies: Sequence[Reply], *, sent_at: float | None
    ) -> None:
        now = boot_seconds()
        failed: dict[str, tuple[RedisUnavailableError, list[Life]]] = {}
        recovered = False
        for life, reply in zip(lives, replies, strict=True):
            if id(life) not in self.lives:
                continue
            if isinstance(reply, RedisUnavailableError):
                if life.goes_plainly(now, reply):
                    self._tell_plain(reply)
                    self._put(life, 0.0)
                else:
                    failed.setdefault(reply.kind, (reply, []))[1].append(life)
            else:
                recovered |= life.failed > 0
                if sent_at is None:
                    self._put(life, life.hear_plainly(reply))
                else:
                    self._put(life, life.hear(reply, sent_at=sent_at, now=now))
                life.failed = 0
        for error, theirs in failed.values():
            self._fail_apart(theirs, error)
        self._hasten_failed(recovered)
        if not failed:
            self._succeed()

    def _hasten_failed(self, recovered: bool) -> None:  # noqa: FBT001 - of one caller
        """Try once more those who may have failed for a reason that is gone."""
        if recovered:
            self._hasten_each([life for life in self.lives.values() if life.failed])

    def _put(self, life: Life, delay: float) -> None:
        if id(life) in self.lives:
            if not delay:
                life.sent_at = float("-inf")
            self._schedule.put(life, anyio.current_time() + delay)

    def _succeed(self) -> None:
        """Note that Redis is there; what it forgot while it was away comes back at once."""
        self._backoff.succeeded()
        self._retry_at = 0.0
        generation = self._writer.generation
        was_away = self._away_since is not None
        if was_away or generation != self._generation:
            if self._generation or was_away:
                self.hasten_all()
            self._generation = generation
        if self._away_since is not None:
            if self._told_away:
                seconds = anyio.current_time() - self._away_since
                logger.info("heartbeats are written again after %.1f s", seconds)
            self._away_since, self._told_away = None, False

    def _fail(self, lives: Sequence[Life], error: RedisUnavailableError) -> None:
        """Note that Redis could not be asked for anything, and when to try again."""
        longest = error.kind == "auth"
        refused = isinstance(error, RedisRefusedError)
        delay = self._backoff.failed(permanent=refused, longest=longest)
        self._retry_at = anyio.current_time() + delay
        if self._away_since is None:
            self._away_since = anyio.current_time()
        self._told_away |= self._complain(error)
        # Of many that go in several writes the first ones may have been executed.
        ambiguous = error.ambiguous or len(lives) > 1
        for life in lives:
            life.fail(error, ambiguous=ambiguous)
            self._put(life, delay)

    def _fail_apart(self, lives: Sequence[Life], error: RedisUnavailableError) -> None:
        """Note that of many beats these were not written, each with pauses of its own.

        What is wrong with some of them must neither delay nor hasten the others.
        """
        self._complain(error)
        refused = isinstance(error, RedisRefusedError)
        for life in lives:
            life.fail(error, ambiguous=error.ambiguous)
            pause = Backoff(cap=CAP, rng=self._backoff.rng, failures=life.failed)
            life.failed += 1
            self._put(life, pause.failed(permanent=refused))

    def _complain(self, error: RedisUnavailableError) -> bool:
        told: BlsError = error
        if error.kind in _HOPELESS:
            told = BlsError(str(error))
        return self._complaints.say("heartbeats cannot be written", told)

    def _tell_plain(self, error: RedisUnavailableError) -> None:
        if not self._told_plain:
            self._told_plain = True
            text = (
                "this user may run no scripts: heartbeats are written without an owner, "
                "and two workers of one id are not noticed (%s)"
            )
            logger.warning(text, error)
