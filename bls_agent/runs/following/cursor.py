"""Up to where a follower has read, and what is known of that place; no I/O here."""

from __future__ import annotations

from typing import Final

from bls_agent.runs.event_ids import BEGINNING, END, EventId
from bls_agent.runs.events import StreamEvent
from bls_agent.runs.following.gaps import Opening, continues, sequence_of

__all__ = ["Cursor"]

DOUBT: Final = 5.0  # seconds for a writer to tell by its next event what was lost
MEANWHILE: Final = 0.1  # seconds from one look at what others have read to the next
LONGEST: Final = 5.0  # the same at most: it doubles while nothing changes


class Cursor:
    """Where a follower stands: what it is given next stands behind this place.

    Attributes:
        id: The place; ``$`` until the end of the run was looked up.
        known: The sequence there, or where it stood before it had to go back; ``None``
            if nobody knows.
        is_event: Whether an event surely stood there once.
        closes: Whether that one has ended the run.
        was_there: Whether the run ever was, as far as we know.
        doubt_until: How long the writer has to tell what the server has forgotten;
            ``None`` as long as it knows the place.
        odd_until: When to look again if others stand elsewhere still; ``None`` as long
            as we stand where they do.
    """

    __slots__ = (
        "_meanwhile",
        "closes",
        "doubt_until",
        "id",
        "is_event",
        "known",
        "odd_until",
        "was_there",
    )

    def __init__(self, last_id: EventId) -> None:
        """Stand behind an id that was given from outside; ``$`` for the end."""
        self.id = last_id
        self.known: int | None = 0 if last_id == BEGINNING else None
        self.is_event = True
        self.closes = False
        self.was_there = last_id not in (BEGINNING, END)
        self.doubt_until: float | None = None
        self.odd_until: float | None = None
        self._meanwhile = MEANWHILE

    @property
    def in_doubt(self) -> bool:
        """Whether the server has forgotten where we stood, and nothing came since."""
        return self.doubt_until is not None

    def note(self, event: StreamEvent) -> None:
        """Go behind an event; all who follow come here for each, so it has to be short."""
        self.id, self.known = event.id, sequence_of(event)
        self.closes, self.is_event, self.was_there = event.closes, True, True
        self.doubt_until = self.odd_until = None

    def go_to_end(self, last: StreamEvent | None) -> None:
        """Go behind the last event of the run, if it has one."""
        if last is None:
            self.id = BEGINNING
        else:
            self.note(last)

    def open(self, opening: Opening) -> None:
        """Begin as was judged from what Redis tells about the place."""
        self.id, self.known = opening.place, opening.known
        self.is_event, self.closes = opening.is_event, opening.closes

    def go_back(self, place: EventId, now: float) -> None:
        """Go to the end that is there: the server has forgotten where we stood."""
        self.id = place
        self.doubt_until = now + DOUBT

    def misses_nothing(self, first: StreamEvent) -> bool:
        """Tell whether an event is surely the next one, or the first that we are given."""
        is_fresh = self.id == BEGINNING and self.known is None
        is_begin = is_fresh and not self.in_doubt
        return is_begin or continues(self.known, first)

    def is_odd(self, now: float) -> bool:
        """Tell whether we stand where others do not for so long that it has to be looked.

        Mostly one of us has only read earlier. But perhaps the server has forgotten
        what it has told: then nothing would ever come behind our place.
        """
        if self.odd_until is None:
            self._meanwhile, self.odd_until = MEANWHILE, now + MEANWHILE
            return False
        if now < self.odd_until:
            return False
        self._meanwhile = min(2 * self._meanwhile, LONGEST)
        self.odd_until = now + self._meanwhile
        return True
