"""The console as an ASGI application: its parts, put together."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ExceptionHandler, Receive, Scope, Send

from bls_agent.assets.library import AssetLibrary
from bls_agent.console import Console
from bls_agent.crawl.overview import QueueOverview
from bls_agent.endpoint import Endpoint
from bls_agent.errors import BlsError, ConfigurationError
from bls_agent.fleet import Fleet
from bls_agent.keyed_wires import default_endpoint
from bls_agent.runs import EventStore
from bls_agent.web.configuration import WebConfig
from bls_agent.web.door.entrance import Entrance
from bls_agent.web.door.headers import with_headers
from bls_agent.web.door.limits import Bucket, Buckets, StreamQuota
from bls_agent.web.door.logins import log_in, log_out
from bls_agent.web.door.origins import HostRule
from bls_agent.web.door.refusals import is_data, refused
from bls_agent.web.door.sessions import Sessions
from bls_agent.web.door.users import Verifier
from bls_agent.web.feeds.asset_feed import AssetFeed
from bls_agent.web.feeds.crawl_feed import CrawlFeed
from bls_agent.web.feeds.fleet_feed import FleetFeed
from bls_agent.web.feeds.health import RedisHealth
from bls_agent.web.feeds.journal import Journal
from bls_agent.web.feeds.log_feeds import LogFeeds
from bls_agent.web.feeds.run_feed import RunFeed
from bls_agent.web.feeds.run_streams import all_runs_events, run_events
from bls_agent.web.feeds.streams import (
    asset_events,
    crawl_events,
    fleet_events,
    worker_events,
)
from bls_agent.web.feeds.webhook import Webhook
from bls_agent.web.feeds.worker_feed import WorkerFeed
from bls_agent.web.interface import api
from bls_agent.web.interface.answers import RETRY_AFTER, error_answer, status_of
from bls_agent.web.interface.inputs import FieldError
from bls_agent.web.pages import whole_pages
from bls_agent.web.state import WebState
from bls_agent.web.static import STATIC, CachedFiles
from bls_agent.workers import WorkerRegistry

__all__ = ["ConsoleApp", "create_app"]


class ConsoleApp(Starlette):
    """The application; every answer that leaves it carries the headers.

    Attributes:
        web: What its parts share; also ``app.state.web``.
    """

    web: WebState

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, with the headers on whatever is answered."""
        if scope["type"] == "http":
            send = with_headers(send)
        await super().__call__(scope, receive, send)

    def close_streams(self) -> None:
        """End every stream now: the server is about to stop."""
        self.web.closing.set()
        self.web.fleet.close()
        self.web.workers.close()
        self.web.run_list.close()
        self.web.assets.close()
        self.web.crawl.close()
        self.web.logs.close()


def create_app(config: WebConfig | None = None) -> ConsoleApp:
    """Make the console.

    Args:
        config: What it is told; by default a console of this machine alone.

    Raises:
        ConfigurationError: The URL or client of Redis cannot be used.
    """
    config = config or WebConfig()
    state = _make_state(config)
    app = ConsoleApp(
        routes=_routes(),
        middleware=[Middleware(Entrance, state=state)],
        exception_handlers=_handlers(),
        lifespan=_lifespan,
    )
    app.web = app.state.web = state
    return app


def _make_state(config: WebConfig) -> WebState:
    limits, redis = config.limits, config.redis
    endpoint = default_endpoint(os.environ) if redis is None else Endpoint.of(redis)
    address = re.sub(r"//[^/]*@", "//", endpoint.address)
    console, runs = Console(redis), EventStore(redis)
    fleet, counts = FleetFeed(Fleet(redis)), Counter[str]()
    webhook = None
    if config.webhook is not None:
        about = {"title": config.title, "redis": address}
        webhook = Webhook(config.webhook, about, counts)
    bound = "" if config.unix_socket else config.host
    return WebState(
        config=config,
        console=console,
        fleet=fleet,
        journal=Journal(fleet, [] if webhook is None else [webhook.put]),
        webhook=webhook,
        workers=WorkerFeed(WorkerRegistry(redis)),
        runs=runs,
        run_list=RunFeed(runs),
        assets=AssetFeed(AssetLibrary(redis)),
        crawl=CrawlFeed(QueueOverview(redis)),
        logs=LogFeeds(console),
        health=RedisHealth(console),
        sessions=Sessions(
            most=limits.sessions,
            idle=limits.session_idle,
            lifetime=limits.session_lifetime,
        ),
        verifier=(
            Verifier(config.users, at_once=limits.hashing) if config.users else None
        ),
        hosts=HostRule(bound, frozenset(map(str.lower, config.allowed_hosts))),
        requests=Buckets(limits.request_burst, limits.requests),
        commands=Buckets(limits.command_burst, limits.commands),
        logins=Buckets(limits.logins, 1 / 30),
        all_logins=Bucket(limits.all_logins, 1 / 2, limits.all_logins, 0.0),
        counts=counts,
        streams=StreamQuota(each=limits.user_streams, total=limits.streams),
        redis=address.removeprefix("redis://"),
    )


def _routes() -> list[BaseRoute]:
    return [
        Route("/events/fleet", fleet_events),
        Route("/events/workers", worker_events),
        Route("/events/assets", asset_events),
        Route("/events/crawl", crawl_events),
        Route("/events/runs", all_runs_events),
        Route("/events/runs/{run}", run_events),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
        *api.routes,
        *whole_pages.routes,
        Mount("/static", CachedFiles(directory=STATIC, check_dir=False)),
    ]


@asynccontextmanager
async def _lifespan(app: ConsoleApp) -> AsyncGenerator[None]:
    state = app.web
    try:
        async with anyio.create_task_group() as tasks:
            state.fleet.open(tasks)
            state.workers.open(tasks)
            state.run_list.open(tasks)
            state.assets.open(tasks)
            state.crawl.open(tasks)
            state.logs.open(tasks)
            tasks.start_soon(state.journal.run)
            if state.webhook is not None:
                tasks.start_soon(state.webhook.run)
            yield
            app.close_streams()
            tasks.cancel_scope.cancel()
    finally:
        with anyio.move_on_after(1, shield=True):
            await state.fleet.aclose()
            await state.workers.aclose()
            await state.runs.aclose()
            await state.assets.aclose()
            await state.crawl.aclose()
            await state.console.aclose()


def _handlers() -> Mapping[Any, ExceptionHandler]:
    return {
        HTTPException: _on_refusal,
        FieldError: _on_field_error,
        BlsError: _on_error_of_ours,
        ClientDisconnect: _on_gone,
        Exception: _on_surprise,
    }


async def _on_refusal(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 405 and request.method == "OPTIONS":  # noqa: PLR2004
        return Response(status_code=204, headers=error.headers)
    return refused(request, error)


async def _on_field_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, FieldError):
        raise error
    if is_data(request):
        return error_answer(400, "fields are wrong", fields=error.fields)
    return whole_pages.error_page(request, 400, detail=str(error))


async def _on_error_of_ours(request: Request, error: Exception) -> Response:
    if not isinstance(error, BlsError):
        raise error
    status = status_of(error)
    wait = RETRY_AFTER if status == 503 else 0  # noqa: PLR2004
    if is_data(request):
        fields = (
            {_FIELDS.get(error.name, error.name): error.rule}
            if isinstance(error, ConfigurationError)
            else None
        )
        return error_answer(status, str(error), fields=fields, wait=wait)
    answer = whole_pages.error_page(request, status, detail=str(error))
    if wait:
        answer.headers["retry-after"] = str(wait)
    return answer


_FIELDS = {"project": "targetProjectName"}


async def _on_gone(_: Request, __: Exception) -> Response:
    """Answer nobody, and log nothing: whoever hangs up must not fill a disk."""
    return Response(status_code=400)


async def _on_surprise(request: Request, _: Exception) -> Response:
    """Answer for a fault of our own; what it was stands in the log of the server."""
    if is_data(request):
        return error_answer(500, "something went wrong here; see the console's log")
    return whole_pages.error_page(request, 500)
