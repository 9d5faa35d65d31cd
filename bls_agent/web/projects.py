"""Which project a request speaks of."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request

from bls_agent.web.interface.inputs import FieldError
from bls_agent.web.state import web_state

__all__ = ["existing_project"]

LONGEST = 512  # bytes


async def existing_project(request: Request, project: str) -> str:
    """Give the name of a project that there is.

    Raises:
        FieldError: There is no name, or it can be none.
        HTTPException: 404, there is no such project.
        RedisUnavailableError: Redis cannot answer.
    """
    if not project:
        raise FieldError({"projectName": "it is missing"})
    if len(project.encode("utf-8", "surrogateescape")) > LONGEST:
        raise FieldError({"projectName": f"it has at most {LONGEST} bytes"})
    state = web_state(request)
    state.fleet.check()  # not everybody has to wait for what the watch knows
    if not await state.directory.knows(project):
        raise HTTPException(404, "there is no such project")
    return project
