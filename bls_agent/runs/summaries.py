"""What a run looks like from outside: how it stands, in a few fields; no I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias, cast

from bls_agent.core.codec import JSONObject, cut_text, encode
from bls_agent.core.keys import RUN_EVENTS
from bls_agent.runs.event_ids import check_run_id, order
from bls_agent.runs.events import EventCategory, StreamEvent

__all__ = [
    "FIRST_PORTION",
    "NO_KEY",
    "PORTION",
    "Entries",
    "Look",
    "RunList",
    "RunState",
    "RunSummary",
    "next_portion",
    "run_id_of",
    "size_of",
    "summarise",
    "summarise_end",
]

Entries: TypeAlias = Sequence[tuple[bytes, Sequence[bytes]]]

PREVIEW: Final = 400  # bytes of a text that is taken from an event
LONGEST_REASON: Final = 8 * 1024  # bytes of why a run failed
PORTION: Final = 250  # runs that are looked at together
FIRST_PORTION: Final = 10  # before it is known how large their events are
PORTION_BYTES: Final = 2 * 1024 * 1024  # of events in one reply, about
NO_KEY: Final = -2  # what PTTL says
_TASK: Final = ("task", "title", "name", "input")  # what a run may be about


class RunState(StrEnum):
    """How a run stands.

    Attributes:
        RUNNING: It has a writer that lives.
        OPEN: Nobody has ended it, or it was begun anew; who writes to it, if anybody,
            holds no lease.
        LOST: Its writer fell silent without ending it.
        COMPLETED: Ended with ``lifecycle.completed``.
        FAILED: Ended with ``lifecycle.failed``.
        CANCELLED: Ended with ``lifecycle.cancelled``.
        CLOSED: Ended with ``system.close``, without a word on how.
    """

    RUNNING = "running"
    OPEN = "open"
    LOST = "lost"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CLOSED = "closed"


_ENDS: Final = {RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED}


@dataclass(frozen=True)
class RunSummary:
    """A run at one moment.

    Attributes:
        run_id: The run.
        state: How it stands.
        length: How many events are kept.
        sequence: Number of the last event: how many there were, as far as they were
            counted; 0 where none can be read.
        first_id: Id of the oldest event that is kept; ``""`` if none is.
        last_id: Id of the newest one.
        ttl: Seconds until the run is forgotten; ``None`` if it never is.
        task: What it is about: the beginning of ``data["task"]`` of its oldest event;
            ``""`` if that says nothing.
        error: Why it failed, up to 8 KiB; ``""`` if it did not, or nobody said.
        source: Who began it: as in the oldest event.
        last: Name of the newest event, such as ``llm.stream``.
    """

    run_id: int
    state: RunState
    length: int
    sequence: int = 0
    first_id: str = ""
    last_id: str = ""
    ttl: float | None = None
    task: str = ""
    error: str = ""
    source: Mapping[str, str] | None = None
    last: str = ""

    @property
    def started_at(self) -> float | None:
        """When the oldest event was written, by the server's clock: seconds since 1970."""
        return order(self.first_id)[0] / 1000 if self.first_id else None

    @property
    def last_at(self) -> float | None:
        """When the newest event was written, by the server's clock."""
        return order(self.last_id)[0] / 1000 if self.last_id else None

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come: its writer has said so."""
        return self.state in _ENDS or self.state is RunState.CLOSED

    def to_dict(self) -> JSONObject:
        """Give its fields for JSON."""
        return {
            "run_id": self.run_id,
            "state": self.state.value,
            "length": self.length,
            "sequence": self.sequence,
            "first_id": self.first_id,
            "last_id": self.last_id,
            "started_at": self.started_at,
            "last_at": self.last_at,
            "ttl": self.ttl,
            "task": self.task,
            "error": self.error,
            "source": self.source,
            "last": self.last,
        }


@dataclass(frozen=True)
class RunList:
    """Runs, newest first.

    Attributes:
        runs: Those whose newest event is newest.
        total: How many runs there are, also those that found no place in the list.
        left_out: What has such a key and is no run that can be read: ``"wrong_type"``,
            ``"no_permission"``, ``"wrong_name"`` (its id is no number) → how many.
    """

    runs: list[RunSummary]
    total: int
    left_out: Mapping[str, int]

    def __iter__(self) -> Iterator[RunSummary]:
        """Give the runs."""
        return iter(self.runs)

    def __len__(self) -> int:
        """Count the runs of the list."""
        return len(self.runs)


class Look(NamedTuple):
    """What Redis has said about one run.

    Attributes:
        length: How many events are kept.
        ttl: Milliseconds, as PTTL says them.
        first: The oldest event.
        last: The two newest ones, newest first.
        lease: Milliseconds for which its writer surely lives, as PTTL says them.
        owner: Who has to end it, by the books.
        closed: Id of the ``system.close`` behind which nothing began anew, by the books;
            ``""`` if they know of none, or not of all that stands behind it.
    """

    length: int
    ttl: int
    first: Entries
    last: Entries
    lease: int
    owner: bytes | None
    closed: str = ""

    @property
    def ended_before(self) -> bool:
        """Whether it has ended, and late events stand behind its end."""
        lives = self.lease != NO_KEY or self.owner is not None
        return bool(self.closed) and not lives and self.last_id != self.closed

    @property
    def last_id(self) -> str:
        """The id of the newest event; ``""`` if there is none."""
        return self.last[0][0].decode() if self.last else ""


def run_id_of(key: bytes) -> int | None:
    """Read the run from its key; ``None`` if that is the key of no run."""
    told = RUN_EVENTS.parse(key)
    digits = told["run_id"] if told else ""
    if not (digits.isascii() and digits.isdigit()) or digits != digits.lstrip("0"):
        return 0 if digits == "0" else None
    try:
        return check_run_id(int(digits))
    except ValueError:  # a ConfigurationError is one; so is what int() does not read
        return None


def summarise(run_id: int, look: Look) -> RunSummary | None:
    """Say how a run stands; ``None`` if there is none."""
    if look.ttl == NO_KEY:
        return None
    newest = [StreamEvent.decode(run_id, *entry) for entry in look.last]
    oldest = [StreamEvent.decode(run_id, *entry) for entry in look.first]
    first, last = next(iter(oldest), None), next(iter(newest), None)
    state = _state_of(newest, alive=look.lease != NO_KEY, owned=look.owner is not None)
    return RunSummary(
        run_id,
        state,
        look.length,
        sequence=last.sequence if last else 0,
        first_id=first.id if first else "",
        last_id=last.id if last else "",
        ttl=None if look.ttl < 0 else look.ttl / 1000,
        task=_task_of(first),
        error=_error_of(newest) if state is RunState.FAILED else "",
        source=first.source if first else None,
        last=last.name if last else "",
    )


def summarise_end(summary: RunSummary, end: Entries) -> RunSummary:
    """Say how a run has ended behind whose end late events stand.

    Args:
        summary: Of the run, by its newest events.
        end: Its ``system.close`` and the event before it, as far as they are kept.
    """
    told = [StreamEvent.decode(summary.run_id, *entry) for entry in end]
    state = _how_closed(told)
    error = _error_of(told) if state is RunState.FAILED else ""
    return replace(summary, state=state, error=error)


def _state_of(newest: Sequence[StreamEvent], *, alive: bool, owned: bool) -> RunState:
    if alive:
        return RunState.RUNNING
    last = newest[0] if newest else None
    if last is not None and last.closes:
        return _how_closed(newest)
    if owned:
        return RunState.LOST
    return (_end_of(last) if last else None) or RunState.OPEN


def _how_closed(end: Sequence[StreamEvent]) -> RunState:
    return next(filter(None, map(_end_of, end)), RunState.CLOSED)


def _end_of(event: StreamEvent) -> RunState | None:
    if event.category != EventCategory.LIFECYCLE:
        return None
    return next((state for state in _ENDS if state == event.action), None)


def _task_of(first: StreamEvent | None) -> str:
    data: Mapping[str, Any] = first.data if first else {}
    return next((_preview(data[name]) for name in _TASK if data.get(name)), "")


def _error_of(newest: Sequence[StreamEvent]) -> str:
    for event in newest:
        if _end_of(event) is RunState.FAILED:
            told: Any = event.data.get("error", event.data.get("message"))
            if isinstance(told, dict):
                inner = cast("JSONObject", told)
                kind, told = inner.get("type"), inner.get("message") or inner
                if isinstance(kind, str) and kind and isinstance(told, str):
                    told = f"{kind}: {told}"
            return _preview(told, LONGEST_REASON) if told else ""
    return ""


def _preview(value: object, longest: int = PREVIEW) -> str:
    return cut_text(
        value if isinstance(value, str) else encode(value).decode(), longest
    )


def size_of(entries: Entries) -> int:
    """Count the bytes of some events."""
    return sum(sum(map(len, fields)) for _, fields in entries)


def next_portion(before: int, size: int) -> int:
    """Say how many runs to look at next, so that large events do not make it slow.

    Args:
        before: How many there were in the portion before.
        size: Bytes of their events.
    """
    fitting = PORTION_BYTES * before // max(size, 1)
    return max(1, min(PORTION, 2 * before, fitting))
