"""``bls-agent workers``: the workers that have a heartbeat, and the heartbeat's age."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any, Final

import anyio
from typer import Argument

from bls_agent.core.codec import cut_text
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit, Failure
from bls_agent.ops.cli.options import WatchOption
from bls_agent.ops.cli.output import Invocation, now_clock, rounded, span
from bls_agent.ops.cli.tables import Layout, Table, wants_live
from bls_agent.ops.terminal import Cell, json_text
from bls_agent.ops.texts import Texts
from bls_agent.workers import Worker, WorkerRegistry, WorkerStatus
from bls_agent.workers.heartbeat_fields import KINDS
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
LONGEST: Final = 200  # bytes of a worker's other fields, at a terminal
_END: Final = "_heartbeat"
# Fields with their own column, or of use only to programs.
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
    row = _kind_of(kind)
    cells = partial(worker_cells, texts=texts, people=people)
    table = Table[Worker](invocation, WORKERS, describe_worker, cells)
    async with WorkerRegistry(invocation.redis) as registry:
        if watch and wants_live(invocation):
            await _show_live(table, registry, row)
            return Exit.DONE
        if watch:
            await _print_changes(table, registry, row)
        with invocation.waiting("waiting_redis"):
            found = arrange_workers(await registry.alive(row))
    if not found and row not in HEARTBEATS and get_close_matches(kind, KIND_NAMES):
        raise _unknown(kind)
    table.fill(found, count_workers(found, texts))
    table.write(empty="no_workers_of" if kind else "no_workers", kind=kind)
    return Exit.DONE if all(map(is_well, found)) else Exit.UNHEALTHY


def _kind_of(word: str) -> str | None:
    """Return a row, the kind of generic heartbeats, or ``None`` for all kinds."""
    rows = find_kinds(word)
    if len(rows) > 1:
        raise _unknown(word)
    return rows[0] if rows else word or None


def _unknown(word: str) -> Failure:
    likely = get_close_matches(word, KIND_NAMES)
    return Failure(
        "no_such_kind",
        Exit.USAGE,
        hint="did_you_mean" if likely else "hint_kinds",
        word=word,
        names=", ".join(likely or KIND_NAMES),
    )


def find_kinds(word: str) -> list[str]:
    """Find the kind with this name, or all kinds whose names begin with the word."""
    wanted = _kind_name(word.replace("-", "_").casefold())
    if wanted in KIND_NAMES:
        return [wanted + _END]
    return [name + _END for name in KIND_NAMES if wanted and name.startswith(wanted)]


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
        record = describe_worker(worker, what=what, seenAt=now_clock(iso=True))
        word = invocation.texts[f"worker_change_{what}"] if people else what
        table.write_change(worker, record, (now_clock(iso=not people), "dim"), word)


async def _show_live(
    table: Table[Worker], registry: WorkerRegistry, row: str | None
) -> None:
    """Draw the table once a second, and at once when Redis becomes unavailable."""
    texts = table.invocation.texts
    seen: dict[str, tuple[Worker, float]] = {}  # worker, time of the change

    def cells(worker: Worker) -> Mapping[str, Cell]:
        later = anyio.current_time() - seen[worker.key][1]
        return worker_cells(worker, texts, later=later)

    def fill() -> None:
        found = arrange_workers(worker for worker, _ in seen.values())
        table.fill(found, count_workers(found, texts))

    async def follow(redraw: Callable[[], None]) -> None:
        fill()
        with suppress(RedisUnavailableError):  # the watch reports it
            await registry.alive(row)  # without workers, the watch yields nothing
            table.known = True
        async for change in registry.watch(row, refreshes=True):
            table.record(change.error)
            worker = change.worker
            if worker is None:
                redraw()
                continue
            if change.what == "left":
                seen.pop(worker.key, None)
            else:
                seen[worker.key] = worker, anyio.current_time()
            fill()

    table.cells = cells
    await table.show(follow)


def is_well(worker: Worker) -> bool:
    """Return whether the heartbeat is fresh and reports no error."""
    in_error = worker.status is WorkerStatus.ERROR
    return not (worker.problem or worker.stale or in_error)


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
    bad, stale = sum(place < 2 for place in places), places.count(2)  # noqa: PLR2004 - see _place
    return texts["workers_summary"].format(count=len(places), bad=bad, stale=stale)


def worker_cells(
    worker: Worker, texts: Texts, *, people: bool = True, later: float = 0.0
) -> Mapping[str, Cell]:
    """Return the cells of a worker that was read ``later`` seconds ago.

    For people, the cells are in their language, and long ones are shortened.
    """
    kind = _kind_name(worker.kind)
    raw = worker.raw
    running, most = raw.get("running_tasks"), raw.get("max_tasks")
    tasks = running if most is None else f"{running}/{most}"
    return {
        "id": worker.id,
        "status": _status_cell(worker, texts, people=people),
        "problem": _problem_cell(worker, texts, people=people),
        "age": span(None if worker.age is None else worker.age + later),
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


def describe_worker(worker: Worker, **more: object) -> dict[str, Any]:
    """Describe a worker for programs: times in seconds, unknown values ``null``."""
    record = {
        "kind": worker.kind,
        "id": worker.id,
        "key": worker.key,
        "status": worker.status,
        "healthy": is_well(worker),
        "stale": worker.stale,
        "problem": worker.problem,
        "age": rounded(worker.age),
        "ttl": worker.ttl,
        "heartbeat": worker.raw,
    }
    return {**record, **more}
