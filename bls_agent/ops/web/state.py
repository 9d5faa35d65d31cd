"""The shared state of the running console, and the functions that requests call."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request

from bls_agent.assets.library import AssetLibrary
from bls_agent.connection.pool import find_endpoint
from bls_agent.console import Console
from bls_agent.crawl.overview import Namespace, QueueOverview
from bls_agent.crawl.queue import RequestQueue
from bls_agent.ops.fleet import Fleet
from bls_agent.ops.terminal import visible
from bls_agent.ops.texts import load_texts
from bls_agent.ops.web.auth import Sessions, Verifier
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.feeds.assets import AssetFeed
from bls_agent.ops.web.feeds.changes import KEPT, Journal, Webhook
from bls_agent.ops.web.feeds.crawl import CrawlFeed
from bls_agent.ops.web.feeds.fleet import FleetFeed
from bls_agent.ops.web.feeds.kept_changes import KeptChanges
from bls_agent.ops.web.feeds.logs import LogFeeds
from bls_agent.ops.web.feeds.runs import RunFeed
from bls_agent.ops.web.feeds.watch import SharedWatch
from bls_agent.ops.web.feeds.workers import WorkerFeed
from bls_agent.ops.web.forms import HELP, HelpCache
from bls_agent.ops.web.requests import CommandRequest, FieldError
from bls_agent.ops.web.rights import check_role
from bls_agent.ops.web.security import Buckets, HostRule, StreamQuota
from bls_agent.project.messages import CONSOLE_SOURCE, Command, Outcome
from bls_agent.runs import EventStore
from bls_agent.workers import WorkerRegistry

logger: logging.Logger = logging.getLogger(__name__)

LONGEST: Final = 512  # bytes of a project's name

Settlement: TypeAlias = Literal["withdraw", "requeue", "discard"]
_SETTLED: Final[Mapping[Settlement, str]] = {
    "withdraw": "withdrew commands",
    "requeue": "queued dead letters again",
    "discard": "discarded dead letters",
}


class WebState:
    """The state of one running console.

    There are many attributes, because this class creates all parts of the console.
    Requests use the attributes, and nothing sets them again.
    """

    def __init__(self, config: WebConfig) -> None:
        limits, redis = config.limits, find_endpoint(config.redis)
        address = re.sub(r"//[^/]*@", "//", redis.address)
        self.config = config
        self.redis: str = address.removeprefix("redis://")  # without credentials
        self.counts: Counter[str] = Counter()  # refused requests, lost records …
        self.started: float = time.monotonic()
        self.console: Console = Console(redis)
        self.store: EventStore = EventStore(redis)
        self.fleet: FleetFeed = FleetFeed(Fleet(redis))
        self.workers: WorkerFeed = WorkerFeed(WorkerRegistry(redis))
        self.runs: RunFeed = RunFeed(self.store)
        self.assets: AssetFeed = AssetFeed(AssetLibrary(redis))
        self.crawl: CrawlFeed = CrawlFeed(QueueOverview(redis))
        self.logs: LogFeeds = LogFeeds(self.console, self.fleet)
        self.webhook: Webhook | None = None
        if config.webhook is not None:
            about = {"title": config.title, "redis": address}
            self.webhook = Webhook(
                config.webhook,
                about,
                self.counts,
                load_texts("web", config.language or "en"),
            )
        listeners = [] if self.webhook is None else [self.webhook.put]
        self.kept: KeptChanges | None = (
            KeptChanges(redis, KEPT) if config.keep_changes else None
        )
        self.journal: Journal = Journal(self.fleet, listeners, self.kept)
        self.manuals: HelpCache = HelpCache()
        self.sessions: Sessions = Sessions(
            most=limits.sessions,
            idle=limits.session_idle,
            lifetime=limits.session_lifetime,
        )
        self.verifier: Verifier | None = (
            Verifier(config.users, at_once=limits.hashing) if config.users else None
        )
        self.names_by_hash: dict[str, str] = {
            one.hash: name for name, one in config.users.items()
        }
        names = frozenset(map(str.lower, config.allowed_hosts))
        self.hosts: HostRule = HostRule(config.host, names)
        self.requests: Buckets = Buckets(limits.request_burst, limits.requests)
        self.commands: Buckets = Buckets(limits.command_burst, limits.commands)
        # Failed logins, of each address and of all addresses.
        self.logins: Buckets = Buckets(limits.logins, 1 / 30)
        self.all_logins: Buckets = Buckets(limits.all_logins, 1 / 2)
        self.streams: StreamQuota = StreamQuota(
            each=limits.user_streams, total=limits.streams, counts=self.counts
        )

    @property
    def watches(self) -> tuple[SharedWatch[Any], ...]:
        return self.fleet, self.workers, self.runs, self.assets, self.crawl

    def now(self) -> float:
        return time.monotonic()


def web_state(request: Request) -> WebState:
    state: WebState = request.app.state.web
    return state


def requester(request: Request) -> str:
    """Return the user, or without a login the address, whose requests are counted."""
    user: str = request.state.user
    client: str = request.state.client
    return user or client


def is_secure(request: Request) -> bool:
    return str(request.scope["scheme"]) == "https"


async def existing_project(request: Request, project: str) -> str:
    if not await is_known(request, project):
        raise HTTPException(404, "there is no such project")
    return project


async def is_known(request: Request, project: str) -> bool:
    check_project(request, project)
    return await web_state(request).console.exists(project)


def check_project(request: Request, project: str) -> None:
    if not project:
        raise FieldError({"projectName": "it is missing"})
    check_role(request, project)
    if len(project.encode("utf-8", "surrogateescape")) > LONGEST:
        raise FieldError({"projectName": f"it has at most {LONGEST} bytes"})
    web_state(request).fleet.check()  # fail at once during a known outage


async def send_command(
    request: Request, wanted: CommandRequest, *, create: bool = False
) -> Command:
    sent_by = _count_command(request)
    sent = await web_state(request).console.send(
        wanted.project,
        wanted.command,
        wanted.args,
        id=wanted.id,
        create=create,
        record=wanted.record,
        sent_by=sent_by if wanted.record else "",
        source=request.state.user or wanted.source or CONSOLE_SOURCE,
        timestamp=wanted.timestamp,
    )
    # The sender chooses the id, and a line end in the id would forge a log line.
    shown = visible(sent.id)
    logger.info("%s sent %r (%s) to %r", sent_by, wanted.command, shown, wanted.project)
    return sent


async def ask_help(request: Request, project: str, timeout: float) -> Outcome:
    sent_by = _count_command(request)
    return await web_state(request).console.call(
        project, HELP, timeout=timeout, record=True, sent_by=sent_by
    )


async def settle_commands(
    request: Request, project: str, number: str | None, how: Settlement
) -> list[Command]:
    """Withdraw, requeue or discard commands: those with an id, or all (``None``)."""
    sent_by = _count_command(request)
    console = web_state(request).console
    if how == "withdraw" and number is None:
        settled = await console.withdraw_all(project)
    elif how == "withdraw":
        settled = [*filter(None, [await console.withdraw(project, number or "")])]
    else:
        settle = console.requeue if how == "requeue" else console.discard
        settled = await settle(
            project, number, all=number is None, record=True, sent_by=sent_by
        )
    if settled:
        ids = ", ".join(repr(visible(one.id)) for one in settled)
        logger.info("%s %s of %r: %s", sent_by, _SETTLED[how], project, ids)
    return settled


async def forget_project(request: Request, project: str) -> None:
    state = web_state(request)
    sent_by = _count_command(request)
    deleted = await state.console.forget(project)
    await state.fleet.forget(project)
    logger.info("%s deleted %d keys of %r", sent_by, len(deleted), project)


def crawl_queue(request: Request, shown: str) -> RequestQueue:
    name = Namespace.parse(shown)
    return RequestQueue(web_state(request).config.redis, name.project, name.spider)


async def requeue_failed(request: Request, shown: str) -> int:
    sent_by = _count_command(request)
    async with crawl_queue(request, shown) as queue:
        count = await queue.requeue_failed()
    logger.info("%s queued %d failed requests of %r again", sent_by, count, shown)
    return count


def _count_command(request: Request) -> str:
    """Count a command of the user, and return the user's name for the audit record.

    Raises 429 if the user has sent too many commands.
    """
    state = web_state(request)
    wait = state.commands.take(requester(request), state.now())
    if wait:
        state.counts["commands_refused"] += 1
        headers = {"retry-after": str(int(wait) + 1)}
        raise HTTPException(429, "too many commands", headers)
    sent_by: str = request.state.sent_by
    return sent_by
