"""The function cache, for coroutine functions, beside a real server."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import math
import sys
import traceback
from collections.abc import Callable
from datetime import date
from enum import Enum
from typing import Any
from uuid import UUID

import anyio
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent.core.errors import ConfigurationError
from bls_agent.workers import CacheStats, FunctionCache, RedisKeyPattern
from tests.harness import eventually


async def keys_of(redis: Redis, name: str) -> list[bytes]:
    """The keys of a function."""
    return [key async for key in redis.scan_iter(f"ginkgo_func_cache_{name}_*")]


async def entry_of(redis: Redis, name: str) -> dict[str, Any]:
    """The one entry of a function."""
    payload: Any = await redis.get(await only_key(redis, name))
    entry: dict[str, Any] = orjson.loads(payload)
    return entry


async def only_key(redis: Redis, name: str) -> bytes:
    """The one key of a function."""
    (key,) = await keys_of(redis, name)
    return key


async def test_the_bytes_of_the_contract(
    cache: FunctionCache, redis: Redis, name: str
) -> None:
    """Key, field order and TTL are the contract's; the second call is a hit."""
    runs: list[str] = []

    @cache.cached(name=name)
    async def day_bars(code: str, day: date, *, adjust: bool = True) -> list[float]:
        runs.append(code)
        return [10.5, 11.0]

    assert await day_bars("000001.SZ", date(2026, 1, 12)) == [10.5, 11.0]
    assert await day_bars(code="000001.SZ", day=date(2026, 1, 12), adjust=True) == [
        10.5,
        11.0,
    ]
    assert runs == ["000001.SZ"]
    key = await only_key(redis, name)
    prefix, digest = key.decode().rsplit("_", 1)
    assert prefix == f"ginkgo_func_cache_{name}"
    assert len(digest) == 64
    entry = await entry_of(redis, name)
    assert list(entry) == ["result", "timestamp", "func_name"]
    assert entry["result"] == [10.5, 11.0]
    assert entry["func_name"] == name
    assert entry["timestamp"].endswith("Z")
    assert 3590 < await redis.ttl(key) <= 3600
    assert cache.stats(day_bars) == CacheStats(hits=1, misses=1, computed=1)


async def test_the_function_stays_what_it_was(cache: FunctionCache) -> None:
    """Name, documentation, signature, and the function itself."""

    async def load(code: str, *, adjust: bool = True) -> list[float]:
        """Load it."""
        return []

    wrapped = cache.cached(ttl=5)(load)
    assert wrapped.__name__ == "load"
    assert wrapped.__doc__ == "Load it."
    assert wrapped.__wrapped__ is load  # type: ignore[attr-defined]
    assert inspect.iscoroutinefunction(wrapped)
    with pytest.raises(TypeError, match="unexpected keyword argument 'kode'"):
        await wrapped(kode="x")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "value", [None, False, 0, "", [], {}, 1.5, -0.0, 2**70, 10**300, "长沙", [[None]]]
)
async def test_a_result_comes_back_as_it_was(
    cache: FunctionCache, name: str, value: object
) -> None:
    """Equal and of the same type; a ``None`` is a hit."""
    results = iter([value])

    @cache.cached(ttl=5, name=name)
    async def give() -> object:
        return next(results)

    first, second = await give(), await give()
    assert repr(first) == repr(second) == repr(value)
    assert cache.stats(give).hits == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ((1, 2), "type"),
        ({1: 2}, "type"),
        ([{"a": (1,)}], "type"),
        ([1.0, "a", [float("nan")]], "not_finite"),
        ([1, {"a": [{2: 1}]}], "type"),
        (orjson.loads("[" * 121 + "]" * 121), "too_deep"),
        (b"1", "type"),
        (date(2026, 1, 12), "type"),
        (float("nan"), "not_finite"),
        ([1.0, float("inf")], "not_finite"),
        ([{"a": -(10**400)}], "not_finite"),
        ("\ud800", "not_unicode"),
        ("x" * 2000, "too_large"),
    ],
)
async def test_what_would_not_come_back_is_not_stored(
    cache: FunctionCache, redis: Redis, name: str, value: object, reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The caller gets it, it is counted by reason, and said once with a remedy."""

    @cache.cached(ttl=5, name=name, size_limit=1000)
    async def give() -> object:
        return value

    assert await give() is value
    assert await give() is value
    assert cache.stats(give) == CacheStats(misses=2, computed=2, not_stored={reason: 2})
    assert await keys_of(redis, name) == []
    (record,) = [each for each in caplog.records if name in each.message]
    too_large = reason == "too_large"
    assert ("size_limit" in record.message) == too_large
    assert (
        "JSON would not" in record.message and "dump=" in record.message
    ) != too_large


async def test_dump_and_load(cache: FunctionCache, redis: Redis, name: str) -> None:
    """What JSON does not know is written and read by the host's own functions."""

    @cache.cached(ttl=5, name=name, dump=list, load=tuple)
    async def give() -> tuple[int, ...]:
        return (1, 2)

    assert await give() == (1, 2)
    assert await give() == (1, 2)
    assert cache.stats(give).hits == 1
    assert (await entry_of(redis, name))["result"] == [
        1,
        2,
    ]


async def test_a_dump_or_a_load_that_raises(
    cache: FunctionCache, redis: Redis, name: str
) -> None:
    """Neither reaches the caller."""

    def broken(value: str) -> object:
        raise ValueError(value)

    @cache.cached(ttl=5, name=name, dump=broken, load=str)
    async def not_dumped() -> str:
        return "a"

    @cache.cached(
        ttl=5, name=f"{name}.load", dump=lambda value: [value], load=lambda v: v["x"]
    )
    async def not_loaded() -> str:
        return "a"

    for _ in range(2):
        assert await not_dumped() == "a"
        assert await not_loaded() == "a"
    assert cache.stats(not_dumped).not_stored == {"dump": 2}
    assert cache.stats(not_loaded).discarded == {"load": 1}


BROKEN: list[tuple[bytes, str]] = [
    (b"{", "not_json"),
    (b'{"result":1}', "no_entry"),
    (b'{"result":1,"func_name":"other"}', "other_function"),
]


@pytest.mark.parametrize(("broken", "reason"), BROKEN)
async def test_a_broken_value_is_a_miss(
    cache: FunctionCache, redis: Redis, name: str, broken: bytes, reason: str
) -> None:
    """Whatever stands there, the function's own result is given, and stored anew."""

    @cache.cached(ttl=5, name=name)
    async def give() -> str:
        return "right"

    await give()
    key = await only_key(redis, name)
    await redis.set(key, broken)
    assert await give() == "right"
    assert cache.stats(give).discarded == {reason: 1}
    assert await give() == "right"
    assert cache.stats(give).hits == 1


async def test_a_value_of_another_writer_is_believed(
    cache: FunctionCache, redis: Redis, name: str
) -> None:
    """Blanks, another order, more fields and no TTL do not matter."""

    @cache.cached(ttl=5, name=name)
    async def give() -> str:
        return "ours"

    await give()
    key = await only_key(redis, name)
    await redis.set(key, f'{{"func_name": "{name}", "more": 1, "result": "theirs"}}')
    assert await give() == "theirs"
    assert await cache.clear(give) == 1


async def test_a_key_of_another_type_is_left_alone(
    cache: FunctionCache,
    redis: Redis,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The function is called, the list stays."""

    @cache.cached(ttl=5, name=name)
    async def give() -> str:
        return "right"

    await give()
    key = await only_key(redis, name)
    await redis.delete(key)
    await redis.rpush(key, "theirs")
    assert [await give(), await give()] == ["right", "right"]
    assert cache.stats(give).discarded == {"wrong_type": 2}
    assert await redis.lrange(key, 0, -1) == [b"theirs"]
    assert len([each for each in caplog.records if "another type" in each.message]) == 1
    assert await cache.clear(give) == 0
    assert await redis.lrange(key, 0, -1) == [b"theirs"]
    await redis.delete(key)


async def test_names_that_run_into_each_other(
    cache: FunctionCache, redis: Redis, name: str
) -> None:
    """``("a", "b_c")`` and ``("a_b", "c")`` are one key: never one value."""

    @cache.cached(ttl=5, name=name)
    async def one() -> str:
        return "one"

    await one()
    digest = (await only_key(redis, name)).decode().rsplit("_", 1)[1]
    other_name = f"{name}_{digest}"

    @cache.cached(ttl=5, name=other_name)
    async def other() -> str:
        return "other"

    await other()
    entry = b'{"result":"other","timestamp":"","func_name":"%b"}' % other_name.encode()
    await redis.set(f"ginkgo_func_cache_{name}_{digest}", entry)
    assert await one() == "one"
    assert cache.stats(one).discarded == {"other_function": 1}
    assert [await one(), await other()] == ["one", "other"]
    await cache.clear(other)
    await cache.clear(one)


async def test_a_thousand_callers_compute_once(cache: FunctionCache, name: str) -> None:
    """Each gets a result of his own."""
    runs = 0

    @cache.cached(ttl=5, name=name)
    async def slow(code: str) -> list[str]:
        nonlocal runs
        runs += 1
        await anyio.sleep(0.05)
        return [code]

    results = await asyncio.gather(*(slow("a") for _ in range(1000)))
    assert runs == 1
    assert results == [["a"]] * 1000
    results[0].append("mine")
    assert results[1] == ["a"]
    assert cache.stats(slow) == CacheStats(misses=1000, computed=1, waited=999)


class OrderError(Exception):
    """An exception whose constructor takes something else than its message."""

    def __init__(self, number: int, *, reason: str) -> None:
        super().__init__(f"order {number}: {reason}")
        self.number = number


@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueError("no"),
        lambda: OrderError(7, reason="no"),
        lambda: OSError(2, "no"),
    ],
    ids=["copied", "shared", "of the system"],
)
async def test_an_exception_goes_to_all(
    cache: FunctionCache, name: str, make: Callable[[], Exception]
) -> None:
    """Each with a traceback that leads to the function and is no longer than that."""
    runs = 0

    @cache.cached(ttl=5, name=name)
    async def failing() -> None:
        nonlocal runs
        runs += 1
        await anyio.sleep(0.02)
        raise make()

    async def call() -> tuple[str, str, int]:
        try:
            await failing()
        except (ValueError, OrderError, OSError) as error:
            shown = traceback.format_exception(error)
            return (
                repr(error),
                "".join(shown),
                len(traceback.extract_tb(error.__traceback__)),
            )
        return "", "", 0

    caught = await asyncio.gather(*(call() for _ in range(100)))
    assert runs == 1
    assert {text for text, _, _ in caught} == {repr(make())}
    assert all("in failing" in shown for _, shown, _ in caught)
    assert max(depth for _, _, depth in caught) < 10
    assert cache.stats(failing).computed == 1


async def test_a_cancelled_leader_harms_nobody(cache: FunctionCache, name: str) -> None:
    """The others get the result of the one computing."""
    started, go = anyio.Event(), anyio.Event()
    runs = 0

    @cache.cached(ttl=5, name=name)
    async def slow() -> str:
        nonlocal runs
        runs += 1
        started.set()
        await go.wait()
        return "done"

    leader = asyncio.ensure_future(slow())
    await started.wait()
    others = [asyncio.ensure_future(slow()) for _ in range(10)]
    await eventually(lambda: cache.stats(slow).computed == 1)
    leader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leader
    go.set()
    assert await asyncio.gather(*others) == ["done"] * 10
    assert runs == 1


async def test_who_is_cancelled_while_reading_hands_over(
    cache: FunctionCache, name: str
) -> None:
    """Nobody waits for a reply that the first has given up."""

    @cache.cached(ttl=5, name=name)
    async def give() -> str:
        return "done"

    leader = asyncio.ensure_future(give())
    others = [asyncio.ensure_future(give()) for _ in range(10)]
    await asyncio.sleep(0)
    leader.cancel()
    assert await asyncio.gather(*others) == ["done"] * 10


async def test_the_last_one_cancelled_cancels_the_function(
    cache: FunctionCache, name: str
) -> None:
    """As without a cache: a deadline ends the work, which has cleaned up by then."""
    ended: list[str] = []
    begun = anyio.Event()

    @cache.cached(ttl=5, name=name)
    async def slow() -> str:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")
        return ""

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow)
        tasks.start_soon(slow)
        await begun.wait()
        tasks.cancel_scope.cancel()
    assert ended == ["cleaned up"]


async def test_a_function_may_be_cancelled_inside(
    cache: FunctionCache, name: str
) -> None:
    """Its own CancelledError reaches its callers."""

    @cache.cached(ttl=5, name=name)
    async def odd() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await odd()


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")


async def test_the_function_sees_its_callers_context(
    cache: FunctionCache, name: str
) -> None:
    """Context variables are the first caller's."""

    @cache.cached(ttl=5, name=name)
    async def give() -> str:
        return variable.get()

    variable.set("the caller's")
    assert await give() == "the caller's"


class StopTestError(BaseException):
    """What ends more than a handler, as ``pytest.skip`` raises it."""


@pytest.mark.parametrize("make", [StopTestError, SystemExit])
async def test_a_base_exception_reaches_every_caller(
    cache: FunctionCache, name: str, make: type[BaseException]
) -> None:
    """The function's own BaseException ends each call; no caller waits for ever."""
    runs = 0

    @cache.cached(ttl=5, name=name)
    async def odd() -> None:
        nonlocal runs
        runs += 1
        await anyio.sleep(0.02)
        raise make

    async def call() -> bool:
        try:
            await odd()
        except make:
            return True
        return False

    with anyio.fail_after(5):
        assert await asyncio.gather(*(call() for _ in range(10))) == [True] * 10
    assert runs == 1


async def test_a_function_that_calls_itself_for_ever(
    cache: FunctionCache, name: str
) -> None:
    """Its callers get a RecursionError, as without a cache."""

    @cache.cached(ttl=5, name=name)
    async def again() -> int:
        return await again()

    with anyio.fail_after(30), pytest.raises(RecursionError):
        await again()
    assert cache.stats(again).computed <= sys.getrecursionlimit() + 1


async def test_a_task_that_a_computation_left_behind_counts_no_depth(
    cache: FunctionCache, name: str
) -> None:
    """A chain in which each computation starts the next one may be of any length."""
    left = [sys.getrecursionlimit() + 10]
    ended = anyio.Event()
    tasks: set[asyncio.Task[int]] = set()

    @cache.cached(ttl=5, name=name)
    async def step(number: int) -> int:
        mine = asyncio.current_task()
        assert mine is not None

        async def later(mine: asyncio.Task[Any] = mine) -> int:
            await asyncio.wait([mine])  # the computation is over
            return await step(number + 1)

        left[0] -= 1
        if left[0] <= 0:
            ended.set()
            return 0
        task = asyncio.ensure_future(later())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return number

    with anyio.fail_after(60):
        await step(0)
        await ended.wait()
        await eventually(lambda: not tasks)


async def test_functions_that_need_each_other(cache: FunctionCache, name: str) -> None:
    """Called at once, crosswise, no call waits for a call that waits for it."""
    here, there = anyio.Event(), anyio.Event()
    runs: list[str] = []

    @cache.cached(ttl=5, name=f"{name}.a", ignore=("depth",))
    async def one(depth: int = 0) -> str:
        runs.append("one")
        here.set()
        await there.wait()
        return "one" if depth else await two(1)

    @cache.cached(ttl=5, name=f"{name}.b", ignore=("depth",))
    async def two(depth: int = 0) -> str:
        runs.append("two")
        there.set()
        await here.wait()
        return "two" if depth else await one(1)

    with anyio.fail_after(5):
        assert set(await asyncio.gather(one(), two())) <= {"one", "two"}
    assert sorted(runs) == ["one", "one", "two", "two"]


async def test_no_computation_is_left(cache: FunctionCache, name: str) -> None:
    """Whatever became of it, nothing is remembered of a call."""

    @cache.cached(ttl=5, name=name)
    async def give(number: int) -> int:
        if number % 3 == 0:
            raise ValueError(number)
        return number

    for _ in range(2):
        await asyncio.gather(*(give(n) for n in range(30)), return_exceptions=True)
    (here,) = cache._calls._by_loop.values()
    assert not here.by_key


async def test_clear_removes_exactly_one_functions_entries(
    cache: FunctionCache, redis: Redis, name: str
) -> None:
    """Names that contain each other, and names with glob characters."""
    names = [
        name,
        f"{name}_b",
        f"{name}*",
        f"{name}[a]",
        f"{name}?",
        f"{name}\\",
        f"x{name}",
    ]

    def make(each: str) -> Callable[[int], Any]:
        @cache.cached(ttl=60, name=each)
        async def give(number: int) -> int:
            return number

        return give

    functions = [make(each) for each in names]
    foreign = [f"ginkgo_func_cache_{name}_key", f"ginkgo_func_cache_{name}_{'0' * 64}"]
    await redis.mset(
        {
            foreign[0]: f'{{"result":1,"func_name":"{name}"}}',
            foreign[1]: b'{"result":1}',
        }
    )
    await redis.set(
        f"ginkgo_func_cache_{name}_{'1' * 64}", b'{"result":1,"func_name":"x"}'
    )
    for function in functions:
        for number in range(3):
            await function(number)
    for function in functions:
        assert await cache.clear(function) == 3
        assert await cache.clear(function) == 0
    left = [
        key async for key in redis.scan_iter(f"{RedisKeyPattern.FUNC_CACHE_ALL}{name}*")
    ]
    left += await keys_of(redis, name)
    assert len(set(left)) == 3
    await redis.delete(*left)


async def test_clear_one_entry(cache: FunctionCache, redis: Redis, name: str) -> None:
    """With arguments, however they are passed."""

    @cache.cached(ttl=60, name=name)
    async def give(number: int, *, plus: int = 0) -> int:
        return number + plus

    await give(1)
    await give(2)
    assert await cache.clear(give, 1, plus=0) == 1
    assert await cache.clear(give, number=1) == 0
    (key,) = await keys_of(redis, name)
    assert await cache.clear(give) == 1
    await redis.hset(key, "a", "b")
    assert await cache.clear(give, 2) == 0
    assert await redis.delete(key) == 1


async def test_what_is_computed_during_clear_is_not_stored(
    cache: FunctionCache, redis: Redis, name: str
) -> None:
    """It was computed from what was there before."""
    started, go = anyio.Event(), anyio.Event()

    @cache.cached(ttl=60, name=name)
    async def give() -> str:
        started.set()
        await go.wait()
        return "old"

    caller = asyncio.ensure_future(give())
    await started.wait()
    assert await cache.clear(give) == 0
    go.set()
    assert await caller == "old"
    assert await keys_of(redis, name) == []


class Loader:
    """Something with methods."""

    def __init__(self) -> None:
        self.runs = 0


async def test_methods(cache: FunctionCache, name: str) -> None:
    """``ignore=("self",)`` lets all objects of a class share their results."""

    class BarLoader(Loader):
        @cache.cached(ttl=60, name=name, ignore=("self",))
        async def load(self, code: str) -> str:
            self.runs += 1
            return code

    loader = BarLoader()
    assert [await loader.load("a"), await loader.load(code="a")] == ["a", "a"]
    assert [await BarLoader().load("a"), loader.runs] == ["a", 1]
    assert cache.stats(BarLoader.load).hits == cache.stats(loader.load).hits == 2
    assert await cache.clear(loader.load, "b") == 0
    assert await cache.clear(BarLoader.load, loader, "a") == 1
    await loader.load("a")
    assert await cache.clear(loader.load, "a") == 1
    await loader.load("a")
    assert await cache.clear(loader.load, code="a") == 1


async def test_a_method_without_ignore_is_refused_with_the_remedy(
    cache: FunctionCache, name: str
) -> None:
    """``self`` is no plain value."""

    class Other:
        @cache.cached(ttl=60, name=name)
        async def load(self) -> str:
            return ""

    with pytest.raises(ConfigurationError, match=r"ignore=\(\"self\",\)"):
        await Other().load()


async def is_new(redis: Redis, key: bytes) -> bool:
    """Whether an entry was written anew."""
    return await redis.ttl(key) > 30


async def test_stale_on_error(cache: FunctionCache, redis: Redis, name: str) -> None:
    """An expired value is served while the function raises, and lives for that."""
    fail = False

    @cache.cached(ttl=10, name=name, stale_on_error=100)
    async def give() -> list[str]:
        if fail:
            raise ValueError("away")
        return ["value"]

    await give()
    key = await only_key(redis, name)
    assert 100 < await redis.ttl(key) <= 110
    await redis.expire(key, 100)  # as after its ten seconds
    fail = True
    results = await asyncio.gather(give(), give())
    assert list(results) == [["value"], ["value"]]
    assert results[0] is not results[1]
    assert cache.stats(give).stale_served == 2
    fail = False
    assert await give() == ["value"]
    assert await redis.ttl(key) > 100
    assert cache.stats(give).computed == 3
    fail = True
    await redis.delete(key)
    with pytest.raises(ValueError, match="away"):
        await give()


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": 0}, {"ttl": -1}, {"ttl": float("inf")}, {"ttl": True}, {"ttl": "1"}, {"ttl": 0.0001},
        {"stale_on_error": -1}, {"stale_on_error": float("nan")},
        {"size_limit": 1}, {"lock_timeout": 0}, {"lock_ttl": 0}, {"name": ""}, {"name": "a\nb"},
        {"name": "e\u0301"}, {"name": 5}, {"name": UUID(int=1)}, {"dump": str}, {"load": str}, {"ignore": ("nothing",)},
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_at_once(options: dict[str, Any]) -> None:
    """Before any call."""

    async def give() -> None: ...

    with pytest.raises(ConfigurationError):
        FunctionCache().cached(**options)(give)


def test_what_cannot_be_cached() -> None:
    """Generators, classes, what has no name, and decorators in the wrong order."""
    cache = FunctionCache()

    def numbers() -> Any:
        yield 1

    def make(kind: type) -> None: ...

    wrong: list[Any] = [numbers, Loader, lambda: 1, classmethod(make), 5]
    for each in wrong:
        with pytest.raises(ConfigurationError):
            cache.cached(each)
    with pytest.raises(ConfigurationError, match="generator"):
        cache.cached(name="numbers")(functools.partial(numbers))


def test_a_closure_that_is_made_again_needs_a_name() -> None:
    """Its variables are no arguments: two of them would share wrong results."""
    cache = FunctionCache()

    def make(factor: int, name: str | None = None) -> None:
        @cache.cached(name=name)
        def times(number: int) -> int:
            return number * factor

        times.__doc__ = "made, and gone with the end; its results are not"

    make(2)
    with pytest.raises(ConfigurationError, match="name="):
        make(3)
    make(3, "three times")
    for _ in range(2):

        class Child(Loader):
            @cache.cached
            def load(self) -> object:
                return super()  # its class is no variable


class Rates:
    """Something whose methods depend on the object, or on the class."""

    factor = 1

    def times(self, number: int) -> int:
        return number * self.factor

    @classmethod
    def of_class(cls, number: int) -> int:
        return number * cls.factor


class DoubleRates(Rates):
    """Inherits all methods."""

    factor = 2


def wrap(function: Callable[[int], int]) -> Callable[[int], int]:
    """Make another function as decorators do."""

    @functools.wraps(function)
    def call(number: int) -> int:
        return function(number)

    return call


def test_a_method_of_an_object_needs_a_name() -> None:
    """The object is no argument: the methods of two objects would share results.

    The same holds for a class that inherits a class method. Other functions that have a
    module or a class beside them are named by it.
    """
    cache = FunctionCache()
    bound: list[Any] = [Rates().times, wrap(Rates().times), DoubleRates.of_class]
    for each in bound:
        with pytest.raises(ConfigurationError, match="name="):
            cache.cached(each)
        cache.cached(name="rates")(each)
    named: list[Any] = [Rates.of_class, math.isqrt]
    for each in named:
        cache.cached(each)


def test_a_wrapped_closure_is_a_closure() -> None:
    """Its variables are seen below the decorators around it."""
    cache = FunctionCache()

    def make(factor: int) -> Any:
        @functools.lru_cache
        def times(number: int) -> int:
            return number * factor

        return times

    cache.cached(make(2))
    with pytest.raises(ConfigurationError, match="name="):
        cache.cached(make(3))


class Name(str, Enum):  # noqa: UP042 - str() of a StrEnum is its value
    """Names of functions, as older programs declare them."""

    BARS = "行情[enum]"


async def test_a_member_of_an_enum_as_name(cache: FunctionCache, redis: Redis) -> None:
    """Its value is the name, also for whoever clears."""

    @cache.cached(ttl=60, name=Name.BARS)
    async def give(number: int) -> int:
        return number

    await give(1)
    await give(2)
    assert len(await keys_of(redis, "行情?enum?")) == 2
    assert await cache.clear(give, 1) == 1
    assert await cache.clear(give) == 1


async def test_functions_of_another_cache_are_refused(cache: FunctionCache) -> None:
    """``clear`` and ``stats`` know their own only."""

    async def give() -> None: ...

    other = FunctionCache().cached(give)
    for function in (give, other):
        with pytest.raises(ConfigurationError):
            cache.stats(function)
        with pytest.raises(ConfigurationError):
            await cache.clear(function)


def test_several_event_loops_one_after_the_other(redis_url: str, name: str) -> None:
    """Nothing is left of a loop that was closed."""
    cache = FunctionCache(redis_url, timeout=5)

    @cache.cached(ttl=5, name=name)
    async def give() -> str:
        return "value"

    async def last() -> str:
        async with cache:
            return await give()

    for function in (give, give, last):
        assert asyncio.run(function()) == "value"
    assert cache.stats(give).hits == 2
    assert len(cache._calls._by_loop.values()) == 1
