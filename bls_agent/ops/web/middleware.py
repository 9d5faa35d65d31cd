"""What every request has to pass before anything answers it: sizes, names, origins, rates, users."""

from __future__ import annotations

import base64
import binascii
import math
from http import HTTPStatus
from urllib.parse import quote

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bls_agent.ops.web.auth import cookie_name
from bls_agent.ops.web.pages.login import attempt
from bls_agent.ops.web.pages.rendering import error_page
from bls_agent.ops.web.requests import error_answer, is_data, media_type, route_path
from bls_agent.ops.web.security import (
    NOT_JSON,
    SAFE_METHODS,
    Provenance,
    group_address,
    refuse,
)
from bls_agent.ops.web.state import WebState, client_address, is_secure, requester

__all__ = ["SecurityMiddleware", "refuse_request"]


def refuse_request(request: Request, refusal: HTTPException) -> Response:
    """Answer what was turned away, as JSON or as a page."""
    status, headers = refusal.status_code, dict(refusal.headers or {})
    if is_data(request):
        return error_answer(status, refusal.detail, headers=headers)
    told = refusal.detail == HTTPStatus(status).phrase  # by the headline
    detail = "" if told else refusal.detail
    answer = error_page(request, status, detail=detail)
    answer.headers.update(headers)
    return answer


def _to_login(request: Request) -> Response:
    """Send to the login: people by a redirection, programs by a 401."""
    if is_data(request):
        browser = "sec-fetch-mode" in request.headers  # it would ask by itself
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


OPEN_TO_ALL = frozenset({"/login", "/api/health"})
MISDIRECTED = 421
CLOSE = {"connection": "close"}
_SINGLE = ("origin", "sec-fetch-site", "sec-fetch-mode", "content-type")
_FORWARDED = ("x-forwarded-for", "x-forwarded-host", "x-real-ip", "forwarded", "via")


class SecurityMiddleware:
    """Turns requests away, and finds the user of those that pass.

    What passes has ``request.state.user`` (``""`` without users), ``.session``,
    ``.client`` (the address) and ``.sent_by`` (what is recorded with a command).
    """

    def __init__(self, app: ASGIApp, state: WebState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or turn it away."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        request.state.user, request.state.session = "", None
        request.state.client = group_address(client_address(request))
        request.state.sent_by = f"local@{client_address(request)}"
        try:
            answer = await self._check(request)
        except HTTPException as refusal:
            self._state.counts[f"refused_{refusal.status_code}"] += 1
            answer = refuse_request(request, refusal)
        if answer is not None:
            await answer(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    async def _check(self, request: Request) -> Response | None:
        """Check everything, or raise; an answer of its own sends to the login."""
        self._check_size(request)
        self._check_names(request)
        self._check_origin(request)
        self._find_session(request)
        wait = self._state.requests.take(requester(request), self._state.now())
        if wait:
            raise HTTPException(429, "too many requests", {"retry-after": "1"})
        await self._log_program_in(request)
        if self._may_pass(request):
            return None
        return _to_login(request)

    def _check_size(self, request: Request) -> None:
        limits, scope = self._state.config.limits, request.scope
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        if len(path) + len(scope["query_string"]) > limits.url:
            raise HTTPException(414, "the address is too long")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > (
            limits.headers
        ):
            raise HTTPException(431, "the headers are too long")
        length = request.headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            raise HTTPException(400, "Content-Length is no length")
        bodiless = request.method in SAFE_METHODS
        chunked = "transfer-encoding" in request.headers
        if chunked and "content-length" in request.headers:
            # A proxy may have taken the other one for the end (request smuggling).
            raise HTTPException(400, "the length of the body is told twice", CLOSE)
        if bodiless and (int(length[:15]) or chunked):
            raise HTTPException(400, "such a request has no body", CLOSE)
        if len(length) > 15 or int(length) > limits.body:  # noqa: PLR2004 - digits
            raise HTTPException(413, f"a body has at most {limits.body} bytes")

    def _check_names(self, request: Request) -> None:
        """Refuse a foreign name that points here (DNS rebinding)."""
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
        for name in _SINGLE:
            if len(headers.getlist(name)) > 1:
                raise HTTPException(400, f"{name} is told more than once", CLOSE)
        told = Provenance(
            method=request.method,
            own=f"{request.scope['scheme']}://{headers['host']}",
            origin=headers.get("origin"),
            site=headers.get("sec-fetch-site"),
            mode=headers.get("sec-fetch-mode"),
            json=media_type(request) == "application/json",
            data=is_data(request),
        )
        reason = refuse(told)
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
        """Take name and password of a program, which keeps no cookie."""
        told = _read_basic(request.headers)
        if request.state.user or told is None or not is_data(request):
            return
        if self._state.verifier is not None and await attempt(
            self._state, request, *told, program=True
        ):
            self._set_user(request, told[0])

    def _set_user(self, request: Request, user: str) -> None:
        request.state.user = user
        request.state.sent_by = f"{user}@{client_address(request)}"

    def _may_pass(self, request: Request) -> bool:
        path = route_path(request)
        is_open = path in OPEN_TO_ALL or path.startswith("/static/")
        return is_open or not self._state.config.users or bool(request.state.user)

    def _limited(self, receive: Receive) -> Receive:
        """Count the bytes of a body as they come, and do not wait for ever for them."""
        limits = self._state.config.limits
        limit, seen, until = limits.body, 0, 0.0

        async def receive_limited() -> Message:
            nonlocal seen, until
            until = until or anyio.current_time() + limits.stall  # for all of it
            with anyio.CancelScope(deadline=until):
                message = await receive()
                if not message.get("more_body", False):
                    until = math.inf  # what comes now is the end of the connection
                seen += len(message.get("body", b""))
                return check(message)
            raise HTTPException(408, "the body did not come", CLOSE)

        def check(message: Message) -> Message:
            if seen > limit:
                raise HTTPException(413, f"a body has at most {limit} bytes", CLOSE)
            return message

        return receive_limited


def _read_basic(headers: Headers) -> tuple[str, str] | None:
    """Read name and password of HTTP's Basic scheme."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    user, colon, password = text.partition(":")
    return (user, password) if colon else None
