"""Whether a run is still there and its writer alive, from what is seen now and then.

Decisions only; the clock is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

__all__ = ["LOOK", "Presence", "Seen"]

LOOK: Final = 5.0  # seconds between two looks
BEHIND: Final = 0.05  # seconds after the end of a lease
SOON: Final = 1.0  # the same while events come and nobody knows their writer
LEASE: Final = 15.0  # seconds: a writer's usual lease
CONFIRMED: Final = 0.25  # seconds from the first look without a lease to the second
UNSEEN: Final = 2.0  # the same where no lease was ever seen
UNOWNED: Final = 5.0  # seconds that a run without a lease has to come back
SLOW: Final = 0.5  # seconds: a look that took longer has seen an outage …
USUAL: Final = 4  # … if it took so many times longer than they usually take
RISE: Final = 1.5  # from one look to the next, of what is thought usual


@dataclass(frozen=True)
class Seen:
    """What a look has seen.

    Attributes:
        exists: Whether there are events.
        owner: Token of a writer that has not ended the run; ``None`` if there is none.
        left: Seconds that are left of its lease; ``None`` if it has none.
        elapsed: Seconds that the look took.
        existed: Whether the run was known to be there before the look: one that begins
            meanwhile has not disappeared.
        length: Seconds for which each renewal of that lease counts; ``None`` if its
            owner's token does not tell.
    """

    exists: bool
    owner: bytes | None
    left: float | None
    elapsed: float = 0.0
    existed: bool = True
    length: float | None = None


class Presence:
    """What is known of a run and its writer.

    A lease that is gone is no dead writer if nobody could renew it: after an outage a
    living writer gets the time of a lease to come back.

    Attributes:
        existed: Whether the run was ever there.
        is_gone: Whether it was there and has disappeared.
        lost: Token of the writer that is lost now.
        returns: How often one has come back.
        look_at: When to look again.
    """

    def __init__(self, now: float, *, existed: bool) -> None:
        """Begin with a look that is due."""
        self.existed = existed
        self.is_gone = False
        self.lost: bytes | None = None
        self.returns = 0
        self.look_at = now
        self._looked_at = float("-inf")
        self._usual: float | None = None  # seconds that a look takes
        self._lease = 0.0  # the longest that was seen
        self._lives_until = float("-inf")  # the end of the lease that was seen last
        self._patient_until = self._comes_back_until = now
        self._missed: tuple[bytes, float] | None = None  # whose lease, since when
        self._too_long_since: float | None = None  # when more was left than its length

    def notice_events(self) -> bool:
        """Hear that events have come: somebody writes them, perhaps with a lease.

        Returns:
            Whether to look earlier than was planned.
        """
        self.existed = True
        if (
            self._lives_until >= self._looked_at
            or self.look_at <= self._looked_at + SOON
        ):
            return False
        self.look_at = self._looked_at + SOON
        return True

    def notice_outage(self, now: float) -> None:
        """Give a writer the time to come back: nobody could speak to Redis."""
        self._wait_for_writer(now)
        self.look_at = now

    def _wait_for_writer(self, now: float, most: float = float("inf")) -> None:
        """Give a writer the time of its lease, and no more than so many seconds."""
        self._patient_until = now + min(most, self._lease or LEASE)
        self._comes_back_until = now + min(most, self._lease or UNOWNED)
        self._missed = None

    def hear(self, seen: Seen, now: float) -> bool:
        """Take what was seen.

        Returns:
            Whether followers have something to be told.
        """
        self._looked_at = now
        self.look_at = now + LOOK
        seen = replace(seen, left=self._believe(seen, now))
        if seen.left is not None:
            self._lease = max(self._lease, seen.left)
            self._lives_until = now + seen.left
            # A look that leaves now arrives when the answer of this one was given, and
            # later: so it need not leave after the end of the lease.
            ends_at = self._lives_until - seen.elapsed
            self.look_at = min(self.look_at, ends_at + BEHIND)
        if self._is_slow(seen.elapsed):
            self._wait_for_writer(now, USUAL * seen.elapsed)
        told = self._hear_of_writer(seen, now)
        return self._hear_of_run(seen, now) or told

    def _believe(self, seen: Seen, now: float) -> float | None:
        """Give what is left of a lease, by our clock where the server's was set back.

        More than its length is left then, until its owner renews it.
        """
        if seen.left is None or seen.length is None or seen.left <= seen.length:
            self._too_long_since = None
            return seen.left
        if self._too_long_since is None:
            self._too_long_since = now
        left = self._too_long_since + seen.length - now
        return left if left > 0 else None

    def _is_slow(self, elapsed: float) -> bool:
        """Tell whether nobody could speak to Redis; a far server is no outage.

        The first look tells how far it is; it waits for the connection, too.
        """
        if self._usual is None:
            self._usual = elapsed
            return False
        most = max(SLOW, USUAL * self._usual)
        self._usual = min(elapsed, RISE * max(self._usual, SLOW / USUAL))
        return elapsed > most

    def _hear_of_writer(self, seen: Seen, now: float) -> bool:
        if seen.owner is None or seen.left is not None:
            self.returns += self.lost is not None
            self.lost = self._missed = None
            return False
        if self._missed is None or self._missed[0] != seen.owner:
            self._missed = (seen.owner, now)
        wait = CONFIRMED if self._lease else UNSEEN
        sure_at = max(self._missed[1] + wait, self._patient_until)
        if now < sure_at:
            self.look_at = min(self.look_at, sure_at + BEHIND)
            return False
        if self.lost == seen.owner:
            return False
        self.lost = seen.owner
        return True

    def _hear_of_run(self, seen: Seen, now: float) -> bool:
        if seen.exists:
            self.existed, self.is_gone = True, False
            return False
        if not (self.existed and seen.existed) or seen.left is not None:
            return False
        # A server that was away may have come back empty: a writer gets time to go on.
        sure_at = max(self._lives_until, self._comes_back_until)
        if now < sure_at:
            self.look_at = min(self.look_at, sure_at + BEHIND)
            return False
        self.is_gone = True
        return True
