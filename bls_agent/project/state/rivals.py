"""Whether somebody else refreshes a status key that ought to be ours alone.

Decisions only; what came back from Redis is given by ``status_writer.py``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["Glance", "Rivals"]

SLACK: Final = 0.1  # seconds by which two clocks may have drifted since the last write
SIGHTINGS: Final = 2  # in a row; one may be a server whose clock was set back


class Glance(NamedTuple):
    """What stood under the key in the moment before we wrote.

    Attributes:
        asked: Monotonic seconds before the request left.
        answered: Monotonic seconds when the reply was there.
        place: Which connection it was: another one may lead to a server that forgot.
        value: The value; ``None`` if there was none, or if nobody told.
        remaining: Milliseconds until it would have vanished, as PTTL says it (-1 for
            never, -2 for no key); ``None`` if nobody told.
    """

    asked: float
    answered: float
    place: int
    value: bytes | None = None
    remaining: int | None = None


class _Written(NamedTuple):
    value: bytes
    ttl: float
    at: float
    place: int
    epoch: int


class Rivals:
    """Compares what stands under the key with what we have written there.

    Only what came between two of our own writes, both answered, over one connection,
    can be somebody else's: neither a predecessor's last word nor a doubtful write of
    our own, nor what a server brings back from a former time.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._written: _Written | None = None
        self._late = 0
        self._epoch = 0
        self._paused = False

    @property
    def epoch(self) -> int:
        """Changes when somebody in this process begins or ceases to write as well."""
        return self._epoch

    def pause(self) -> None:
        """See nothing from now on: this process writes over another connection, too."""
        self._epoch += 1
        self._paused = True

    def resume(self) -> None:
        """Begin afresh: nothing of the other connection can arrive any more."""
        self._epoch += 1
        self._paused = False

    def forget(self) -> None:
        """Begin afresh, after a write of which nobody knows whether it arrived."""
        self._written = None
        self._late = 0

    def note(self, glance: Glance, value: bytes, ttl: float, epoch: int) -> bool:
        """Note a write of ours and tell whether it met somebody else's.

        Args:
            glance: What stood there before.
            value: What we wrote.
            ttl: Seconds it lives.
            epoch: :attr:`epoch` when the request was made.
        """
        found = self._meets(glance, epoch)
        ours = epoch == self._epoch and not self._paused
        self._written = (
            _Written(value, ttl, glance.answered, glance.place, epoch) if ours else None
        )
        return found

    def _meets(self, glance: Glance, epoch: int) -> bool:
        before = self._written
        if (
            before is None
            or self._paused
            or (before.place, before.epoch) != (glance.place, self._epoch)
            or epoch != self._epoch
        ):
            self._late = 0
            return False
        if glance.value is not None and glance.value != before.value:
            return True
        self._late = self._late + 1 if _outlasts(glance, before) else 0
        return self._late >= SIGHTINGS


def _outlasts(glance: Glance, before: _Written) -> bool:
    """Tell whether the key would have lived longer than our own write allows."""
    if glance.remaining is None or glance.remaining == -2:  # noqa: PLR2004 - no key
        return False
    if glance.remaining < 0:
        return True
    longest = before.at + before.ttl - glance.asked
    return glance.remaining / 1000 > longest + SLACK
