"""How a request is turned away: as JSON where data was asked for, as a page elsewhere."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bls_agent.web.interface.answers import error_answer
from bls_agent.web.pages import whole_pages

__all__ = ["is_data", "refused", "route_path", "to_login"]


def route_path(request: Request) -> str:
    """Give the path behind what the proxy cut off."""
    path: str = request.scope["path"]
    root: str = request.scope.get("root_path", "")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def is_data(request: Request) -> bool:
    """Tell whether the path gives data and no page."""
    return route_path(request).startswith(("/api/", "/events/")) or (
        route_path(request) == "/api"
    )


def refused(request: Request, refusal: HTTPException) -> Response:
    """Answer what was turned away, as JSON or as a page."""
    status, headers = refusal.status_code, dict(refusal.headers or {})
    if is_data(request):
        return error_answer(status, refusal.detail, headers=headers)
    told = refusal.detail == HTTPStatus(status).phrase  # by the headline
    detail = "" if told else refusal.detail
    answer = whole_pages.error_page(request, status, detail=detail)
    answer.headers.update(headers)
    return answer


def to_login(request: Request) -> Response:
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
        return whole_pages.error_page(request, 401, detail="log in first")
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    target = path.decode("ascii", "replace")
    if request.scope["query_string"]:
        target += "?" + request.scope["query_string"].decode("ascii", "replace")
    return RedirectResponse(f"{login}?next={quote(target, safe='')}", 303)
