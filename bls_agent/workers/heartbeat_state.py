"""Decides what one heartbeat writes and when, and reads the replies. No I/O."""

from __future__ import annotations

import copy
import logging
import random
import threading
from dataclasses import dataclass
from typing import Any, Final

import anyio

from bls_agent.connection.after_fork import register
from bls_agent.connection.endpoint import Reply
from bls_agent.core.backoff import jittered
from bls_agent.core.errors import (
    BlsError,
    LeaseHeldError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.runtime.lease import LeaseReply, Ownership, Run, ValueLease
from bls_agent.workers.heartbeat_fields import WorkerHeartbeat, WorkerStatus

logger: logging.Logger = logging.getLogger(__name__)

SOON: Final = 0.02  # seconds from the end of another owner's lease to the next try
CHECK_AGAIN: Final = 1.0  # longest pause in seconds while another process owns the key

_RNG: Final = random.SystemRandom()  # other generators repeat in forked children
_BLOCKED: Final = (Ownership.HELD, Ownership.STANDS, Ownership.WRONG_TYPE)


class CurrentHeartbeat:
    """The current value of a heartbeat, which any thread may change."""

    def __init__(self, heartbeat: WorkerHeartbeat) -> None:
        self.now: WorkerHeartbeat = copy.deepcopy(heartbeat)
        self._lock = threading.RLock()
        register(self)

    def reset_after_fork(self) -> None:
        """Make a new lock in a forked child, because the old lock may stay locked."""
        self._lock = threading.RLock()

    def change(self, changes: dict[str, Any]) -> None:
        """Replace the value by a changed copy. An invalid change changes nothing."""
        with self._lock:
            while True:  # a signal handler may interrupt this loop and change the value
                before = self.now
                after = copy.deepcopy(before.changed(**changes))
                if self.now is before:
                    self.now = after
                    return


@dataclass
class HeartbeatCounts:
    """Counters of one heartbeat, which ``HeartbeatStats`` describes."""

    writes: int = 0
    refreshes: int = 0
    failures: int = 0
    losses: int = 0
    overwritten: int = 0


class HeartbeatState:
    """Decides when one heartbeat is written, and what each reply means.

    A beat is one write of the heartbeat to Redis.
    """

    def __init__(
        self,
        current: CurrentHeartbeat,
        claim: ValueLease,
        *,
        interval: float,
        counts: HeartbeatCounts,
    ) -> None:
        self.claim = claim  # the lease on the key
        self.counts = counts
        self.interval = interval  # longest time between two beats, in seconds
        self.due_at: float = float("-inf")  # time of the next beat, by the loop's clock
        # Opening waits for ``answered``, ``ready()`` for ``settled``, and closing for
        # ``ended``. Each event is also set when no reply can arrive any more.
        # ``answered``: Redis has replied to the first beat.
        self.answered: anyio.Event = anyio.Event()
        self.settled: anyio.Event = anyio.Event()  # a beat was written
        self.ended: anyio.Event = anyio.Event()  # the key was removed
        self.conflict: BlsError | None = None  # the exception that opening raises
        self._current = current
        self._is_changed = False  # whether the value has changed since the last beat
        self._refused = False
        self._status_sent: WorkerStatus | None = None
        self._status_written: WorkerStatus | None = None
        self._logged = Ownership.OURS
        self._logged_overwritten = False

    @property
    def is_written(self) -> bool:
        """Whether Redis has stored at least one beat."""
        return self._status_written is not None

    @property
    def is_wanted(self) -> bool:
        """Whether the heartbeat must be written before ``due_at``.

        While Redis or another owner prevents writes, a change waits for ``due_at``.
        """
        is_free = not self._refused and self.claim.standing not in _BLOCKED
        return self._is_changed and is_free

    def beat(self) -> Run:
        """Return keys and arguments of ``beat.lua`` for the next write."""
        self._is_changed = False  # before the value is read, which a thread may change
        current = self._current.now
        self._status_sent = current.status
        is_true = self._status_sent is self._status_written
        value = current.changed().to_json().encode()
        return self.claim.write_request(value, true=is_true)

    def handle_reply(self, reply: Reply, *, sent_at: float, now: float) -> float:
        """Record the reply of ``beat.lua``. Return the seconds until the next beat.

        1. ``lapsed``, or ``held`` by a process that is certainly dead: return 0, and the
           next beat takes the key.
        2. ``written`` or ``refreshed``: this process owns the key. Return about the
           interval.
        3. ``held`` or ``stands``: another process owns the key, or the key has a value
           without an owner. Return the seconds until the TTL ends, but at most 1,
           because the owner may release the key earlier.
        4. ``wrong_type``, ``late``, or case 3 without a TTL: return about the interval.

        ``sent_at`` and ``now`` are times of the clock ``boot_seconds()``.
        """
        self._refused = False
        answer = LeaseReply.of(reply)
        losses = self.claim.losses
        again = self.claim.handle_reply(answer, sent_at=sent_at, now=now)
        self.counts.losses += self.claim.losses - losses
        if answer.what == "written":
            self.counts.writes += 1
            self._status_written = self._status_sent
            self.settled.set()
        self.counts.refreshes += answer.what == "refreshed"
        if answer.strange:
            self._record_overwritten()
        if again:
            return 0.0
        self._record_conflict(answer)
        pause = jittered(self.interval, _RNG)
        if answer.what in ("held", "stands") and answer.remaining is not None:
            return min(pause, answer.remaining + SOON, CHECK_AGAIN)
        return pause

    def record_failure(self, error: RedisUnavailableError, *, ambiguous: bool) -> None:
        """Record a beat without reply. If ``ambiguous``, Redis may have stored it."""
        self.counts.failures += 1
        self._refused = isinstance(error, RedisRefusedError)
        self.claim.record_failure(ambiguous=ambiguous)
        self.answered.set()

    def record_unwritten(self) -> None:
        """Record a beat that could not be made, so that no request was sent."""
        self.counts.failures += 1
        self.answered.set()

    def want(self) -> None:
        """Request a write as soon as neither Redis nor another owner prevents it."""
        self._is_changed = True

    def _record_overwritten(self) -> None:
        self.counts.overwritten += 1
        if not self._logged_overwritten:
            self._logged_overwritten = True
            text = "another process also writes the heartbeat %r: give each worker its own id"
            logger.warning(text, self.claim.key)

    def _record_conflict(self, answer: LeaseReply) -> None:
        """Store the error that opening raises. Log each later conflict once."""
        standing, key = self.claim.standing, self.claim.key
        error: BlsError | None = None
        if answer.what == "wrong_type":
            error = WrongTypeError(answer.detail or key, "string")
        elif answer.what in ("held", "stands"):
            error = LeaseHeldError(key, answer.remaining)
        if not self.answered.is_set():
            self.conflict = error
            self.answered.set()
        elif error is not None and standing is not self._logged:
            logger.warning("no heartbeat is written until its key is free: %s", error)
        elif error is None and self._logged is not Ownership.OURS:
            logger.info("the heartbeat %r is ours now", key)
        if answer.what != "late":
            self._logged = standing
