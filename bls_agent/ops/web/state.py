"""The shared state of the running console, and its questions about a request."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections import Counter
from typing import Final

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request

from bls_agent.assets.library import AssetLibrary
from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.pool import default_endpoint
from bls_agent.console import Console
from bls_agent.core.errors import (
    ContractError,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.crawl.overview import QueueOverview
from bls_agent.ops.fleet import Fleet
from bls_agent.ops.web.auth import Sessions, Verifier
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.feeds.assets import AssetFeed
from bls_agent.ops.web.feeds.changes import Journal, Webhook
from bls_agent.ops.web.feeds.crawl import CrawlFeed
from bls_agent.ops.web.feeds.fleet import FleetFeed
from bls_agent.ops.web.feeds.logs import LogFeeds
from bls_agent.ops.web.feeds.runs import RunFeed
from bls_agent.ops.web.feeds.watch import SharedWatch
from bls_agent.ops.web.feeds.workers import WorkerFeed
from bls_agent.ops.web.help import HelpCache
from bls_agent.ops.web.requests import FieldError
from bls_agent.ops.web.security import Bucket, Buckets, HostRule, StreamQuota
from bls_agent.runs import EventStore
from bls_agent.workers import WorkerRegistry

__all__ = [
    "WebState",
    "_RedisHealth",
    "check_project",
    "client_address",
    "existing_project",
    "is_known",
    "is_secure",
    "requester",
    "web_state",
]

FRESH: Final = 1.0  # seconds for which an answer of Redis is believed
LONGEST: Final = 512  # bytes of a project's name


class _RedisHealth:
    """Asks Redis, at most once a second, for the status of a random project."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._project = f"health-{secrets.token_hex(4)}"
        self._lock = anyio.Lock()
        self._at = float("-inf")
        self._fault: RedisUnavailableError | None = None

    async def fault(self) -> RedisUnavailableError | None:
        async with self._lock:
            if anyio.current_time() - self._at > FRESH:
                self._fault = await self._find_fault()
                self._at = anyio.current_time()
            return self._fault

    async def _find_fault(self) -> RedisUnavailableError | None:
        try:
            await self._console.status(self._project)
        except RedisRefusedError as error:
            # Redis answers, even if our user may not read this one key.
            return None if error.kind == "no_permission" else error
        except RedisUnavailableError as error:
            return error
        except ContractError:
            return None
        return None


class WebState:
    """The state of one running console."""

    def __init__(self, config: WebConfig) -> None:
        limits, redis = config.limits, config.redis
        endpoint = default_endpoint(os.environ) if redis is None else Endpoint.of(redis)
        address = re.sub(r"//[^/]*@", "//", endpoint.address)
        self.config = config
        self.redis = address.removeprefix("redis://")  # without credentials
        self.counts = Counter[str]()  # what was refused and dropped
        self.started = time.monotonic()
        self.closing = anyio.Event()
        self.console, self.store = Console(redis), EventStore(redis)
        self.health = _RedisHealth(self.console)
        self.fleet = FleetFeed(Fleet(redis))
        self.workers = WorkerFeed(WorkerRegistry(redis))
        self.runs = RunFeed(self.store)
        self.assets = AssetFeed(AssetLibrary(redis))
        self.crawl = CrawlFeed(QueueOverview(redis))
        self.logs = LogFeeds(self.console)
        self.webhook: Webhook | None = None
        if config.webhook is not None:
            about = {"title": config.title, "redis": address}
            self.webhook = Webhook(config.webhook, about, self.counts)
        listeners = [] if self.webhook is None else [self.webhook.put]
        self.journal = Journal(self.fleet, listeners)
        self.manuals = HelpCache()
        self.sessions = Sessions(
            most=limits.sessions,
            idle=limits.session_idle,
            lifetime=limits.session_lifetime,
        )
        self.verifier = (
            Verifier(config.users, at_once=limits.hashing) if config.users else None
        )
        bound = "" if config.unix_socket else config.host
        self.hosts = HostRule(bound, frozenset(map(str.lower, config.allowed_hosts)))
        self.requests = Buckets(limits.request_burst, limits.requests)
        self.commands = Buckets(limits.command_burst, limits.commands)
        # Logins that failed: of each address, and of all.
        self.logins = Buckets(limits.logins, 1 / 30)
        self.all_logins = Bucket(limits.all_logins, 1 / 2, limits.all_logins, 0.0)
        self.streams = StreamQuota(each=limits.user_streams, total=limits.streams)

    @property
    def watches(self) -> tuple[SharedWatch, ...]:
        """The watches of the pages."""
        return self.fleet, self.workers, self.runs, self.assets, self.crawl

    def now(self) -> float:
        """Seconds of a clock that never jumps."""
        return time.monotonic()


def web_state(request: Request) -> WebState:
    """Give the console's state of a request."""
    state: WebState = request.app.state.web
    return state


def client_address(request: Request) -> str:
    """Name the address of a request's client."""
    return request.client.host if request.client and request.client.host else "unix"


def requester(request: Request) -> str:
    """Name the user, or the address, for which requests and streams are counted."""
    user: str = request.state.user
    client: str = request.state.client
    return user or client


def is_secure(request: Request) -> bool:
    """Whether the browser uses TLS, to us or to a trusted proxy."""
    return str(request.scope["scheme"]) == "https"


async def existing_project(request: Request, project: str) -> str:
    """Give the name of an existing project, or raise 404."""
    if not await is_known(request, project):
        raise HTTPException(404, "there is no such project")
    return project


async def is_known(request: Request, project: str) -> bool:
    """Whether a project has any of its three keys at this moment."""
    check_project(request, project)
    return await web_state(request).console.exists(project)


def check_project(request: Request, project: str) -> None:
    """Refuse an invalid project name."""
    if not project:
        raise FieldError({"projectName": "it is missing"})
    if len(project.encode("utf-8", "surrogateescape")) > LONGEST:
        raise FieldError({"projectName": f"it has at most {LONGEST} bytes"})
    web_state(request).fleet.check()  # no request has to wait for what it knows
