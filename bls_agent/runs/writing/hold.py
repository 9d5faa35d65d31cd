"""The right to end a run: what is asked for it, and what the replies mean; no I/O here."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final

import anyio

from bls_agent.connection.endpoint import Reply
from bls_agent.core.backoff import Backoff, jittered
from bls_agent.core.errors import (
    BlsError,
    LeaseHeldError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.runs.reading import RunKeys
from bls_agent.runtime.lease import Run, boot_seconds, valid_until

__all__ = ["Hold"]

logger = logging.getLogger(__name__)

NEVER: Final = float("inf")
PARTS: Final = 3  # of a lease, after one of which it is renewed
CAP: Final = 2.0  # seconds between two tries while Redis cannot give it
REMEDY: Final = "Give the run another id, or contribute to it with lifecycle=False."


class Hold:
    """The lease of one writer on its run, from its opening to its end.

    It keeps the run alive, too: each renewal begins the time anew for which the run is
    kept, however long nothing is written.

    Attributes:
        keys: Of the run.
        token: What tells this writer from all others.
        lease: Seconds until somebody else may take the run if we say nothing.
        ttl: Seconds for which a run is kept after its last sign of life.
        due: When to ask next, by the clock of the event loop.
        judged: Set when the first answer is there, or none is to be expected soon.
        verdict: What is to be raised where the run was opened, if anything.
    """

    def __init__(
        self,
        keys: RunKeys,
        token: str,
        *,
        lease: float,
        ttl: int,
        rng: random.Random,
        is_dead: Callable[[str], bool],
    ) -> None:
        """Remember the parts; nothing was asked yet.

        Args:
            keys: Of the run.
            token: What tells this writer from all others.
            lease: Seconds until somebody else may take the run if we say nothing.
            ttl: Seconds for which a run is kept after its last sign of life.
            rng: Spreads the renewals.
            is_dead: Tells whether the owner of a token surely lives no more.
        """
        self.keys = keys
        self.token = token
        self.lease = lease
        self.due = 0.0
        self.judged = anyio.Event()
        self.verdict: BlsError | None = None
        self.ttl = ttl
        self._rng = rng
        self._is_dead = is_dead
        self._dead = ""
        self._valid_until = -NEVER
        self._told_lost = self._over = False
        self._backoff = Backoff(cap=CAP)

    @property
    def is_valid(self) -> bool:
        """Whether the run is surely ours."""
        return boot_seconds() < self._valid_until

    def ask(self) -> Run:
        """Ask for the lease, or to renew it."""
        lease = max(1, int(self.lease * 1000))
        return self.keys.all, (self.token, lease, self.ttl, self._dead)

    def hear(self, reply: Reply, *, sent_at: float) -> float:
        """Note what a reply says.

        Args:
            reply: No error.
            sent_at: When it was asked for, by :func:`~bls_agent.runtime.lease.boot_seconds`.

        Returns:
            In how many seconds to ask again.
        """
        if self._over:
            return NEVER
        self._backoff.succeeded()
        what, remaining, whose = reply
        former, self._dead = self._dead, ""
        if what == b"ours":
            self._valid_until = valid_until(sent_at, self.lease)
            self._tell_ours()
        else:
            self._valid_until = -NEVER
            owner = whose.decode("utf-8", "replace")
            if what == b"held" and owner != former and self._is_dead(owner):
                self._dead = owner
                return 0.0
            left = _seconds(remaining)
            self._judge(LeaseHeldError(self.keys.events, left, REMEDY))
        self.judged.set()
        if what == b"ended":
            return NEVER
        return jittered(self.lease / PARTS, self._rng)

    def hear_renewed(self, *, sent_at: float) -> None:
        """Note that a batch of events has renewed the lease; in the event loop.

        Args:
            sent_at: When the batch had surely not left yet, as in :meth:`hear`.
        """
        if self._over:
            return
        until = valid_until(sent_at, self.lease)
        self._valid_until = max(self._valid_until, until)
        self._tell_ours()
        self.due = anyio.current_time() + jittered(self.lease / PARTS, self._rng)

    def fail(
        self, error: RedisUnavailableError, wrong: WrongTypeError | None = None
    ) -> float:
        """Note that it could not be asked for.

        Args:
            error: Why.
            wrong: Which key has another type, if that is why.

        Returns:
            In how many seconds to ask again.
        """
        refused = isinstance(error, RedisRefusedError)
        if wrong is not None:
            self.verdict = wrong
        self.judged.set()
        return self._backoff.failed(permanent=refused)

    def finish(self) -> None:
        """Own nothing any more; what is still said about it does not count."""
        self._over = True
        self.due = NEVER
        self._valid_until = -NEVER
        self.judged.set()

    def _tell_ours(self) -> None:
        if self._told_lost:
            self._told_lost = False
            logger.info("run %d is ours again", self.keys.run_id)

    def _judge(self, error: LeaseHeldError) -> None:
        """Note for who opens the run that it is another's; later the log is told."""
        if self.judged.is_set():
            self.tell_lost()
        else:
            self.verdict = error

    def tell_lost(self) -> None:
        """Say once in the log that the run is not ours any more."""
        if not self._told_lost:
            self._told_lost = True
            text = (
                "run %d belongs to another writer now, or was ended by one: events are "
                "written on, its end is not"
            )
            logger.warning(text, self.keys.run_id)


def _seconds(milliseconds: int) -> float | None:
    return None if milliseconds < 0 else milliseconds / 1000
