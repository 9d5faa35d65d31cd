"""Logging in and out: few attempts, the same time for each, a new session every time."""

from __future__ import annotations

import logging
import math
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from bls_agent.ops.terminal import visible
from bls_agent.ops.web.auth import BusyError, cookie_name
from bls_agent.ops.web.pages.rendering import render, texts_of
from bls_agent.ops.web.requests import read_form
from bls_agent.ops.web.security import local_target
from bls_agent.ops.web.state import WebState, client_address, is_secure, web_state

__all__ = ["attempt", "login_routes"]

logger = logging.getLogger(__name__)


async def attempt(
    state: WebState,
    request: Request,
    user: str,
    password: str,
    *,
    program: bool = False,
) -> bool:
    """Check a name and a password, if this address may still try; 429 or 503 if it may not.

    A ``program`` sends them with every request: what was right a moment ago is believed.
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


async def _log_in(request: Request) -> Response:
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
        answer = _login_page(request, failed=True, wait=wait, next_path=target)
        answer.status_code = refusal.status_code
        answer.headers.update(refusal.headers or {})
        return answer
    if not right:
        answer = _login_page(request, failed=True, next_path=target)
        answer.status_code = 401
        return answer
    _end_session(request)
    token = state.sessions.start(user, state.now())
    answer = RedirectResponse(target, 303)
    _set_cookie(request, answer, token)
    return answer


async def _log_out(request: Request) -> Response:
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


async def _show_login(request: Request) -> Response:
    """Ask for the password."""
    root: str = request.scope.get("root_path", "")
    wanted = request.query_params.get("next", "")
    return _login_page(request, next_path=local_target(wanted, default=f"{root}/"))


def _login_page(
    request: Request, *, failed: bool = False, wait: float = 0, next_path: str = "/"
) -> Response:
    """Ask for the password, or say for how many seconds no other one is looked at."""
    texts = texts_of(request)
    complaint = texts["login_failed"] if failed else ""
    if wait:
        complaint = texts["login_wait"].format(seconds=math.ceil(wait))
    status = 429 if wait else 401 if failed else 200
    return render(
        request, "login.html", status, complaint=complaint, next_path=next_path
    )


login_routes: Final = [
    Route("/login", _log_in, methods=["POST"]),
    Route("/logout", _log_out, methods=["POST"]),
    Route("/login", _show_login),
]
