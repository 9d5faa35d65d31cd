"""The watch of all projects, and the card of a project."""

from __future__ import annotations

from typing import Final

from bls_agent.core.codec import JSONObject
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.ops.fleet import Condition, Fleet, ProjectView
from bls_agent.ops.terminal import visible
from bls_agent.ops.web.feeds.watch import Currency, SharedWatch, rounded, shorten
from bls_agent.ops.web.requests import project_of_path, project_path
from bls_agent.project.status.intake import describe_reports

LONGEST_STATUS: Final = 40  # characters of a value that is no status

KINDS: Final = tuple(condition.value for condition in Condition)


def make_card(view: ProjectView, elapsed: float = 0.0) -> JSONObject:
    """Make the card of a project that was read ``elapsed`` seconds ago.

    ``odd`` is the value of the status key if it is no valid status. ``turned`` is the
    number of seconds since the last change of the status. ``intake`` contains the
    processes that take no commands.
    """
    view = view.aged(elapsed)
    return {
        "path": project_path(view.project),
        "name": visible(view.project),
        "kind": view.condition.value,
        "presence": view.presence.value,
        "odd": visible(view.status_text[:LONGEST_STATUS]),
        "reason": shorten(view.reason),
        "turned": rounded(view.turned_age),
        "age": rounded(view.age),
        "age_known": view.age_exact,
        "last": rounded(view.last_record_age),
        "queue": view.queue,
        "dead_letters": view.dead_letters,
        "intake": [_show_intake(one) for one in describe_reports(view.intake)],
        "errors": view.errors,
        "rate": round(view.rate, 1),
        "rates": list(view.rates),
        "atLeast": view.at_least,
        "error": shorten(view.last_error.message) if view.last_error else "",
        "error_age": rounded(view.last_error_age),
    }


def _show_intake(report: JSONObject) -> JSONObject:
    instance, reason = visible(report["instance"]), shorten(report["reason"])
    return report | {"instance": instance, "reason": reason}


class FleetFeed(SharedWatch[ProjectView]):
    """The watch of all projects; their names are the keys of ``found``."""

    kind = "cards"
    card_key = "path"

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._fleet = fleet

    def _card(self, thing: ProjectView, elapsed: float) -> JSONObject:
        return make_card(thing, elapsed)

    @staticmethod
    def card_key_of(name: str) -> str:
        return project_path(name)

    @staticmethod
    def project_of(card_key: str) -> str:
        return project_of_path(card_key)

    @staticmethod
    def place_of(card: JSONObject) -> tuple[int, str]:
        return KINDS.index(card["kind"]), card["name"]

    @property
    def outage(self) -> RedisUnavailableError | None:
        """The error during an outage; a missing permission is no outage."""
        return self.unavailable if self.currency is Currency.AWAY else None

    async def forget(self, project: str) -> None:
        """Forget what was read; the next read publishes that the project is gone."""
        await self._fleet.forget(project)

    async def _watch_once(self) -> None:
        views: dict[str, ProjectView] = {}  # the first change contains all projects
        async for change in self._fleet.watch():
            if change.unavailable is not None:
                self._take_outage(change.unavailable)
                continue
            views.update(change.views)
            for name in change.removed:
                views.pop(name, None)
            self._replace(views, read_at=change.read_at)
