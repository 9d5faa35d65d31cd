"""Run events: written, replayed and followed.

The names below are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    from bls_agent.runs.writer import RunWriter, RunWriterStats

__all__ = [
    "EventAction",
    "EventCategory",
    "EventPage",
    "EventStore",
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
    "Follower": "follower",
    "NewEvent": "new_events",
    "RunList": "listing",
    "RunState": "listing",
    "RunSummary": "listing",
    "RunWriter": "writer",
    "RunWriterStats": "writer",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module; by default from ``events``."""
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    module = import_module(f"{__name__}.{_HOMES.get(name, 'events')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
