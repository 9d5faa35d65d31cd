"""Server-sent events: what the feeds know, to everybody who follows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing

import anyio
from sse_starlette import EventSourceResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bls_agent.codec import encode
from bls_agent.errors import BlsError, RedisUnavailableError
from bls_agent.web.door.sessions import Session
from bls_agent.web.feeds.log_feeds import LogFeed
from bls_agent.web.feeds.ring import Item
from bls_agent.web.feeds.shared_watch import SharedWatch
from bls_agent.web.interface.inputs import read_limit
from bls_agent.web.interface.records import encode_records
from bls_agent.web.names_in_urls import project_in_query
from bls_agent.web.projects import existing_project
from bls_agent.web.state import WebState, requester, web_state

__all__ = [
    "EVENT_SIZE",
    "asset_events",
    "crawl_events",
    "fleet_events",
    "last_words",
    "log_events",
    "open_stream",
    "pictures_of",
    "worker_events",
    "write_event",
]

BEGINNING = b"retry: 2000\n\n"
HEARTBEAT = b"event: beat\ndata: {}\n\n"  # a comment would not reach the page
FIRST_WAIT = 5.0  # seconds for the first look at a list
PATIENCE = 0.3  # seconds for streams to end when the console does
EVENT_SIZE = 256 * 1024  # bytes of one event with records


class _Stream(EventSourceResponse):
    """A stream that counts, and ends with the console and with its session."""

    def __init__(self, request: Request, events: AsyncIterator[bytes]) -> None:
        self._state = web_state(request)
        self._user = requester(request)
        self._session: Session | None = request.state.session
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - a dict of its own
            self._ending(events),
            ping=0,  # beats are events of ours
            # It watches for the end of uvicorn, too: the one that ends streams is ours.
            shutdown_event=anyio.Event(),
            shutdown_grace_period=10 * PATIENCE,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, as one of a bounded number."""
        with self._state.streams.hold(self._user):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._end_with_console, tasks.cancel_scope)
                await super().__call__(scope, receive, send)
                tasks.cancel_scope.cancel()

    async def _end_with_console(self, scope: anyio.CancelScope) -> None:
        """Cut off who has not come to his end soon after he was told."""
        await self._state.closing.wait()
        await anyio.sleep(PATIENCE)
        scope.cancel()

    async def _ending(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Give events until the session is over."""
        yield BEGINNING
        async for event in events:  # they end by themselves when the console does
            session, state = self._session, self._state
            if session is not None:
                if state.sessions.is_over(session, state.now()):
                    return
                session.seen = state.now()  # a wallboard is watched, not clicked
            yield event or HEARTBEAT


def write_event(kind: str, data: bytes) -> bytes:
    """Write an event; JSON of ours holds no line ends."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def open_stream(request: Request, events: AsyncIterator[bytes]) -> Response:
    """Open a stream, or say that there are too many.

    Raises:
        HTTPException: 429 for too many of one user, 503 for too many of all.
    """
    state = web_state(request)
    status = state.streams.refuse(requester(request))
    if status:
        state.counts["streams_refused"] += 1
        raise HTTPException(status, "too many streams", {"retry-after": "10"})
    return _Stream(request, events)


async def fleet_events(request: Request) -> Response:
    """``GET /events/fleet``: what all projects look like, and what changes."""
    state = web_state(request)
    return open_stream(request, pictures_of(state, state.fleet, "fleet"))


async def worker_events(request: Request) -> Response:
    """``GET /events/workers``: who is alive, and what changes."""
    state = web_state(request)
    return open_stream(request, pictures_of(state, state.workers, "workers"))


async def asset_events(request: Request) -> Response:
    """``GET /events/assets``: which assets there are, and what changes."""
    state = web_state(request)
    return open_stream(request, pictures_of(state, state.assets, "assets"))


async def crawl_events(request: Request) -> Response:
    """``GET /events/crawl``: what crawl queues hold, and what changes."""
    state = web_state(request)
    return open_stream(request, pictures_of(state, state.crawl, "queues"))


async def pictures_of(
    state: WebState, watch: SharedWatch, kind: str
) -> AsyncIterator[bytes]:
    """Give what a watch has seen, and what changes, as events."""
    heartbeat = state.config.limits.heartbeat
    async with aclosing(watch.follow(heartbeat)) as pictures:
        async for data in pictures:
            yield write_event(kind, data) if data else b""


async def log_events(request: Request) -> Response:
    """``GET /api/logs/stream``: the newest records of a project, and what follows."""
    limit = read_limit(request.query_params.get("limit"))
    project = await existing_project(request, project_in_query(request.scope))
    state = web_state(request)
    await state.console.logs(project, 1)  # what can be said with a status is said now
    return open_stream(request, _log_events(state, project, limit))


async def _log_events(
    state: WebState, project: str, limit: int
) -> AsyncGenerator[bytes]:
    heartbeat = state.config.limits.heartbeat
    with state.logs.join(project) as feed:
        with anyio.move_on_after(FIRST_WAIT):
            await feed.begun.wait()
        first, place = await _first_events(feed, limit)
        for event in first:
            yield event
        while not feed.closed:
            await feed.ring.wait(place, heartbeat)
            # No more than one event: what somebody slow holds is gone from the ring.
            items, missed = feed.ring.since(place, EVENT_SIZE)
            place += missed + len(items)
            if missed:
                state.counts["log_records_missed"] += missed
                yield write_event("gap", encode({"missing": missed}))
            for event in _write_items(items):
                yield event
            if feed.error is not None and place >= feed.ring.end:
                yield last_words(feed.error)
                return
            if not items:
                yield b""


async def _first_events(feed: LogFeed, limit: int) -> tuple[list[bytes], int]:
    """Write what a newcomer gets, and find where he goes on."""
    try:
        page, place = await feed.newest(limit)
    except BlsError as error:
        return [last_words(error)], feed.ring.end
    items = [Item(record, "log") for record in await encode_records(page.entries)]
    beginning = write_event("place", encode({"before": page.before or None}))
    return [beginning, *_write_items(items)], place


def _write_items(items: Iterable[Item]) -> list[bytes]:
    """Write events; records that follow one another share one, as a JSON array."""
    events: list[bytes] = []
    records: list[bytes] = []
    held = 0
    for item in items:
        if records and (item.kind != "log" or held + len(item.payload) > EVENT_SIZE):
            events.append(write_event("log", b"[%s]" % b",".join(records)))
            records, held = [], 0
        if item.kind == "log":
            records.append(item.payload)
            held += len(item.payload)
        else:
            events.append(write_event(item.kind, item.payload))
    if records:
        events.append(write_event("log", b"[%s]" % b",".join(records)))
    return events


def last_words(error: BlsError) -> bytes:
    """Write why a stream ends."""
    kind = error.kind if isinstance(error, RedisUnavailableError) else "wrong_type"
    return write_event("unavailable", encode({"kind": kind, "reason": str(error)}))
