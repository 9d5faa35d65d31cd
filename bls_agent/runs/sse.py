"""Run events as server-sent events, for any web framework.

A browser's ``EventSource`` gets ``id: <id>``, ``event: <category>.<action>`` and
``data: <the event as JSON>``. Besides the events of the run it gets ``gap`` (events are
missing), ``writer_lost`` (the writer fell silent) and ``close`` (no event will follow,
and the page closes its ``EventSource``). No event of a run can have these names,
because the name of an event has a dot. These three have no id, so that a client that
reconnects continues after the last event of the run.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Final, Self

import anyio

from bls_agent.core.codec import encode
from bls_agent.core.settings import check_seconds
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

HEARTBEAT: Final = 15.0  # seconds without an event until a comment is sent
RETRY: Final = 2_000  # milliseconds until a disconnected client connects again
CHUNK: Final = 256 * 1024  # bytes of a chunk at most, unless one event is longer
PATIENCE: Final = 1.0  # longest time in seconds that closing a follower takes
# The line with the name of an event. For gap, writer_lost and close, the match includes
# the beginning of the data.
_NAME: Final = re.compile(
    rb"^event: (?:(gap|writer_lost|close)\ndata: \{|.*\n)", re.MULTILINE
)


def write_unnamed(frames: bytes) -> bytes:
    """Remove the names of server-sent events, for clients with only ``onmessage``.

    The data of ``gap``, ``writer_lost`` and ``close`` get a field ``type`` instead.
    """
    return _NAME.sub(
        lambda name: b'data: {"type":"%b",' % name[1] if name[1] else b"", frames
    )


def write_comment() -> bytes:
    """Write a comment, which clients ignore and which keeps the connection alive."""
    return b": \n\n"


def write_retry(milliseconds: int) -> bytes:
    """Write how long the client waits before it connects again."""
    return b"retry: %d\n\n" % milliseconds


def encode_followed(item: Followed) -> bytes:
    """Encode an item of a follower; an event is encoded once for all its followers."""
    match item:
        case StreamEvent():
            return item.sse
        case Gap():
            return write_frame("gap", encode(item.to_dict()))
        case WriterLost():
            return write_frame("writer_lost", encode(item.to_dict()))


def encode_close(end: FollowEnd = FollowEnd.CLOSED) -> bytes:
    """Encode the end of a stream and its reason as ``event: close``."""
    return write_frame("close", encode({"reason": end.value}))


def read_last_event_id(header: str | None, query: str | None = None) -> EventId | None:
    """Read the id of a client's last event; ``None`` if the client sent no id.

    ``header`` is ``Last-Event-ID``, which takes precedence. ``query`` is
    ``?last_event_id=``, which a page sends that has already read the run up to this id;
    the browser repeats it when it reconnects. Raises ConfigurationError if the value is
    no id of an event; answer with 400.
    """
    if header:
        return check_id("Last-Event-ID", header)
    return check_id("last_event_id", query) if query else None


async def stream_status(
    store: EventStore, run_id: int, last_id: EventId | None = None
) -> int:
    """Return the HTTP status for a request to stream a run.

    200: there are events to send, or events may follow. 204: the client has every event
    of a run that has ended. 404: the run does not exist. 410: the run no longer exists.

    Raises ConfigurationError for a wrong argument (answer with 400), WrongTypeError
    (409), RedisRefusedError (503) and RedisUnavailableError. Answer the last one with
    503 if the client has no event yet. Otherwise answer with 200 and the comments of
    :func:`event_frames`, because a browser that reconnects and gets another status
    never tries again.
    """
    if last_id in (None, BEGINNING):  # the client has no event
        return 200 if await store.exists(run_id) else 404
    found = await store.get_events(run_id, last_id, "+", 2)
    if len(found) == 1 and found[0].closes and found[0].id == last_id:
        return 204
    return 200 if found or await store.exists(run_id) else 410


def event_frames(
    store: EventStore,
    run_id: int,
    last_id: EventId = BEGINNING,
    *,
    heartbeat: float = HEARTBEAT,
) -> EventFrames:
    """Return an async iterable of the chunks of bytes to send to one client.

    The first chunk sets the delay of a reconnect (``retry: 2000``). The next chunks
    have the events after ``last_id``, each chunk as many as are available. A comment is
    sent after each ``heartbeat`` without events, also while Redis is unavailable. The
    chunks end with ``event: close`` when the run has ended or disappeared. A slow
    client does not use more memory, because only the next events are held.

    Args:
        store: The store with the events.
        run_id: The run. If the run does not exist yet, the iteration waits for it.
        last_id: Id of the last event that the client has; ``0-0`` for all events in
            Redis, ``$`` for new events only.
        heartbeat: Seconds without an event until a comment is sent.

    Returns:
        The iterable. It raises WrongTypeError if the key is no stream,
        RedisRefusedError if Redis refuses, and RedisUnavailableError if Redis is
        unavailable at the beginning and ``last_id`` is ``$``.

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
        """End at once, without ``close``, so that the client connects again.

        A server calls this method before it stops, in the event loop of the iteration.
        """
        self._ending = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def aclose(self) -> None:
        """Stop following; do not call it while a task waits for the next chunk."""
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
            # Without ``close``, the client of a follower that has left connects again.
            if not self._ending and follower.end is not FollowEnd.LEFT:
                yield encode_close(follower.end or FollowEnd.CLOSED)
        finally:
            with anyio.move_on_after(PATIENCE, shield=True):
                await follower.aclose()

    async def _next(self) -> list[Followed]:
        """Return events, or an empty list when a comment is due or at the end."""
        # A cancelled batch() loses no events.
        with anyio.CancelScope() as self._waiting:
            return await self._follower.batch(self._heartbeat)
        return []


def _write_chunks(items: deque[Followed]) -> Iterator[bytes]:
    """Encode items of a follower in few chunks; drop each item that is encoded."""
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
