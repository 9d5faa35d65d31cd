"""The watch of the workers and tasks, and the card of a worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final, cast

import anyio

from bls_agent.core.codec import JSONObject, json_or_text
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.ops.terminal import visible
from bls_agent.ops.web.feeds.watch import (
    Currency,
    SharedWatch,
    clock,
    later,
    pause_after,
    rounded,
    shorten,
)
from bls_agent.ops.web.requests import quote_name
from bls_agent.workers import (
    Task,
    TaskList,
    TaskState,
    Worker,
    WorkerChange,
    WorkerRegistry,
)
from bls_agent.workers.worker import GENERIC, HEARTBEATS, WorkerDiff

GROUPS: Final = tuple(HEARTBEATS)

# State of a worker, the worst first → the name of its colour and shape.
STATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "broken": "odd",
        "error": "fault",
        "stale": "stale",
        "stopping": "error",
        "starting": "never",
        "stopped": "offline",
        "running": "online",
        "present": "online",  # its kind of heartbeat has no status
    }
)
_RANKS: Final = {state: rank for rank, state in enumerate(STATES)}

# State of a task → the name of its colour and shape.
TASK_STATES: Final[Mapping[TaskState, str]] = dict(
    zip(TaskState, ("odd", "fault", "going", "stale", "never", "online"), strict=True)
)
MOST_BARS: Final = 3  # running tasks that a card shows
TASK_INTERVAL: Final = 2.0  # least seconds between two reads of the tasks
LONGEST_FIGURE: Final = 40  # characters
MOST_FIGURES: Final = 6
INTERVAL: Final = 1.0  # seconds between two reads


def make_worker_card(worker: Worker, elapsed: float = 0.0) -> JSONObject:
    """Make the card of a worker that was read ``elapsed`` seconds ago.

    ``figures`` are pairs of a name and a text. ``said`` is the raw value if the
    heartbeat cannot be read.
    """
    state = _state_of(worker)
    figures = _figures_of(worker)[:MOST_FIGURES]
    name = f"{worker.kind}:{worker.id}" if worker.row == GENERIC else worker.id
    return {
        "key": quote_name(worker.key),
        "group": worker.row,
        "id": visible(name),
        "state": state,
        "kind": STATES[state],
        "age": later(worker.age, elapsed),
        "ttl": later(worker.ttl, -elapsed),
        "problem": visible(worker.problem),
        "figures": [
            [shorten(part, LONGEST_FIGURE) for part in pair] for pair in figures
        ],
        "said": "" if figures else shorten(_text(worker.raw.get("raw", ""))),
    }


def _state_of(worker: Worker) -> str:
    if worker.problem:
        return "broken"
    if worker.stale:
        return "stale"
    return "present" if worker.status is None else worker.status.value


def _figures_of(worker: Worker) -> list[tuple[str, str]]:
    """Return the fields of a heartbeat that the card shows nowhere else."""
    if "raw" in worker.raw:
        return []
    apart = {"timestamp", "last_heartbeat", "started_at", "worker_id", "node_id"}
    apart |= {"status"} if worker.status else set()
    found: list[tuple[str, str]] = []
    for name, value in worker.raw.items():
        if name == "stats" and isinstance(value, dict):
            stats = cast("Any", value).items()
            found += [(one, _text(count)) for one, count in stats]
        elif name not in apart:
            found.append((name, _text(value)))
    return found


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(json_or_text, cast("Any", value))) or "—"
    return json_or_text(value)


def make_bars(tasks: Sequence[Task], now: float) -> JSONObject:
    """Return the number of tasks by state, and the first running tasks."""
    running = [task for task in tasks if task.state is TaskState.RUNNING]
    return {
        "counts": Counter(task.state for task in tasks),
        "bars": [
            {
                "id": shorten(task.id),
                "part": task.part,
                "age": rounded(task.age(now)),
            }
            for task in running[:MOST_BARS]
        ],
    }


class WorkerFeed(SharedWatch[Worker]):
    """The watch of all workers that are alive, with their tasks."""

    kind = "workers"

    def __init__(self, registry: WorkerRegistry) -> None:
        super().__init__(registry)
        self._registry = registry
        self._changed: set[str] = set()  # keys in Redis of changed workers
        self._ages: JSONObject = {}  # key → age of a worker with only a new heartbeat
        self.tasks: TaskList = TaskList([], complete=True)
        self.tasks_fault: RedisUnavailableError | None = None  # of their last read
        self._shown: dict[str, list[Task]] = {}  # key in Redis → tasks of the worker

    def _card(self, thing: Worker, elapsed: float) -> JSONObject:
        tasks = self._shown.get(thing.key)
        bars = (
            make_bars(tasks, clock()) | {"worker": quote_name(thing.id)}
            if tasks
            else None
        )
        return make_worker_card(thing, elapsed) | {"tasks": bars}

    @staticmethod
    def place_of(card: JSONObject) -> tuple[int, int, str]:
        return GROUPS.index(card["group"]), _RANKS[card["state"]], card["id"]

    def _differs(self, one: Worker, before: Worker) -> bool:
        del before  # the registry has compared the workers
        return one.key in self._changed

    def _more(self) -> JSONObject:
        return {"ages": self._ages}

    @property
    def tasks_currency(self) -> Currency:
        watched = self.currency
        return Currency.of(self.tasks_fault) if watched is Currency.CURRENT else watched

    def tasks_of(self, worker: str) -> list[Task]:
        """Return the tasks of the workers with this id, as the workers' cards count them.

        Also return the tasks of a worker that has ended.
        """
        alive = [one for one in self.found.values() if one.id == worker]
        groups = self.tasks.of_workers(alive).values()
        counted = {id(task) for group in groups for task in group}
        tasks = self.tasks.tasks
        return [one for one in tasks if one.worker == worker or id(one) in counted]

    async def fresh_tasks(self) -> TaskList:
        """Return the tasks; raise an error if they are not current."""
        await self.fresh()
        if self.tasks_fault is not None:
            raise self.tasks_fault
        return self.tasks

    async def _watch_once(self) -> None:
        diff, tasks_at = WorkerDiff(refreshes=True), 0.0
        async with aclosing(self._registry.look(diff, INTERVAL)) as looks:
            async for changes in looks:
                if changes and changes[0].error is not None:
                    self._take_outage(changes[0].error)
                    continue
                began = anyio.current_time()
                if began >= tasks_at:
                    await self._read_tasks()
                    tasks_at = anyio.current_time() + pause_after(began, TASK_INTERVAL)
                self._take(changes, diff)

    async def _read_tasks(self) -> None:
        try:
            self.tasks, self.tasks_fault = await self._registry.tasks(), None
        except RedisUnavailableError as error:  # the workers are still watched
            self.tasks_fault = error

    def _take(self, changes: Sequence[WorkerChange], diff: WorkerDiff) -> None:
        """Publish changed cards.

        A card has changed if its worker or one of the worker's tasks has changed. If a
        worker has only written a new heartbeat, publish only the worker's age.
        """
        self._changed, self._ages = set(), {}
        for change in changes:
            worker = change.worker
            if worker is not None and change.what == "refreshed":
                self._ages[quote_name(worker.key)] = rounded(worker.age)
            elif worker is not None:
                self._changed.add(worker.key)
        shown, self._shown = self._shown, self.tasks.of_workers(diff.workers.values())
        both = shown.keys() | self._shown.keys()
        self._changed |= {key for key in both if shown.get(key) != self._shown.get(key)}
        by_id = sorted(diff.workers.values(), key=lambda one: (one.kind, one.id))
        found = {quote_name(worker.key): worker for worker in by_id}
        self._replace(found, turned=bool(self._ages))
        self._ages = {}
