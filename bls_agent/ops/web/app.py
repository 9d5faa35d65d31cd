"""The console as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from bls_agent.core.errors import BlsError, ConfigurationError, RedisRefusedError
from bls_agent.ops.web.api import api_routes
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.metrics import metrics_routes
from bls_agent.ops.web.middleware import (
    SecurityMiddleware,
    login_routes,
    refuse_request,
)
from bls_agent.ops.web.pages.listings import listing_routes
from bls_agent.ops.web.pages.projects import project_routes
from bls_agent.ops.web.pages.queue import queue_routes
from bls_agent.ops.web.pages.rendering import STATIC, CachedFiles, refuse_with
from bls_agent.ops.web.requests import RETRY_AFTER, FieldError, status_of
from bls_agent.ops.web.security import with_headers
from bls_agent.ops.web.state import WebState
from bls_agent.ops.web.streams import stream_routes


class ConsoleApp(Starlette):
    """The application of the console; each response has the security headers."""

    web: WebState

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            send = with_headers(send)
        await super().__call__(scope, receive, send)

    def close_streams(self) -> None:
        for watch in self.web.watches:
            watch.close()
        self.web.logs.close()


def create_app(config: WebConfig | None = None) -> ConsoleApp:
    """Create the ASGI application of the console.

    Args:
        config: The options; by default, a console for this machine only.

    Raises:
        ConfigurationError: The URL or client of Redis cannot be used.
    """
    state = WebState(config or WebConfig())
    app = ConsoleApp(
        routes=[
            *stream_routes,
            *login_routes,
            *api_routes,
            *metrics_routes,
            *project_routes,
            *queue_routes,
            *listing_routes,
            Mount("/static", CachedFiles(directory=STATIC, check_dir=False)),
        ],
        middleware=[Middleware(SecurityMiddleware, state=state)],
        exception_handlers=_HANDLERS,
        lifespan=_lifespan,
    )
    app.web = app.state.web = state
    return app


@asynccontextmanager
async def _lifespan(app: ConsoleApp) -> AsyncGenerator[None]:
    state = app.web
    try:
        async with anyio.create_task_group() as tasks:
            for watch in state.watches:
                watch.open(tasks)
            state.logs.open(tasks)
            tasks.start_soon(state.journal.run)
            if state.webhook is not None:
                tasks.start_soon(state.webhook.run)
            if state.kept is not None:
                tasks.start_soon(state.kept.run)
            yield
            app.close_streams()
            tasks.cancel_scope.cancel()
    finally:
        with anyio.move_on_after(1, shield=True):
            for watch in state.watches:
                await watch.aclose()
            await state.console.aclose()
            if state.kept is not None:
                await state.kept.aclose()


async def _on_refusal(request: Request, error: HTTPException) -> Response:
    if error.status_code == 405 and request.method == "OPTIONS":  # noqa: PLR2004
        return Response(status_code=204, headers=error.headers)
    return refuse_request(request, error)


async def _on_field_error(request: Request, error: FieldError) -> Response:
    reason = "fields are wrong"
    return refuse_with(request, 400, reason, shown=str(error), fields=error.fields)


async def _on_error_of_ours(request: Request, error: BlsError) -> Response:
    fields: dict[str, str] = {}
    if isinstance(error, ConfigurationError):
        name = "targetProjectName" if error.name == "project" else error.name
        fields[name] = error.rule
    status = status_of(error)
    headers = {"retry-after": RETRY_AFTER} if status == 503 else None  # noqa: PLR2004
    refused = isinstance(error, RedisRefusedError)
    return refuse_with(
        request, status, str(error), fields=fields, headers=headers, refused=refused
    )


async def _on_gone(_: Request, __: Exception) -> Response:
    """Log nothing, because clients that disconnect could fill the disk with log lines."""
    return Response(status_code=400)


async def _on_surprise(request: Request, _: Exception) -> Response:
    """Return 500 for an unexpected error; uvicorn logs the traceback."""
    reason = "something went wrong here; see the console's log"
    return refuse_with(request, 500, reason, shown="")


_HANDLERS: Final[Mapping[Any, Any]] = {
    HTTPException: _on_refusal,
    FieldError: _on_field_error,
    BlsError: _on_error_of_ours,
    ClientDisconnect: _on_gone,
    Exception: _on_surprise,
}
