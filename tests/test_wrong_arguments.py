"""Wrong arguments: each is a ConfigurationError that names the argument, before any request."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from datetime import UTC, datetime, time, tzinfo
from pathlib import Path
from typing import Any

import pytest

from bls_agent import ConfigurationError, Console, LogFilter, ProjectAgent
from bls_agent.assets import AssetLibrary, AssetSync, DirectorySource
from bls_agent.crawl import CrawlRequest, RequestQueue, SeenFilter, fingerprint
from bls_agent.integrations.asset_webhook import AssetWebhookApp
from bls_agent.runs import EventStore
from bls_agent.workers import FunctionCache, Heartbeat, TaskStatus, WorkerRegistry
from tests.assets.memory_source import MemorySource

AWAY = "redis://127.0.0.1:1/0"
PROJECT = "订单系统"


def console() -> Any:
    return Console(AWAY)


def agent() -> Any:
    return ProjectAgent(PROJECT, redis=AWAY)


def sync(**options: Any) -> AssetSync:
    return AssetSync(AWAY, MemorySource({}), **options)


class Nowhere(tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, _: datetime | None, /) -> None:
        """Return nothing."""

    tzname = dst = utcoffset


class Shop:
    """A class whose methods somebody decorates in the wrong order."""

    reload: Any = classmethod(lambda _: None)


CALLS: dict[str, tuple[str, Callable[[], Any]]] = {
    "command(60)": ("command", lambda: agent().command(60)),
    "command(classmethod)": ("command", lambda: agent().command(vars(Shop)["reload"])),
    "command(b'x')": ("command", lambda: agent().command(b"x")),
    "health_check(60)": ("health_check", lambda: agent().health_check(60)),
    "fallback(None)": ("function", lambda: agent().fallback(None)),
    "flush(None)": ("timeout", lambda: agent().flush(None)),
    "flush(nan)": ("timeout", lambda: agent().flush(float("nan"))),
    "flush(maxsize)": ("timeout", lambda: agent().flush(sys.maxsize)),
    "command(timeout)": ("timeout", lambda: agent().command(timeout=10**400)(print)),
    "run.flush": ("timeout", lambda: EventStore(AWAY).run(1).flush(None)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "status(None)": ("project", lambda: console().status(None)),
    "status(bytes)": ("project", lambda: console().status(b"orders")),
    "exists(Path)": ("project", lambda: console().exists(Path("x"))),
    "logs(surrogate)": ("project", lambda: console().logs("\ud800")),
    "follow_logs(None)": ("project", lambda: console().follow_logs(None)),
    "follow_logs(last=-1)": ("last", lambda: console().follow_logs(PROJECT, last=-1)),
    "interval=0": ("interval", lambda: console().follow_logs(PROJECT, interval=0)),
    "logs(limit='5')": ("limit", lambda: console().logs(PROJECT, limit="5")),
    "queue(limit=10.5)": ("limit", lambda: console().queue(PROJECT, limit=10.5)),
    "log_page(limit=0)": ("limit", lambda: console().log_page(PROJECT, limit=0)),
    "send(id=bytes)": ("id", lambda: console().send(PROJECT, "x", id=b"1", create=True)),
    "send(id=b'')": ("id", lambda: console().send(PROJECT, "x", id=b"", create=True)),
    "send(id=False)": ("id", lambda: console().send(PROJECT, "x", id=False, create=True)),
    "discard(all=None)": ("all", lambda: console().discard(PROJECT, all=None)),
    "discard(all='')": ("all", lambda: console().discard(PROJECT, None, all="")),
    "requeue(all='false')": ("all", lambda: console().requeue(PROJECT, "1", all="false")),
    "intakes(text)": ("projects", lambda: console().intakes(PROJECT)),
    "LogFilter(level=text)": ("level", lambda: LogFilter(level="warn")),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "LogFilter(since=text)": ("since", lambda: LogFilter(since="1h")),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "LogFilter(since=time)": ("since", lambda: LogFilter(since=time(12, tzinfo=UTC))),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "LogFilter(until=nowhere)": ("until", lambda: LogFilter(until=datetime(2026, 1, 1, tzinfo=Nowhere()))),
    "LogFilter(text=None)": ("text", lambda: LogFilter(text=None)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "AssetSync(path)": ("source", lambda: AssetSync(AWAY, "assets/")),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "AssetSync(wait=None)": ("wait", lambda: sync(wait=None)),
    "webhook(None)": ("secret", lambda: AssetWebhookApp(sync(), None)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "base_path(Path)": ("base_path", lambda: DirectorySource(".", base_path=Path("x"))),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "changes(None)": ("n", lambda: AssetLibrary(AWAY).changes(None)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "failed(limit='5')": ("limit", lambda: RequestQueue(AWAY, "新闻").failed("5")),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "tasks(limit=2.5)": ("limit", lambda: WorkerRegistry(AWAY).tasks(2.5)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "task get(None)": ("task_id", lambda: TaskStatus(AWAY).get(None)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "cached(size_limit=None)": ("size_limit", lambda: FunctionCache(AWAY).cached(ttl=1, size_limit=None)),  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    "cached(ttl)": ("ttl", lambda: FunctionCache(AWAY).cached(ttl=10**400)),
    "SeenFilter(ttl)": ("ttl", lambda: SeenFilter(AWAY, "新闻", ttl=1e10)),
    "add_many(text)": ("fingerprints", lambda: SeenFilter(AWAY, "新闻").add_many("abc")),
    "headers=text": ("headers", lambda: fingerprint(CrawlRequest("http://x"), headers="accept")),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
async def test_a_wrong_argument(call: str) -> None:
    named, make = CALLS[call]

    async def do() -> None:
        result = make()
        if inspect.isawaitable(result):
            await result

    with pytest.raises(ConfigurationError, match=rf"\b{named}\b"):
        await do()


async def test_a_wrong_argument_of_what_is_open(redis_url: str, project: str) -> None:
    """A wait or a reason of another type; the objects go on working."""
    async with (
        ProjectAgent(project, redis=redis_url) as running,
        Heartbeat("下载", project, redis=redis_url) as beat,
    ):
        calls: list[tuple[Any, object]] = [
            (running.ready, "5"),
            (running.pause, None),
            (running.drain, 5),
            (beat.ready, "5"),
        ]
        for function, argument in calls:
            with pytest.raises(ConfigurationError):
                await function(argument)
        await running.ready(5)
        await beat.ready(5)
        assert running.stats().intake == "open"
