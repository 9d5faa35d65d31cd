"""What the parts of the running console share, and what they ask of a request."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request

from bls_agent.console import Console
from bls_agent.core.errors import (
    ContractError,
    RedisRefusedError,
    RedisUnavailableError,
)
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

__all__ = [
    "RedisHealth",
    "WebState",
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


class RedisHealth:
    """Asks Redis, at most once a second, for a status that no project has."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._project = f"health-{secrets.token_hex(4)}"
        self._lock = anyio.Lock()
        self._at = float("-inf")
        self._fault: RedisUnavailableError | None = None

    async def fault(self) -> RedisUnavailableError | None:
        """Say why Redis does not answer, ``None`` if it does."""
        async with self._lock:
            if anyio.current_time() - self._at > FRESH:
                self._fault = await self._find_fault()
                self._at = anyio.current_time()
            return self._fault

    async def _find_fault(self) -> RedisUnavailableError | None:
        try:
            await self._console.status(self._project)
        except RedisRefusedError as error:
            # Who may not read this one key was answered all the same.
            return None if error.kind == "no_permission" else error
        except RedisUnavailableError as error:
            return error
        except ContractError:
            return None
        return None


@dataclass
class WebState:
    """One running console."""

    config: WebConfig
    console: Console
    fleet: FleetFeed
    journal: Journal
    webhook: Webhook | None  # None where changes of statuses are posted nowhere
    workers: WorkerFeed
    store: EventStore
    runs: RunFeed
    assets: AssetFeed
    crawl: CrawlFeed
    logs: LogFeeds
    health: RedisHealth
    sessions: Sessions
    verifier: Verifier | None  # None without users
    hosts: HostRule
    requests: Buckets  # of each client
    commands: Buckets  # of each user
    logins: Buckets  # that failed, of each address
    all_logins: Bucket  # that failed, of all addresses
    streams: StreamQuota
    manuals: HelpCache = field(default_factory=HelpCache)
    counts: Counter[str] = field(default_factory=Counter[str])  # refused and dropped
    closing: anyio.Event = field(default_factory=anyio.Event)
    started: float = field(default_factory=time.monotonic)
    redis: str = ""  # its address, without credentials

    @property
    def watches(self) -> tuple[SharedWatch, ...]:
        """What the pages follow."""
        return self.fleet, self.workers, self.runs, self.assets, self.crawl

    def now(self) -> float:
        """Seconds of a clock that never jumps."""
        return time.monotonic()


def web_state(request: Request) -> WebState:
    """Give what a request's console consists of."""
    state: WebState = request.app.state.web
    return state


def client_address(request: Request) -> str:
    """Name where a request comes from."""
    return request.client.host if request.client and request.client.host else "unix"


def requester(request: Request) -> str:
    """Name the user, or the address, by which requests and streams are counted."""
    user: str = request.state.user
    client: str = request.state.client
    return user or client


def is_secure(request: Request) -> bool:
    """Tell whether the browser came over TLS, to us or to a proxy that is believed."""
    return str(request.scope["scheme"]) == "https"


async def existing_project(request: Request, project: str) -> str:
    """Give the name of a project that there is, or raise 404."""
    if not await is_known(request, project):
        raise HTTPException(404, "there is no such project")
    return project


async def is_known(request: Request, project: str) -> bool:
    """Tell whether a project has any of its three keys at this moment."""
    check_project(request, project)
    return await web_state(request).console.exists(project)


def check_project(request: Request, project: str) -> None:
    """Refuse what cannot be a project's name."""
    if not project:
        raise FieldError({"projectName": "it is missing"})
    if len(project.encode("utf-8", "surrogateescape")) > LONGEST:
        raise FieldError({"projectName": f"it has at most {LONGEST} bytes"})
    web_state(request).fleet.check()  # no request has to wait for what it knows
