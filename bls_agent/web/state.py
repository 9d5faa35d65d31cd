"""What the parts of the running console share."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

import anyio
from starlette.requests import Request

from bls_agent.console import Console
from bls_agent.runs import EventStore
from bls_agent.web.configuration import WebConfig
from bls_agent.web.door.limits import Bucket, Buckets, StreamQuota
from bls_agent.web.door.origins import HostRule
from bls_agent.web.door.sessions import Sessions
from bls_agent.web.door.users import Verifier
from bls_agent.web.feeds.asset_feed import AssetFeed
from bls_agent.web.feeds.crawl_feed import CrawlFeed
from bls_agent.web.feeds.fleet_feed import FleetFeed
from bls_agent.web.feeds.health import RedisHealth
from bls_agent.web.feeds.journal import Journal
from bls_agent.web.feeds.log_feeds import LogFeeds
from bls_agent.web.feeds.run_feed import RunFeed
from bls_agent.web.feeds.webhook import Webhook
from bls_agent.web.feeds.worker_feed import WorkerFeed
from bls_agent.web.pages.manual import Manuals

__all__ = ["WebState", "client_address", "is_secure", "requester", "web_state"]


@dataclass
class WebState:
    """One running console: its configuration, feeds, sessions and counts.

    Attributes:
        config: What it was told.
        console: The other end of contract 002.
        fleet: One watch of all projects for all wallboards.
        journal: Which statuses have changed.
        webhook: Posts these changes; ``None`` where that is not wanted.
        workers: One watch of all workers for all their pages.
        runs: The events of runs.
        run_list: One watch of all runs for all their pages.
        assets: One look at the asset library for all its pages.
        crawl: One look at all crawl queues for all their pages.
        logs: One reader for each followed list.
        health: Whether Redis answers.
        sessions: Who is logged in.
        verifier: Checks passwords; ``None`` without users.
        hosts: By which names browsers may call us.
        requests: Requests of each client.
        commands: Commands of each user.
        logins: Failed logins of each address.
        all_logins: Failed logins of everybody.
        streams: Open event streams.
        manuals: What agents have told of themselves.
        counts: What was refused and dropped, by reason.
        closing: Set when everything has to end.
        started: When it began, by the monotonic clock.
        redis: Which Redis it is about, without credentials.
    """

    config: WebConfig
    console: Console
    fleet: FleetFeed
    journal: Journal
    webhook: Webhook | None
    workers: WorkerFeed
    runs: EventStore
    run_list: RunFeed
    assets: AssetFeed
    crawl: CrawlFeed
    logs: LogFeeds
    health: RedisHealth
    sessions: Sessions
    verifier: Verifier | None
    hosts: HostRule
    requests: Buckets
    commands: Buckets
    logins: Buckets
    all_logins: Bucket
    streams: StreamQuota
    manuals: Manuals = field(default_factory=Manuals)
    counts: Counter[str] = field(default_factory=Counter[str])
    closing: anyio.Event = field(default_factory=anyio.Event)
    started: float = field(default_factory=time.monotonic)
    redis: str = ""

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
    """Name whose requests, commands and streams are counted together."""
    user: str = request.state.user
    client: str = request.state.client
    return user or client


def is_secure(request: Request) -> bool:
    """Tell whether the browser came over TLS, to us or to a proxy that is believed."""
    return str(request.scope["scheme"]) == "https"
