r"""A run as server-sent events, for any web framework (contract 003).

What a browser's ``EventSource`` is sent: ``id: <id>``, ``event: <category>.<action>``
and ``data: <the event as JSON>``. Besides the events of the run there are ``gap`` (some
are missing), ``writer_lost`` (the writer fell silent) and ``close`` (nothing more will
come: the page closes its ``EventSource``); no event of a run can have these names,
because theirs hold a dot. They have no id: a client goes on behind the last event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Final, Self

import anyio

from bls_agent.core.codec import encode
from bls_agent.core.errors import ConfigurationError
from bls_agent.runs.event_ids import BEGINNING, EventId, check_id
from bls_agent.runs.events import Followed, Gap, StreamEvent, WriterLost
from bls_agent.runs.following.ends import FollowEnd
from bls_agent.runs.frames import write_comment, write_frame, write_retry

if TYPE_CHECKING:
    from bls_agent.runs.store import EventStore

__all__ = [
    "HEARTBEAT",
    "PATIENCE",
    "RETRY",
    "EventFrames",
    "check_heartbeat",
    "encode_close",
    "encode_event",
    "encode_gap",
    "encode_writer_lost",
    "event_frames",
    "read_last_event_id",
    "stream_status",
    "write_chunks",
]

HEARTBEAT: Final = 15.0  # seconds without an event until a comment is sent
RETRY: Final = 2_000  # milliseconds until a client that was cut off comes back
CHUNK: Final = 256 * 1024  # bytes that are sent at once, or one event
PATIENCE: Final = 1.0  # seconds for a follower to be closed
LEAST: Final = 0.01  # seconds between two comments
MOST: Final = 86_400.0


def encode_event(event: StreamEvent) -> bytes:
    """Write an event of the run; made once, whoever asks."""
    return event.sse


def encode_gap(gap: Gap) -> bytes:
    """Write that events are missing: ``event: gap``."""
    return write_frame("gap", encode(gap.to_dict()))


def encode_writer_lost(lost: WriterLost) -> bytes:
    """Write that the run's writer fell silent: ``event: writer_lost``."""
    return write_frame("writer_lost", encode(lost.to_dict()))


def encode_close(end: FollowEnd = FollowEnd.CLOSED) -> bytes:
    """Write that nothing more will come, and why: ``event: close``."""
    return write_frame("close", encode({"reason": end.value}))


def read_last_event_id(header: str | None, query: str | None = None) -> EventId | None:
    """Read what a client has had last.

    Args:
        header: ``Last-Event-ID``, if it was sent; it wins.
        query: ``?last_event_id=``, if it was sent: what a page that has read the run
            up to there asks with first, and with again when it comes back.

    Returns:
        The id in its full form; ``None`` if neither says anything.

    Raises:
        ConfigurationError: It is no id of an event: answer with 400.
    """
    if header:
        return check_id("Last-Event-ID", header)
    return check_id("last_event_id", query) if query else None


async def stream_status(
    store: EventStore, run_id: int, last_id: EventId | None = None
) -> int:
    """Give the HTTP status that a request for the stream of a run is answered with.

    200: there is something to send, or may be. 204: the client has had everything of a
    run that has ended. 404: there is no such run. 410: there is none any more.

    Args:
        store: Where the events are.
        run_id: The run.
        last_id: What the client has had last, if it said so.

    Raises:
        ConfigurationError: An argument breaks its rule: 400.
        WrongTypeError: The key is no stream: 409.
        RedisRefusedError: Redis refuses: 503.
        RedisUnavailableError: Redis cannot answer: 503 if the client has had nothing,
            else 200, comments and :func:`event_frames`, because a browser that comes
            back and is answered otherwise gives up for ever.
    """
    if last_id in (None, BEGINNING):  # it has had nothing
        return 200 if await store.exists(run_id) else 404
    found = await store.get_events(run_id, last_id, "+", 2)
    if _ends_there(found, last_id):
        return 204
    return 200 if found or await store.exists(run_id) else 410


def _ends_there(found: list[StreamEvent], last_id: EventId) -> bool:
    return len(found) == 1 and found[0].closes and found[0].id == last_id


def event_frames(
    store: EventStore,
    run_id: int,
    last_id: EventId = BEGINNING,
    *,
    heartbeat: float = HEARTBEAT,
) -> EventFrames:
    """Give what to send to one client, chunk by chunk, as it comes.

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
    return EventFrames(store, run_id, last_id, check_heartbeat(heartbeat))


def check_heartbeat(value: object) -> float:
    """Give the seconds between two comments, or refuse them.

    Raises:
        ConfigurationError: It is no time from 10 ms to a day.
    """
    if isinstance(value, int | float) and LEAST <= value <= MOST:
        return float(value)
    rule = "it is a number of seconds, from 0.01 to a day"
    raise ConfigurationError("heartbeat", value, rule)


class EventFrames:
    """The bytes of one stream; iterate over it. Made by :func:`event_frames`."""

    def __init__(
        self, store: EventStore, run_id: int, last_id: EventId, heartbeat: float
    ) -> None:
        """Remember what to follow; nothing is read yet."""
        self._follower = store.follow(run_id, last_id)
        self._heartbeat = heartbeat
        self._ending = False
        self._waiting: anyio.CancelScope | None = None
        self._chunks = self._write()

    def __aiter__(self) -> Self:
        """Give itself."""
        return self

    async def __anext__(self) -> bytes:
        """Give what to send next."""
        return await anext(self._chunks)

    def end(self) -> None:
        """End it at once without a last word: the client is to come back.

        For a server that stops. To be called in the event loop that iterates.
        """
        self._ending = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def aclose(self) -> None:
        """Stop following; not while somebody waits for the next chunk."""
        await self._chunks.aclose()

    async def _write(self) -> AsyncGenerator[bytes]:
        follower = self._follower
        try:
            yield write_retry(RETRY)
            while True:
                found = deque(await self._next())
                is_silent = not found
                for chunk in write_chunks(found):
                    yield chunk
                if self._ending:
                    return
                if follower.end is not None:
                    if follower.end is not FollowEnd.LEFT:  # else it is to come back
                        yield encode_close(follower.end)
                    return
                if is_silent:
                    yield write_comment()
        finally:
            with anyio.move_on_after(PATIENCE, shield=True):
                await follower.aclose()

    async def _next(self) -> list[Followed]:
        """Wait for what comes next, until it is time for a comment, or for the end."""
        if not self._ending:
            # Who is cancelled in a batch has lost nothing.
            with anyio.CancelScope() as self._waiting:
                return await self._follower.batch(self._heartbeat)
        return []


def write_chunks(items: deque[Followed]) -> Iterator[bytes]:
    """Write what a follower gave, in few chunks that are not too large.

    What is written is let go of: a client that reads slowly holds the rest only.
    """
    frames: list[bytes] = []
    size = 0
    while items:
        frame = _write_followed(items.popleft())
        if frames and size + len(frame) > CHUNK:
            yield b"".join(frames)
            frames, size = [], 0
        frames.append(frame)
        size += len(frame)
    if frames:
        yield b"".join(frames)


def _write_followed(item: Followed) -> bytes:
    match item:
        case StreamEvent():
            return item.sse
        case Gap():
            return encode_gap(item)
        case WriterLost():
            return encode_writer_lost(item)
