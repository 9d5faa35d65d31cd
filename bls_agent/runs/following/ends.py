"""Why following a run has ended; no I/O here."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["FollowEnd"]


class FollowEnd(StrEnum):
    """Why a follower has ended.

    Attributes:
        CLOSED: The run's writer has ended it: ``system.close``.
        GONE: The run has disappeared: it was deleted, or has expired.
        LEFT: The follower or its store was closed here; the run may go on.
    """

    CLOSED = "closed"
    GONE = "gone"
    LEFT = "left"
