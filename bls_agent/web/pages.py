"""Stand-in until the pages are there."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

__all__ = ["error_page", "login_page", "routes"]


def error_page(
    request: Request, status: int, *, name: str = "", detail: str = ""
) -> Response:
    return HTMLResponse(f"<!doctype html><title>{status}</title>", status)


def login_page(
    request: Request, *, failed: bool = False, wait: float = 0, next_path: str = "/"
) -> Response:
    return HTMLResponse("<!doctype html><title>login</title>")


async def wallboard(request: Request) -> Response:
    return HTMLResponse("<!doctype html><title>bls-agent</title>")


async def login(request: Request) -> Response:
    return login_page(request)


routes: list[BaseRoute] = [Route("/", wallboard), Route("/login", login)]
