"""Sends run events to browsers as server-sent events, in any web framework.

A browser's ``EventSource`` receives each event of a run as ``id: <id>``,
``event: <category>.<action>`` and ``data: <the event as JSON>``. It also receives three
events that are not in the run:

* ``gap``: events are missing.
* ``writer_lost``: the writer has stopped without ending the run.
* ``close``: no event will follow, and the page has to close its ``EventSource``.

Events of a run never have these names, because each of their names contains a dot. The
three events have no id. Therefore a client that reconnects continues after the last
event of the run.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Final, Self

import anyio

from bls_agent.core.checks import check_seconds
from bls_agent.core.codec import encode
from bls_agent.runs.events import (
    BEGINNING,
    EventId,
    Followed,
    FollowEnd,
    Gap,
    StreamEvent,
    WriterLost,
    check_id,
    write_frame,
)

if TYPE_CHECKING:
    from bls_agent.runs.follower import Follower
    from bls_agent.runs.store import EventStore

logger: logging.Logger = logging.getLogger(__name__)

HEARTBEAT: Final = 15.0  # seconds without an event after which a comment is sent
RETRY: Final = 2_000  # milliseconds until a disconnected client connects again
CHUNK: Final = 256 * 1024  # bytes; only a chunk with one event may be longer
PATIENCE: Final = 1.0  # longest time in seconds that closing a follower takes
# Matches the line with the name of an event. For gap, writer_lost and close, the match
# also contains the beginning of the data.
_NAME: Final = re.compile(
    rb"^event: (?:(gap|writer_lost|close)\ndata: \{|.*\n)", re.MULTILINE
)


def write_unnamed(frames: bytes) -> bytes:
    """Remove the names of server-sent events, for clients that only use ``onmessage``.

    The names ``gap``, ``writer_lost`` and ``close`` become the field ``type`` of the
    data.
    """
    return _NAME.sub(
        lambda name: b'data: {"type":"%b",' % name[1] if name[1] else b"", frames
    )


def write_comment() -> bytes:
    """Return a comment that keeps the connection alive. Clients ignore comments."""
    return b": \n\n"


def write_retry(milliseconds: int) -> bytes:
    """Return the line that sets how long the client waits before it reconnects."""
    return b"retry: %d\n\n" % milliseconds


def encode_followed(item: Followed) -> bytes:
    """Encode an item of a follower. An event is encoded only once for all followers."""
    match item:
        case StreamEvent():
            return item.sse
        case Gap():
            return write_frame("gap", encode(item.to_dict()))
        case WriterLost():
            return write_frame("writer_lost", encode(item.to_dict()))


def encode_close(end: FollowEnd = FollowEnd.CLOSED) -> bytes:
    """Return the event ``close``, whose data contain the reason of the end."""
    return write_frame("close", encode({"reason": end.value}))


def read_last_event_id(header: str | None, query: str | None = None) -> EventId | None:
    """Return the id of the client's last event, or ``None`` if the client sent no id.

    The header takes precedence, because a browser that reconnects sends the header with
    the new id and repeats the query with the old id.

    Args:
        header: Value of the header ``Last-Event-ID``.
        query: Value of ``?last_event_id=`` in the URL. A page that has already read a
            part of the run sends the id of the last event that it has read.

    Raises:
        ConfigurationError: The value is not the id of an event. Answer with status 400.
    """
    if header:
        return check_id("Last-Event-ID", header)
    return check_id("last_event_id", query) if query else None


async def stream_status(
    store: EventStore, run_id: int, last_id: EventId | None = None
) -> int:
    """Return the HTTP status for a request to stream a run.

    Args:
        store: The store with the events.
        run_id: The run.
        last_id: Id of the last event that the client has; ``None`` without an event.

    Returns:
        200 if there are events to send, or if events may follow. 204 if the run has
        ended and the client has every event. 404 if the run does not exist and the
        client has no event. 410 if the client has events of a run that no longer
        exists. A run whose writer is alive exists, also if Redis has lost its stream.

    Raises:
        ConfigurationError: An argument is wrong. Answer with 400.
        WrongTypeError: The key of the run is not a stream. Answer with 409.
        RedisRefusedError: Redis refuses the request. Answer with 503.
        RedisUnavailableError: Redis cannot answer. If the client has no event yet,
            answer with 503. Otherwise answer with 200 and the chunks of
            :func:`event_frames`, because a browser that reconnects and receives any
            other status does not try again.
    """
    if last_id in (None, BEGINNING):  # the client has no event
        return 200 if await run_exists(store, run_id) else 404
    found = await store.get_events(run_id, last_id, "+", 2)
    if len(found) == 1 and found[0].closes and found[0].id == last_id:
        return 204
    return 200 if found or await run_exists(store, run_id) else 410


async def run_exists(store: EventStore, run_id: int) -> bool:
    """Return whether a run has a stream, or a living writer that will write events."""
    return await store.exists(run_id) or await store.has_writer(run_id)


def event_frames(
    store: EventStore,
    run_id: int,
    last_id: EventId = BEGINNING,
    *,
    heartbeat: float = HEARTBEAT,
) -> EventFrames:
    """Return an async iterable of the chunks of bytes to send to one client.

    The first chunk is ``retry: 2000``: the client waits 2,000 milliseconds before it
    reconnects. Each of the next chunks contains the available events after ``last_id``.
    If no event arrives for ``heartbeat`` seconds, also while Redis is unavailable, the
    chunk is a comment. The last chunk is ``event: close`` if the run has ended or no
    longer exists. A slow client does not use more memory, because only the next events
    are kept in memory.

    Args:
        store: The store with the events.
        run_id: The run. If the run does not exist yet, the iteration waits for the run.
        last_id: Id of the last event that the client has; ``0-0`` for all events in
            Redis, ``$`` for new events only.
        heartbeat: Seconds without an event after which a comment is sent.

    Returns:
        The iterable. The iteration raises WrongTypeError if the key is no stream, and
        RedisRefusedError if Redis refuses the request. If ``last_id`` is ``$``, the
        iteration raises RedisUnavailableError if Redis is unavailable at the beginning.

    Raises:
        ConfigurationError: An argument breaks its rule.
    """
    return EventFrames(
        store.follow(run_id, last_id), check_seconds("heartbeat", heartbeat)
    )


class EventFrames:
    """An async iterable of the chunks of one stream, made by :func:`event_frames`."""

    def __init__(
        self, follower: Follower, heartbeat: float, *, unnamed: bool = False
    ) -> None:
        self._follower = follower
        self._heartbeat = heartbeat
        self._unnamed = unnamed
        self._ending = False
        self._waiting: anyio.CancelScope | None = None
        self._chunks = self._write()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        return write_unnamed(chunk) if self._unnamed else chunk

    def end(self) -> None:
        """End the iteration at once without ``close``, so that the client reconnects.

        Call this method before the web server stops, in the event loop of the
        iteration.
        """
        self._ending = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def aclose(self) -> None:
        """Stop following the run. Do not call this while a task waits for a chunk."""
        await self._chunks.aclose()

    @property
    def _goes_on(self) -> bool:
        return not self._ending and self._follower.end is None

    async def _write(self) -> AsyncGenerator[bytes]:
        follower = self._follower
        try:
            yield write_retry(RETRY)
            while self._goes_on:
                found = deque(await self._next())
                if not found and self._goes_on:
                    yield write_comment()
                for chunk in _write_chunks(found):
                    yield chunk
            # If this process has closed the follower, the client has to reconnect.
            if not self._ending and follower.end is not FollowEnd.LEFT:
                yield encode_close(follower.end or FollowEnd.CLOSED)
        finally:
            with anyio.move_on_after(PATIENCE, shield=True):
                await follower.aclose()

    async def _next(self) -> list[Followed]:
        """Return the next events, or an empty list for a comment or the end."""
        # A cancelled batch() loses no events.
        with anyio.CancelScope() as self._waiting:
            return await self._follower.batch(self._heartbeat)
        return []


def _write_chunks(items: deque[Followed]) -> Iterator[bytes]:
    """Yield encoded items in few chunks. Remove each encoded item from ``items``."""
    frames: list[bytes] = []
    size = 0
    while items:
        frame = encode_followed(items.popleft())
        if frames and size + len(frame) > CHUNK:
            yield b"".join(frames)
            frames, size = [], 0
        frames.append(frame)
        size += len(frame)
    if frames:
        yield b"".join(frames)
