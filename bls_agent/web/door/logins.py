"""Logging in and out: few attempts, the same time for each, a new session every time."""

from __future__ import annotations

import logging
import math

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bls_agent.terminal import visible
from bls_agent.web.door.origins import local_target
from bls_agent.web.door.sessions import cookie_name
from bls_agent.web.door.users import BusyError
from bls_agent.web.interface.inputs import read_form
from bls_agent.web.pages import whole_pages
from bls_agent.web.state import WebState, client_address, is_secure, web_state

__all__ = ["attempt", "log_in", "log_out"]

logger = logging.getLogger(__name__)


async def attempt(
    state: WebState,
    request: Request,
    user: str,
    password: str,
    *,
    program: bool = False,
) -> bool:
    """Check a name and a password, if this address may still try.

    Args:
        state: Of the console.
        request: Who tries.
        user: The name.
        password: The password.
        program: Whether it is sent with every request: what was right a moment ago
            is believed.

    Raises:
        HTTPException: 429, too many attempts failed; 503, too many are made now.
    """
    verifier, client, now = state.verifier, request.state.client, state.now()
    if verifier is None:
        return False
    if program and verifier.was_right(user, password, now):
        return True
    wait = state.logins.take(client, now) or state.all_logins.take(now)
    if wait:
        state.counts["logins_refused"] += 1
        headers = {"retry-after": str(math.ceil(wait))}
        raise HTTPException(429, "too many logins failed", headers)
    try:
        right = await verifier.check(user, password)
    except BusyError:
        state.logins.give_back(client)
        state.all_logins.give_back()
        headers = {"retry-after": "2"}
        raise HTTPException(503, "too many logins at once", headers) from None
    if right:
        state.logins.give_back(client)
        state.all_logins.give_back()
        if program:
            verifier.remember(user, password, now)
    else:
        state.counts["logins_failed"] += 1
        shown = visible(user[:80])
        logger.warning("login of %s from %s failed", shown, client_address(request))
    return right


async def log_in(request: Request) -> Response:
    """``POST /login``: begin a session, and go where the user wanted to."""
    state, form = web_state(request), await read_form(request)
    root = request.scope.get("root_path", "")
    target = local_target(form.get("next", ""), default=f"{root}/")
    if state.verifier is None:
        return RedirectResponse(target, 303)
    try:
        user = form.get("user", "")
        right = await attempt(state, request, user, form.get("password", ""))
    except HTTPException as refusal:
        wait = float((refusal.headers or {}).get("retry-after", "0"))
        answer = whole_pages.login_page(
            request, failed=True, wait=wait, next_path=target
        )
        answer.status_code = refusal.status_code
        answer.headers.update(refusal.headers or {})
        return answer
    if not right:
        answer = whole_pages.login_page(request, failed=True, next_path=target)
        answer.status_code = 401
        return answer
    _end_session(request)
    token = state.sessions.start(user, state.now())
    answer = RedirectResponse(target, 303)
    _set_cookie(request, answer, token)
    return answer


async def log_out(request: Request) -> Response:
    """``POST /logout``: end the session, and what is open in it."""
    _end_session(request)
    root = request.scope.get("root_path", "")
    answer = RedirectResponse(f"{root}/login", 303)
    _set_cookie(request, answer, "")
    answer.headers["clear-site-data"] = '"cache"'
    return answer


def _end_session(request: Request) -> None:
    token = request.cookies.get(cookie_name(secure=is_secure(request)))
    if token:
        web_state(request).sessions.end(token)


def _set_cookie(request: Request, answer: Response, token: str) -> None:
    """Set the session's cookie; an empty one takes it away."""
    secure = is_secure(request)
    answer.set_cookie(
        cookie_name(secure=secure),
        token,
        max_age=None if token else 0,
        path="/" if secure else request.scope.get("root_path") or "/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
