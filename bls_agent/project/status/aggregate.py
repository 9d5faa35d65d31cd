"""The status of this process: the worst of what its sources say (contract 002, 2.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from bls_agent.project.messages import Status

__all__ = ["StatusAggregator", "StatusCounts"]


class StatusAggregator:
    """What each source says of the state of this process; the worst one counts.

    A source other than the host only complains: while it says 在线 it adds nothing, so
    that a host that has set 离线 stays 离线.

    There is no lock on purpose. ``set_status`` and ``log.error`` may be called in a
    signal handler, a finaliser or a callback of the garbage collector, which interrupt
    any line here in the same thread: a lock that this thread holds already would never
    come free. So to set a status is one assignment of a key, which is atomic and loses
    no other source's, and to read them the whole is copied first.
    """

    HOST: Final = "host"

    def __init__(self) -> None:
        self._sources: dict[str, tuple[Status, float]] = {
            self.HOST: (Status.ONLINE, math.inf)
        }

    def set(self, source: str, status: Status, *, until: float = math.inf) -> None:
        """Set what a source says, until that monotonic second; from anywhere."""
        self._sources[source] = (status, until)

    def withdraw(self, source: str) -> None:
        """Remove a source; from anywhere, never waits."""
        self._sources.pop(source, None)

    def forget_sources(self) -> None:
        """Begin afresh: only what the host has set still stands."""
        for source in self._sources.copy():
            if source != self.HOST:
                self._sources.pop(source, None)

    def list_sources(self, now: float) -> dict[str, Status]:
        """Give what each source says at this moment, in the order of their first status."""
        return {
            source: status if now < until else Status.ONLINE
            for source, (status, until) in self._sources.copy().items()
        }

    def worst_source(self, now: float) -> tuple[str, Status]:
        """Give the source with the worst status, the first of several, and the status."""
        sources = self.list_sources(now)
        worst = (self.HOST, sources[self.HOST])
        for source, status in sources.items():
            if status is not Status.ONLINE and status.severity > worst[1].severity:
                worst = (source, status)
        return worst

    def status(self, now: float) -> Status:
        """Give the worst of all sources at this moment."""
        return self.worst_source(now)[1]

    def next_change(self, now: float) -> float:
        """Give the next moment at which a source changes by itself, or infinity."""
        moments = [until for _, until in self._sources.copy().values()]
        return min(until for until in moments if until > now)


@dataclass
class StatusCounts:
    """What the reporter did."""

    writes: int = 0
    failures: int = 0
