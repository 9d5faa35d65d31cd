"""Workers in words, as rows of a table and as JSON: for ``workers``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bls_agent.core.codec import cut_text
from bls_agent.ops.cli.printable import json_text
from bls_agent.ops.cli.screen import Cell
from bls_agent.ops.cli.views import span
from bls_agent.ops.texts import Texts
from bls_agent.workers import Worker, WorkerStatus
from bls_agent.workers.worker import HEARTBEATS

__all__ = [
    "FIELDS",
    "KIND_NAMES",
    "arrange_workers",
    "count_workers",
    "describe_worker",
    "find_kinds",
    "is_well",
    "kind_name",
    "worker_cells",
    "worker_fields",
]

# Field → the columns of a terminal from which it is shown.
FIELDS: Final = {
    "id": 0,
    "status": 0,
    "problem": 0,
    "age": 40,
    "kind": 60,
    "tasks": 70,
    "says": 100,
}
STYLES: Final = {
    WorkerStatus.STARTING: "cyan",
    WorkerStatus.RUNNING: "green",
    WorkerStatus.STOPPING: "yellow",
    WorkerStatus.STOPPED: "dim",
    WorkerStatus.ERROR: "bold red",
}
LONGEST: Final = 200  # bytes of what else a worker says, at a terminal
_END: Final = "_heartbeat"
# Shown beside it, or of use to programs alone.
_TOLD: Final = frozenset(
    {
        "status", "timestamp", "worker_id", "node_id", "running_tasks", "max_tasks",
        "started_at", "last_heartbeat",
    }
)  # fmt: skip


def kind_name(row: str) -> str:
    """Give a kind as people type it: the row without ``_heartbeat``."""
    return row.removesuffix(_END)


KIND_NAMES: Final = tuple(map(kind_name, HEARTBEATS))


def find_kinds(word: str) -> list[str]:
    """Find the rows that somebody may mean: one for a name, or for a clear beginning."""
    wanted = kind_name(word.replace("-", "_").casefold())
    if wanted in KIND_NAMES:
        return [wanted + _END]
    return [name + _END for name in KIND_NAMES if wanted and name.startswith(wanted)]


def _status_of(worker: Worker) -> WorkerStatus | None:
    """Give what it says of itself, if that is one of the contract's words."""
    if worker.heartbeat is not None:
        return worker.heartbeat.status
    said = worker.raw.get("status")
    try:
        return WorkerStatus(said) if isinstance(said, str) else None
    except ValueError:
        return None


def is_well(worker: Worker) -> bool:
    """Tell whether it can be believed, and does not say that it is in error."""
    in_error = _status_of(worker) is WorkerStatus.ERROR
    return not (worker.problem or worker.stale or in_error)


def _place(worker: Worker) -> int:
    if worker.problem:
        return 0
    if _status_of(worker) is WorkerStatus.ERROR:
        return 1
    return 2 if worker.stale else 3


def arrange_workers(workers: Iterable[Worker]) -> list[Worker]:
    """Put the worst first."""
    return sorted(workers, key=lambda one: (_place(one), one.kind, one.id))


def count_workers(workers: Sequence[Worker], texts: Texts) -> str:
    """Count the workers by how they are, in one line."""
    places = [_place(worker) for worker in workers]
    bad, stale = sum(place < 2 for place in places), places.count(2)  # noqa: PLR2004 - as above
    return texts["workers_summary"].format(count=len(places), bad=bad, stale=stale)


def worker_fields(columns: int) -> list[str]:
    """Choose what fits a terminal; what matters least goes first."""
    return [field for field, least in FIELDS.items() if columns >= least]


@dataclass(frozen=True)
class _Row:
    """The fields of one worker, each with its style."""

    worker: Worker
    texts: Texts
    people: bool
    later: float

    def cell(self, field: str) -> Cell:
        made: Cell = getattr(self, f"_{field}")()
        return made

    def _id(self) -> Cell:
        return self.worker.id

    def _kind(self) -> Cell:
        name = kind_name(self.worker.kind)
        return self.texts[f"worker_kind_{name}"] if self.people else name

    def _status(self) -> Cell:
        status = _status_of(self.worker)
        if status is None:
            said = self.worker.raw.get("status")
            odd = self.texts["status_bad"].format(value=cut_text(str(said), LONGEST))
            return "-" if said is None else (odd, "bold red")
        meaning = self.texts[f"worker_{status.value}"]
        both = status.value if meaning == status else f"{status.value} {meaning}"
        return both if self.people else status.value, STYLES[status]

    def _problem(self) -> Cell:
        worker = self.worker
        word = worker.problem or ("stale" if worker.stale else "")
        style = "bold red" if worker.problem else "bold yellow"
        if not word or not self.people:
            return (word, style) if word else ""
        return self.texts[f"worker_problem_{word}"], style

    def _age(self) -> Cell:
        age = self.worker.age
        return span(None if age is None else age + self.later)

    def _tasks(self) -> Cell:
        raw = self.worker.raw
        running, most = raw.get("running_tasks"), raw.get("max_tasks")
        if running is None:
            return "-"
        return _short(running if most is None else f"{running}/{most}")

    def _says(self) -> Cell:
        raw = self.worker.raw
        rest = {name: value for name, value in raw.items() if name not in _TOLD}
        if not self.people:
            return json_text(rest) if rest else ""
        told = " ".join(f"{name}={_short(value)}" for name, value in rest.items())
        return cut_text(_short(raw["raw"]) if [*raw] == ["raw"] else told, LONGEST)


def _short(value: object) -> str:
    return cut_text(value if isinstance(value, str) else json_text(value), LONGEST)


def worker_cells(
    worker: Worker,
    texts: Texts,
    fields: Sequence[str],
    *,
    people: bool = True,
    later: float = 0.0,
) -> list[Cell]:
    """Give one worker's cells, for people or for programs.

    Args:
        worker: The worker.
        texts: The catalogue ``cli``.
        fields: Which cells.
        people: Whether in words, and cut.
        later: Seconds since it was looked at.
    """
    row = _Row(worker, texts, people, later)
    return [row.cell(field) for field in fields]


def describe_worker(worker: Worker, **more: object) -> dict[str, Any]:
    """Describe a worker for programs; seconds, ``null`` for what nobody can tell."""
    told = {
        "kind": worker.kind,
        "id": worker.id,
        "key": worker.key,
        "status": _status_of(worker),
        "healthy": is_well(worker),
        "stale": worker.stale,
        "problem": worker.problem,
        "age": None if worker.age is None else round(worker.age, 3),
        "ttl": worker.ttl,
        "heartbeat": worker.raw,
    }
    return {**told, **more}
