"""The roll of workers from look to look: who came, who left, who fell silent. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bls_agent.errors import RedisUnavailableError
from bls_agent.workers.watching.worker import STALE, Worker

__all__ = ["Change", "Roll", "WorkerChange"]

CLOSE: Final = 2.0  # seconds between two looks that tell which TTL a refresh has given


class Change(StrEnum):
    """What has happened."""

    JOINED = "joined"
    LEFT = "left"
    CHANGED = "changed"
    """It says something else than before; a mere refresh is no change."""
    STALE = "stale"
    BACK = "back"
    """It was stale and has refreshed its heartbeat."""
    REFRESHED = "refreshed"
    """It has said the same once more; told only to whoever wants to know."""
    UNAVAILABLE = "unavailable"
    """Redis cannot answer: what was told before is all that is known."""
    AVAILABLE = "available"
    """It answers again."""


@dataclass(frozen=True)
class WorkerChange:
    """One thing that has happened.

    Attributes:
        what: ``"joined"``, ``"left"``, ``"changed"``, ``"stale"``, ``"back"``,
            ``"refreshed"``; or of Redis itself ``"unavailable"``, ``"available"``.
        worker: How the worker is now; of one that left, how it was seen last. ``None`` if
            this is about Redis.
        before: How it was at the look before; ``None`` if it was not there.
        error: Why Redis cannot answer.
    """

    what: Change
    worker: Worker | None = None
    before: Worker | None = None
    error: RedisUnavailableError | None = None


class Roll:
    """Who is there, fed with what each look has found.

    Attributes:
        workers: Key, as Redis gave it → how its worker was seen last.
    """

    def __init__(self, *, refreshes: bool = False) -> None:
        """Know nobody.

        Args:
            refreshes: Whether a mere refresh is told, too.
        """
        self._refreshes = refreshes
        self.workers: dict[bytes, Worker] = {}
        self._given: dict[bytes, float] = {}  # TTLs other than the contract's
        self._looked_at = -math.inf
        self._held_since = -math.inf

    def hold(self, now: float) -> None:
        """Let nobody leave before there was time to write again: Redis was away."""
        self._held_since = now

    def compare(self, seen: Mapping[bytes, Worker], now: float) -> list[WorkerChange]:
        """Take what a look has found, and say what differs from the one before.

        Args:
            seen: Everybody who was found.
            now: Seconds of a clock that does not jump.

        Returns:
            In the order of kinds and ids; of one worker perhaps ``back`` and ``changed``.
        """
        gap, self._looked_at = now - self._looked_at, now
        before, self.workers = self.workers, {}
        changes: list[WorkerChange] = []
        for key, found in seen.items():
            known = before.pop(key, None)
            worker = self._judge(key, found, known, gap)
            self.workers[key] = worker
            told = [*_differences(worker, known)]
            if self._refreshes and not told and known and _is_refreshed(worker, known):
                told = [WorkerChange(Change.REFRESHED, worker, known)]
            changes += told
        for key, gone in before.items():
            if now - self._held_since < gone.row_ttl * STALE:
                self.workers[key] = gone
                continue
            self._given.pop(key, None)
            changes.append(WorkerChange(Change.LEFT, gone, gone))
        return sorted(changes, key=_place)

    def _judge(
        self, key: bytes, found: Worker, known: Worker | None, gap: float
    ) -> Worker:
        """Reckon with the TTL that this worker was seen to give, if it is another one."""
        ttl = found.ttl
        if ttl is None or not found.payload:
            return found
        was = known.ttl if known is not None else None
        if was is not None and ttl > was and gap <= CLOSE:  # it never grows by itself
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


def _is_refreshed(worker: Worker, known: Worker) -> bool:
    if worker.ttl is not None and known.ttl is not None and worker.ttl > known.ttl:
        return True
    return worker.payload != known.payload


def _place(change: WorkerChange) -> tuple[str, str]:
    return (change.worker.kind, change.worker.id) if change.worker else ("", "")
