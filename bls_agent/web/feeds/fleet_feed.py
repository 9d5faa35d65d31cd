"""One watch of all projects for any number of wallboards."""

from __future__ import annotations

import anyio

from bls_agent.errors import RedisUnavailableError
from bls_agent.fleet import Fleet, FleetChange, ProjectView
from bls_agent.web.feeds.ring import Item
from bls_agent.web.feeds.shared_watch import SharedWatch
from bls_agent.web.pages.cards import encode_changes, encode_picture

__all__ = ["FleetFeed"]


class FleetFeed(SharedWatch):
    """What all projects look like, and what of that changes.

    Attributes:
        views: Project → how it is; as fresh as the watch.
    """

    def __init__(self, fleet: Fleet) -> None:
        """Remember what to watch."""
        super().__init__()
        self._fleet = fleet
        self._seen_at: dict[str, float] = {}
        self.views: dict[str, ProjectView] = {}

    async def aclose(self) -> None:
        """Close what the watch had opened."""
        await self._fleet.aclose()

    def seconds_since(self, project: str) -> float:
        """Tell how long ago a project was seen as it is: its view's ages are of then."""
        now = anyio.current_time()
        return now - self._seen_at.get(project, now)

    async def forget(self, project: str) -> None:
        """Leave out a project whose keys were deleted."""
        await self._fleet.forget(project)
        gone = frozenset({project})
        self._take(FleetChange(gone=gone, unavailable=self.unavailable), whole=False)

    def _write_picture(self) -> bytes:
        late = {name: self.seconds_since(name) for name in self.views}
        return encode_picture(self.views, self.unavailable, late)

    async def _watch_once(self) -> None:
        complete = False  # the first change that is no outage tells everything
        async for change in self._fleet.watch():
            self._take(change, whole=not complete)
            complete = complete or change.unavailable is None

    def _take_outage(self, error: RedisUnavailableError) -> None:
        self._take(FleetChange(unavailable=error), whole=False)

    def _take(self, change: FleetChange, *, whole: bool) -> None:
        if whole and change.unavailable is None:
            gone = self.views.keys() - change.views.keys()
            change = FleetChange(views=change.views, gone=frozenset(gone))
        self.unavailable = change.unavailable
        self.looked = self.looked or change.unavailable is None
        self.views.update(change.views)
        self._seen_at.update(dict.fromkeys(change.views, anyio.current_time()))
        for name in change.gone:
            self.views.pop(name, None)
            self._seen_at.pop(name, None)
        self._ring.add(Item(encode_changes(change)))
        self._seen.set()
