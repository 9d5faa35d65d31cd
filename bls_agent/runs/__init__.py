"""Writes, reads and follows run events.

A *run* is one execution of a long task, and its events report the progress. Python
imports the module of a name below when a program first uses the name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bls_agent.core import lazy

if TYPE_CHECKING:
    from bls_agent.runs.events import (
        EventAction,
        EventCategory,
        Followed,
        FollowEnd,
        Gap,
        GapReason,
        StreamEvent,
        WriterLost,
    )
    from bls_agent.runs.follower import Follower
    from bls_agent.runs.listing import RunList, RunState, RunSummary
    from bls_agent.runs.new_events import NewEvent
    from bls_agent.runs.store import EventPage, EventStore
    from bls_agent.runs.tally import EventStoreStats
    from bls_agent.runs.writer import RunWriter, RunWriterStats

__all__ = [
    "EventAction",
    "EventCategory",
    "EventPage",
    "EventStore",
    "EventStoreStats",
    "FollowEnd",
    "Followed",
    "Follower",
    "Gap",
    "GapReason",
    "NewEvent",
    "RunList",
    "RunState",
    "RunSummary",
    "RunWriter",
    "RunWriterStats",
    "StreamEvent",
    "WriterLost",
]

_HOMES = {
    "EventPage": "store",
    "EventStore": "store",
    "EventStoreStats": "tally",
    "Follower": "follower",
    "NewEvent": "new_events",
    "RunList": "listing",
    "RunState": "listing",
    "RunSummary": "listing",
    "RunWriter": "writer",
    "RunWriterStats": "writer",
}

if not TYPE_CHECKING:  # type checkers use the imports above, and report other names
    __getattr__, __dir__ = lazy.names(__name__, __all__, _HOMES, "events")
