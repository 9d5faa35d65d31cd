"""One worker as the registry sees it, and what changed since the last look. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Self

from bls_agent.core.codec import cut_text, decode_object
from bls_agent.core.errors import DecodeError, RedisUnavailableError
from bls_agent.core.keys import OWNER, KeyTemplate, encode_key, place_beside
from bls_agent.workers.heartbeat_fields import (
    KINDS,
    WorkerHeartbeat,
    parse_heartbeat_data,
)
from bls_agent.workers.schema import ROWS

HEARTBEATS: Final[Mapping[str, KeyTemplate]] = MappingProxyType(
    {name: row for name, row in ROWS.items() if name.endswith("_heartbeat")}
)
LARGEST: Final = 65_536  # bytes of a value that is read
SHOWN: Final = 4_096  # bytes that are kept of a larger one
STALE: Final = 0.5  # of the TTL: one and a half of the longest allowed intervals
CLOSE: Final = 2.0  # seconds between two looks that show the TTL of a refresh
NO_TTL: Final = "no_ttl"


def find_kind(key: bytes, kinds: Mapping[str, KeyTemplate]) -> str | None:
    """Return the kind of heartbeat of a key; ``None`` for any other key."""
    return next((kind for kind, row in kinds.items() if row.match(key)), None)


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker whose heartbeat is there.

    Attributes:
        kind: The row of the table of keys, such as ``"backtest_worker_heartbeat"``.
        id: The rest of its key: whose heartbeat it is. Bytes that are not UTF-8 are
            kept as surrogates, here and in ``key``.
        key: The whole key.
        heartbeat: The value; ``None`` if it is no heartbeat, or of a kind whose value
            is left open (``component``, ``process``).
        raw: The value of whatever form: always a dict, see
            :func:`~bls_agent.workers.parse_heartbeat_data`.
        age: Seconds since it was refreshed, by the server's clock: the TTL it is given
            (the default of its kind, or the one in its lease) less what is left of it.
            ``None`` if that is unknown: no TTL, or a longer one. A peer without a lease
            that gives a shorter one looks old to a single look; a watch learns its TTL
            as soon as it sees a refresh.
        ttl: Seconds until the key expires; ``None`` if it does not.
        stale: Whether it was not refreshed for half of its TTL.
        problem: What is wrong with its key, in one word, or ``""``: ``wrong_type`` (the
            key is no string), ``too_large`` (over 64 KiB, or over 4 KiB where many are
            so large; the beginning is in ``raw``), ``not_utf8``, ``not_json``,
            ``too_deep``, ``not_an_object``, ``bad_field``, ``no_ttl`` (it looks alive
            for ever).
        payload: The bytes of the value.
    """

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
        kind: str,
        key: bytes,
        payload: bytes | None,
        ttl: float | None,
        before: Self | None = None,
        *,
        largest: int = LARGEST,
    ) -> Self:
        """Make one of what was read at its key; never raises.

        ``payload`` is the value's first ``largest`` bytes and one more, ``None`` for a
        key that is no string. ``before`` is the worker at the last look.
        """
        if before is not None and payload and before.payload == payload:
            problem = "" if before.problem == NO_TTL else before.problem
            worker = replace(before, ttl=ttl, problem=problem)
        else:
            heartbeat, raw, problem = _decode(kind, payload, largest)
            text = key.decode("utf-8", "surrogateescape")
            worker = cls(
                kind=kind,
                id=text.removeprefix(HEARTBEATS[kind].template.partition("{")[0]),
                key=text,
                heartbeat=heartbeat,
                raw=raw,
                ttl=ttl,
                problem=problem,
                payload=(payload or b"")[: SHOWN if problem == "too_large" else None],
            )
        if ttl is None and not worker.problem:
            worker = replace(worker, problem=NO_TTL)
        return worker if payload is None else worker.judged(worker.row_ttl)

    @property
    def row_ttl(self) -> float:
        """Seconds that a heartbeat of this kind lives by default."""
        return float(HEARTBEATS[self.kind].ttl or 0)

    @property
    def owner_key(self) -> bytes:
        """The key of its lease, as Redis knows it."""
        return encode_key(OWNER.locate(place=place_beside(self.key)))

    def judged(self, given: float) -> Self:
        """Return a copy with the age that it has if its key was written with this TTL."""
        age = None if self.ttl is None or self.ttl > given else given - self.ttl
        stale = age is not None and age >= given * STALE
        return replace(self, age=age, stale=stale)

    @property
    def content(self) -> tuple[str, dict[str, Any]]:
        """The value without its times, by which two looks are compared."""
        times = ("timestamp", "last_heartbeat")
        return self.problem, {n: v for n, v in self.raw.items() if n not in times}


def _decode(
    kind: str, payload: bytes | None, largest: int
) -> tuple[WorkerHeartbeat | None, dict[str, Any], str]:
    """Return a value as a heartbeat, as a dict, and what is wrong with it."""
    if payload is None:
        return None, {}, "wrong_type"
    if len(payload) > largest:
        text = payload[:SHOWN].decode("utf-8", "replace")
        return None, {"raw": cut_text(text, SHOWN)}, "too_large"
    if kind not in KINDS:
        return None, parse_heartbeat_data(payload), _check_text(payload)
    raw: dict[str, Any] | None = None
    try:
        raw = decode_object(payload)  # once: its texts are shared by both readings
        return KINDS[kind].from_json(raw), raw, ""
    except DecodeError as error:
        found = parse_heartbeat_data(payload) if raw is None else raw
        return None, found, error.reason


def _check_text(payload: bytes) -> str:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return "not_utf8"
    return ""


class Change(StrEnum):
    """The values of ``WorkerChange.what``."""

    JOINED = "joined"
    LEFT = "left"
    CHANGED = "changed"
    """Its value is another one; a mere refresh is no change."""
    STALE = "stale"
    BACK = "back"
    """It was stale and has refreshed its heartbeat."""
    REFRESHED = "refreshed"
    """It has refreshed the same value; reported only on request."""
    UNAVAILABLE = "unavailable"
    """Redis cannot answer: what was reported before is all that is known."""
    AVAILABLE = "available"
    """It answers again."""


@dataclass(frozen=True)
class WorkerChange:
    """One change of a worker, or of Redis.

    Attributes:
        what: ``"joined"``, ``"left"``, ``"changed"``, ``"stale"``, ``"back"``,
            ``"refreshed"``; or of Redis itself ``"unavailable"``, ``"available"``.
        worker: How the worker is now; of one that left, how it was seen last. ``None``
            if this is about Redis.
        before: How it was at the look before; ``None`` if it was not there.
        error: Why Redis cannot answer.
    """

    what: Change
    worker: Worker | None = None
    before: Worker | None = None
    error: RedisUnavailableError | None = None


class WorkerDiff:
    """Compares each look with the one before."""

    def __init__(self, *, refreshes: bool = False) -> None:
        self._refreshes = refreshes
        self.workers: dict[bytes, Worker] = {}  # by key, at the last look
        self._given: dict[bytes, float] = {}  # TTLs other than the row's
        self._looked_at = -math.inf
        self._held_since = -math.inf

    def hold(self, now: float) -> None:
        """After an outage, no worker counts as left before it had time to write."""
        self._held_since = now

    def compare(self, seen: Mapping[bytes, Worker], now: float) -> list[WorkerChange]:
        """Record a look, and return its differences to the last look, by kind and id."""
        gap, self._looked_at = now - self._looked_at, now
        before, self.workers = self.workers, {}
        changes: list[WorkerChange] = []
        for key, found in seen.items():
            known = before.pop(key, None)
            worker = self._judge(key, found, known, gap)
            self.workers[key] = worker
            differences = [*_differences(worker, known)]
            if self._refreshes and not differences and _is_refreshed(worker, known):
                differences = [WorkerChange(Change.REFRESHED, worker, known)]
            changes += differences
        for key, missing in before.items():
            if now - self._held_since < missing.row_ttl * STALE:
                self.workers[key] = missing
                continue
            self._given.pop(key, None)
            changes.append(WorkerChange(Change.LEFT, missing, missing))
        return sorted(changes, key=_order)

    def _judge(
        self, key: bytes, found: Worker, known: Worker | None, gap: float
    ) -> Worker:
        """Judge a worker by the TTL that its refreshes were seen to set, if it differs."""
        ttl = found.ttl
        if ttl is None or not found.payload:
            return found
        was = known.ttl if known is not None else None
        if was is not None and ttl > was and gap <= CLOSE:  # it was refreshed
            if ttl <= found.row_ttl <= ttl + gap:
                self._given.pop(key, None)
            elif not ttl <= self._given.get(key, 0.0) <= ttl + gap:
                self._given[key] = float(math.ceil(ttl))
        given = self._given.get(key)
        return found if given is None else found.judged(given)


def _differences(worker: Worker, known: Worker | None) -> Iterator[WorkerChange]:
    if known is None:
        yield WorkerChange(Change.JOINED, worker)
        return
    if worker.stale != known.stale:
        yield WorkerChange(Change.STALE if worker.stale else Change.BACK, worker, known)
    same = worker.payload == known.payload and worker.problem == known.problem
    if not same and worker.content != known.content:
        yield WorkerChange(Change.CHANGED, worker, known)


def _is_refreshed(worker: Worker, known: Worker | None) -> bool:
    if known is None:
        return False
    if worker.ttl is not None and known.ttl is not None and worker.ttl > known.ttl:
        return True
    return worker.payload != known.payload


def _order(change: WorkerChange) -> tuple[str, str]:
    return (change.worker.kind, change.worker.id) if change.worker else ("", "")
