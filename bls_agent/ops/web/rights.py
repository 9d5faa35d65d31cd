"""Roles of users, and the table of the roles that all routes need. No I/O.

A user has roles, each for all projects or for the projects that a glob matches. Every
request passes :func:`authorize`, which refuses a route without a row in ``RIGHTS``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import Scope

from bls_agent.core.errors import ConfigurationError
from bls_agent.crawl.overview import Namespace
from bls_agent.ops.terminal import visible
from bls_agent.ops.web.requests import project_in_path

ALL: Final = "*"
MORE_METHODS: Final = {"HEAD": "GET"}  # answered by the handler of another method


class Role(IntEnum):
    """What a user may do; each role may also do what the roles above it may do."""

    NOBODY = 0
    VIEWER = 1  # sees
    OPERATOR = 2  # sends, withdraws and requeues
    ADMIN = 3  # deletes projects, cleans queues

    @property
    def word(self) -> str:
        return self.name.lower()


class About(Enum):
    """The projects for which a user needs the role of a route."""

    NOTHING = "nothing"  # nobody needs a role, nor a login
    SEEN = "seen"  # any project; the handler leaves out those of others
    PROJECT = "project"  # the project in the path, or ``projectName`` in the query
    BODY = "body"  # the project in the body; the handler calls check_project
    QUEUE = "queue"  # the project of the crawl queue in the path
    EVERYTHING = "everything"  # all projects, because the things belong to no project


class Right(NamedTuple):
    """The role that a route needs, and for which projects."""

    role: Role
    about: About


OPEN: Final = Right(Role.NOBODY, About.NOTHING)
SEE_OWN: Final = Right(Role.VIEWER, About.SEEN)
SEE_PROJECT: Final = Right(Role.VIEWER, About.PROJECT)
SEE_QUEUE: Final = Right(Role.VIEWER, About.QUEUE)
SEE_ALL: Final = Right(Role.VIEWER, About.EVERYTHING)
OPERATE_PROJECT: Final = Right(Role.OPERATOR, About.PROJECT)
OPERATE_QUEUE: Final = Right(Role.OPERATOR, About.QUEUE)
ADMIN_PROJECT: Final = Right(Role.ADMIN, About.PROJECT)

RIGHTS: Final[Mapping[str, Right]] = {
    "GET /login": OPEN,
    "POST /login": OPEN,
    "GET /static": OPEN,
    "GET /api/health": OPEN,
    "POST /logout": SEE_OWN,
    "GET /api/openapi.json": SEE_OWN,
    # Projects
    "GET /": SEE_OWN,
    "GET /events/fleet": SEE_OWN,
    "GET /api/projects": SEE_OWN,
    "GET /changes": SEE_OWN,
    "GET /api/changes": SEE_OWN,
    "GET /projects/{project}": SEE_PROJECT,
    "GET /api/projects/{project}": SEE_PROJECT,
    "DELETE /api/projects/{project}": ADMIN_PROJECT,
    "POST /fragments/forget": ADMIN_PROJECT,
    "GET /fragments/card": SEE_PROJECT,
    "GET /fragments/instances": SEE_PROJECT,
    "GET /api/logs": SEE_PROJECT,
    "GET /api/logs/stream": SEE_PROJECT,
    # Commands
    "GET /api/commands": SEE_PROJECT,
    "POST /api/commands": Right(Role.OPERATOR, About.BODY),
    "DELETE /api/commands": OPERATE_PROJECT,
    "GET /api/in-hand": SEE_PROJECT,
    "GET /api/dead-letters": SEE_PROJECT,
    "POST /api/dead-letters/requeue": OPERATE_PROJECT,
    "DELETE /api/dead-letters": ADMIN_PROJECT,
    "POST /fragments/dead/requeue": OPERATE_PROJECT,
    "POST /fragments/dead/discard": ADMIN_PROJECT,
    "GET /fragments/queue": SEE_PROJECT,
    "POST /fragments/withdraw": OPERATE_PROJECT,
    "GET /fragments/commands": OPERATE_PROJECT,
    "POST /fragments/help": OPERATE_PROJECT,
    "POST /fragments/review": OPERATE_PROJECT,
    "POST /fragments/send": OPERATE_PROJECT,
    # Crawl queues
    "GET /crawl": SEE_OWN,
    "GET /events/crawl": SEE_OWN,
    "GET /api/crawl": SEE_OWN,
    "GET /crawl/{queue}": SEE_QUEUE,
    "GET /fragments/crawl/{queue}": SEE_QUEUE,
    "GET /fragments/failed/{queue}": SEE_QUEUE,
    "POST /fragments/requeue/{queue}": OPERATE_QUEUE,
    # Things that belong to no project
    "GET /workers": SEE_ALL,
    "GET /events/workers": SEE_ALL,
    "GET /api/workers": SEE_ALL,
    "GET /tasks": SEE_ALL,
    "GET /fragments/tasks": SEE_ALL,
    "GET /api/tasks": SEE_ALL,
    "GET /runs": SEE_ALL,
    "GET /runs/{run}": SEE_ALL,
    "GET /events/runs": SEE_ALL,
    "GET /events/runs/{run}": SEE_ALL,
    "GET /api/runs": SEE_ALL,
    "GET /api/runs/{run}": SEE_ALL,
    "GET /api/runs/{run}/events": SEE_ALL,
    "GET /assets": SEE_ALL,
    "GET /assets/{asset}": SEE_ALL,
    "GET /fragments/assets": SEE_ALL,
    "GET /fragments/assets/{asset}": SEE_ALL,
    "GET /events/assets": SEE_ALL,
    "GET /api/assets": SEE_ALL,
    "GET /api/assets/{asset}": SEE_ALL,
}


@dataclass(frozen=True)
class Grants:
    """The roles of one user: pairs of a role and a glob of projects."""

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
        return self._highest(lambda glob: glob == ALL)

    @property
    def somewhere(self) -> Role:
        return self._highest(bool)

    def of(self, project: str) -> Role:
        return self._highest(lambda glob: fnmatchcase(project, glob))

    def _highest(self, takes: Callable[[str], bool]) -> Role:
        found = (role for role, glob in self.pairs if takes(glob))
        return max(found, default=Role.NOBODY)

    def sees(self, project: str) -> bool:
        return self.of(project) >= Role.VIEWER


NO_ROLE: Final = Grants()
EVERY_ROLE: Final = Grants(((Role.ADMIN, ALL),))  # of a user whose line names no role


class RoleError(HTTPException):
    """The user lacks a role for a project, for all projects (``*``) or for any."""

    def __init__(self, role: Role, project: str = "") -> None:
        self.role, self.project = role, project
        named = f"the project {visible(project)}" if project else "the project"
        place = "all projects" if project == ALL else named
        super().__init__(403, f"this needs the role {role.word} for {place}")


def route_name(method: str, path: str) -> str:
    """Return the name of a route in the table, such as ``GET /projects/{project}``."""
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
    """Return whether a page that this request shows may have a button for a path."""
    place = {"type": "http", "path": path.partition("?")[0], "root_path": ""}
    right, _ = find_right(request, {**place, "method": "POST"})
    return right is not None and request.state.role >= right.role


def authorize(request: Request, right: Right, parts: Mapping[str, str]) -> None:
    """Raise ``RoleError`` if the user lacks the right; store the user's role."""
    request.state.right = right
    match right.about:
        case About.NOTHING | About.SEEN | About.BODY:
            request.state.role = request.state.grants.somewhere
        case About.EVERYTHING:
            request.state.role = request.state.grants.everywhere
        case About.PROJECT:
            check_role(request, project_in_path(request.scope))
        case About.QUEUE:
            queue = Namespace.parse(parts["queue"])
            check_role(request, queue.project)
    if request.state.role < right.role:
        whole = right.about is About.EVERYTHING
        raise RoleError(right.role, ALL if whole else "")


def check_role(request: Request, project: str) -> None:
    """Raise ``RoleError`` if the user lacks the role of this route for a project."""
    request.state.role = request.state.grants.of(project)
    if request.state.role < request.state.right.role:
        raise RoleError(request.state.right.role, project)
