"""All projects: one watch for any number of wallboards, and the card of a project."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import anyio

from bls_agent.core.codec import JSONObject, JSONValue
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.ops.fleet import Condition, Fleet, FleetChange, ProjectView
from bls_agent.ops.terminal import visible
from bls_agent.ops.web.feeds.watch import SharedWatch, later, shorten
from bls_agent.ops.web.requests import project_of_path, project_path
from bls_agent.project.status.intake import describe_reports

LONGEST_STATUS: Final = 40  # characters of a value that is no status

KINDS: Final = tuple(condition.value for condition in Condition)


def make_card(view: ProjectView, elapsed: float = 0.0) -> JSONObject:
    """Make the card of a project that was read ``elapsed`` seconds ago.

    ``odd`` is the value of the status key if it is no status. ``intake`` has the
    processes that take no commands. ``queue`` is ``None`` if
    the key of the queue has a wrong type.
    """
    return {
        "path": project_path(view.project),
        "name": visible(view.project),
        "kind": view.condition.value,
        "presence": view.presence.value,
        "odd": visible(view.status_text[:LONGEST_STATUS]),
        "reason": shorten(view.reason),
        "age": later(view.age, elapsed),
        "age_known": view.age_exact,
        "ttl": later(view.ttl, -elapsed),
        "last": later(view.last_record_age, elapsed),
        "queue": view.queue,
        "intake": [_show_intake(one, elapsed) for one in describe_reports(view.intake)],
        "errors": view.errors,
        "rate": round(view.rate, 1),
        "rates": list(view.rates),
        "atLeast": view.at_least,
        "error": shorten(view.last_error.message) if view.last_error else "",
        "error_age": later(view.last_error_age, elapsed),
    }


def _show_intake(report: JSONObject, elapsed: float) -> JSONObject:
    instance, reason = visible(report["instance"]), shorten(report["reason"])
    age = later(report["age"], elapsed)
    return report | {"instance": instance, "reason": reason, "age": age}


class FleetFeed(SharedWatch[ProjectView]):
    """The cards of all projects, by the project's name, and changes of the cards."""

    kind = "cards"
    card_key = "path"
    project_of = staticmethod(project_of_path)

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._fleet = fleet

    def _card(self, thing: ProjectView, elapsed: float) -> JSONObject:
        return make_card(thing, elapsed)

    @staticmethod
    def place_of(card: JSONObject) -> tuple[int, str]:
        return KINDS.index(card["kind"]), card["name"]

    @property
    def outage(self) -> RedisUnavailableError | None:
        """The error of an outage; a read that lacks a permission is no outage."""
        return None if self.away == "no_permission" else self.unavailable

    async def forget(self, project: str) -> None:
        await self._fleet.forget(project)
        self._publish_all({}, {project})

    async def _watch_once(self) -> None:
        complete = False  # the first change without an outage holds all projects
        async for change in self._fleet.watch():
            self._take(change, whole=not complete)
            complete = complete or change.unavailable is None

    def _take(self, change: FleetChange, *, whole: bool) -> None:
        removed = change.removed
        if whole and change.unavailable is None:
            removed = frozenset(self.found.keys() - change.views.keys())
        self._record(change.unavailable, change.read_at)
        self._publish_all(change.views, removed, whole=whole)

    def _publish_all(
        self,
        views: Mapping[str, ProjectView],
        removed: Collection[str],
        **more: JSONValue,
    ) -> None:
        self.found.update(views)
        self._seen_at.update(dict.fromkeys(views, anyio.current_time()))
        for name in removed:
            self.found.pop(name, None)
            self._seen_at.pop(name, None)
        self._publish(views, map(project_path, removed), **more)
