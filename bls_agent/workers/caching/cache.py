"""``FunctionCache``: results of functions, stored in Redis for many processes."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from types import ModuleType
from typing import Any, ClassVar, Final, ParamSpec, Protocol, TypeVar, cast, overload

import anyio

from bls_agent.connection.access import Access, RedisOrAgent, Store
from bls_agent.connection.endpoint import Reply
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.checks import check_seconds, check_text
from bls_agent.core.codec import encode
from bls_agent.core.errors import ConfigurationError, WrongTypeError
from bls_agent.core.keys import checked_reply
from bls_agent.runtime.loop_thread import refuse_in_event_loop, wait_for
from bls_agent.runtime.threads import is_coroutine_function
from bls_agent.workers.caching.backend import Availability
from bls_agent.workers.caching.cached_function import (
    FUNC_CACHE,
    BrokenEntryError,
    CachedFunction,
    CacheStats,
    Counts,
    Policy,
    check_function,
    decode_entry,
    name_of,
)
from bls_agent.workers.caching.calls import SHARED_LOOP, CacheCalls
from bls_agent.workers.caching.key import DIGEST_LENGTH, Arguments

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MARK: Final = "__bls_agent_cached__"
CLEAR_TIMEOUT: Final = 5.0  # seconds; deadline of one request for ``clear`` and locks
SETTLED: Final = 0.5  # seconds after the timeout at which a write has certainly ended
POLL_INTERVAL: Final = 0.005  # seconds between two checks for running writes
TTL: Final = float(FUNC_CACHE.ttl or 0)  # an hour
TAIL: Final = 64  # bytes that are read of an entry in addition to the name
DIGEST: Final = re.compile(rb"[0-9a-f]{%d}" % DIGEST_LENGTH)


class CacheDecorator(Protocol):
    """A decorator that stores the results of a function and keeps its type."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Return a function that calls ``function`` if the cache has no result."""
        ...


class FunctionCache(Store):
    """Stores results of functions in Redis, for all processes that call the functions.

    ::

        cache = FunctionCache("redis://cache:6379/0")


        @cache.cached(ttl=3600)
        async def day_bars(
            code: str, day: date, *, adjust: bool = True
        ) -> list[float]: ...

    While Redis is unreachable or slow, or refuses requests, each call runs the
    function. The cache works in any event loop and in any thread, and need not be
    opened.
    """

    client_name: ClassVar[str] = "bls-agent:cache"

    def __init__(
        self, redis: RedisOrAgent | None = None, *, timeout: float = 0.5
    ) -> None:
        """Store the settings. No connection is opened yet.

        Args:
            redis: A URL, a client of redis-py or a ``ProjectAgent``; ``None`` for
                ``BLS_REDIS_URL``, which is read at the first call.
            timeout: Longest time in seconds that a call waits for a reply of Redis.
        """
        self._timeout = check_seconds("timeout", timeout)
        super().__init__(redis, timeout=timeout, strict=True)
        self._others = Access(redis, "bls-agent:cache-lock", timeout=CLEAR_TIMEOUT)
        self._availability = Availability()
        self._calls = CacheCalls(
            self._access, self._others, self._availability, timeout
        )
        self._counts = Counts()
        self._closures: set[str] = set()

    def __repr__(self) -> str:
        return f"FunctionCache({self._access.shown!r}, timeout={self._timeout:g})"

    async def aclose(self) -> None:
        """Close the connections of this event loop, and those for plain functions.

        The next call opens new connections.
        """
        import asyncio  # noqa: PLC0415 - waits for another thread's loop

        await self._calls.aclose()
        closing = self._calls.close_thread()
        if closing is not None:
            await asyncio.wrap_future(closing)

    def close_sync(self) -> None:
        """Close the connections for plain functions. The next call opens new ones."""
        refuse_in_event_loop("close_sync", "await cache.aclose()")
        closing = self._calls.close_thread()
        if closing is not None:
            wait_for(closing)

    @overload
    def cached(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def cached(
        self,
        /,
        *,
        ttl: float = ...,
        name: str | None = ...,
        ignore: Sequence[str] = ...,
        key: Callable[..., object] | None = ...,
        dump: Callable[[T], object] | None = ...,
        load: Callable[[Any], T] | None = ...,
        lock: bool = ...,
        lock_timeout: float = ...,
        lock_ttl: float = ...,
        stale_on_error: float = ...,
        size_limit: int = ...,
    ) -> CacheDecorator: ...
    def cached(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        ttl: float = TTL,
        name: str | None = None,
        ignore: Sequence[str] = (),
        key: Callable[..., object] | None = None,
        dump: Callable[[Any], object] | None = None,
        load: Callable[[Any], Any] | None = None,
        lock: bool = False,
        lock_timeout: float = 30.0,
        lock_ttl: float = 10.0,
        stale_on_error: float = 0.0,
        size_limit: int = 1_048_576,
    ) -> Any:
        """Store the results of a plain function or a coroutine function.

        The decorated function has the same type as the original function.

        The key contains the function's name and a digest of the arguments. A result,
        also ``None``, is stored only if it can be read back equal and with the same
        types. If another call in this process computes the same value, the call waits
        for that value. A plain function in a thread with a running event loop waits
        only for Redis, at most twice ``timeout``.

        Args:
            function: The function, if the decorator is used without parentheses.
            ttl: Seconds for which a result is stored.
            name: The name under which results are stored, instead of the function's
                module and name. A closure that is made several times needs ``name``,
                because its variables are not arguments. So does a method of an object,
                because the object is no argument.
            ignore: Parameters that do not affect the result, such as ``("self",)``.
            key: Function that is called with the arguments, and returns the value that
                replaces the arguments in the key.
            dump: Function that converts a result to JSON's types; needs ``load``.
            load: Function that converts a dumped value back to the result.
            lock: Whether only one process of the fleet computes a missing value, while
                the other processes wait.
            lock_timeout: Seconds that a process waits before it computes the value, too.
            lock_ttl: Seconds without renewal after which the computing process counts
                as dead.
            stale_on_error: Seconds after the TTL in which the expired result is returned
                if the function raises.
            size_limit: Largest number of bytes of JSON that are stored.

        Raises:
            ConfigurationError: An option has a value that is not allowed, or the
                function cannot be cached.
        """
        if name is not None:
            name = str.__str__(check_text("name", name))  # perhaps of a subclass of str
        if (dump is None) != (load is None):
            rule = "dump and load belong together"
            raise ConfigurationError("dump" if load is None else "load", None, rule)
        policy = Policy(
            ttl=ttl,
            stale_on_error=stale_on_error,
            lock=lock,
            lock_timeout=lock_timeout,
            lock_ttl=lock_ttl,
            size_limit=size_limit,
        )

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            check_function(function)
            shown = name
            if shown is None:
                shown = name_of(function)
                self._refuse_shared_name(shown, function)
            arguments = Arguments(shown, function, ignore=ignore, key=key)
            counts = Counts(self._counts)
            return self._wrap(
                CachedFunction(shown, function, policy, arguments, dump, load, counts)
            )

        return decorate if function is None else decorate(function)

    def _refuse_shared_name(self, name: str, function: Callable[..., Any]) -> None:
        """Refuse a function that would share its results with another function.

        The key of a result contains neither the object of a bound method nor the
        variables of a closure. So a bound method is refused, and a closure if another
        one of the same name was decorated before.
        """
        inner: Callable[..., Any] = inspect.unwrap(function, stop=_is_bound)
        if _is_bound(inner):
            rule = "it is bound to an object, which is no part of its name"
            raise ConfigurationError("function", name, rule, "Give each its own name=…")
        variables = {*_variables_of(function), *_variables_of(inner)}
        if not variables - {"__class__"}:  # super() needs "__class__"
            return
        if name in self._closures:
            rule = "it was decorated before, perhaps with other variables around it"
            raise ConfigurationError("function", name, rule, "Give each its own name=…")
        self._closures.add(name)

    def _wrap(self, declared: CachedFunction) -> Callable[..., Any]:
        function = declared.function
        wrapper: Callable[..., Any]
        if is_coroutine_function(function):
            call = self._calls.call

            @functools.wraps(function)
            async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
                return await call(declared, args, kwargs)

            wrapper = async_wrapper
        else:
            call_plain = self._calls.call_plain

            @functools.wraps(function)
            def plain_wrapper(*args: Any, **kwargs: Any) -> Any:
                return call_plain(declared, args, kwargs)

            wrapper = plain_wrapper
        wrapper.__dict__[MARK] = (self, declared)
        return wrapper

    @overload
    async def clear(self, function: Callable[..., Any], /) -> int: ...
    @overload
    async def clear(
        self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> int: ...
    async def clear(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> int:
        """Remove all stored results of a function, or the result for given arguments.

        A value that this process computes during the call is not stored. Without
        arguments, SCAN reads the whole database. A key that holds no result of the
        function is not removed.

        Returns:
            How many results were removed.

        Raises:
            RedisUnavailableError: Redis did not reply. Results may still be stored.
            ConfigurationError: This cache has not decorated the function.
        """
        declared, args = _unwrap(self, function, args, kwargs)
        declared.generation += 1
        await self._await_writes(declared)
        try:
            if not args and not kwargs:
                return await _clear_all(self._others.pool, declared.name)
            key = declared.arguments.digest(args, kwargs)
            key = FUNC_CACHE.build(func=declared.name, key=key)
            return await _remove(self._others.pool, declared.name, [key.encode()])
        finally:
            declared.generation += 1

    async def _await_writes(self, declared: CachedFunction) -> None:
        """Wait for running writes, because they might arrive after the removal."""
        under_way = declared.writes.copy()
        with anyio.move_on_after(self._timeout + SETTLED):
            while not under_way.isdisjoint(declared.writes.copy()):  # noqa: ASYNC110 - other threads write, too
                await anyio.sleep(POLL_INTERVAL)

    @overload
    def clear_sync(self, function: Callable[..., Any], /) -> int: ...
    @overload
    def clear_sync(
        self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> int: ...
    def clear_sync(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> int:
        """Do the same as :meth:`clear`, in a program without an event loop.

        Raise ConfigurationError if an event loop runs in this thread.
        """
        refuse_in_event_loop("clear_sync", "await cache.clear(…)")
        clear = cast("Callable[..., Any]", self.clear)
        # An argument of the function may have the name of a parameter of call().
        whole = functools.partial(clear, function, *args, **kwargs)
        removed: int = SHARED_LOOP.find().call(whole)
        return removed

    def stats(self, function: Callable[..., Any] | None = None, /) -> CacheStats:
        """Return this process's counters of the cache, or of one of its functions."""
        if function is None:
            return self._counts.show()
        return _unwrap(self, function, (), {})[0].counts.show()


def _is_bound(function: Any) -> bool:
    """Return whether a function is bound to an object that is no part of its name.

    The name of a class method contains the class, unless the class inherits the method.
    """
    owner: object = getattr(function, "__self__", None)
    if isinstance(owner, type):
        own = f"{owner.__qualname__}.{function.__name__}"
        modules = (None, owner.__module__)
        return function.__qualname__ != own or function.__module__ not in modules
    return owner is not None and not isinstance(owner, ModuleType)


def _variables_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the outer variables that a function uses."""
    code: object = getattr(function, "__code__", None)
    variables: tuple[str, ...] = getattr(code, "co_freevars", ())
    return variables


def _unwrap(
    cache: object,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[CachedFunction, tuple[Any, ...]]:
    """Return the cached function and its arguments, including a method's object."""
    plain = getattr(function, "__func__", function)
    owner, declared = getattr(plain, MARK, (None, None))
    if owner is not cache or declared is None:
        rule = "a function that this cache has decorated"
        shown = getattr(function, "__qualname__", type(function).__qualname__)
        raise ConfigurationError("function", shown, rule)
    if plain is not function and (args or kwargs):
        args = (getattr(function, "__self__", None), *args)
    return declared, args


async def _clear_all(pool: ConnectionPool, name: str) -> int:
    """Remove every entry whose key and content have the function's name."""
    removed = 0
    prefix = FUNC_CACHE.build(func=name, key="0")[:-1].encode()
    async with aclosing(pool.scan_steps(FUNC_CACHE.pattern(func=name))) as steps:
        async for found in steps:
            keys = [
                key
                for key in found
                if key.startswith(prefix) and DIGEST.fullmatch(key, len(prefix))
            ]
            removed += await _remove(pool, name, keys)
    return removed


async def _remove(pool: ConnectionPool, name: str, keys: Sequence[bytes]) -> int:
    """Remove the keys whose content has the function's name."""
    length = len(name.encode()) * 6 + TAIL
    ends = await pool.read_many([("GETRANGE", key, -length, -1) for key in keys])
    ours = [
        ("UNLINK", key)
        for key, end in zip(keys, ends, strict=True)
        if await _is_of(pool, name, key, end)
    ]
    replies = await pool.call_many(ours)
    return sum(checked_reply(reply, name) for reply in replies)


async def _is_of(pool: ConnectionPool, name: str, key: bytes, end: Reply) -> bool:
    """Return whether an entry belongs to a function.

    In entries of this package, the function's name is at the end.
    """
    text = key.decode("utf-8", "surrogateescape")
    try:
        if not checked_reply(end, text).endswith(b'"func_name":%b}' % encode(name)):
            decode_entry(name, await pool.read(text, "GET") or b"")
    except (WrongTypeError, BrokenEntryError):
        return False
    return True


cache: Final = FunctionCache()
cached: Final = cache.cached
