"""A worker as the registry reads it, and its changes since the last read. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Self

from bls_agent.core.codec import JSONObject, cut_text, decode_object, encode
from bls_agent.core.errors import DecodeError, RedisUnavailableError
from bls_agent.core.keys import KeyTemplate, show_name
from bls_agent.workers.heartbeat_fields import (
    KINDS,
    GenericHeartbeat,
    WorkerHeartbeat,
    WorkerStatus,
    parse_heartbeat_data,
)
from bls_agent.workers.reading import LARGEST, SHOWN, head_of
from bls_agent.workers.schema import ROWS

HEARTBEATS: Final[Mapping[str, KeyTemplate]] = MappingProxyType(
    {name: row for name, row in ROWS.items() if name.endswith("_heartbeat")}
)
GENERIC: Final = GenericHeartbeat.kind
STALE: Final = 0.5  # stale after this part of the TTL: 1.5 of the longest intervals
NO_TTL: Final = "no_ttl"


def find_row(key: str | bytes, rows: Mapping[str, KeyTemplate]) -> str | None:
    """Return the name of the row that a key matches, or ``None``."""
    return next((name for name, row in rows.items() if row.match(key)), None)


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker with a heartbeat in Redis.

    Attributes:
        row: The name of the key's form in the key schema, such as
            ``"backtest_worker_heartbeat"``.
        kind: The kind in the key of a generic heartbeat, such as ``"下载"``. For every
            other heartbeat the same as ``row``.
        id: The id of the worker: the key without the prefix of its kind. Bytes that are
            not UTF-8 are kept as surrogates, also in ``kind`` and ``key``.
        key: The whole key.
        heartbeat: The value; ``None`` if the value is not a valid heartbeat. The
            protocol defines no value for generic heartbeats, components and processes.
            For these, ``None`` does not mean that the value has a problem.
        raw: The value as a dict, whatever its form; see
            :func:`~bls_agent.workers.parse_heartbeat_data`.
        age: Seconds since the last refresh, by the server's clock. The age is the full
            TTL minus the TTL that is left. The full TTL is the default of the kind, or
            the TTL in the worker's lease. ``None`` if the key has no TTL, or more than
            the full TTL. If a program without a lease sets a shorter TTL, the age is
            too high.
        ttl: Seconds until the key expires; ``None`` if the key does not expire.
        stale: Whether the worker has not refreshed the heartbeat for half of the TTL.
        problem: The fault of the key in one word, or ``""``: ``wrong_type`` (the key is
            not a string), ``too_large`` (over 64 KiB, or over 4 KiB if many values are
            large; the beginning is in ``raw``), ``not_utf8``, ``not_json``,
            ``too_deep``, ``not_an_object``, ``bad_field``, or ``no_ttl`` (the key stays
            after the death of the worker).
        payload: The bytes of the value. Of a value that is too large, the first 4 KiB.
    """

    row: str
    kind: str
    id: str
    key: str
    heartbeat: WorkerHeartbeat | None = None
    raw: dict[str, Any] = field(default_factory=dict[str, Any])
    age: float | None = None
    ttl: float | None = None
    stale: bool = False
    problem: str = ""
    payload: bytes = field(default=b"", repr=False)

    @classmethod
    def read(
        cls,
        row: str,
        key: bytes,
        payload: bytes | None,
        ttl: float | None,
        before: Self | None = None,
        *,
        largest: int = LARGEST,
        full_ttl: float | None = None,
    ) -> Self:
        """Make a worker from the replies about its key. Never raise.

        ``payload`` is the value, truncated after ``largest`` + 1 bytes, or ``None`` for
        a key that is not a string. ``before`` is the result of the last read.
        ``full_ttl`` is the TTL in the worker's lease, if the worker has a lease.
        """
        full = float(HEARTBEATS[row].ttl or 0) if full_ttl is None else full_ttl
        age = None
        if payload is not None and ttl is not None and ttl <= full:
            age = full - ttl
        stale = age is not None and age >= full * STALE
        if before is not None and payload and before.payload == payload:
            problem = "" if before.problem == NO_TTL else before.problem
            problem = problem or (NO_TTL if ttl is None else "")
            return replace(before, ttl=ttl, age=age, stale=stale, problem=problem)
        heartbeat, raw, problem = _decode(row, payload, largest)
        text = key.decode("utf-8", "surrogateescape")
        kind, name = row, text.removeprefix(head_of(HEARTBEATS[row]))
        if row == GENERIC:
            kind, _, name = name.partition(":")
        if isinstance(heartbeat, GenericHeartbeat):
            heartbeat = replace(heartbeat, kind_name=kind, worker_id=name)
        return cls(
            row=row,
            kind=kind,
            id=name,
            key=text,
            heartbeat=heartbeat,
            raw=raw,
            age=age,
            ttl=ttl,
            stale=stale,
            problem=problem or (NO_TTL if ttl is None else ""),
            payload=(payload or b"")[: SHOWN if problem == "too_large" else None],
        )

    @property
    def status(self) -> WorkerStatus | None:
        """The worker's status; ``None`` if the protocol does not define the status."""
        if self.heartbeat is not None:
            return self.heartbeat.status
        word = str(self.raw.get("status")).lower()
        return next((one for one in WorkerStatus if one == word), None)

    @property
    def healthy(self) -> bool:
        """Whether the heartbeat is fresh, has no :attr:`problem` and reports no error."""
        in_error = self.status is WorkerStatus.ERROR
        return not (self.problem or self.stale or in_error)

    def describe(self, elapsed: float = 0.0) -> JSONObject:
        """Return the worker as a JSON object.

        ``elapsed`` is the number of seconds since the worker was read. All times are in
        seconds, and ``None`` if unknown.
        """
        age = None if self.age is None else round(self.age + elapsed, 3)
        ttl = None if self.ttl is None else round(max(0.0, self.ttl - elapsed), 3)
        return {
            "kind": show_name(self.kind),
            "id": show_name(self.id),
            "key": show_name(self.key),
            "status": self.status,
            "healthy": self.healthy,
            "stale": self.stale,
            "problem": self.problem,
            "age": age,
            "ttl": ttl,
            "heartbeat": self.raw,
        }

    @property
    def longest_ttl(self) -> float:
        """The TTL after a refresh, or the default of the kind if that is longer."""
        default = float(HEARTBEATS[self.row].ttl or 0)
        if self.age is None or self.ttl is None:
            return default
        return max(default, self.age + self.ttl)

    @property
    def content(self) -> tuple[str, dict[str, Any]]:
        """Problem and value without time fields, to compare the values of two reads."""
        times = ("timestamp", "last_heartbeat")
        return self.problem, {n: v for n, v in self.raw.items() if n not in times}


def _decode(
    row: str, payload: bytes | None, largest: int
) -> tuple[WorkerHeartbeat | None, dict[str, Any], str]:
    """Return a value as a heartbeat and as a dict, and its problem or ``""``."""
    if payload is None:
        return None, {}, "wrong_type"
    if len(payload) > largest:
        text = payload[:SHOWN].decode("utf-8", "replace")
        return None, {"raw": cut_text(text, SHOWN)}, "too_large"
    kind = GenericHeartbeat if row == GENERIC else KINDS.get(row)
    if kind is None:
        return None, parse_heartbeat_data(payload), _check_text(payload)
    raw: dict[str, Any] | None = None
    try:
        raw = decode_object(payload)  # from_json() below shares the values of this dict
        return kind.from_json(raw), raw, ""
    except DecodeError as error:
        found = parse_heartbeat_data(payload) if raw is None else raw
        free = row == GENERIC  # the protocol defines no value
        return None, found, _check_text(payload) if free else error.reason


def _check_text(payload: bytes) -> str:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return "not_utf8"
    return ""


class Change(StrEnum):
    """The values of ``WorkerChange.what``. The last two are changes of Redis."""

    JOINED = "joined"
    LEFT = "left"
    CHANGED = "changed"
    """The worker has written a different value. Times do not count as a difference."""
    STALE = "stale"
    BACK = "back"
    """A stale worker has refreshed its heartbeat."""
    REFRESHED = "refreshed"
    """The worker has refreshed the same value. Reported only with ``refreshes``."""
    UNAVAILABLE = "unavailable"
    """Redis cannot answer. The last reported states of workers may be outdated."""
    AVAILABLE = "available"
    """Redis answers again."""


@dataclass(frozen=True)
class WorkerChange:
    """One change of a worker, or of Redis.

    Attributes:
        what: For a worker ``"joined"``, ``"left"``, ``"changed"``, ``"stale"``,
            ``"back"`` or ``"refreshed"``; for Redis ``"unavailable"`` or ``"available"``.
        worker: The worker now; if the worker has left, its last known state. ``None``
            for a change of Redis.
        before: The worker at the read before; ``None`` if the worker is new.
        error: Why Redis cannot answer; ``None`` for any other change.
    """

    what: Change
    worker: Worker | None = None
    before: Worker | None = None
    error: RedisUnavailableError | None = None


class WorkerDiff:
    """Compares the workers of each read with the workers of the read before."""

    def __init__(self, *, refreshes: bool = False) -> None:
        self._refreshes = refreshes
        self.workers: dict[bytes, Worker] = {}  # key → worker at the last read
        self._held_since = -math.inf

    def hold(self, now: float) -> None:
        """Record the end of an outage, after which workers get time to write again."""
        self._held_since = now

    def compare(self, seen: Mapping[bytes, Worker], now: float) -> list[WorkerChange]:
        """Record a read. Return the changes since the last read, by kind and id."""
        before, self.workers = self.workers, {}
        changes: list[WorkerChange] = []
        for key, worker in seen.items():
            known = before.pop(key, None)
            self.workers[key] = worker
            differences = [*_differences(worker, known)]
            if self._refreshes and not differences and _is_refreshed(worker, known):
                differences = [WorkerChange(Change.REFRESHED, worker, known)]
            changes += differences
        for key, missing in before.items():
            if now - self._held_since < missing.longest_ttl * STALE:
                self.workers[key] = missing
                continue
            changes.append(WorkerChange(Change.LEFT, missing, missing))
        return sorted(changes, key=_order)


def _differences(worker: Worker, known: Worker | None) -> Iterator[WorkerChange]:
    if known is None:
        yield WorkerChange(Change.JOINED, worker)
        return
    if worker.stale != known.stale:
        yield WorkerChange(Change.STALE if worker.stale else Change.BACK, worker, known)
    same = worker.payload == known.payload and worker.problem == known.problem
    if not same and _differs(worker.content, known.content):
        yield WorkerChange(Change.CHANGED, worker, known)


def _differs(content: object, known: object) -> bool:
    try:
        return content != known
    except RecursionError:  # Python compares at most about 1,000 nested lists
        return encode(content) != encode(known)


def _is_refreshed(worker: Worker, known: Worker | None) -> bool:
    if known is None:
        return False
    if worker.ttl is not None and known.ttl is not None and worker.ttl > known.ttl:
        return True
    return worker.payload != known.payload


def _order(change: WorkerChange) -> tuple[str, str]:
    return (change.worker.kind, change.worker.id) if change.worker else ("", "")
