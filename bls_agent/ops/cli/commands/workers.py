"""``bls-agent workers`` and ``tasks``: list the workers, and the tasks they work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

from typer import Argument

from bls_agent.core.codec import JSONObject, cut_text
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit
from bls_agent.ops.cli.options import WatchOption
from bls_agent.ops.cli.output import Invocation, now_clock, span, unix_now
from bls_agent.ops.cli.tables import Layout, Table, wants_live
from bls_agent.ops.terminal import Cell, json_text
from bls_agent.ops.texts import Texts
from bls_agent.workers import (
    Task,
    TaskList,
    TaskState,
    Worker,
    WorkerRegistry,
    WorkerStatus,
)
from bls_agent.workers.heartbeat_fields import KINDS
from bls_agent.workers.task_list import MOST
from bls_agent.workers.worker import HEARTBEATS

WORKERS: Final = Layout(
    "workers",
    {
        "id": 0,
        "status": 0,
        "problem": 0,
        "age": 40,
        "kind": 60,
        "tasks": 70,
        "says": 100,
    },
)
STYLES: Final = {
    WorkerStatus.STARTING: "cyan",
    WorkerStatus.RUNNING: "green",
    WorkerStatus.STOPPING: "yellow",
    WorkerStatus.STOPPED: "dim",
    WorkerStatus.ERROR: "bold red",
}
_TASK_FIELDS: Final = {
    "id": 0, "state": 0, "status": 60, "progress": 40, "age": 50, "worker": 70,
    "message": 90,
}  # fmt: skip
TASKS: Final = Layout("tasks", _TASK_FIELDS)
_TASK_STYLES: Final = dict(
    zip(TaskState, ("bold red", "red", "green", "yellow", "", "dim"), strict=True)
)
BAR: Final = 10  # columns of a progress bar
LONGEST: Final = 200  # bytes of a worker's other fields, at a terminal
_END: Final = "_heartbeat"
# Fields that have their own column, or that only programs use.
_SHOWN_APART: Final = frozenset(
    {
        "status", "timestamp", "worker_id", "node_id", "running_tasks", "max_tasks",
        "started_at", "last_heartbeat",
    }
)  # fmt: skip


def _kind_name(row: str) -> str:
    return row.removesuffix(_END)


KIND_NAMES: Final = tuple(map(_kind_name, HEARTBEATS))


def _complete_kind(incomplete: str) -> list[str]:
    return [name for name in KIND_NAMES if name.startswith(incomplete)]


@command("workers")
async def workers(
    invocation: Invocation,
    kind: Annotated[str, Argument(metavar="KIND", autocompletion=_complete_kind)] = "",
    watch: WatchOption = False,
) -> Exit:
    """List the workers; exit 3 if one of them is unhealthy."""
    texts, people = invocation.texts, invocation.out.terminal
    row = find_kind(kind)
    cells = partial(worker_cells, texts=texts, people=people)
    table = Table[Worker](invocation, WORKERS, Worker.describe, cells)

    def fill(found: Iterable[Worker]) -> None:
        workers = arrange_workers(found)
        table.fill(workers, count_workers(workers, texts))

    async with WorkerRegistry(invocation.redis) as registry:
        look = partial(registry.alive, row)
        if watch and wants_live(invocation):
            await table.watch(look, fill, lambda worker: (worker.key, worker))
            return Exit.DONE
        if watch:
            await _print_changes(table, registry, row)
        with invocation.waiting("waiting_redis"):
            found = await look()
    fill(found)
    empty = "no_workers_of" if kind else "no_workers"
    table.write(empty=empty, kind=kind, names=", ".join(KIND_NAMES))
    return Exit.DONE if all(worker.healthy for worker in found) else Exit.UNHEALTHY


def find_kind(word: str) -> str | None:
    """Return the kind of heartbeat whose name begins with ``word``.

    If there is no such kind, return the word, which may be the kind in a generic key.
    For an empty word, return ``None``, which means every kind.
    """
    wanted = _kind_name(word.replace("-", "_").casefold())
    rows = [name + _END for name in KIND_NAMES if wanted and name.startswith(wanted)]
    return rows[0] if rows else word or None


async def _print_changes(
    table: Table[Worker], registry: WorkerRegistry, row: str | None
) -> None:
    """Print each change until a signal; report outages, and wait until they end."""
    invocation, people = table.invocation, table.invocation.out.terminal
    async for change in registry.watch(row):
        worker, what = change.worker, change.what
        if worker is None or change.error is not None:
            invocation.tell_outage(change.error)
            continue
        record = worker.describe() | {"what": what, "seenAt": now_clock(iso=True)}
        word = invocation.texts[f"worker_change_{what}"] if people else what
        table.write_change(worker, record, (now_clock(iso=not people), "dim"), word)


def _place(worker: Worker) -> int:
    if worker.problem:
        return 0
    if worker.status is WorkerStatus.ERROR:
        return 1
    return 2 if worker.stale else 3


def arrange_workers(workers: Iterable[Worker]) -> list[Worker]:
    return sorted(workers, key=lambda one: (_place(one), one.kind, one.id))


def count_workers(workers: Sequence[Worker], texts: Texts) -> str:
    places = [_place(worker) for worker in workers]
    bad, stale = sum(place < 2 for place in places), places.count(2)  # noqa: PLR2004 - results of _place
    return texts["workers_summary"].format(count=len(places), bad=bad, stale=stale)


def worker_cells(
    worker: Worker, texts: Texts, *, people: bool = True
) -> Mapping[str, Cell]:
    """Return the cells of a worker; for people, in their language and shortened."""
    kind = _kind_name(worker.kind)
    raw = worker.raw
    running, most = raw.get("running_tasks"), raw.get("max_tasks")
    tasks = running if most is None else f"{running}/{most}"
    return {
        "id": worker.id,
        "status": _status_cell(worker, texts, people=people),
        "problem": _problem_cell(worker, texts, people=people),
        "age": span(worker.age),
        "kind": texts.get(f"worker_kind_{kind}", kind) if people else kind,
        "tasks": "-" if running is None else _short(tasks),
        "says": _says(raw, people=people),
    }


def _status_cell(worker: Worker, texts: Texts, *, people: bool) -> Cell:
    status = worker.status
    if status is None:
        word = worker.raw.get("status")
        if word is None or worker.row not in KINDS:
            return "-" if word is None else _short(word)
        odd = texts["status_bad"].format(value=cut_text(str(word), LONGEST))
        return odd, "bold red"
    meaning = texts[f"worker_{status.value}"]
    both = status.value if meaning == status else f"{status.value} {meaning}"
    return both if people else status.value, STYLES[status]


def _problem_cell(worker: Worker, texts: Texts, *, people: bool) -> Cell:
    word = worker.problem or ("stale" if worker.stale else "")
    if not word:
        return ""
    style = "bold red" if worker.problem else "bold yellow"
    return texts[f"worker_problem_{word}"] if people else word, style


def _says(raw: Mapping[str, Any], *, people: bool) -> str:
    rest = {name: value for name, value in raw.items() if name not in _SHOWN_APART}
    if not people:
        return json_text(rest) if rest else ""
    fields = " ".join(f"{name}={_short(value)}" for name, value in rest.items())
    return cut_text(_short(raw["raw"]) if [*raw] == ["raw"] else fields, LONGEST)


def _short(value: object) -> str:
    return cut_text(value if isinstance(value, str) else json_text(value), LONGEST)


@command("tasks")
async def tasks(invocation: Invocation, watch: WatchOption = False) -> Exit:
    """List the tasks, the worst first; exit 3 if one of them cannot be read."""
    texts, people = invocation.texts, invocation.out.terminal

    def describe(task: Task) -> JSONObject:
        return task.describe(unix_now())

    def fill(found: TaskList) -> None:
        counts = Counter(task.state for task in found.tasks)
        shown = [
            f"{texts[f'task_{one}']} {n}" for one in TaskState if (n := counts[one])
        ]
        more = [] if found.complete else [invocation.say("tasks_cut", count=MOST)]
        table.fill(found.tasks, " · ".join([*shown, *more]) or texts["no_tasks"])

    cells = partial(task_cells, texts=texts, people=people)
    table = Table[Task](invocation, TASKS, describe, cells)
    async with WorkerRegistry(invocation.redis) as registry:
        if watch:
            await table.watch(registry.tasks, fill, lambda task: (task.id, task))
            return Exit.DONE
        with invocation.waiting("waiting_redis"):
            found = await registry.tasks()
    fill(found)
    table.write(empty="no_tasks")
    if not found.complete:
        invocation.hint("tasks_cut", count=MOST)
    broken = any(task.state is TaskState.BROKEN for task in found.tasks)
    return Exit.UNHEALTHY if broken else Exit.DONE


def task_cells(task: Task, texts: Texts, *, people: bool = True) -> Mapping[str, Cell]:
    """Return the cells of a task; for people in their language, with a bar."""
    state, problem = task.state, task.problem
    progress = "" if task.progress is None else f"{task.progress:g}"
    if people and task.part is not None:
        filled = round(task.part * BAR)
        progress = f"{'█' * filled}{'░' * (BAR - filled)} {progress} %"
    if people and problem:
        problem = texts[f"worker_problem_{problem}"]
    return {
        "id": task.id,
        "state": (texts[f"task_{state}"] if people else state, _TASK_STYLES[state]),
        "status": (problem, "bold red") if problem else task.status,
        "progress": progress,
        "age": span(task.age(unix_now())),
        "worker": task.worker,
        "message": _short(task.message or task.raw or ""),
    }
