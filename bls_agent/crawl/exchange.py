"""Takes requests for the tasks of one event loop, and renews and ends their leases.

One background task of each event loop does this work, so that one write to Redis serves
all tasks of the loop. The background task runs while another task waits for a request
or holds a request. A second background task pushes requests; see ``pusher.py``.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

import anyio

from bls_agent.connection.after_fork import register
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.pool import ConnectionPool
from bls_agent.connection.reconnect import ThrottledLog
from bls_agent.connection.scripts import (
    CRAWL_SETTLE,
    CRAWL_TAKE,
    ScriptRun,
    run_scripts,
)
from bls_agent.core.backoff import Backoff
from bls_agent.core.codec import JSONObject, cut_text, encode
from bls_agent.core.errors import (
    BlsError,
    ContractError,
    DecodeError,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.core.redaction import redact
from bls_agent.crawl.fingerprint import CrawlRequest
from bls_agent.crawl.keys import QueueKeys
from bls_agent.crawl.pusher import (
    MOST_BYTES,
    MOST_PUSHES,
    Pusher,
    closed_error,
    name_wrong_type,
)
from bls_agent.runtime.lease import RENEWALS, boot_seconds, valid_until

FAILED_KEPT: Final = 10_000  # entries of the failed list
MOST_TAKEN: Final = 100  # requests in one write
WAIT: Final = 2.0  # seconds of one blocking read
REASON_BYTES: Final = 2_000


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """The options of a queue; see :class:`~bls_agent.crawl.RequestQueue`."""

    lease: float
    max_retries: int
    retry_delay: float
    leased: bool
    timeout: float


@dataclass(eq=False, slots=True)
class Held:
    """A request that this worker has taken, and its lease."""

    member: bytes  # the request's member in the sorted sets
    token: str  # the token of the lease; empty in mode ``simple``
    body: bytes = b""  # the body as stored in Redis; empty if Redis had no body
    priority: float = 0.0  # the priority at which the request was taken
    attempt: int = 1  # 1 for the first attempt
    request: CrawlRequest | None = None  # the decoded body
    valid_until: float = math.inf  # end of the lease, by ``boot_seconds``

    def failed_entry(self, reason: str) -> bytes:
        """Encode the entry of the failed list for this request."""
        entry: JSONObject = {}
        if self.body and self.request is None:
            entry["raw_base64"] = b64encode(self.body).decode()
        entry |= {
            "reason": cut_text(redact(reason), REASON_BYTES),
            "attempts": self.attempt,
            "failed_at": time.time(),  # noqa: TID251 - only people read this time
            "priority": self.priority,
            "member": self.member.decode("utf-8", "replace"),
        }
        # The body is copied, because encode() would write a long integer as a text.
        request = b"null" if self.request is None else self.body
        return b'{"request":%b,%b' % (request, encode(entry)[1:])


class Action(StrEnum):
    """What ``crawl_settle.lua`` does with a request that a worker has taken."""

    ACK = "ack"  # the request is finished
    RENEW = "renew"  # the lease is renewed; the other actions end the lease
    BACK = "back"  # the request returns to its old position in the queue
    RETRY = "retry"  # the request returns to the queue later
    FAIL = "fail"  # the request goes into the failed list
    RECALL = "recall"  # every request that was taken with the token returns like BACK


@dataclass(eq=False, slots=True)
class Settlement:
    """The end or the renewal of a lease, to be sent to Redis."""

    action: Action
    held: Held
    value: Argument = ""
    future: asyncio.Future[bool] | None = None
    in_doubt: bool = False  # whether an earlier write may have executed it

    def answer(self, *, done: bool) -> None:
        """Return to the waiting task whether this worker still held the request."""
        if self.future is not None and not self.future.done():
            self.future.set_result(done)


class _Write(NamedTuple):
    """One write to Redis: one or two runs of scripts."""

    settlements: Sequence[Settlement]  # ends and renewals of leases
    wanted: int  # number of requests to take; -1 if the take script does not run
    token: str  # the token of the new leases; empty in mode ``simple``
    begun_at: float  # time of the write, by the loop's clock
    sent_at: float  # the same, by ``boot_seconds``


class Exchange:
    """Collects the calls of one event loop's tasks, and sends them to Redis together.

    The class has 16 attributes because taking, renewing and ending leases share one
    write. Examples are taken requests, waiting tasks and the time of the next write.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        keys: QueueKeys,
        options: QueueOptions,
        throttled_log: ThrottledLog,
    ) -> None:
        self.options = options
        self._pool = pool
        self._keys = keys
        self._throttled_log = throttled_log
        self._blocking = pool.waiting(keys.wake)
        self._loop = asyncio.get_running_loop()
        self._held: set[Held] = set()
        self._settlements: list[Settlement] = []
        # Task that waits for a request → its deadline, by the loop's clock.
        self._waiters: dict[asyncio.Future[Held | None], float] = {}
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._look_at = 0.0  # loop time from which the queue may have a request
        # Whether the take script must run, because the blocking read has removed the
        # element of the wake list. The script adds a new element while requests wait.
        self._must_look = False
        self._renew_at = math.inf
        self.pusher: Pusher = Pusher(pool, keys)
        register(self)

    def reset_after_fork(self) -> None:
        """Forget the held requests in a forked child, because the parent holds them."""
        for held in self._held:
            held.valid_until = -math.inf
        self._held.clear()

    def detach(self) -> None:
        """Release the connection of the blocking read after its loop has closed."""
        self._blocking.detach()

    async def take(self, timeout: float | None) -> Held | None:
        """Wait for a request. Return ``None`` if no request came in time.

        Raise RedisUnavailableError if Redis is still unreachable when the timeout ends,
        or at once if Redis refuses a command. Raise WrongTypeError if a key holds
        another type.
        """
        future: asyncio.Future[Held | None] = self._loop.create_future()
        until = math.inf if timeout is None else self._loop.time() + timeout
        self._waiters[future] = until
        self._look_at = self._loop.time()
        self._start()
        try:
            return await future
        except asyncio.CancelledError:  # this task may just have received a request
            given = future.done() and not future.cancelled() and not future.exception()
            if given and (held := future.result()):
                await self.give_back(held)
            raise

    async def give_back(self, held: Held) -> bool:
        """Return a request to its old position in the queue."""
        return await self.settle(_back(held))

    async def settle(self, one: Settlement) -> bool:
        """End a lease, and wait for Redis up to ``options.timeout``.

        Return whether this worker still held the request. Return ``False``, too, if
        Redis did not reply.
        """
        if one.held.token and one.held not in self._held:
            return False
        self._held.discard(one.held)
        one.future = self._loop.create_future()
        self._add_settlement(one)
        self._start()
        with anyio.move_on_after(self.options.timeout, shield=True):
            return await asyncio.shield(one.future)
        return False

    def _add_settlement(self, one: Settlement) -> None:
        """Queue a settlement for the next write, and for more writes until the lease ends.

        A request without a lease gets ``lease`` seconds for these attempts.
        """
        if not one.held.token:
            one.held.valid_until = boot_seconds() + self.options.lease
        self._settlements.append(one)

    async def aclose(self) -> None:
        """Return held requests to the queue, wait for writes, and end the tasks."""
        for held in self._held:
            self._settlements.append(_back(replace(held)))
            held.valid_until = -math.inf
        self._held.clear()
        self._end_waits(closed_error())
        if self._settlements:
            self._start()
        self._asked.set()
        ending = [task for task in (self._task, self.pusher.task) if task is not None]
        tasks = ending if self._reader is None else [*ending, self._reader]
        with anyio.CancelScope(shield=True):
            if ending:
                await asyncio.wait(ending, timeout=self.options.timeout)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await self._blocking.aclose()

    def _end_waits(self, error: Exception | None, now: float = math.inf) -> None:
        """End the waits whose deadline is not after ``now``; by default all waits.

        The waits raise ``error``. Without an error they return ``None``.
        """
        for future in [one for one, until in self._waiters.items() if until <= now]:
            del self._waiters[future]
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _start(self) -> None:
        self._asked.set()
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._run(), name="bls-crawl-queue")

    @property
    def _is_needed(self) -> bool:
        asked = self._settlements or self._waiters
        return bool(asked or self._held or self._must_look)

    async def _run(self) -> None:
        backoff = Backoff()
        try:
            while self._is_needed:
                self._asked.clear()
                try:
                    await self._exchange()
                except (RedisUnavailableError, ContractError) as error:
                    await self._pause_after(error, backoff)
                else:
                    backoff.succeeded()
                    await self._pause()
        except Exception as error:
            self._end_waits(error)  # a bug here must not leave a task waiting for ever
            raise
        except asyncio.CancelledError:
            # Tasks that are cancelled together with this task return their requests.
            await asyncio.sleep(0)
            self._end_waits(closed_error())
            with suppress(BlsError), anyio.move_on_after(1, shield=True):
                while self._settlements:
                    await self._exchange()
            raise

    async def _pause(self) -> None:
        """Wait until there is something to send."""
        await asyncio.sleep(0)  # tasks that received a reply may call again now
        if self._asked.is_set() or self._must_look or self._settlements:
            return
        moment = self._renew_at if self._held else math.inf
        if self._waiters:
            if self._reader is None or self._reader.done():
                self._reader = self._loop.create_task(
                    self._read(), name="bls-crawl-read"
                )
            moment = min(moment, self._look_at, *self._waiters.values())
        elif not self._held:
            return
        timer = None
        if moment < math.inf:
            timer = self._loop.call_at(moment, self._asked.set)
        try:
            await self._asked.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _read(self) -> None:
        """Wait for a push, at most two seconds.

        The time is limited because another worker may remove the element of the wake
        list and then die, so that the push wakes no reader.
        """
        wait = min(WAIT, self.options.timeout / 2)
        wait = int(wait) or wait  # Redis 5 needs an integer
        try:
            wake = await self._blocking.call("BLPOP", self._keys.wake, wait)
            self._must_look = self._must_look or wake is not None
        except RedisUnavailableError:  # the next take script reports the error
            await asyncio.sleep(wait)
        self._look_at = self._loop.time()
        if self._is_needed:
            self._start()

    async def _pause_after(self, error: BlsError, backoff: Backoff) -> None:
        """Raise ``error`` in tasks whose deadline has passed, then wait before a retry.

        A refusal and a key of the wrong type are raised in all waiting tasks.
        """
        final = isinstance(error, RedisRefusedError | ContractError)
        self._end_waits(error, math.inf if final else self._loop.time())
        kept: list[Settlement] = []
        # Ends of leases are kept and sent again, because the cause of a refusal, like
        # a missing permission, may be removed before the lease ends.
        for one in self._settlements:
            if one.held.valid_until <= boot_seconds():
                one.answer(done=False)
            else:
                kept.append(one)
        self._settlements = kept
        if self._is_needed:
            self._throttled_log.warn("the crawl queue is not served", error)
            await asyncio.sleep(backoff.failed())

    async def _exchange(self) -> None:
        """Send the collected calls to Redis, and pass the replies to the tasks.

        Raise RedisUnavailableError if Redis did not reply or refused. The settlements
        are then kept and sent again. Raise WrongTypeError if a key holds another type.
        """
        write = self._next_write()
        runs = self._runs_of(write)
        if not runs:
            return
        try:
            async with self._pool.to(self._keys.wake) as connection:
                replies = await run_scripts(connection, runs)
        except RedisUnavailableError as error:
            self._keep_for_later(write, in_doubt=error.ambiguous)
            raise
        except asyncio.CancelledError:
            self._keep_for_later(write, in_doubt=True)
            raise
        by_script = {
            script: await name_wrong_type(self._pool, self._keys, reply)
            for (script, *_), reply in zip(runs, replies, strict=True)
        }
        faults = (
            self._end_leases(write, by_script.get(CRAWL_SETTLE)),
            self._hand_out(write, by_script.get(CRAWL_TAKE)),
        )
        for fault in filter(None, faults):
            raise fault

    def _next_write(self) -> _Write:
        times = self._loop.time(), boot_seconds()
        settlements, count = self._next_settlements(), self._count_wanted()
        if not count and not self._must_look:
            return _Write(settlements, -1, "", *times)
        token = secrets.token_hex(12) if self.options.leased else ""
        return _Write(settlements, count, token, *times)

    def _runs_of(self, write: _Write) -> list[ScriptRun]:
        found: list[ScriptRun] = []
        words: list[Argument]
        if write.settlements:
            words = [FAILED_KEPT, self._keys.retries]
            for one in write.settlements:
                words += (one.action, one.held.member, one.held.token, one.value)
            found.append((CRAWL_SETTLE, self._keys.in_order, words))
        if write.wanted >= 0:
            lease, retries = int(self.options.lease * 1000), self._keys.retries
            words = [write.wanted, write.token, lease, retries, MOST_BYTES]
            found.append((CRAWL_TAKE, self._keys.in_order, words))
        return found

    def _keep_for_later(self, write: _Write, *, in_doubt: bool) -> None:
        """Keep the settlements that end a lease for the next write.

        If the failed write may have taken requests, the next write also returns these
        requests to the queue.
        """
        self._keep(write.settlements, in_doubt=in_doubt)
        # The lost reply may have contained requests, which no task can get now.
        if write.token and in_doubt:
            end = write.sent_at + self.options.lease
            lost = Held(b"", write.token, valid_until=end)
            self._settlements.append(Settlement(Action.RECALL, lost))

    def _next_settlements(self) -> list[Settlement]:
        """Return ends and renewals, ``ack`` first.

        A server that is out of memory refuses a script whose first write needs memory.
        An ``ack`` needs none.
        """
        found = self._settlements[:MOST_PUSHES]
        del self._settlements[:MOST_PUSHES]
        if self._held and self._loop.time() >= self._renew_at:
            milliseconds = int(self.options.lease * 1000)
            found += (
                Settlement(Action.RENEW, held, milliseconds) for held in self._held
            )
            self._plan_renewal()
        return sorted(found, key=lambda one: one.action is not Action.ACK)

    def _plan_renewal(self) -> None:
        self._renew_at = self._loop.time() + self.options.lease / RENEWALS

    def _count_wanted(self) -> int:
        """Return how many requests to take now, 0 if the queue cannot have any yet."""
        for future in [one for one in self._waiters if one.done()]:
            del self._waiters[future]
        is_time = self._loop.time() >= min([self._look_at, *self._waiters.values()])
        return min(len(self._waiters), MOST_TAKEN) if is_time else 0

    def _keep(self, settlements: Sequence[Settlement], *, in_doubt: bool) -> None:
        """Keep the settlements that end a lease for the next write.

        Renewals are not kept, because the next write renews every lease.
        """
        for one in settlements:
            if one.action is not Action.RENEW:
                one.in_doubt = one.in_doubt or in_doubt
                self._settlements.append(one)
        self._renew_at = self._loop.time()

    def _end_leases(self, write: _Write, reply: Reply) -> BlsError | None:
        if isinstance(reply, BlsError):
            self._keep(write.settlements, in_doubt=False)
            return reply
        for one, done in zip(write.settlements, reply or (), strict=True):
            held = one.held
            if one.action is not Action.RENEW:
                ours = one.in_doubt and boot_seconds() < held.valid_until
                # ``ours``: an earlier write, whose reply was lost, has ended the lease.
                one.answer(done=bool(done) or ours)
            elif done:
                held.valid_until = valid_until(write.sent_at, self.options.lease)
            else:
                held.valid_until = -math.inf
                self._held.discard(held)
        return None

    def _hand_out(self, write: _Write, reply: Reply) -> BlsError | None:
        """Pass the taken requests to the waiting tasks."""
        if isinstance(reply, BlsError) or reply is None:
            return reply
        for at in range(1, len(reply), 4):
            member, body, score, failures = reply[at : at + 4]
            held = Held(member, write.token, body or b"", float(score), failures + 1)
            if held.token:
                held.valid_until = valid_until(write.sent_at, self.options.lease)
            self._hand_over(held)
        now = self._loop.time()
        # Whether a push or a call of take() came during the write: another write follows.
        is_outdated = write.begun_at <= self._look_at <= now
        if not is_outdated:
            self._must_look = False
            pause = reply[0] / 1000 if reply[0] >= 0 else math.inf
            self._look_at = now if len(reply) > 1 else now + pause
        if len(reply) == 1:
            self._end_waits(None, write.begun_at)
        return None

    def _fault_of(self, held: Held) -> str:
        """Decode a request. Return why no worker can execute it, otherwise ``""``."""
        try:
            held.request = CrawlRequest.decode(held.body)
        except DecodeError as error:
            if not held.body:
                return "it has no body"
            fault = error.detail if error.reason == "bad_request" else error
            return f"it cannot be read as a request: {fault}"
        if held.attempt > self.options.max_retries + 1:
            held.attempt -= 1
            return "its lease ended too often: the workers that had it died"
        return ""

    def _hand_over(self, held: Held) -> None:
        """Pass a request to a waiting task, or return it to the queue if none waits.

        A request whose lease has ended meanwhile is also returned. A request that no
        worker can execute goes into the failed list.
        """
        if fault := self._fault_of(held):
            entry = held.failed_entry(fault)
            self._add_settlement(Settlement(Action.FAIL, held, entry))
            return
        while self._waiters and boot_seconds() < held.valid_until:
            future = next(iter(self._waiters))
            del self._waiters[future]
            if not future.done():
                future.set_result(held)
                if held.token:
                    if not self._held:
                        self._plan_renewal()
                    self._held.add(held)
                return
        self._add_settlement(_back(held))


def _back(held: Held) -> Settlement:
    """Make the settlement that returns a request to its old position in the queue.

    A request without a lease is sent with its body, because Redis has deleted the body.
    """
    value = b"" if held.token else b"%r %b" % (held.priority, held.body)
    return Settlement(Action.BACK, held, value)
