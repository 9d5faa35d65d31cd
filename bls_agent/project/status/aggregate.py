"""The status of this process: the worst of its sources."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from bls_agent.project.messages import Status

__all__ = ["StatusAggregator", "StatusCounts"]


class StatusAggregator:
    """The status of each source in this process; the worst one counts.

    A source other than the host only complains: while it is 在线 it adds nothing, so
    that a host that has set 离线 stays 离线.

    There is no lock on purpose. ``set_status`` and ``log.error`` may be called in a
    signal handler, a finaliser or a callback of the garbage collector, which interrupt
    any line here in the same thread: a lock that this thread holds already would never
    come free. So setting a status is one assignment of a key, which is atomic, and
    readers copy the whole first.
    """

    HOST: Final = "host"

    def __init__(self) -> None:
        self._sources: dict[str, tuple[Status, float]] = {
            self.HOST: (Status.ONLINE, math.inf)
        }

    def set(self, source: str, status: Status, *, until: float = math.inf) -> None:
        """Set a source's status until that monotonic second; from anywhere."""
        self._sources[source] = (status, until)

    def withdraw(self, source: str) -> None:
        """Remove a source; from anywhere, never waits."""
        self._sources.pop(source, None)

    def forget_sources(self) -> None:
        """Remove every source but the host."""
        for source in self._sources.copy():
            if source != self.HOST:
                self._sources.pop(source, None)

    def list_sources(self, now: float) -> dict[str, Status]:
        """Return source → its status now, in the order of the first status."""
        return {
            source: status if now < until else Status.ONLINE
            for source, (status, until) in self._sources.copy().items()
        }

    def worst_source(self, now: float) -> tuple[str, Status]:
        """Return the first source with the worst status, and the status."""
        sources = self.list_sources(now)
        worst = (self.HOST, sources[self.HOST])
        for source, status in sources.items():
            if status is not Status.ONLINE and status.severity > worst[1].severity:
                worst = (source, status)
        return worst

    def status(self, now: float) -> Status:
        """Return the worst of all sources at this moment."""
        return self.worst_source(now)[1]

    def next_change(self, now: float) -> float:
        """Return when a source next changes by itself, or infinity."""
        moments = [until for _, until in self._sources.copy().values()]
        return min(until for until in moments if until > now)


@dataclass
class StatusCounts:
    """How often the status was written, and could not be."""

    writes: int = 0
    failures: int = 0
