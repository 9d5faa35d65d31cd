"""What a cache has in one event loop: its pump, and what is being computed there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from bls_agent.connection.access import Access
from bls_agent.connection.endpoint import Request
from bls_agent.connection.wire import Wire
from bls_agent.core.errors import RedisUnavailableError, WrongTypeError
from bls_agent.workers.caching.availability import Availability
from bls_agent.workers.caching.cached_function import UNKNOWN, CachedFunction, Found
from bls_agent.workers.caching.pump import Pump

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from bls_agent.connection.endpoint import Reply

__all__ = ["Station", "Unheard"]


class Unheard:
    """Takes a reply for which nobody waits."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._done = False

    def done(self) -> bool:
        """Whether it has come."""
        return self._done

    def set_result(self, _: object, /) -> None:
        """Note that it has come."""
        self._done = True

    set_exception = set_result


class Station:
    """Reads and writes entries in one event loop; nothing of Redis raises out of it."""

    def __init__(
        self,
        access: Access,
        locks: Access,
        availability: Availability,
        timeout: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Remember the way.

        Raises:
            ConfigurationError: Nobody said where Redis is, and ``BLS_REDIS_URL`` is
                no URL of Redis.
        """
        self._locks = locks
        self.timeout = timeout
        self.availability = availability
        self.pump = Pump(access, availability, timeout, loop)

    async def read(self, function: CachedFunction, key: str) -> Found:
        """Look what stands under a key: one round trip."""
        requests = function.questions(key)
        if not self.may_ask(function, requests, self.pump.submit):
            return UNKNOWN
        try:
            replies = await self.pump.ask(requests)
        except RedisUnavailableError:
            function.counts.add("redis_failures")
            return UNKNOWN
        return self.understand(function, key, replies)

    def may_ask(
        self,
        function: CachedFunction,
        requests: Sequence[Request],
        submit: Callable[[Sequence[Request], Any], object],
    ) -> bool:
        """Tell whether Redis is worth asking; if not, see to a probe in its time."""
        if not self.availability.away:
            return True
        if self.availability.probe_is_due():
            submit(requests, Unheard())
        function.counts.add("redis_failures")
        return False

    def understand(
        self, function: CachedFunction, key: str, replies: list[Reply]
    ) -> Found:
        """Say what replies mean, and complain if they are refusals."""
        try:
            return function.understand(key, replies)
        except WrongTypeError as error:
            function.say_wrong_type(error)
        except RedisUnavailableError as error:
            function.counts.add("redis_failures")
            self.availability.refused(error)
        return UNKNOWN

    async def write(self, function: CachedFunction, key: str, payload: bytes) -> None:
        """Write an entry: one round trip."""
        if self.availability.away:
            function.counts.add("redis_failures")
            return
        try:
            replies = await self.pump.ask(function.writing(key, payload))
        except RedisUnavailableError:
            function.counts.add("redis_failures")
            return
        self.check_written(function, replies)

    def check_written(self, function: CachedFunction, replies: list[Reply]) -> None:
        """Count a write that was refused."""
        for reply in replies:
            if isinstance(reply, RedisUnavailableError):
                function.counts.add("redis_failures")
                self.availability.refused(reply)

    def wire_to(self, key: str) -> AbstractAsyncContextManager[Wire]:
        """Give the wire to the server of a key; not the pump's, which has no time."""
        return self._locks.wires.to(key)
