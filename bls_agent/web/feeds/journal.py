"""The journal: which status of which project changed when, since the console began."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from bls_agent.codec import JSONObject, format_timestamp
from bls_agent.errors import RedisUnavailableError
from bls_agent.fleet import Condition, ProjectView
from bls_agent.web.feeds.fleet_feed import FleetFeed
from bls_agent.web.names_in_urls import project_path

__all__ = ["Journal", "StatusChange"]

MOST: Final = 1_000  # changes that are kept
TICK: Final = 1.0  # seconds between two looks while nothing happens
GONE_FOR: Final = 5.0  # seconds for which a status is missing before that is a change
SETTLE: Final = 45.0  # seconds after an outage: services refresh every 30 s
MANY: Final = 2  # statuses that may vanish at once
ABSENT: Final = frozenset({Condition.STALE, Condition.NEVER})

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StatusChange:
    """One change.

    Attributes:
        number: Counts the changes of this console from 1.
        project: Whose status it is.
        before: What it was; ``None`` for a project that is new.
        after: What it is.
        at: Unix time by the clock of Redis, as far as it was watched.
    """

    number: int
    project: str
    before: Condition | None
    after: Condition
    at: float

    def to_dict(self) -> JSONObject:
        """Describe it for JSON."""
        name = self.project.encode("utf-8", "surrogateescape")
        return {
            "id": self.number,
            "projectName": name.decode("utf-8", "backslashreplace"),
            "path": project_path(self.project),
            "from": self.before and self.before.value,
            "to": self.after.value,
            "timestamp": format_timestamp(self.at),
        }


class Journal:
    """Watches the fleet from the beginning to the end of the console.

    What nobody knows is no change. While Redis is away nothing is noted, and for some
    time afterwards no status is called missing: after a restart of Redis all of them are,
    until their services refresh them. So it is when more than half of them vanish at once.

    Attributes:
        since: Unix time at which the console began.
        unavailable: Why Redis does not answer, ``None`` if it does.
    """

    def __init__(
        self,
        fleet: FleetFeed,
        tell: Sequence[Callable[[StatusChange], None]],
        clock: Callable[[], float] = time.time,  # noqa: TID251 - the outermost place
    ) -> None:
        """Begin with nothing.

        Args:
            fleet: What is watched.
            tell: Are given every change.
            clock: Gives Unix time.
        """
        self._fleet = fleet
        self._tell = tell
        self._known: dict[str, Condition] = {}
        self._missing: dict[str, float] = {}  # project → when its absence is believed
        self._begun = self._away = False
        self._settled_at = 0.0
        self._count = 0
        self._changes: deque[StatusChange] = deque(maxlen=MOST)
        self.since = clock()

    @property
    def unavailable(self) -> RedisUnavailableError | None:
        """Why Redis does not answer."""
        return self._fleet.unavailable

    @property
    def forgotten(self) -> int:
        """How many changes were noted and are not kept any more."""
        return self._count - len(self._changes)

    def changes(self, project: str, after: int, limit: int) -> list[StatusChange]:
        """Give the newest changes, newest last.

        Args:
            project: Whose; ``""`` for all.
            after: Only those with a higher number.
            limit: How many at most.
        """
        found = [
            change
            for change in self._changes
            if change.number > after and project in {"", change.project}
        ]
        return found[-limit:]

    async def run(self) -> None:
        """Watch until the console ends."""
        place = 0
        with self._fleet.wanted():
            while not self._fleet.closed:
                place = await self._fleet.wait(place, TICK)
                try:
                    self.look(anyio.current_time())
                except Exception:  # the console goes on, and somebody reads its log
                    logger.exception("the journal of status changes missed a look")

    def look(self, now: float) -> None:
        """Compare what the fleet looks like with what was noted."""
        if self._fleet.unavailable is not None:
            self._away = True
        elif self._fleet.looked:
            if self._away:
                self._away, self._settled_at = False, now + SETTLE
                self._missing.clear()
            self._compare(self._fleet.views, now)

    def _compare(self, views: Mapping[str, ProjectView], now: float) -> None:
        lost = [name for name, view in views.items() if self._is_lost(name, view)]
        if len(lost) > max(MANY, len(self._known) // 2):
            self._settled_at = now + SETTLE  # Redis has forgotten them, not they us
        for project, view in views.items():
            before, after = self._known.get(project), view.condition
            if after is before:
                self._missing.pop(project, None)
            elif before is None and (not self._begun or after in ABSENT):
                self._meet(project, after, now)
            elif before is None and now < self._settled_at:
                self._known[project] = after
            elif after not in ABSENT or self._is_gone(project, now):
                self._note(project, before, view)
        for project in self._known.keys() - views.keys():
            del self._known[project]
            self._missing.pop(project, None)
        self._begun = True

    def _meet(self, project: str, condition: Condition, now: float) -> None:
        """Begin with what is there; what an outage hides is not known yet."""
        if condition not in ABSENT or now >= self._settled_at:
            self._known[project] = condition

    def _is_lost(self, project: str, view: ProjectView) -> bool:
        """Tell a status that was there at the look before and is not any more."""
        known = self._known.get(project, Condition.NEVER)
        new = project not in self._missing
        return new and view.condition in ABSENT and known not in ABSENT

    def _is_gone(self, project: str, now: float) -> bool:
        due = max(now + GONE_FOR, self._settled_at)
        return now >= self._missing.setdefault(project, due)

    def _note(self, project: str, before: Condition | None, view: ProjectView) -> None:
        self._missing.pop(project, None)
        self._known[project] = view.condition
        self._count += 1
        change = StatusChange(
            number=self._count,
            project=project,
            before=before,
            after=view.condition,
            at=view.changed_at,
        )
        self._changes.append(change)
        for tell in self._tell:
            tell(change)
