"""The public API as its users write it: read by type checkers, never executed.

``assert_type`` holds what must be known; a line that must be refused carries an ignore
comment, which the checkers report as soon as it is needed no more.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from signal import Signals
from typing import Any, assert_type

import anyio
from fastapi import APIRouter, FastAPI
from redis import Redis as SyncRedis, RedisCluster as SyncRedisCluster
from redis.asyncio import Redis, RedisCluster
from starlette.applications import Starlette

import bls_agent
from bls_agent import (
    AgentStats,
    BLSHandler,
    CallNext,
    Command,
    CommandContext,
    Console,
    EventStore,
    Level,
    LogEntry,
    Outcome,
    OutcomeKind,
    ProjectAgent,
    RedisOrAgent,
    RedisSource,
    Reject,
    Settings,
    Status,
    SyncConsole,
)
from bls_agent.core.codec import JSONObject, JSONValue
from bls_agent.crawl import (
    CleanupReport,
    CrawlRequest,
    DedupPipeline,
    Namespace,
    QueueStats,
    RedisKeyManager,
    RequestQueue,
    SeenFilter,
    TakenRequest,
    cleanup,
    find_queues,
    fingerprint,
    validate_multiple_redis_keys,
)
from bls_agent.project.agent_thread import AgentThread
from bls_agent.project.log.log import Log
from bls_agent.runs import (
    EventAction,
    EventCategory,
    EventPage,
    Gap,
    NewEvent,
    RunSummary,
    RunWriter,
    StreamEvent,
    WriterLost,
)
from bls_agent.runtime.batch_writer import Flushed
from bls_agent.workers import CacheStats, FunctionCache, cache, cached

agent = ProjectAgent("订单系统")
ProjectAgent("a", redis="redis://cache:6379/0", status_ttl=90, command_timeout=None)
ProjectAgent("a", redis=Redis(), settings=Settings(concurrency=4), validate="pydantic")


def where_redis_is(
    one: Redis, cluster: RedisCluster, sync: SyncRedis, syncs: SyncRedisCluster
) -> None:
    """A URL or any client of redis-py; for a store or a console an agent, too."""
    places: list[RedisSource] = ["redis://127.0.0.1", one, cluster, sync, syncs]
    for place in places:
        service = ProjectAgent("a", redis=place)
        stores: list[RedisOrAgent] = [place, service]
        for store in stores:
            EventStore(store)
            Console(store)
            SyncConsole(store)
            RequestQueue(store, "a")


import_of_nothing = bls_agent.ProjectAgnet  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
ProjectAgent("a", status_tll=90)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
ProjectAgent("a", redis=6379)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
ProjectAgent("a", redis=ProjectAgent("b"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Console(6379)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
ProjectAgent("a", mode="reliably")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- every form of the decorator gives the function back as it was


@agent.command
async def bare_async(force: bool = False) -> dict[str, int]:
    """Written bare above a coroutine function."""
    return {"rules": int(force)}


@agent.command
def bare_plain(count: int, /, *, name: str = "") -> str:
    """Written bare above a plain function."""
    return name * count


@agent.command()
async def called(level: Level) -> Level:
    """Called with nothing."""
    return level


@agent.command("重新加载")
async def named(context: CommandContext) -> str:
    """Called with a name."""
    return context.id


@agent.command("重新加载 2")
def named_plain(ratio: float) -> float:
    """Called with a name, above a plain function."""
    return ratio


@agent.command(timeout=2.5)
async def timed(items: list[int] | None = None) -> int:
    """Called with a timeout."""
    return len(items or [])


@agent.command("slow", timeout=None)
def unlimited(**arguments: object) -> int:
    """Called with a name and without a limit."""
    return len(arguments)


async def decorated() -> None:
    """Results and parameters are those of the undecorated functions."""
    assert_type(await bare_async(), dict[str, int])
    assert_type(await bare_async(force=True), dict[str, int])
    assert_type(bare_plain(2, name="a"), str)
    assert_type(await called(Level.INFO), Level)
    assert_type(named_plain(ratio=1), float)
    assert_type(await timed(items=[1]), int)
    assert_type(unlimited(a=1, b="c"), int)

    await bare_async(force="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await bare_async(now=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    bare_plain("2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await named()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await timed(["1"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


@agent.command(2.5)  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
async def seconds_first() -> None:
    """A timeout is a keyword."""


class Service:
    """Methods are handlers too."""

    async def reload(self, force: bool) -> str:
        """Reload."""
        return str(force)


async def registered() -> None:
    """What is registered by a call is given back in the same way."""
    assert_type(await agent.command(Service().reload)(force=True), str)
    assert_type(await agent.command("again")(Service().reload)(force=True), str)


@agent.fallback
async def fallback(context: CommandContext) -> tuple[str, JSONObject]:
    """Handle what nobody registered."""
    return context.command, context.args


@agent.fallback
def plain_fallback(context: CommandContext) -> None:
    """Refuse what nobody registered."""
    raise Reject(f"{context.command} from {context.source}", {"delivery": 1})


@agent.middleware
async def middleware(context: CommandContext, call_next: CallNext) -> JSONValue:
    """Run around every command."""
    context.log.info("begins", deadline=context.deadline)
    result: JSONValue = await call_next(context)
    return result


@agent.middleware  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
def plain_middleware(context: CommandContext, call_next: CallNext) -> JSONValue:
    """A middleware waits for what is inside of it."""
    return None


async def around(context: CommandContext, call_next: CallNext) -> None:
    """Fallback and middleware are given back unchanged, too."""
    assert_type(await fallback(context), tuple[str, JSONObject])
    assert_type(plain_fallback(context), None)
    assert_type(await middleware(context, call_next), JSONValue)
    assert_type(await call_next(context), Any)


# --- health checks come back as they were, too


@agent.health_check
async def bare_check() -> bool:
    """Written bare above a coroutine function."""
    return True


@agent.health_check("数据库", interval=10.0, timeout=5, failures=2)
def named_check(path: str = "/tmp") -> int:
    """Called with a name and options, above a plain function."""
    return len(path)


@agent.health_check(failures=1)
async def impatient_check() -> None:
    """Called with options."""


@agent.health_check  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]
def check_with_arguments(path: str) -> None:
    """A check is called without arguments."""


agent.health_check(named_check, interval=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


async def checked() -> None:
    """Results and parameters are those of the undecorated functions."""
    assert_type(await bare_check(), bool)
    assert_type(named_check(path="/"), int)
    assert_type(agent.health_check("again")(named_check)("/"), int)
    await impatient_check()


# --- the rest of the agent


async def embedded() -> None:
    """Around an application."""
    async with agent as opened:
        assert_type(opened, ProjectAgent)
        assert_type(await opened.ready(timeout=5.0), None)
        assert_type(opened.set_status(Status.FAULT), None)
        assert_type(opened.status, Status)
        assert_type(await opened.flush(1.0), Flushed)
        assert_type(opened.stats(), AgentStats)
        assert_type(opened.stats().outcomes, dict[str, int])
        assert_type(opened.stats().status_source, str)
        assert_type(opened.stats().status_sources, dict[str, str])
        opened.set_status("在线")
        opened.set_status(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await opened.aclose()


async def served() -> None:
    """As the application."""
    assert_type(await agent.run(handle_signals=False), Signals | None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(agent.run)


def threaded() -> None:
    """In a program without an event loop."""
    with agent.in_thread() as thread:
        assert_type(thread, AgentThread)
        assert_type(thread.ready(timeout=5.0), None)
        assert_type(thread.flush(1.0), Flushed)
    with ExitStack() as stack:
        assert_type(stack.enter_context(agent.in_thread()), AgentThread)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[dict[str, int]]:
    """The application's own lifespan, around the agent's."""
    async with agent.lifespan(app) as nothing:
        assert_type(nothing, None)
        yield {"pool": 1}


def served_by_a_framework() -> None:
    """As the lifespan of an application, alone and composed."""
    manager: AbstractAsyncContextManager[None] = agent.lifespan(FastAPI())
    applications = (
        FastAPI(lifespan=agent.lifespan),
        FastAPI(lifespan=lifespan),
        APIRouter(lifespan=agent.lifespan),
        Starlette(lifespan=agent.lifespan),
    )
    del manager, applications


def logged(error: Exception) -> None:
    """From anywhere, with anything."""
    assert_type(agent.log, Log)
    assert_type(agent.log.bind(order=42), Log)
    assert_type(agent.log.info("paid", order=42, items=[object()], error=error), None)
    for write in (
        agent.log.debug,
        agent.log.warn,
        agent.log.warning,
        agent.log.critical,
        agent.log.error,
        agent.log.exception,
    ):
        write(error, level="a field of the user", message="another one")
    assert_type(agent.log.info("%d left of %s", 3, "tea", order=42), None)
    agent.log.info()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    agent.log.write(Level.INFO, "from elsewhere", {"order": 42}, at=1768221296.789)


def logged_by_the_standard_library(context: CommandContext) -> None:
    """A handler like any other."""
    handler: logging.Handler = BLSHandler(agent, level=logging.INFO)
    logging.getLogger().addHandler(handler)
    logging.getLogger().addHandler(BLSHandler(context, "INFO"))
    BLSHandler("myservice.agent")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    BLSHandler(logging.getLogger())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- the other end


async def watched() -> None:
    """What a console does."""
    async with Console("redis://cache:6379/0", timeout=2.0) as console:
        sent = await console.send("订单系统", "reload", {"force": True}, id="1")
        assert_type(sent, Command)
        assert_type(sent.args, JSONObject)
        outcome = await console.call("订单系统", "reload", timeout=1.0)
        assert_type(outcome, Outcome)
        assert_type(outcome.kind, OutcomeKind)
        assert_type(outcome.result, Any)
        assert_type(await console.status("订单系统"), Status | None)
        assert_type(await console.projects(), dict[str, Status | None])
        assert_type(await console.logs("订单系统", limit=20), list[LogEntry])
        followed = console.follow_logs("订单系统", last=10)
        assert_type(followed, AsyncIterator[LogEntry])
        async for entry in followed:
            assert_type(entry.level, Level)
            assert_type(entry.outcome, Outcome | None)
            assert_type(entry.metadata, JSONObject)


def watched_from_plain_code() -> None:
    """What a console does, without an event loop."""
    with SyncConsole("redis://cache:6379/0", timeout=2.0) as console:
        sent = console.send("订单系统", "reload", {"force": True}, id="1")
        assert_type(sent, Command)
        assert_type(console.call("订单系统", "reload", timeout=1.0), Outcome)
        assert_type(console.status("订单系统"), Status | None)
        assert_type(console.projects(), dict[str, Status | None])
        assert_type(console.logs("订单系统", limit=20), list[LogEntry])
        followed = console.follow_logs("订单系统", last=10, interval=0.1)
        assert_type(followed, Generator[LogEntry, None, None])
        for entry in followed:
            assert_type(entry.level, Level)
        console.call("订单系统", "reload", 1.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        console.send("订单系统", timeout=1.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SyncConsole().close()


# --- a cached function keeps its type


@cached
async def cached_bare(code: str) -> list[float]:
    """Written bare above a coroutine function."""
    return [float(code)]


@cached(ttl=60, ignore=("session",), lock=True, stale_on_error=600)
def cached_plain(code: str, session: object = None, *, adjust: bool = True) -> int:
    """With options, above a plain function."""
    return int(code) + adjust


@cached(ttl=60, dump=list, load=tuple)
async def cached_tuple(count: int) -> tuple[int, ...]:
    """With a dump and a load."""
    return tuple(range(count))


class Bars:
    """A class with a cached method."""

    @cache.cached(ttl=60, ignore=("self",))
    async def load(self, code: str) -> list[float]:
        """Load it."""
        return [float(code)]


async def call_cached() -> None:
    """The signature is the user's, and so is what comes back."""
    assert_type(await cached_bare("1"), list[float])
    assert_type(cached_plain("1", adjust=False), int)
    assert_type(await cached_tuple(2), tuple[int, ...])
    assert_type(await Bars().load("1"), list[float])
    await cached_bare(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cached_plain("1", adust=False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    cached(tll=60)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    async with FunctionCache(Redis(), timeout=0.2) as own:
        assert_type(own.stats(cached_bare), CacheStats)
    assert_type(await cache.clear(cached_bare), int)
    assert_type(await cache.clear(cached_plain, "1", adjust=True), int)
    assert_type(cache.clear_sync(cached_plain), int)


# --- the events of a run


def write_without_a_loop() -> None:
    """A plain program gets the same writer."""
    with EventStore(agent).run(1, data={"task": "茶"}) as run:
        assert_type(run, RunWriter)
        run.emit("llm", "stream", {"content": "好"})
        assert_type(run.wait_flushed(1.0), Flushed)
        run.complete({"answer": 42})


async def write_and_follow() -> None:
    """What is followed is an event, a gap or a lost writer, and nothing else."""
    async with EventStore(agent, maxlen=1_000) as store:
        assert_type(store, EventStore)
        assert_type(await store.add(1, "lifecycle", "started"), str | None)
        told = ("llm", "stream", {"content": "你"})
        named = NewEvent(EventCategory.AGENT, EventAction.TOOL_CALL)
        assert_type(await store.add_many(1, [told, named]), list[str])
        assert_type(await store.get_events(1, "-", "+", 10), list[StreamEvent])
        assert_type(await store.page(1, after=None), EventPage)
        assert_type(await store.describe(1), RunSummary | None)
        async with store.run(1, source={"agent_name": "全局协调者"}) as run:
            assert_type(run, RunWriter)
            run.emit("llm", "stream", {"content": "好"})
            run.emit("llm", data=["好"])  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
            assert_type(await run.flush(), Flushed)
        async for item in store.follow(1):
            match item:
                case StreamEvent():
                    assert_type(item.sequence, int)
                case Gap():
                    assert_type(item.missing, int | None)
                case _:
                    assert_type(item, WriterLost)
        await store.add("1", "a", "b")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    EventStore(on_error="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def told(found: int, removed: int) -> None:
    """Progress of a cleanup."""


async def crawl(settings: dict[str, Any]) -> None:
    """Keys, requests, filters, pipelines; a dict is settings enough."""
    manager = RedisKeyManager.from_settings(settings)
    assert_type(manager.spider_name, str | None)
    assert_type(validate_multiple_redis_keys(["a"]), tuple[bool, list[object]])
    request = CrawlRequest("https://example.org/", meta={"depth": 1})
    assert_type(fingerprint(request, ["accept"]), str)
    async with SeenFilter(agent, "新闻", ttl=3_600, on_error="new") as seen:
        assert_type(seen, SeenFilter)
        assert_type(await seen.add(request), bool)
        assert_type(await seen.add_many(["a", request]), list[bool])
        item = await DedupPipeline(seen).process_item({"title": "茶"})
        assert_type(item, dict[str, str])
    assert_type(await find_queues(agent), list[Namespace])
    report = await cleanup(agent, "新闻", dry_run=False, on_progress=told)
    assert_type(report, CleanupReport)
    async with RequestQueue(agent, "新闻", "每日", lease=30) as queue:
        assert_type(await queue.push(request, priority=-1, unique=True), bool)
        assert_type(await queue.push_many([request], 2.5), int)
        async with queue.take(timeout=5) as taken:
            assert_type(taken, TakenRequest | None)
            if taken is not None and taken.valid:
                assert_type(taken.request, CrawlRequest)
                assert_type(await taken.fail("503"), bool)
        assert_type(await queue.stats(), QueueStats)
        assert_type(
            [one.request for one in await queue.failed()], list[CrawlRequest | None]
        )
    RequestQueue(agent, "新闻", mode="fast")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    SeenFilter(agent, "新闻", kind="page")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
