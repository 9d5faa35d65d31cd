"""All requests of one event loop over one connection: at once when idle, else together.

What is asked for while an exchange is under way goes out in one write as soon as it is
over. So fifty callers cost two exchanges and not fifty, and none of them can harm the
others by being cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from bls_agent.access import Access
from bls_agent.background import start_background
from bls_agent.endpoint import Reply, Request
from bls_agent.errors import RedisUnavailableError
from bls_agent.workers.caching.availability import Availability

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - see Pump

__all__ = ["Pump"]

MANY: Final = 500  # requests in one write
LARGE: Final = 1_048_576  # bytes in one write, unless one request alone has more


class _Promise(Protocol):
    """A future of asyncio or of threads: only this loop's thread fulfils it."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...


class _Asked:
    """Requests that belong together, and who waits for their replies."""

    __slots__ = ("due", "promise", "requests")

    def __init__(
        self, requests: Sequence[Request], promise: _Promise, due: float
    ) -> None:
        self.requests = requests
        self.promise = promise
        self.due = due


class Pump:
    """Exchanges requests for replies in the event loop in which it was made.

    Nobody waits longer than the timeout, not even while the connection is being made.
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
        self.submit(requests, promise)
        return await promise

    def submit(self, requests: Sequence[Request], promise: _Promise) -> None:
        """Do the same for somebody who waits elsewhere; in this loop's thread."""
        due = self.loop.time() + self._timeout
        self._queue.append(_Asked(requests, promise, due))
        if self._task is None:
            self._task = start_background(self._run, "bls-agent-cache")
        if self._timer is None:
            self._timer = self.loop.call_at(due, self._look_at_the_clock)

    async def _run(self) -> None:
        try:
            while self._queue:
                await self._exchange()
        except BaseException:  # the loop ends: nobody shall wait for what never comes
            self._fail(RedisUnavailableError("closed", "the event loop is ending"))
            raise
        finally:
            self._task = None

    async def _exchange(self) -> None:
        try:
            if self._wires.is_cluster:
                requests = self._take()
                replies = await self._wires.read_many(requests)
            else:
                async with self._wires.to("") as wire:
                    if not wire.connected:
                        await wire.open()
                    requests = self._take()  # not before: who waits may have given up
                    # All that is asked here may be asked twice, writing included.
                    replies = await wire.read_many(requests) if requests else []
        except RedisUnavailableError as error:
            self._availability.failed(error)
            self._fail(error)
            return
        self._availability.succeeded()
        self._deliver(replies)

    def _take(self) -> list[Request]:
        requests: list[Request] = []
        size = 0
        while self._queue and len(requests) < MANY and size < LARGE:
            asked = self._queue.popleft()
            if asked.promise.done():
                continue
            self._under_way.append(asked)
            requests += asked.requests
            size += sum(
                len(w) for r in asked.requests for w in r if isinstance(w, bytes)
            )
        return requests

    def _deliver(self, replies: list[Reply]) -> None:
        answered, self._under_way = self._under_way, []
        begin = 0
        for asked in answered:
            end = begin + len(asked.requests)
            if not asked.promise.done():
                asked.promise.set_result(replies[begin:end])
            begin = end

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
        error = RedisUnavailableError("timeout", reason, address=self._address)
        self._availability.failed(error)
        for asked in waiting:
            if not asked.promise.done():
                asked.promise.set_exception(_again(error))

    @property
    def _address(self) -> str:
        return self._wires.pick().address

    def forget_loop(self) -> None:
        """Be as if never used: the loop was closed."""
        self._task = self._timer = None


def _again(error: RedisUnavailableError) -> RedisUnavailableError:
    """Give the same error once more: each who raises it adds a traceback."""
    return type(error)(
        error.kind,
        error.reason,
        address=error.address,
        ambiguous=error.ambiguous,
        connecting=error.connecting,
    )
