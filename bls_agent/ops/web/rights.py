"""Roles of users, and the table of the roles that all routes need. No I/O.

Each role of a user is for all projects, or for the projects that a glob matches. For
every request, :func:`find_right` finds the row of ``RIGHTS``, and refuses a route without
a row. Then :func:`authorize` checks the user's roles.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from fnmatch import fnmatchcase
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import Scope

from bls_agent.core.errors import ConfigurationError
from bls_agent.crawl.overview import Namespace
from bls_agent.ops.terminal import visible
from bls_agent.ops.web.requests import project_in_path

ALL: Final = "*"
MORE_METHODS: Final = {"HEAD": "GET"}  # the route of GET also handles HEAD


class Role(IntEnum):
    """What a user may do. A higher role includes the lower roles."""

    NOBODY = 0
    VIEWER = 1  # may read
    OPERATOR = 2  # may send, withdraw and requeue commands
    ADMIN = 3  # may delete projects and dead letters

    @property
    def word(self) -> str:
        return self.name.lower()


class About(Enum):
    """The projects for which a user needs the role of a route."""

    NOTHING = "nothing"  # no role and no login is necessary
    SEEN = "seen"  # at least one; the handler leaves out projects without the role
    PROJECT = "project"  # the project in the path, or ``projectName`` in the query
    BODY = "body"  # the project in the body; the handler calls check_project
    QUEUE = "queue"  # the project of the crawl queue in the path
    EVERYTHING = "everything"  # all projects, because workers and so on have no project


class Right(Enum):
    """The role that a route needs, and for which projects."""

    OPEN = Role.NOBODY, About.NOTHING
    SEE_OWN = Role.VIEWER, About.SEEN
    SEE_PROJECT = Role.VIEWER, About.PROJECT
    SEE_QUEUE = Role.VIEWER, About.QUEUE
    SEE_ALL = Role.VIEWER, About.EVERYTHING
    OPERATE_PROJECT = Role.OPERATOR, About.PROJECT
    OPERATE_IN_BODY = Role.OPERATOR, About.BODY
    OPERATE_QUEUE = Role.OPERATOR, About.QUEUE
    ADMIN_PROJECT = Role.ADMIN, About.PROJECT

    def __init__(self, role: Role, about: About) -> None:
        self.role: Role = role
        self.about: About = about


_TABLE: Final = """
OPEN             GET /login, POST /login, GET /static, GET /api/health
SEE_OWN          POST /logout, GET /api/openapi.json
SEE_OWN          GET /, GET /events/fleet, GET /api/projects
SEE_OWN          GET /changes, GET /api/changes
SEE_OWN          GET /crawl, GET /events/crawl, GET /api/crawl
SEE_OWN          GET /metrics
SEE_PROJECT      GET /projects/{project}, GET /api/projects/{project}
SEE_PROJECT      GET /fragments/card, GET /fragments/instances
SEE_PROJECT      GET /api/logs, GET /api/logs/stream
SEE_PROJECT      GET /fragments/queue, GET /api/commands
SEE_PROJECT      GET /api/in-hand, GET /api/dead-letters
OPERATE_PROJECT  GET /fragments/commands, POST /fragments/help
OPERATE_PROJECT  POST /fragments/review, POST /fragments/send
OPERATE_IN_BODY  POST /api/commands
OPERATE_PROJECT  POST /fragments/withdraw, DELETE /api/commands
OPERATE_PROJECT  POST /fragments/dead/requeue, POST /api/dead-letters/requeue
ADMIN_PROJECT    POST /fragments/dead/discard, DELETE /api/dead-letters
ADMIN_PROJECT    POST /fragments/forget
SEE_QUEUE        GET /crawl/{queue}, GET /fragments/crawl/{queue}
SEE_QUEUE        GET /fragments/failed/{queue}
OPERATE_QUEUE    POST /fragments/requeue/{queue}
SEE_ALL          GET /workers, GET /events/workers, GET /api/workers
SEE_ALL          GET /tasks, GET /fragments/tasks, GET /api/tasks
SEE_ALL          GET /runs, GET /events/runs, GET /api/runs
SEE_ALL          GET /runs/{run}, GET /events/runs/{run}, GET /api/runs/{run}
SEE_ALL          GET /api/runs/{run}/events
SEE_ALL          GET /assets, GET /events/assets, GET /api/assets
SEE_ALL          GET /assets/{asset}, GET /api/assets/{asset}
SEE_ALL          GET /fragments/assets, GET /fragments/assets/{asset}
"""
RIGHTS: Final[Mapping[str, Right]] = {
    route: Right[right]
    for right, routes in (row.split(maxsplit=1) for row in _TABLE.strip().splitlines())
    for route in routes.split(", ")
}


@dataclass(frozen=True)
class Grants:
    """The roles of one user, as pairs of a role and a glob for project names."""

    pairs: tuple[tuple[Role, str], ...] = ()

    @classmethod
    def parse(cls, place: str, text: str) -> Grants:
        """Read words such as ``viewer`` and ``operator=batch/*``.

        Raises ``ConfigurationError``, which names the ``place`` of a wrong word.
        """
        pairs: list[tuple[Role, str]] = []
        for word in text.split() or [text]:
            name, equals, glob = word.partition("=")
            known = {role.word: role for role in Role if role}
            if name not in known or (equals and not glob):
                rule = (
                    f"a role is one of {', '.join(known)}, with =GLOB for some projects"
                )
                raise ConfigurationError(place, word, rule, "Try operator=batch/*.")
            pairs.append((known[name], unicodedata.normalize("NFC", glob or ALL)))
        return cls(tuple(pairs))

    @property
    def everywhere(self) -> Role:
        """The role for all projects, and for things that belong to no project."""
        return self.of("")  # only stars match the empty name

    @property
    def somewhere(self) -> Role:
        return max((role for role, _ in self.pairs), default=Role.NOBODY)

    def of(self, project: str) -> Role:
        found = (role for role, glob in self.pairs if fnmatchcase(project, glob))
        return max(found, default=Role.NOBODY)

    def sees(self, project: str) -> bool:
        return self.of(project) >= Role.VIEWER


NO_ROLE: Final = Grants()
EVERY_ROLE: Final = Grants(((Role.ADMIN, ALL),))  # of a user whose line names no role


class RoleError(HTTPException):
    """The user lacks a role for a project, or for all projects (``""``)."""

    def __init__(self, role: Role, project: str) -> None:
        self.role: Role = role
        self.project: str = project
        place = f"the project {visible(project)}" if project else "all projects"
        super().__init__(403, f"this needs the role {role.word} for {place}")


def route_name(method: str, path: str) -> str:
    plain = re.sub(r":\w+}", "}", path)
    return f"{MORE_METHODS.get(method, method)} {plain}"


def find_right(
    request: Request, scope: Scope
) -> tuple[Right | None, Mapping[str, str]]:
    """Return the right that a request needs, and the parts of its path.

    Returns ``None`` if no route takes the request. Raises 403 for a route without a row
    in the table.
    """
    for route in request.app.routes:
        match, found = route.matches(scope)
        if match is Match.FULL:
            method = scope["method"] if isinstance(route, Route) else "GET"
            name = route_name(method, route.path)
            if name not in RIGHTS:
                raise HTTPException(403, f"{name} has no row in the table of rights")
            return RIGHTS[name], found.get("path_params", {})
    return None, {}


def may_post(request: Request, path: str) -> bool:
    """Return whether the user may post to ``path``, so that a page shows the button."""
    place = {"type": "http", "path": path.partition("?")[0], "root_path": ""}
    right, _ = find_right(request, {**place, "method": "POST"})
    return right is not None and request.state.role >= right.role


def authorize(request: Request, right: Right, parts: Mapping[str, str]) -> None:
    """Raise ``RoleError`` if the user lacks the right; store the user's role."""
    request.state.right = right
    match right.about:
        case About.PROJECT:
            check_role(request, project_in_path(request.scope))
        case About.QUEUE:
            check_role(request, Namespace.parse(parts["queue"]).project)
        case About.EVERYTHING:
            check_role(request, "")
        case _:
            request.state.role = request.state.grants.somewhere
            if request.state.role < right.role:
                raise RoleError(right.role, "")


def check_role(request: Request, project: str) -> None:
    """Raise ``RoleError`` if the user lacks the role of this route for a project."""
    request.state.role = request.state.grants.of(project)
    if request.state.role < request.state.right.role:
        raise RoleError(request.state.right.role, project)
