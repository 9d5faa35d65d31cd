"""Server-sent events: the changes of the feeds, and the events of one run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import anyio
from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from bls_agent.core.codec import encode
from bls_agent.core.errors import BlsError, RedisRefusedError, RedisUnavailableError
from bls_agent.ops.web.auth import Session
from bls_agent.ops.web.feeds.logs import encode_records
from bls_agent.ops.web.feeds.runs import encode_event, make_run_card
from bls_agent.ops.web.feeds.watch import Item, SharedWatch, clock
from bls_agent.ops.web.requests import project_in_query, read_limit, run_in_path
from bls_agent.ops.web.state import WebState, existing_project, requester, web_state
from bls_agent.runs import Followed, Follower, Gap, StreamEvent
from bls_agent.runs.events import BEGINNING, check_id

RETRY: Final = b"retry: 2000\n\n"
HEARTBEAT = b"event: beat\ndata: {}\n\n"  # an event, because pages ignore comments
FIRST_WAIT = 5.0  # seconds to wait for the first read of a list
PATIENCE = 0.3  # seconds that streams get to end when the console stops
EVENT_SIZE = 256 * 1024  # bytes of one event with records

WHOLE: Final = 2_000  # most events at the start of a stream
LOOK: Final = 0.2  # seconds of one wait for events, less than PATIENCE
HEAD: Final = 2.0  # seconds between two reads of the run's state
QUIET_HEAD: Final = 5.0  # seconds between two such reads while no event arrives


class _Stream(EventSourceResponse):
    """An event stream that is counted, and ends with the console or the session."""

    def __init__(self, request: Request, events: AsyncIterator[bytes]) -> None:
        self._state = web_state(request)
        self._user = requester(request)
        self._session: Session | None = request.state.session
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - a dict of its own
            self._ending(events),
            ping=0,  # off, because this module sends HEARTBEAT instead
            send_timeout=self._state.config.limits.stall,
            shutdown_grace_period=PATIENCE,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._state.streams.hold(self._user):
            try:
                await super().__call__(scope, receive, send)
            except* SendTimeoutError:
                self._state.counts["streams_stalled"] += 1

    async def _ending(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        yield RETRY
        session, state = self._session, self._state
        try:
            async for event in events:  # ends when the console stops
                if session is not None:
                    if state.sessions.is_over(session, state.now()):
                        return
                    # Nobody clicks on a wallboard, so an open page keeps the session.
                    session.seen = state.now()
                yield event or HEARTBEAT
        except BlsError as error:  # a lasting error ends the stream
            kind = getattr(error, "kind", "wrong_type")
            yield _write_event(
                "unavailable", encode({"kind": kind, "reason": str(error)})
            )


def _write_event(kind: str, data: bytes) -> bytes:
    """Write an event; nothing is escaped, because our JSON has no line ends."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _pictures_at(name: str, kind: str) -> Route:
    async def follow(request: Request) -> Response:
        watch: SharedWatch[Any] = getattr(web_state(request), name)
        return _Stream(request, _pictures_of(request, watch, kind))

    return Route(f"/events/{name}", follow)


async def _pictures_of(
    request: Request, watch: SharedWatch[Any], kind: str
) -> AsyncIterator[bytes]:
    heartbeat = web_state(request).config.limits.heartbeat
    async with aclosing(watch.follow(heartbeat)) as pictures:
        async for message in pictures:
            data = watch.only(message, request.state.grants)
            yield _write_event(kind, data) if data else b""


async def _follow_log(request: Request) -> Response:
    limit = read_limit(request.query_params.get("limit"))
    project = await existing_project(request, project_in_query(request.scope))
    state = web_state(request)
    await state.console.logs(project, 1)  # an error here still sets the status
    return _Stream(request, _log_events(state, project, limit))


async def _log_events(
    state: WebState, project: str, limit: int
) -> AsyncGenerator[bytes]:
    heartbeat = state.config.limits.heartbeat
    with state.logs.join(project) as feed:
        with anyio.move_on_after(FIRST_WAIT):
            await feed.begun.wait()
        page, place = await feed.newest(limit)
        head = {"before": page.before or None, "records": len(page.entries)}
        yield _write_event("place", encode(head))
        records = await encode_records(page.entries)
        for event in _write_items(Item(record, "log") for record in records):
            yield event
        if place is None:
            place = feed.ring.end
            yield _write_event("gap", encode({"missing": None}))
        while not feed.closed:
            await feed.ring.wait(place, heartbeat)
            # Take the records of only one event, to save memory with a slow client.
            items, missed = feed.ring.since(place, EVENT_SIZE)
            place += missed + len(items)
            if missed:
                state.counts["log_records_missed"] += missed
                yield _write_event("gap", encode({"missing": missed}))
            for event in _write_items(items):
                yield event
            if feed.error is not None and place >= feed.ring.end:
                raise feed.error
            if not items:
                yield b""


def _write_items(items: Iterable[Item], shared: str = "log") -> list[bytes]:
    """Write items as events.

    Consecutive items of the kind ``shared`` become one event, whose data is a JSON array
    and whose id is the position of the last item.
    """
    events: list[bytes] = []
    held: list[Item] = []
    size = 0
    for item in items:
        if held and (item.kind != shared or size + len(item.payload) > EVENT_SIZE):
            events.append(_write_array(shared, held))
            held, size = [], 0
        if item.kind == shared:
            held.append(item)
            size += len(item.payload)
        else:
            events.append(_write_event(item.kind, item.payload))
    return [*events, _write_array(shared, held)] if held else events


def _write_array(kind: str, items: Sequence[Item]) -> bytes:
    place = items[-1].place
    array = b"[%s]" % b",".join(item.payload for item in items)
    return (b"id: %s\n" % place.encode() if place else b"") + _write_event(kind, array)


NO_RUN: Final = _write_event("run", b"null")


async def _run_events(request: Request) -> Response:
    run_id = run_in_path(request)
    given = request.headers.get("last-event-id") or request.query_params.get("after")
    after = None if given is None else check_id("after", given)
    state = web_state(request)
    if after is None:
        await state.store.describe(run_id)  # an error here still sets the status
    stream = _RunStream(state, run_id)
    return _Stream(request, stream.events(after))


@dataclass
class _RunStream:
    state: WebState
    run_id: int

    async def events(self, after: str | None) -> AsyncIterator[bytes]:
        """Yield the events for a page.

        The first events are ``run`` (the run's state), ``begin`` (the position of older
        events) and ``events`` (the newest ones). Then each new event of the run follows.
        """
        yield await self._head()
        if after is None:
            first, after = await self._newest()
            for frame in first:
                yield frame
        follower = self.state.store.follow(self.run_id, after)
        try:
            async with aclosing(self._follow(follower)) as frames:
                async for frame in frames:
                    yield frame
        finally:
            with anyio.CancelScope(shield=True):
                await follower.aclose()

    async def _newest(self) -> tuple[list[bytes], str]:
        """Return the newest events, written for the page, and the id of the last one."""
        page = await self.state.store.page_back(self.run_id, limit=WHOLE)
        frames = [_write_event("begin", encode({"before": page.next}))]
        frames += write_followed(page.events)
        return frames, page.events[-1].id if page.events else BEGINNING

    async def _follow(self, follower: Follower) -> AsyncGenerator[bytes]:
        heartbeat = self.state.config.limits.heartbeat
        looked = beaten = anyio.current_time()
        away = False
        while not self.state.runs.closed:
            found = await follower.batch(LOOK)
            for frame in write_followed(found):
                yield frame
            fault = follower.unavailable
            if fault is not None and not away:
                yield _write_event("unavailable", encode({"kind": fault.kind}))
            elif fault is None and away:
                yield _write_event("available", b"{}")
            away = fault is not None
            if follower.ended and not self.state.runs.closed:
                head = await self._head()
                reason = "gone" if head == NO_RUN else "closed"
                yield head
                yield _write_event("end", encode({"reason": reason}))
                return
            now = anyio.current_time()
            if now - looked > (HEAD if found else QUIET_HEAD):
                looked = now
                yield await self._head()
            if now - beaten > heartbeat:
                beaten = now
                yield b""

    async def _head(self) -> bytes:
        """Return the run's state as an event.

        Return nothing during an outage, because ``_follow`` reports the outage.
        """
        try:
            run = await self.state.store.describe(self.run_id)
        except RedisRefusedError:
            raise
        except RedisUnavailableError:
            return b""
        if run is None:
            return NO_RUN
        return _write_event("run", encode(make_run_card(run, clock(), whole=True)))


def write_followed(found: Sequence[Followed]) -> list[bytes]:
    """Write items of a follower as events, as ``_write_items`` does."""
    return _write_items(map(_as_item, found), "events")


def _as_item(one: Followed) -> Item:
    if isinstance(one, StreamEvent):
        return Item(encode_event(one), "events", one.id)
    return Item(encode(one.to_dict()), "gap" if isinstance(one, Gap) else "lost")


stream_routes: Final = [
    _pictures_at("fleet", "fleet"),
    _pictures_at("workers", "workers"),
    _pictures_at("assets", "assets"),
    _pictures_at("crawl", "queues"),
    _pictures_at("runs", "runs"),
    Route("/events/runs/{run}", _run_events),
    Route("/api/logs/stream", _follow_log),
]
