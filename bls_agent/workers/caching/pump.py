"""All requests of one event loop over one connection: at once when idle, else together.

What is asked for while an exchange is under way goes out in one write as soon as it is
over. So fifty callers cost two exchanges and not fifty, and none of them can harm the
others by being cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from bls_agent.connection.access import Access
from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.wire import Wire
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.runtime.tasks import start_background
from bls_agent.workers.caching.availability import Availability

if TYPE_CHECKING:
    import asyncio

__all__ = ["Pump"]

MANY: Final = 500  # requests in one write
LARGE: Final = 1_048_576  # bytes in one write, unless one request alone has more
GLANCE: Final = 1.0  # seconds between two questions whether somebody took over


class _Promise(Protocol):
    """A future of asyncio or of threads: only this loop's thread fulfils it."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...


class _Asked:
    """Requests that belong together, and who waits for their replies."""

    __slots__ = ("due", "promise", "requests", "resent")

    def __init__(
        self, requests: Sequence[Request], promise: _Promise, due: float
    ) -> None:
        self.requests = requests
        self.promise = promise
        self.due = due
        self.resent = False


class Pump:
    """Exchanges requests for replies in the event loop in which it was made.

    Nobody waits longer than the timeout, not even while the connection is being made.
    Of the connection it is the only user.
    """

    def __init__(
        self,
        access: Access,
        availability: Availability,
        timeout: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Remember the way; nothing is opened yet."""
        self._wires = access.wires
        self._availability = availability
        self._timeout = timeout
        self.loop = loop
        self._queue: deque[_Asked] = deque()
        self._under_way: list[_Asked] = []
        self._busy = False
        self._collecting = False
        self._glance_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Send requests about one key, which may safely be sent twice.

        Returns:
            The replies; error replies stand in the list.

        Raises:
            RedisUnavailableError: No answer within the timeout.
        """
        promise: asyncio.Future[list[Reply]] = self.loop.create_future()
        asked = self._remember(requests, promise)
        if not self._busy and asked.due < self._glance_at and len(requests) < MANY:
            wire = self._wires.pick()
            if wire.connected:
                await self._send_now(wire, asked)
                return await promise
        self._enqueue(asked)
        return await promise

    def submit(self, requests: Sequence[Request], promise: _Promise) -> None:
        """Do the same for somebody who waits elsewhere; in this loop's thread."""
        self._enqueue(self._remember(requests, promise))

    async def aclose(self) -> None:
        """End what is under way, without the connections; the next request begins anew."""
        import asyncio  # noqa: PLC0415 - waits for a task

        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _remember(self, requests: Sequence[Request], promise: _Promise) -> _Asked:
        due = self.loop.time() + self._timeout
        if self._timer is None:
            self._timer = self.loop.call_at(due, self._look_at_the_clock)
        return _Asked(requests, promise, due)

    def _enqueue(self, asked: _Asked) -> None:
        self._queue.append(asked)
        if not self._busy:
            self._start([])

    async def _send_now(self, wire: Wire, asked: _Asked) -> None:
        """Let one request leave before the task that waits for its reply is made."""
        self._busy = True
        try:
            await wire.post(asked.requests)
        except RedisUnavailableError:  # lost a moment ago: once more in order
            self._queue.appendleft(asked)
            self._start([])
        except BaseException:
            self._busy = False
            raise
        else:
            self._start([asked])

    def _start(self, posted: list[_Asked]) -> None:
        self._busy = True
        self._under_way = posted
        self._task = start_background(self._run, "bls-agent-cache")

    async def _run(self) -> None:
        try:
            if self._under_way:
                await self._finish(self._wires.pick())
            while self._queue:
                await self._exchange()
        except BaseException:  # too late, or the loop ends: nobody waits for nothing
            self._fail(RedisUnavailableError("closed", "the event loop is ending"))
            if not self._wires.is_cluster:
                await self._wires.pick().drop()  # what is owed would be the next one's
            raise
        finally:
            self._busy = False
            self._task = None
            if self._queue:
                self._start([])

    async def _finish(self, wire: Wire) -> None:
        """Collect the replies to what was sent at once."""
        try:
            self._deliver(await self._collect(wire, wire.owed))
        except RedisUnavailableError as error:
            self._lost(error)

    async def _exchange(self) -> None:
        """Send what waits by now, and deliver the replies."""
        try:
            if self._wires.is_cluster:
                replies = await self._wires.read_many(self._take())
            else:
                async with self._wires.to("") as wire:
                    if not wire.connected:
                        await wire.open()
                    self._glance_at = self.loop.time() + self._timeout + GLANCE
                    requests = self._take()  # not before: who waits may have given up
                    if requests:
                        await wire.post(requests)
                    replies = await self._collect(wire, len(requests))
        except RedisUnavailableError as error:
            self._lost(error)
        else:
            self._deliver(replies)

    async def _collect(self, wire: Wire, number: int) -> list[Reply]:
        replies: list[Reply] = []
        self._collecting = True
        try:
            for _ in range(number):
                try:
                    replies.append(await wire.collect())
                except RedisUnavailableError as error:
                    if error.ambiguous or error.kind == "connection":
                        raise
                    replies.append(error)
        finally:
            self._collecting = False
        return replies

    def _take(self) -> list[Request]:
        requests: list[Request] = []
        size = 0
        while self._queue and len(requests) < MANY and size < LARGE:
            asked = self._queue.popleft()
            if asked.promise.done():
                continue
            self._under_way.append(asked)
            requests += asked.requests
            size += sum(len(w) for r in asked.requests for w in r if type(w) is bytes)
        return requests

    def _deliver(self, replies: list[Reply]) -> None:
        self._availability.succeeded()
        answered, self._under_way = self._under_way, []
        begin = 0
        for asked in answered:
            end = begin + len(asked.requests)
            if not asked.promise.done():
                asked.promise.set_result(replies[begin:end])
            begin = end

    def _lost(self, error: RedisUnavailableError) -> None:
        """Send once more what a connection was lost under; else it is Redis that fails.

        All that is asked here may be asked twice, writing included.
        """
        once = [each for each in self._under_way if not each.resent]
        if error.kind == "connection" and not error.connecting and once:
            for asked in once:
                asked.resent = True
            self._queue.extendleft(reversed(once))
            self._under_way = []
            return
        self._availability.failed(error)
        self._fail(error)

    def _fail(self, error: RedisUnavailableError) -> None:
        """Let nobody wait any more: also who has just come would wait in vain."""
        failed = [*self._under_way, *self._queue]
        self._under_way = []
        self._queue.clear()
        for asked in failed:
            if not asked.promise.done():
                asked.promise.set_exception(_again(error))

    def _look_at_the_clock(self) -> None:
        self._timer = None
        waiting = [*self._under_way, *self._queue]
        due = min((a.due for a in waiting if not a.promise.done()), default=None)
        if due is None:
            return
        if due > self.loop.time():
            self._timer = self.loop.call_at(due, self._look_at_the_clock)
            return
        reason = f"no answer within {self._timeout:g} s"
        address = self._wires.pick().address
        error = RedisUnavailableError("timeout", reason, address=address)
        self._availability.failed(error)
        for asked in waiting:
            if not asked.promise.done():
                asked.promise.set_exception(_again(error))
        if self._collecting and self._task is not None:
            self._task.cancel()  # connecting goes on: it may just take longer


def _again(error: RedisUnavailableError) -> RedisUnavailableError:
    """Give the same error once more: each who raises it adds a traceback."""
    return type(error)(
        error.kind,
        error.reason,
        address=error.address,
        ambiguous=error.ambiguous,
        connecting=error.connecting,
    )
