"""``bls-agent crawl``: the queues of crawlers, what failed in them, and what is left of them."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bls_agent.ops.cli.command import command, new_app, subcommands
from bls_agent.ops.cli.completion import complete_crawl_project, complete_spider
from bls_agent.ops.cli.exits import Exit, Failure
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.naming import find_likely, normalise
from bls_agent.ops.cli.screen import Cell, Column

if TYPE_CHECKING:
    from rich.table import Table

    from bls_agent.core.errors import RedisUnavailableError
    from bls_agent.crawl.namespace import CleanupReport, Namespace
    from bls_agent.crawl.overview import QueueOverview, QueueView
    from bls_agent.crawl.queue import FailedRequest, RequestQueue

__all__ = ["cleanup", "crawl", "failed", "requeue", "stats"]

INTERVAL: Final = 2.0  # seconds between two looks, at least
REST: Final = 4.0  # times as long as a look took
COUNTS: Final = ("waiting", "delayed", "in_flight", "failed", "pushed", "acknowledged")
UNKNOWN: Final = "-"
SHOWN: Final = 3  # spiders that are suggested

app = new_app()

ProjectArgument = Annotated[
    str,
    typer.Argument(
        metavar="PROJECT", help="arg_crawl", autocompletion=complete_crawl_project
    ),
]
SpiderOption = Annotated[
    str,
    typer.Option(
        "--spider", metavar="NAME", help="opt_spider", autocompletion=complete_spider
    ),
]
OnlySpiderOption = Annotated[
    str,
    typer.Option(
        "--spider",
        metavar="NAME",
        help="opt_only_spider",
        autocompletion=complete_spider,
    ),
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="opt_watch_crawl")]


@subcommands(app)
async def crawl(invocation: Invocation) -> Exit:
    """List the queues, if nothing else is asked for."""
    return await stats(invocation)


@command(app, "stats")
async def stats(
    invocation: Invocation,
    project: ProjectArgument = "",
    spider: OnlySpiderOption = "",
    watch: WatchOption = False,
) -> Exit:
    """Count what every queue holds, or those of a project; 3 if one cannot be read."""
    from bls_agent.ops.cli.live import show_live, wants_live

    if spider and not project:
        raise Failure("spider_alone", Exit.USAGE)
    project = normalise(invocation, project) if project else ""
    async with _overview(invocation) as overview:
        look = _Look(invocation, overview, project, spider)
        if watch and wants_live(invocation.out) and not invocation.json:
            await show_live(invocation.out, look.table, look.watch)
            return Exit.DONE
        if watch:
            await look.watch(look.print_changes)
        with invocation.waiting("waiting_redis"):
            found = await look.once()
            if project and not found:
                raise await _unknown(overview, project, spider)
    _show(invocation, found)
    return Exit.DONE if all(view.stats for view in found) else Exit.UNHEALTHY


@asynccontextmanager
async def _overview(invocation: Invocation) -> AsyncGenerator[QueueOverview]:
    from bls_agent.crawl.overview import QueueOverview

    async with QueueOverview(invocation.redis, timeout=10.0) as overview:
        yield overview


async def _unknown(overview: QueueOverview, project: str, spider: str) -> Failure:
    """Make the end of a command about a queue that is not there."""
    found = await overview.find()
    spiders = [one.spider for one in found if one.project == project and one.spider]
    if spider:
        likely = find_likely(spider, spiders)
    elif spiders:  # the project has no queue of its own
        likely = [f"{project} --spider {one}" for one in spiders[:SHOWN]]
    else:
        likely = find_likely(project, {one.project for one in found})
    shown = f"{project}:{spider}" if spider else project
    hint = "did_you_mean" if likely else "hint_queues"
    return Failure("no_such_queue", hint=hint, queue=shown, names=", ".join(likely))


def _show(invocation: Invocation, found: Sequence[QueueView]) -> None:
    if invocation.json:
        for view in found:
            invocation.out.json(_describe(view))
        return
    rows = [_cells(invocation, view) for view in found]
    invocation.out.table([Column(one, 6) for one in _heads(invocation)], rows)
    if not found:
        invocation.hint("no_queues")


def _describe(view: QueueView) -> dict[str, Any]:
    counted = asdict(view.stats) if view.stats else {"problem": view.problem}
    return {**view.name._asdict(), **counted}


def _heads(invocation: Invocation) -> list[str]:
    names = ("project", "spider", *COUNTS)
    return [invocation.texts[f"crawl_{name}"] for name in names]


def _cells(invocation: Invocation, view: QueueView) -> list[Cell]:
    cells: list[Cell] = [view.name.project, view.name.spider or ""]
    if view.stats is None:
        problem = invocation.say("crawl_broken", kind=view.problem)
        return [*cells, (problem, "red"), *[UNKNOWN] * (len(COUNTS) - 1)]
    for count in COUNTS:
        value: int = getattr(view.stats, count)
        text = f"{value:,}" if invocation.out.terminal else str(value)
        cells.append((text, "red") if count == "failed" and value else text)
    return cells


class _Look:
    """Looks at all queues, or at those of a project, once or again and again."""

    def __init__(
        self,
        invocation: Invocation,
        overview: QueueOverview,
        project: str,
        spider: str,
    ) -> None:
        self._invocation = invocation
        self._overview = overview
        self._project = project
        self._spider = spider
        self._found: Sequence[QueueView] | None = None
        self._before: dict[Namespace, Any] = {}  # that were printed
        self._away = False  # that was printed
        self._outage: RedisUnavailableError | None = None

    async def once(self) -> list[QueueView]:
        """Find the queues and count what they hold."""
        names = [
            one
            for one in await self._overview.find()
            if not self._project
            or (one.project == self._project and self._spider in ("", one.spider))
        ]
        return await self._overview.read(names)

    async def watch(self, seen: Callable[[], None]) -> None:
        """Look again and again; an outage and its end are told once.

        Raises:
            RedisRefusedError: Redis refuses for good.
        """
        import anyio

        from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

        while True:
            began = anyio.current_time()
            try:
                self._found, self._outage = await self.once(), None
            except RedisRefusedError:
                raise
            except RedisUnavailableError as error:
                self._outage = error
            seen()
            took = anyio.current_time() - began
            await anyio.sleep(max(INTERVAL, REST * took))

    def print_changes(self) -> None:
        """Print each queue that holds something else than before."""
        invocation, out = self._invocation, self._invocation.out
        if (self._outage is not None) != self._away:
            self._away = not self._away
            if self._outage is None:
                invocation.hint("back")
            else:
                invocation.warn("away", kind=self._outage.kind)
        before, self._before = self._before, {}
        for view in self._found or ():
            told = _describe(view)
            self._before[view.name] = told | {"seen_at": None}
            if before.get(view.name) == self._before[view.name]:
                continue
            if invocation.json:
                out.json(told)
            else:
                cells = _cells(invocation, view)
                out.line(*cells, between="  " if out.terminal else "\t")

    def table(self, columns: int, lines: int) -> Table:  # noqa: ARG002 - by its form
        """Make the live table for so many columns and lines."""
        from bls_agent.ops.cli.live import AROUND, Heading, live_table

        texts = self._invocation.texts
        found = list(self._found or ())
        room = max(1, lines - AROUND)
        more = len(found) - room
        return live_table(
            (self._head(), "yellow" if self._outage else "dim"),
            [Heading(one) for one in _heads(self._invocation)],
            [_cells(self._invocation, view) for view in found[:room]],
            texts["top_more"].format(count=more) if more > 0 else "",
        )

    def _head(self) -> str:
        from bls_agent.ops.terminal import visible

        if self._outage is not None:
            return self._invocation.say("away", kind=visible(self._outage.kind))
        if self._found is None:
            return self._invocation.say("waiting_redis")
        counted = self._invocation.say("crawl_count", count=len(self._found))
        return f"{counted} · {self._invocation.say('top_quit')}"


@asynccontextmanager
async def _queue(
    invocation: Invocation, project: str, spider: str
) -> AsyncGenerator[RequestQueue]:
    """Open a queue that is there."""
    from bls_agent.crawl.namespace import Namespace
    from bls_agent.crawl.queue import RequestQueue

    project = normalise(invocation, project)
    name = Namespace(project, spider or None)
    async with RequestQueue(invocation.redis, *name) as queue:
        async with _overview(invocation) as overview:
            with invocation.waiting("waiting_redis"):
                if name not in await overview.find():
                    raise await _unknown(overview, project, spider)
        yield queue


@command(app, "failed")
async def failed(
    invocation: Invocation,
    project: ProjectArgument,
    spider: SpiderOption = "",
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, max=10_000, help="opt_failed"
        ),
    ] = 100,
) -> Exit:
    """List what failed, the newest first."""
    async with _queue(invocation, project, spider) as queue:
        with invocation.waiting("waiting_redis"):
            found = await queue.failed(limit)
    if invocation.json:
        for one in found:
            invocation.out.json(_describe_failure(one))
        return Exit.DONE
    names = ("age", "attempts", "request", "reason")
    heads = [Column(invocation.texts[f"crawl_{name}"], 8) for name in names]
    rows = [_failure_cells(invocation, one) for one in found]
    invocation.out.table(heads, rows)
    if not found:
        invocation.hint("nothing_failed")
    return Exit.DONE


def _describe_failure(one: FailedRequest) -> dict[str, Any]:
    """Describe a failed request without what may be secret: headers, body, meta."""
    from bls_agent.core.redaction import redact

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


def _failure_cells(invocation: Invocation, one: FailedRequest) -> list[Cell]:
    from bls_agent.ops.cli.views import span

    told = _describe_failure(one)
    unreadable = invocation.texts["crawl_unreadable"]
    request = f"{told['method']} {told['url']}" if one.request else unreadable
    if not invocation.out.terminal:
        return [f"{one.failed_at:.3f}", str(one.attempts), request, told["reason"]]
    now = time.time()  # noqa: TID251 - the outermost place
    age = span(max(0.0, now - one.failed_at))
    return [age, str(one.attempts), request, (told["reason"], "red")]


@command(app, "requeue")
async def requeue(
    invocation: Invocation, project: ProjectArgument, spider: SpiderOption = ""
) -> Exit:
    """Queue what failed once more; 1 if some of it cannot be read and stays."""
    async with _queue(invocation, project, spider) as queue:
        with invocation.waiting("waiting_redis"):
            count = await queue.requeue_failed()
            left = (await queue.stats()).failed
    told = {"project": project, "spider": spider or None, "requeued": count}
    text = invocation.say("requeued", count=count)
    invocation.result({**told, "left": left}, text)
    if left:
        invocation.warn("requeue_left", count=left)
    return Exit.FAILED if left else Exit.DONE


@command(app, "cleanup")
async def cleanup(
    invocation: Invocation,
    project: ProjectArgument,
    spider: SpiderOption = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="opt_yes")] = False,
) -> Exit:
    """Delete the keys of a queue and its filters; what would be deleted is shown first."""
    from bls_agent.crawl.namespace import cleanup as clean

    project = normalise(invocation, project)
    names = invocation.redis, project, spider or None
    with invocation.waiting("waiting_redis"):
        plan = await clean(*names)
        if not plan.found:
            async with _overview(invocation) as overview:
                raise await _unknown(overview, project, spider)
    if not yes or not invocation.json:
        _show_report(invocation, plan)
    if plan.in_flight:
        invocation.warn("cleanup_in_flight", count=plan.in_flight)
    if not yes and not await _is_sure(invocation, plan):
        invocation.hint("cleanup_nothing")
        return Exit.FAILED
    with invocation.waiting("waiting_redis"):
        report = await clean(*names, dry_run=False)
    if invocation.json:
        _show_report(invocation, report)
    invocation.hint("cleanup_done", count=report.removed)
    return Exit.DONE


def _show_report(invocation: Invocation, report: CleanupReport) -> None:
    """Show how many keys of each kind there are."""
    if invocation.json:
        invocation.out.json(asdict(report) | {"keys": dict(report.keys)})
        return
    texts = invocation.texts
    rows = [[str(n), row, texts[f"key_{row}"]] for row, n in report.keys.items()]
    heads = [Column(texts[f"crawl_{name}"], 4) for name in ("keys", "row", "purpose")]
    invocation.out.table(heads, rows)
    for key in report.odd:
        invocation.warn("cleanup_odd", key=key)


async def _is_sure(invocation: Invocation, plan: CleanupReport) -> bool:
    """Ask at a terminal whether to delete.

    Raises:
        Failure: Nobody is there to answer.
    """
    import anyio

    if invocation.json or not (invocation.err.terminal and sys.stdin.isatty()):
        raise Failure("cleanup_unsure", Exit.USAGE, hint="hint_yes")
    invocation.err.draw(invocation.say("cleanup_sure", count=plan.found) + " ")
    if sys.platform != "win32":
        await anyio.wait_readable(sys.stdin)  # reading itself would not let Ctrl-C in
    said = sys.stdin.readline().strip().casefold()
    return said in invocation.texts["cleanup_yes"].split()
