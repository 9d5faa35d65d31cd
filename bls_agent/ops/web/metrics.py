"""``GET /metrics``: the state of the whole fleet for Prometheus.

A scrape reads nothing from Redis, because the pages' feeds already have the values. Like
an open page, a scrape keeps the feeds running. A feed has no current values during an
outage of Redis, if a right is missing, or until its first read has ended. Then the scrape
has no samples of this part of the fleet, and ``bls_console_part_up`` is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bls_agent.crawl.overview import COUNTERS, Namespace, QueueStats
from bls_agent.ops.fleet import Condition, ProjectView
from bls_agent.ops.web.exposition import MEDIA_TYPE, Exposition, Family, label_of
from bls_agent.ops.web.feeds.assets import SYNC_STATES
from bls_agent.ops.web.feeds.watch import Currency, SharedWatch, rounded
from bls_agent.ops.web.rights import Grants, Role
from bls_agent.ops.web.state import WebState, web_state
from bls_agent.project.messages import Status
from bls_agent.runs import RunState
from bls_agent.workers import TaskState, Worker

MOST: Final = 2_000  # most projects, workers or crawl queues that have samples
QUEUE_STATES: Final = ("waiting", "in_flight", "delayed", "failed")

_T = TypeVar("_T")

FAMILIES: Final = (
    Family(
        "bls_console_redis_up",
        "Whether the console has current values from Redis: 0 in an outage and before"
        " the first complete read.",
    ),
    Family(
        "bls_console_part_up",
        "Whether the samples of a part of the fleet are in this scrape.",
        ("part",),
    ),
    Family(
        "bls_console_left_out",
        "Projects, workers or crawl queues without samples, because there are too many.",
        ("part",),
    ),
    Family(
        "bls_project_up",
        "Whether a process reports a status of the project other than offline.",
        ("project",),
    ),
    Family(
        "bls_project_status",
        "The state of the project: 1 for the current one, 0 for the others.",
        ("project", "status"),
    ),
    Family(
        "bls_project_status_age_seconds",
        "Seconds since the status was last written or refreshed.",
        ("project",),
    ),
    Family("bls_project_queue_length", "Waiting commands.", ("project",)),
    Family(
        "bls_project_queue_age_seconds",
        "Seconds since the oldest waiting command was sent; 0 without one.",
        ("project",),
    ),
    Family(
        "bls_project_errors_total",
        "Error records in the log since the console began to read it; a lower bound.",
        ("project",),
        "counter",
    ),
    Family(
        "bls_dead_letters",
        "Commands that were given up: their process ended too often while they ran.",
        ("project",),
    ),
    Family(
        "bls_worker_up",
        "Whether the heartbeat is fresh and readable, and reports no error.",
        ("kind", "worker"),
    ),
    Family("bls_tasks", "Tasks of all workers by state.", ("state",)),
    Family("bls_runs", "Runs by state, among the 500 newest.", ("state",)),
    Family(
        "bls_crawl_queue_length",
        "Requests in a crawl queue by state.",
        ("project", "spider", "state"),
    ),
    Family(
        "bls_crawl_requests_total",
        "What happened to the requests of a crawl queue since the queue was made.",
        ("project", "spider", "event"),
        "counter",
    ),
    Family(
        "bls_asset_sync_status",
        "The state of the last synchronisation of assets: 1 for the current one.",
        ("status",),
    ),
    Family(
        "bls_asset_sync_age_seconds",
        "Seconds since the last complete synchronisation of assets.",
    ),
)


@dataclass
class _Scrape:
    """Collects the samples that a user with these grants may see."""

    state: WebState
    grants: Grants
    out: Exposition

    async def collect(self) -> None:
        """Wait for the feeds, at most some seconds, and add the samples of each part.

        A user without a role for all projects gets only samples of projects and crawl
        queues, because workers, tasks, runs and assets belong to no project.
        """
        state, parts = self.state, dict(_OWN_PARTS)
        if self.grants.everywhere >= Role.VIEWER:
            parts |= _OTHER_PARTS
        feeds: dict[str, SharedWatch[Any]] = {
            part: getattr(state, name) for part, (name, _) in parts.items()
        }
        async with anyio.create_task_group() as tasks:
            for feed in {*feeds.values()}:
                tasks.start_soon(feed.ready)
        up = state.fleet.currency in {Currency.CURRENT, Currency.FORBIDDEN}
        self.out.add("bls_console_redis_up", up)
        for part, (_, add_samples) in parts.items():
            feed = feeds[part]
            is_tasks = part == "tasks"
            currency = state.workers.tasks_currency if is_tasks else feed.currency
            current = up and currency is Currency.CURRENT
            self.out.add("bls_console_part_up", current, part)
            if current:
                add_samples(self)

    def _limited(
        self, part: str, found: Iterable[_T], rank: Callable[[_T], Any]
    ) -> list[_T]:
        """Return the items that get samples; of too many, those with the lowest rank."""
        things = list(found)
        self.out.add("bls_console_left_out", max(0, len(things) - MOST), part)
        return things if len(things) <= MOST else sorted(things, key=rank)[:MOST]

    def add_projects(self) -> None:
        found = self.state.fleet.found.values()
        seen = (view for view in found if self.grants.sees(view.project))
        for view in self._limited("projects", seen, _rank_project):
            self._add_project(view)

    def _add_project(self, view: ProjectView) -> None:
        add, project = self.out.add, label_of(view.project)
        view = view.aged(self.state.fleet.seconds_since(view.project))
        condition = view.condition
        for state in Condition:
            add("bls_project_status", condition is state, project, state)
        up = view.status not in (None, Status.OFFLINE)
        add("bls_project_up", up, project)
        add("bls_project_status_age_seconds", rounded(view.age, digits=3), project)
        add("bls_project_queue_length", view.queue, project)
        age = 0.0 if view.queue == 0 else rounded(view.queue_age, digits=3)
        add("bls_project_queue_age_seconds", age, project)
        add("bls_project_errors_total", view.errors_total, project)
        add("bls_dead_letters", view.dead_letters, project)

    def add_crawl_queues(self) -> None:
        queues = [
            (one.view.name, one.view.stats)
            for one in self.state.crawl.found.values()
            if one.view.stats and self.grants.sees(one.view.name.project)
        ]
        for name, stats in self._limited("crawl", queues, _rank_queue):
            labels = label_of(name.project), label_of(name.spider or "")
            for state in QUEUE_STATES:
                value = getattr(stats, state)
                self.out.add("bls_crawl_queue_length", value, *labels, state)
            for event in COUNTERS:
                value = getattr(stats, event)
                self.out.add("bls_crawl_requests_total", value, *labels, event)

    def add_workers(self) -> None:
        found = self.state.workers.found.values()
        for one in self._limited("workers", found, _rank_worker):
            kind, name = label_of(one.kind), label_of(one.id)
            self.out.add("bls_worker_up", one.healthy, kind, name)

    def add_tasks(self) -> None:
        states = (task.state for task in self.state.workers.tasks.tasks)
        self._count("bls_tasks", TaskState, states)

    def add_runs(self) -> None:
        states = (run.state for run in self.state.runs.found.values())
        self._count("bls_runs", RunState, states)

    def _count(self, name: str, every: Iterable[str], found: Iterable[str]) -> None:
        counts = Counter(found)
        for state in every:
            self.out.add(name, counts[state], state)

    def add_asset_sync(self) -> None:
        sheet = self.state.assets.sync_sheet() or {}
        for state in SYNC_STATES:
            self.out.add("bls_asset_sync_status", sheet.get("state") == state, state)
        self.out.add("bls_asset_sync_age_seconds", sheet.get("age"))


def _rank_project(view: ProjectView) -> tuple[int, str]:
    return view.condition.place, view.project


def _rank_worker(worker: Worker) -> tuple[bool, str]:
    return worker.healthy, worker.key


def _rank_queue(queue: tuple[Namespace, QueueStats]) -> tuple[int, str]:
    name, stats = queue
    return -stats.failed, name.shown


# The attribute of WebState with the feed of a part, and the method that adds the samples.
_Part: TypeAlias = tuple[str, Callable[[_Scrape], None]]
_OWN_PARTS: Final[Mapping[str, _Part]] = {
    "projects": ("fleet", _Scrape.add_projects),
    "crawl": ("crawl", _Scrape.add_crawl_queues),
}
_OTHER_PARTS: Final[Mapping[str, _Part]] = {
    "workers": ("workers", _Scrape.add_workers),
    "tasks": ("workers", _Scrape.add_tasks),
    "runs": ("runs", _Scrape.add_runs),
    "assets": ("assets", _Scrape.add_asset_sync),
}


async def _get_metrics(request: Request) -> Response:
    out = Exposition(FAMILIES)
    await _Scrape(web_state(request), request.state.grants, out).collect()
    return Response(out.write(), headers={"content-type": MEDIA_TYPE})


metrics_routes: Final = [Route("/metrics", _get_metrics)]
