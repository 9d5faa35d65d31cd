"""One opened heartbeat: what it writes next, and what a reply means for it; no I/O here."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio

from bls_agent.backoff import jittered
from bls_agent.endpoint import Reply, Request
from bls_agent.errors import (
    BlsError,
    LeaseHeldError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.lease import LeaseReply, LeaseState, Ownership, Run
from bls_agent.workers.heartbeat_fields import WorkerStatus
from bls_agent.workers.heartbeats import WorkerHeartbeat

__all__ = ["HeartbeatCounts", "Life", "PlainTries"]

logger = logging.getLogger(__name__)

SOON: Final = 0.02  # seconds after somebody else's time is over
LOOK_AGAIN: Final = 1.0  # seconds between two looks whether a taken key is free
GUARD_AGAIN: Final = 60.0  # seconds until it is tried again whether scripts may be run

# Redis 7 says of a script that may not run one of its commands that it is "refused".
_RESTING: Final = (Ownership.HELD, Ownership.STANDS, Ownership.WRONG_TYPE)
_NO_SCRIPTS: Final = ("no_permission", "unknown_command", "refused")
_NO_GET: Final = ("unsupported", "no_permission")  # SET … GET: before Redis 6.2


@dataclass
class HeartbeatCounts:
    """What one heartbeat did, over all its openings.

    Attributes:
        writes: Beats that were written.
        refreshes: Beats for which there was no memory: the former value was kept alive.
        failures: Beats that could not be written, or perhaps.
        losses: Times somebody else had taken the key over.
        overwritten: Times somebody else had written over the key without owning it.
    """

    writes: int = 0
    refreshes: int = 0
    failures: int = 0
    losses: int = 0
    overwritten: int = 0


@dataclass
class PlainTries:
    """How a heartbeat is written where no script may be run.

    Attributes:
        until: Seconds of the claim's clock until a script is tried again.
        guarded: Whether ``SET … GET`` is known: it leaves another type alone.
    """

    until: float
    guarded: bool = True


def _write(said: WorkerHeartbeat, status: WorkerStatus | None = None) -> bytes:
    now = said.changed() if status is None else said.changed(status=status)
    return now.to_json().encode()


def _nobody(_: str) -> bool:
    return False


class Life:
    """One heartbeat from its opening to its end.

    Attributes:
        claim: Whether the key is ours.
        counts: Of the heartbeat.
        interval: Longest time between two beats, in seconds.
        sent_at: When it was last asked to be written, by the clock of the event loop.
        hastened: Whether it waits to be looked at before its time.
        judged: Set when the first answer is there, or no answer is to be expected soon.
        has_landed: Whether a beat is written.
        decided: Set when the first beat is written, or none will be.
        ended: Set when nothing of it is in Redis any more, or nobody can tell.
        verdict: What is to be raised where it was opened, if anything.
        plain: How it is written without scripts, where they are refused.
        failed: How often in a row it was refused where others were not.
    """

    def __init__(
        self,
        say: Callable[[], WorkerHeartbeat],
        claim: LeaseState,
        *,
        interval: float,
        counts: HeartbeatCounts,
        rng: random.Random,
        is_dead: Callable[[str], bool] = _nobody,
    ) -> None:
        """Remember the parts.

        Args:
            say: Gives what is to be said.
            claim: For the key.
            interval: Longest time between two beats, in seconds.
            counts: Where is counted.
            rng: Spreads the beats.
            is_dead: Tells whether the owner of a token surely lives no more.
        """
        self._say = say
        self.claim = claim
        self.counts = counts
        self.interval = interval
        self.sent_at = float("-inf")
        self.hastened = False
        self.judged = anyio.Event()
        self.has_landed = False
        self.decided = anyio.Event()
        self.ended = anyio.Event()
        self.verdict: BlsError | None = None
        self.plain: PlainTries | None = None
        self.failed = 0
        self._rng = rng
        self._is_dead = is_dead
        self._dead = ""
        self._refused = False
        self._status_sent: WorkerStatus | None = None
        self._status_written: WorkerStatus | None = None
        self._told = Ownership.OURS
        self._told_overwritten = False

    def value(self, status: WorkerStatus | None = None) -> bytes:
        """Write what is to be said, as of now; from any thread.

        Args:
            status: Said instead of its own.
        """
        return _write(self._say(), status)

    def ask(self) -> Run:
        """Ask for the next beat."""
        said = self._say()
        self._status_sent = said.status
        true = self._status_sent is self._status_written
        return self.claim.write_request(_write(said), true=true, dead=self._dead)

    def ask_plainly(self) -> Request:
        """Ask for the next beat where no script may be run."""
        assert self.plain is not None  # noqa: S101 - for the type checker
        value = self.value()
        self.claim.record_written(value)
        words = ("SET", self.claim.key, value, "PX", int(self.claim.ttl * 1000))
        return (*words, "GET") if self.plain.guarded else words

    def hear(self, reply: Reply, *, sent_at: float, now: float) -> float:
        """Note what a reply says.

        Args:
            reply: No error.
            sent_at: When it was asked for.
            now: Both by :func:`~bls_agent.lease.boot_seconds`.

        Returns:
            In how many seconds the next beat is due.
        """
        self._refused = False
        answer = LeaseReply.of(reply)
        losses = self.claim.losses
        written = self.claim.handle_reply(answer, sent_at=sent_at, now=now)
        self.counts.losses += self.claim.losses - losses
        if written:
            self._landed()
        self.counts.refreshes += answer.what == "refreshed"
        if answer.strange:
            self._tell_overwritten()
        if answer.what == "lapsed" or self._inherits(answer):
            return 0.0
        self._judge(answer)
        beat = jittered(self.interval, self._rng)
        if answer.what in ("held", "stands") and answer.remaining is not None:
            return min(beat, answer.remaining + SOON, LOOK_AGAIN)
        return beat

    @property
    def rests(self) -> bool:
        """Whether there is no use in writing it before its time, whatever it says."""
        return self._refused or self.claim.standing in _RESTING

    def _inherits(self, answer: LeaseReply) -> bool:
        """Tell whether the owner is dead, so that nobody has to wait for its lease."""
        former, self._dead = self._dead, ""
        if answer.what == "held" and answer.whose != former:
            self._dead = answer.whose if self._is_dead(answer.whose) else ""
        return bool(self._dead)

    def hear_plainly(self, reply: Reply) -> float:
        """Note that a beat was written without a script; says when the next is due."""
        del reply
        self._refused = False
        self._landed()
        self.judged.set()
        return jittered(self.interval, self._rng)

    def fail(self, error: RedisUnavailableError, *, ambiguous: bool) -> None:
        """Note that a beat was not written, or perhaps."""
        self.counts.failures += 1
        self._refused = isinstance(error, RedisRefusedError)
        self.claim.record_failure(ambiguous=ambiguous)
        if error.kind == "wrong_type":
            self.verdict = WrongTypeError(self.claim.key, "string")
        self.judged.set()

    def goes_plainly(self, now: float, error: RedisUnavailableError) -> bool:
        """Tell whether a refusal leaves a plainer way, and choose it."""
        plain = self.plain
        if plain is None or now >= plain.until:
            if error.kind not in _NO_SCRIPTS:
                return False
            self.plain = PlainTries(now + GUARD_AGAIN)
            return True
        if plain.guarded and error.kind in _NO_GET:
            plain.guarded = False
            return True
        return False

    def asks_plainly(self, now: float) -> bool:
        """Tell whether the next beat goes without a script."""
        return self.plain is not None and now < self.plain.until

    def _landed(self) -> None:
        self.counts.writes += 1
        self._status_written = self._status_sent
        self.has_landed = True
        self.decided.set()

    def _judge(self, answer: LeaseReply) -> None:
        """Note for who opens it what stands in the way, and say it once in the log."""
        standing, key = self.claim.standing, self.claim.key
        error: BlsError | None = None
        if answer.what == "wrong_type":
            error = WrongTypeError(answer.whose or key, "string")
        elif answer.what in ("held", "stands"):
            error = LeaseHeldError(key, answer.remaining)
        if not self.judged.is_set():
            self.verdict = error
            self.judged.set()
        elif error is not None and standing is not self._told:
            logger.warning("no heartbeat is written until its key is free: %s", error)
        elif error is None and self._told is not Ownership.OURS:
            logger.info("the heartbeat %r is ours now", key)
        if answer.what != "late":
            self._told = standing

    def _tell_overwritten(self) -> None:
        self.counts.overwritten += 1
        if not self._told_overwritten:
            self._told_overwritten = True
            text = "somebody else writes the heartbeat %r, too: give each worker an id of its own"
            logger.warning(text, self.claim.key)
