"""Where to go on when the server has forgotten what was read: where the common past ends.

A server that took over from another one may lack the last events, and its clock may be
behind: what is written there then gets ids below those that were read. All that stands
behind the newest event that we know is new.
"""

from __future__ import annotations

from collections.abc import Sequence

from bls_agent.runs.event_ids import BEGINNING, EventId
from bls_agent.runs.events import StreamEvent
from bls_agent.runs.following.gaps import sequence_of
from bls_agent.runs.reading import RunReader

__all__ = ["begins_anew", "find_end_of_past"]


async def find_end_of_past(
    reader: RunReader, past: Sequence[Sequence[EventId]]
) -> EventId | None:
    """Find the newest of the events that we know.

    Args:
        reader: Of the run.
        past: Ids of events that stood one behind the other; the newest ones first.

    Returns:
        ``None`` if none of them is there.

    Raises:
        RedisUnavailableError: Redis cannot answer.
    """
    for known in past:
        page = await reader.read(known[0], "+", len(known))
        there = {event.id for event in page.events}
        for event_id in reversed(known):
            if event_id in there or event_id == BEGINNING:
                return event_id
    return None


def begins_anew(first: StreamEvent | None, origin: EventId | None) -> bool:
    """Tell whether a run that holds nothing we know is all new.

    Args:
        first: Its oldest event; ``None`` if it has none.
        origin: Id of the oldest event before; ``None`` if nobody has looked.
    """
    if first is None:
        return True
    return origin not in (None, first.id) and sequence_of(first) == 1
