"""How much a project writes: counts in buckets of time, no I/O."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["BUCKET", "SPAN", "Activity"]

BUCKET: Final = 10.0  # seconds
BUCKETS: Final = 30
SPAN: Final = BUCKET * BUCKETS
MINUTE: Final = 60.0
SHORTEST: Final = 1.0  # seconds over which a rate is counted at least


class Activity:
    """Records and error records of one project over the last five minutes.

    Times are seconds of any clock that does not jump.
    """

    def __init__(self, now: float) -> None:
        """Begin to count; nothing is known of before."""
        self._latest = int(now // BUCKET)
        self._known_since = now
        self._sampled_at = float("-inf")
        self._records = deque([0] * BUCKETS, BUCKETS)
        self._errors = deque([0] * BUCKETS, BUCKETS)

    def knows_since(self, moment: float) -> None:
        """Note that what was written since then has been counted, too."""
        self._known_since = min(self._known_since, moment)

    def note(self, at: float, records: int, errors: int) -> None:
        """Count records that were written at a time not after the last :meth:`turn`."""
        place = int(at // BUCKET) - self._latest - 1
        if place >= -BUCKETS:
            self._records[min(place, -1)] += records
            self._errors[min(place, -1)] += errors

    def spread(self, since: float, now: float, records: int, errors: int) -> None:
        """Count records of which only is known between which looks they were written."""
        parts = int((now - since) // BUCKET) + 1
        for part in range(parts):
            share = _share(records, part, parts), _share(errors, part, parts)
            self.note(since + (now - since) * (part + 1) / parts, *share)

    def note_sample(self, at: float) -> None:
        """Note that what was counted then is an estimate."""
        self._sampled_at = at

    def turn(self, now: float) -> bool:
        """Begin a new bucket if it is time; say whether anything looks different now."""
        bucket = int(now // BUCKET)
        passed = bucket - self._latest
        if passed <= 0:
            return False
        busy = any(self._records)
        for _ in range(min(passed, BUCKETS)):
            self._records.append(0)
            self._errors.append(0)
        self._latest = bucket
        return busy

    @property
    def rates(self) -> tuple[int, ...]:
        """Records in each bucket, oldest first."""
        return tuple(self._records)

    @property
    def errors(self) -> int:
        """Error records in all buckets."""
        return sum(self._errors)

    def rate(self, now: float) -> float:
        """Records per second over the last minute, or since something is known."""
        into = now - self._latest * BUCKET
        full = int(MINUTE // BUCKET)
        oldest = self._records[-full - 1] * (1 - min(into / BUCKET, 1.0))
        count = sum(list(self._records)[-full:]) + oldest
        return count / max(SHORTEST, min(MINUTE, now - self._known_since))

    def is_estimated(self, now: float) -> bool:
        """Say whether an estimate is among what is counted."""
        return now - self._sampled_at < SPAN


def _share(count: int, part: int, parts: int) -> int:
    """Divide a count so that the parts add up to it."""
    return count * (part + 1) // parts - count * part // parts
