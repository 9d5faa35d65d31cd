"""``bls-agent crawl``: crawl queues, their failed requests, and their removal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

from typer import Argument, Option

from bls_agent.core.redaction import redact
from bls_agent.crawl.overview import (
    CleanupReport,
    FailedRequest,
    Namespace,
    QueueOverview,
    QueueView,
    cleanup as clean,
)
from bls_agent.crawl.queue import RequestQueue
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit, Failure, find_likely, misspelt, normalise
from bls_agent.ops.cli.options import LimitOption, WatchOption
from bls_agent.ops.cli.output import Invocation, span, unix_now
from bls_agent.ops.cli.tables import Layout, Table
from bls_agent.ops.terminal import Cell

COUNTS: Final = ("waiting", "delayed", "in_flight", "failed", "pushed", "acknowledged")
QUEUES: Final = Layout("crawl", dict.fromkeys(("project", "spider", *COUNTS), 0))
FAILED: Final = Layout(
    "crawl", dict.fromkeys(("age", "attempts", "request", "reason"), 0)
)
UNKNOWN: Final = "-"
SHOWN: Final = 3  # spiders that are suggested


_CrawlArgument: TypeAlias = Annotated[str, Argument(metavar="PROJECT")]
_SpiderOption: TypeAlias = Annotated[str | None, Option(metavar="NAME")]


@command("crawl stats", default=True)
async def stats(
    invocation: Invocation,
    project: _CrawlArgument = "",
    spider: _SpiderOption = None,
    watch: WatchOption = False,
) -> Exit:
    """Show the counts of each queue; exit 3 if a queue cannot be read."""
    if _check_spider(spider) and not project:
        raise Failure("spider_alone", Exit.USAGE)
    project = normalise(invocation, project) if project else ""
    table = Table[QueueView](invocation, QUEUES, _describe, partial(_cells, invocation))

    def fill(found: list[QueueView]) -> None:
        table.fill(found, invocation.say("crawl_count", count=len(found)))

    async with _overview(invocation) as overview:
        look = partial(_look, overview, project, spider)
        if watch:
            await table.watch(look, fill, _state)
            return Exit.DONE
        with invocation.waiting("waiting_redis"):
            found = await look()
            if project and not found:
                raise await _unknown(overview, project, spider)
    table.fill(found)
    table.write(empty="no_queues")
    return Exit.DONE if all(view.stats for view in found) else Exit.UNHEALTHY


def _check_spider(spider: str | None) -> str | None:
    if spider == "":  # such as a shell variable that is not set
        raise Failure("empty_spider", Exit.USAGE)
    return spider


def _overview(invocation: Invocation) -> QueueOverview:
    return QueueOverview(invocation.redis, timeout=10.0)


async def _look(
    overview: QueueOverview, project: str, spider: str | None
) -> list[QueueView]:
    names = [
        one
        for one in await overview.find()
        if not project or (one.project == project and spider in (None, one.spider))
    ]
    return await overview.read(names)


async def _unknown(
    overview: QueueOverview, project: str, spider: str | None
) -> Failure:
    found = await overview.find()
    spiders = [one.spider for one in found if one.project == project and one.spider]
    if spider:
        likely = find_likely(spider, spiders)
    elif spiders:  # the project only has queues of spiders
        likely = [f"{project} --spider {one}" for one in spiders[:SHOWN]]
    else:
        likely = find_likely(project, {one.project for one in found})
    shown = f"{project}:{spider}" if spider else project
    return misspelt("no_such_queue", likely, "hint_queues", queue=shown)


def _state(view: QueueView) -> tuple[Namespace, object]:
    return view.name, _describe(view) | {"seen_at": None}


def _describe(view: QueueView) -> dict[str, Any]:
    counted = asdict(view.stats) if view.stats else {"problem": view.problem}
    return {**view.name._asdict(), **counted}


def _cells(invocation: Invocation, view: QueueView) -> Mapping[str, Cell]:
    cells: dict[str, Cell] = dict.fromkeys(COUNTS, UNKNOWN)
    cells |= {"project": view.name.project, "spider": view.name.spider or ""}
    if view.stats is None:
        problem = invocation.say("crawl_broken", kind=view.problem)
        return cells | {COUNTS[0]: (problem, "red")}
    for count in COUNTS:
        value: int = getattr(view.stats, count)
        text = f"{value:,}" if invocation.out.terminal else str(value)
        cells[count] = (text, "red") if count == "failed" and value else text
    return cells


@asynccontextmanager
async def _queue(
    invocation: Invocation, project: str, spider: str | None
) -> AsyncGenerator[RequestQueue]:
    project = normalise(invocation, project)
    name = Namespace(project, _check_spider(spider))
    async with RequestQueue(invocation.redis, *name) as queue:
        async with _overview(invocation) as overview:
            with invocation.waiting("waiting_redis"):
                if name not in await overview.find():
                    raise await _unknown(overview, project, spider)
        yield queue


@command("crawl failed")
async def failed(
    invocation: Invocation,
    project: _CrawlArgument,
    spider: _SpiderOption = None,
    limit: LimitOption = 100,
) -> Exit:
    async with _queue(invocation, project, spider) as queue:
        with invocation.waiting("waiting_redis"):
            found = await queue.failed(limit)
    cells = partial(_failure_cells, invocation)
    table = Table(invocation, FAILED, _describe_failure, cells, found)
    table.write(empty="nothing_failed")
    return Exit.DONE


def _describe_failure(one: FailedRequest) -> dict[str, Any]:
    """Return a failed request without headers, body and meta.

    These are left out because they may contain secrets.
    """
    request = one.request
    return {
        "url": None if request is None else redact(request.url),
        "method": None if request is None else request.method,
        "callback": None if request is None else request.callback,
        "reason": redact(one.reason),
        "attempts": one.attempts,
        "failed_at": one.failed_at,
        "priority": one.priority,
    }


def _failure_cells(invocation: Invocation, one: FailedRequest) -> Mapping[str, Cell]:
    record = _describe_failure(one)
    unreadable = invocation.texts["crawl_unreadable"]
    request = f"{record['method']} {record['url']}" if one.request else unreadable
    now = unix_now()
    people, reason = invocation.out.terminal, record["reason"]
    return {
        "age": span(now - one.failed_at) if people else f"{one.failed_at:.3f}",
        "attempts": str(one.attempts),
        "request": request,
        "reason": (reason, "red") if people else reason,
    }


@command("crawl requeue")
async def requeue(
    invocation: Invocation, project: _CrawlArgument, spider: _SpiderOption = None
) -> Exit:
    """Queue failed requests again; exit 1 if some requests cannot be read."""
    async with _queue(invocation, project, spider) as queue:
        with invocation.waiting("waiting_redis"):
            before = (await queue.stats()).failed
            count = await queue.requeue_failed()
            # A worker may fail requests again in this moment; these are not left over.
            left = min((await queue.stats()).failed, max(0, before - count))
    record = {"project": project, "spider": spider, "requeued": count}
    text = invocation.say("requeued", count=count)
    invocation.record({**record, "left": left}, text)
    if left:
        invocation.warn("requeue_left", count=left)
    return Exit.FAILED if left else Exit.DONE


@command("crawl cleanup")
async def cleanup(
    invocation: Invocation,
    project: _CrawlArgument,
    spider: _SpiderOption = None,
    yes: Annotated[bool, Option("--yes", "-y")] = False,
) -> Exit:
    """Show the keys of a queue and its filters; delete these keys with ``--yes``."""
    project = normalise(invocation, project)
    names = invocation.redis, project, _check_spider(spider)
    with invocation.waiting("waiting_redis"):
        plan = await clean(*names)
        if not plan.found:
            async with _overview(invocation) as overview:
                raise await _unknown(overview, project, spider)
    if not yes or not invocation.json:
        _show_report(invocation, plan)
    if plan.in_flight:
        invocation.warn("cleanup_in_flight", count=plan.in_flight)
    if not yes:
        raise Failure("cleanup_unsure", Exit.USAGE, hint="hint_yes")
    with invocation.waiting("waiting_redis"):
        report = await clean(*names, dry_run=False)
    if invocation.json:
        _show_report(invocation, report)
    invocation.hint("cleanup_done", count=report.removed)
    return Exit.DONE


def _show_report(invocation: Invocation, report: CleanupReport) -> None:
    if invocation.json:
        invocation.out.json(asdict(report) | {"keys": dict(report.keys)})
        return
    texts = invocation.texts
    rows = [[str(n), row, texts[f"key_{row}"]] for row, n in report.keys.items()]
    titles = [texts[f"crawl_{name}"] for name in ("keys", "row", "purpose")]
    invocation.out.table(rows, titles)
    for key in report.odd:
        invocation.warn("cleanup_odd", key=key)
