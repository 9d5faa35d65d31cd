"""Run events as server-sent events, for any web framework.

A browser's ``EventSource`` gets ``id: <id>``, ``event: <category>.<action>`` and
``data: <the event as JSON>``. Besides the events of the run there are ``gap`` (some
are missing), ``writer_lost`` (the writer fell silent) and ``close`` (nothing more will
come: the page closes its ``EventSource``); no event of a run can have these names,
because theirs hold a dot. They have no id: a client goes on behind the last event.
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

logger = logging.getLogger(__name__)

HEARTBEAT: Final = 15.0  # seconds without an event until a comment is sent
RETRY: Final = 2_000  # milliseconds until a client that was cut off comes back
CHUNK: Final = 256 * 1024  # bytes that are sent at once, or one event
PATIENCE: Final = 1.0  # seconds for a follower to be closed
# The name of an event; for gap, writer_lost and close up to where the data begin.
_NAME: Final = re.compile(
    rb"^event: (?:(gap|writer_lost|close)\ndata: \{|.*\n)", re.MULTILINE
)


def write_unnamed(frames: bytes) -> bytes:
    """Take the names out of frames, for clients that only know ``onmessage``.

    Data of a gap, a lost writer and the end get a field ``type`` instead.
    """
    return _NAME.sub(
        lambda name: b'data: {"type":"%b",' % name[1] if name[1] else b"", frames
    )


def write_comment() -> bytes:
    """Write a comment, which clients ignore: it keeps the connection alive."""
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
    """Encode that nothing more will come, and why: ``event: close``."""
    return write_frame("close", encode({"reason": end.value}))


def read_last_event_id(header: str | None, query: str | None = None) -> EventId | None:
    """Read the id of the last event that a client has; ``None`` if it sent none.

    ``header`` is ``Last-Event-ID``, and wins. ``query`` is ``?last_event_id=``: a page
    that has read the run up to there sends it first, and again whenever it comes back.
    Raises ConfigurationError for what is no id of an event: answer with 400.
    """
    if header:
        return check_id("Last-Event-ID", header)
    return check_id("last_event_id", query) if query else None


async def stream_status(
    store: EventStore, run_id: int, last_id: EventId | None = None
) -> int:
    """Return the HTTP status that a request for the stream of a run is answered with.

    200: there is something to send, or may be. 204: the client has every event of a run
    that has ended. 404: there is no such run. 410: there is none any more.

    Raises ConfigurationError for a wrong argument (400), WrongTypeError (409),
    RedisRefusedError (503), and RedisUnavailableError: 503 if the client has no event
    yet, else 200, comments and :func:`event_frames`, because a browser that comes back
    and is answered otherwise gives up for ever.
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
    """Return what to send to one client, chunk by chunk, as it comes.

    First how soon to come back (``retry: 2000``), then the events behind the place, as
    many in a chunk as are there; a comment after each time without any, and while Redis
    is away. It ends with ``event: close``, when the run has ended or disappeared. Only
    what is sent next is held: a client that reads slowly makes nothing grow.

    Args:
        store: Where the events are.
        run_id: The run; it is waited for if there is none yet.
        last_id: Id of the last event that the client has; ``0-0`` for all that are
            kept, ``$`` for those that come from now on.
        heartbeat: Seconds without an event until a comment is sent.

    Returns:
        What to iterate over. It raises WrongTypeError where the key is no stream,
        RedisRefusedError where Redis refuses, and with ``$`` RedisUnavailableError
        where Redis is away at the beginning.

    Raises:
        ConfigurationError: An argument breaks its rule.
    """
    return EventFrames(
        store.follow(run_id, last_id), check_seconds("heartbeat", heartbeat)
    )


class EventFrames:
    """The bytes of one stream, made by :func:`event_frames`; iterate over it."""

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
        """End at once, without ``close``: the client is to come back.

        For a server that stops; called in the event loop that iterates.
        """
        self._ending = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def aclose(self) -> None:
        """Stop following; not while a task waits for the next chunk."""
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
            # A client whose follower has left comes back.
            if not self._ending and follower.end is not FollowEnd.LEFT:
                yield encode_close(follower.end or FollowEnd.CLOSED)
        finally:
            with anyio.move_on_after(PATIENCE, shield=True):
                await follower.aclose()

    async def _next(self) -> list[Followed]:
        """Wait for events, until a comment is due, or for the end."""
        # A batch that is cancelled loses nothing.
        with anyio.CancelScope() as self._waiting:
            return await self._follower.batch(self._heartbeat)
        return []


def _write_chunks(items: deque[Followed]) -> Iterator[bytes]:
    """Encode items of a follower, in few chunks; an item that is encoded is dropped."""
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
