"""The checks that every request has to pass, the login and the logout."""

from __future__ import annotations

import base64
import binascii
import logging
import math
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bls_agent.ops.terminal import visible
from bls_agent.ops.web.auth import cookie_name, hash_token
from bls_agent.ops.web.pages.rendering import error_page, refuse_with, render, texts_of
from bls_agent.ops.web.requests import error_answer, is_data, media_type, read_form
from bls_agent.ops.web.rights import (
    EVERY_ROLE,
    NO_ROLE,
    Right,
    Role,
    RoleError,
    authorize,
    find_right,
)
from bls_agent.ops.web.security import NOT_JSON, SAFE_METHODS, local_target, refuse
from bls_agent.ops.web.state import WebState, is_secure, requester, web_state

logger: logging.Logger = logging.getLogger(__name__)


def refuse_request(request: Request, refusal: HTTPException) -> Response:
    status, reason = refusal.status_code, refusal.detail
    shown = "" if reason == HTTPStatus(status).phrase else reason  # the heading has it
    needs = ""
    if isinstance(refusal, RoleError):
        texts, needs = texts_of(request), refusal.role.word
        place = refusal.project or texts["all_projects"]
        shown = texts["needs_role"].format(role=needs, project=place)
    return refuse_with(
        request, status, reason, shown=shown, needs=needs, headers=refusal.headers
    )


def _to_login(request: Request) -> Response:
    """Redirect people to the login page; return 401 to programs."""
    if is_data(request):
        browser = "sec-fetch-mode" in request.headers  # for Basic, it opens a dialog
        scheme = "Session" if browser else 'Basic realm="bls-agent", charset="UTF-8"'
        headers = {"www-authenticate": scheme}
        return error_answer(401, "log in first", headers=headers)
    login = f"{request.scope.get('root_path', '')}/login"
    if "hx-request" in request.headers:
        return Response(status_code=401, headers={"hx-redirect": login})
    if request.method != "GET":
        return error_page(request, 401, detail="log in first")
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    target = path.decode("ascii", "replace")
    if request.scope["query_string"]:
        target += "?" + request.scope["query_string"].decode("ascii", "replace")
    return RedirectResponse(f"{login}?next={quote(target, safe='')}", 303)


MISDIRECTED = 421
CLOSE = {"connection": "close"}
_FORWARDED = ("x-forwarded-for", "x-forwarded-host", "x-real-ip", "forwarded", "via")


class SecurityMiddleware:
    """Refuses requests, and finds the user of each accepted request.

    An accepted request has ``request.state.user`` (``""`` without users), ``.grants``
    (the user's roles), ``.role`` (the role for the request's project), ``.session``,
    ``.client`` (the address) and ``.sent_by`` (for the audit record of a command).
    """

    def __init__(self, app: ASGIApp, state: WebState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        request.state.session = None
        request.state.client = request.client.host if request.client else ""
        self._set_user(request, "")
        try:
            answer = await self._check(request)
        except HTTPException as refusal:
            self._state.counts[f"refused_{refusal.status_code}"] += 1
            answer = refuse_request(request, refusal)
        if answer is not None:
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _check(self, request: Request) -> Response | None:
        """Raise an error to refuse a request; return a response to ask for a login."""
        self._check_size(request)
        self._check_names(request)
        self._check_origin(request)
        self._find_session(request)
        wait = self._state.requests.take(requester(request), self._state.now())
        if wait:
            raise HTTPException(429, "too many requests", {"retry-after": "1"})
        await self._log_program_in(request)
        right, parts = find_right(request, request.scope)
        if (
            right is not Right.OPEN
            and self._state.config.users
            and not request.state.user
        ):
            return _to_login(request)
        if right is not None:
            authorize(request, right, parts)
        return None

    def _check_size(self, request: Request) -> None:
        """Refuse a body that is too long.

        uvicorn has already checked that the body is as long as ``Content-Length``.
        """
        limit = self._state.config.limits.body
        if "transfer-encoding" in request.headers:
            raise HTTPException(411, "a body needs its Content-Length", CLOSE)
        length = int(request.headers.get("content-length", "0"))
        if length and request.method in SAFE_METHODS:
            raise HTTPException(400, "such a request has no body", CLOSE)
        if length > limit:
            raise HTTPException(413, f"a body has at most {limit} bytes")

    def _check_names(self, request: Request) -> None:
        """Refuse a ``Host`` that is not ours (DNS rebinding).

        Also refuse a request from a proxy if there are no users.
        """
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self._state.hosts.allows(hosts[0]):
            detail = "this console does not go by that name; see --allowed-host"
            raise HTTPException(MISDIRECTED, detail)
        if not self._state.config.users and any(
            name in request.headers for name in _FORWARDED
        ):
            detail = "a proxy makes this console known to others: it needs users"
            raise HTTPException(403, detail)

    def _check_origin(self, request: Request) -> None:
        headers = request.headers
        reason = refuse(
            request.method,
            f"{request.scope['scheme']}://{headers['host']}",
            origin=headers.get("origin"),
            site=headers.get("sec-fetch-site"),
            mode=headers.get("sec-fetch-mode"),
            json=media_type(request) == "application/json",
            data=is_data(request),
        )
        if reason:
            untyped = reason == NOT_JSON and request.method == "POST"
            raise HTTPException(415 if untyped else 403, reason)

    def _find_session(self, request: Request) -> None:
        token = request.cookies.get(cookie_name(secure=is_secure(request)))
        if not token or not self._state.config.users:
            return
        session = self._state.sessions.find(token, self._state.now())
        if session is not None:
            request.state.session = session
            self._set_user(request, session.user)

    async def _log_program_in(self, request: Request) -> None:
        """Find the user of a program by its token, or by its name and password.

        Programs send these with each request, because they keep no cookie.
        """
        if request.state.user or not is_data(request):
            return
        state, token = self._state, _read_credentials(request.headers, "bearer")
        if token:
            self._set_user(request, state.names_by_hash.get(hash_token(token), ""))
            state.counts["logins_failed"] += not request.state.user
            return
        credentials = _read_basic(request.headers)
        if credentials is None:
            return
        token = "\0".join(("basic", *credentials))  # no cookie has a NUL
        session = state.sessions.find(token, state.now())
        if session is None:
            if not await _check_password(state, request, *credentials):
                return
            state.sessions.start(credentials[0], state.now(), token)
        self._set_user(request, credentials[0])

    def _set_user(self, request: Request, user: str) -> None:
        users = self._state.config.users
        known = users.get(user)
        request.state.user, request.state.role = user, Role.NOBODY
        request.state.grants = (
            known.grants if known else NO_ROLE if users else EVERY_ROLE
        )
        request.state.sent_by = f"{user or 'local'}@{request.state.client}"


def _read_credentials(headers: Headers, scheme: str) -> str:
    found, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if found.lower() == scheme else ""


def _read_basic(headers: Headers) -> tuple[str, str] | None:
    try:
        value = _read_credentials(headers, "basic")
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    user, colon, password = text.partition(":")
    return (user, password) if colon else None


async def _check_password(
    state: WebState, request: Request, user: str, password: str
) -> bool:
    """Check a name and a password; raise 429 if this address has to wait.

    Each attempt is counted before its password is verified, so that many attempts at the
    same time are refused, too.
    """
    verifier, client, now = state.verifier, request.state.client, state.now()
    if verifier is None:
        return False
    wait = state.logins.take(client, now) or state.all_logins.take("", now)
    if wait:
        state.counts["logins_refused"] += 1
        headers = {"retry-after": str(math.ceil(wait))}
        raise HTTPException(429, "too many logins failed", headers)
    right = await verifier.check(user, password)
    if right:
        state.logins.give_back(client)
        state.all_logins.give_back("")
    else:
        state.counts["logins_failed"] += 1
        shown = visible(user[:80])
        logger.warning("login of %s from %s failed", shown, request.state.client)
    return right


async def _log_in(request: Request) -> Response:
    state, form = web_state(request), await read_form(request)
    root = request.scope.get("root_path", "")
    target = local_target(form.get("next", ""), default=f"{root}/")
    if state.verifier is None:
        return RedirectResponse(target, 303)
    user, password = form.get("user", ""), form.get("password", "")
    if not await _check_password(state, request, user, password):
        return _login_page(request, target, 401)
    _end_session(request)
    token = state.sessions.start(user, state.now())
    answer = RedirectResponse(target, 303)
    _set_cookie(request, answer, token)
    return answer


async def _log_out(request: Request) -> Response:
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
    """Set the session's cookie; an empty token deletes it."""
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
    root: str = request.scope.get("root_path", "")
    wanted = request.query_params.get("next", "")
    return _login_page(request, local_target(wanted, default=f"{root}/"))


def _login_page(request: Request, target: str, status: int = 200) -> Response:
    complaint = "" if status == 200 else texts_of(request)["login_failed"]  # noqa: PLR2004
    return render(request, "login.html", status, complaint=complaint, next_path=target)


login_routes: Final = [
    Route("/login", _log_in, methods=["POST"]),
    Route("/logout", _log_out, methods=["POST"]),
    Route("/login", _show_login),
]
