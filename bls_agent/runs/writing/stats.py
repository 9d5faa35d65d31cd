"""A snapshot of every counter and state of a writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["RunWriterStats"]


@dataclass(frozen=True, kw_only=True)
class RunWriterStats:
    """Every counter and state of a :class:`~bls_agent.runs.RunWriter` at one moment.

    ``accepted == written + sum(dropped.values()) + queued``; its own events, as
    ``lifecycle.started``, are counted in.

    Attributes:
        run_id: The run.
        open: Whether events are taken.
        is_owner: Whether the run is surely ours, to be ended by us.
        accepted: Events ever emitted.
        written: Of these, those that stand in Redis; merged ones each for themselves.
        dropped: Reason → events given up: ``buffer_full``; ``shutdown``: they could not
            be written before the end; ``not_open``, ``closed``, ``forked``: emitted at
            the wrong time or place; ``fault``: a fault of ours.
        queued: Events that wait or are on their way.
        queued_bytes: Their bytes, about.
        cut: Events whose data were longer than ``event_size_limit``.
        merged: Pieces of a text that were written within the event of another one.
        resent: Events that were sent again because no answer had come; Redis tells those
            that it had written from the others.
    """

    run_id: int
    open: bool
    is_owner: bool
    accepted: int
    written: int
    dropped: Mapping[str, int]
    queued: int
    queued_bytes: int
    cut: int
    merged: int
    resent: int
