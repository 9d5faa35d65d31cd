"""Which project a request speaks of."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request

from bls_agent.web.interface.inputs import FieldError
from bls_agent.web.state import web_state

__all__ = ["check_project", "existing_project", "is_known"]

LONGEST = 512  # bytes


async def existing_project(request: Request, project: str) -> str:
    """Give the name of a project that there is.

    Raises:
        FieldError: There is no name, or it can be none.
        HTTPException: 404, there is no such project.
        RedisUnavailableError: Redis cannot answer.
    """
    if not await is_known(request, project):
        raise HTTPException(404, "there is no such project")
    return project


async def is_known(request: Request, project: str) -> bool:
    """Tell whether a project has any of its three keys at this moment.

    Raises:
        FieldError: There is no name, or it can be none.
        RedisUnavailableError: Redis cannot answer.
    """
    check_project(request, project)
    return await web_state(request).console.exists(project)


def check_project(request: Request, project: str) -> None:
    """Refuse what cannot be a project's name.

    Raises:
        FieldError: There is no name, or it can be none.
        RedisUnavailableError: The watch knows that Redis does not answer.
    """
    if not project:
        raise FieldError({"projectName": "it is missing"})
    if len(project.encode("utf-8", "surrogateescape")) > LONGEST:
        raise FieldError({"projectName": f"it has at most {LONGEST} bytes"})
    web_state(request).fleet.check()  # not everybody has to wait for what it knows
