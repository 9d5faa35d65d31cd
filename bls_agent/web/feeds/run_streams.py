"""Server-sent events: which runs there are, and what happens in one of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response

from bls_agent.codec import encode
from bls_agent.errors import BlsError, RedisRefusedError, RedisUnavailableError
from bls_agent.runs import Followed, Follower, Gap, StreamEvent
from bls_agent.runs.event_ids import BEGINNING, check_id
from bls_agent.web.feeds.run_feed import clock
from bls_agent.web.feeds.streams import (
    EVENT_SIZE,
    last_words,
    open_stream,
    pictures_of,
    write_event,
)
from bls_agent.web.interface.run_events import encode_event, read_back, run_in_path
from bls_agent.web.pages.run_cards import make_run_card
from bls_agent.web.state import WebState, web_state

__all__ = ["all_runs_events", "count_rows", "run_events", "write_followed"]

ROWS: Final = 2_000  # rows of a page; streamed text of one speaker shares one
WHOLE: Final = 12_000  # events that a stream begins with at most
FIRST_BYTES: Final = 8 * 1024 * 1024  # of them
LOOK: Final = 1.0  # seconds for which events are waited for
HEAD: Final = 2.0  # seconds between two looks at how the run stands
QUIET_HEAD: Final = 5.0  # while nothing happens
NO_RUN: Final = write_event("run", b"null")


async def all_runs_events(request: Request) -> Response:
    """``GET /events/runs``: which runs there are, and what changes."""
    state = web_state(request)
    return open_stream(request, pictures_of(state, state.run_list, "runs"))


async def run_events(request: Request) -> Response:
    """``GET /events/runs/{run}``: the newest events of a run, and what follows."""
    run_id = run_in_path(request)
    told = request.headers.get("last-event-id") or request.query_params.get("after")
    after = None if told is None else check_id("after", told)
    state = web_state(request)
    if after is None:
        await state.runs.describe(run_id)  # what can be said with a status is said now
    stream = _RunStream(state, run_id)
    return open_stream(request, stream.events(after))


@dataclass
class _RunStream:
    """One follower's stream of one run."""

    state: WebState
    run_id: int

    async def events(self, after: str | None) -> AsyncIterator[bytes]:
        """Give what a page needs, in its order.

        Where nothing else is said: ``run`` (how it stands), ``begin`` (where older events
        are found), the newest ``events``; then what happens.
        """
        try:
            yield await self._head()
            if after is None:
                first, after = await self._newest()
                for frame in first:
                    yield frame
            follower = self.state.runs.follow(self.run_id, after)
            try:
                async with aclosing(self._follow(follower)) as frames:
                    async for frame in frames:
                        yield frame
            finally:
                with anyio.CancelScope(shield=True):
                    await follower.aclose()
        except BlsError as error:  # it stays so until somebody changes something
            yield last_words(error)

    async def _newest(self) -> tuple[list[bytes], str]:
        """Write the newest events, as many as a page holds; and tell the last one's id."""
        found: list[StreamEvent] = []
        before, size = None, 0
        pages = read_back(self.state.runs, self.run_id, None, WHOLE)
        async with aclosing(pages):
            async for page in pages:
                found = page.events + found
                before = page.next
                size += sum(len(event.json) for event in page.events)
                if size > FIRST_BYTES or count_rows(found) >= ROWS:
                    break
        frames = [write_event("begin", encode({"before": before}))]
        frames += write_followed(found)
        return frames, found[-1].id if found else BEGINNING

    async def _follow(self, follower: Follower) -> AsyncGenerator[bytes]:
        """Give what happens, until the run ends or the console does."""
        heartbeat = self.state.config.limits.heartbeat
        looked = beaten = anyio.current_time()
        away = False
        while not self.state.closing.is_set():
            found = await self._wait(follower)
            for frame in write_followed(found):
                yield frame
            if (follower.unavailable is not None) != away:
                away = not away
                yield _write_outage(follower.unavailable)
            if follower.ended and not self.state.closing.is_set():
                for frame in await self._last_frames():
                    yield frame
                return
            now = anyio.current_time()
            if now - looked > (HEAD if found else QUIET_HEAD):
                looked = now
                yield await self._head()
            if now - beaten > heartbeat:
                beaten = now
                yield b""

    async def _last_frames(self) -> list[bytes]:
        """Say that the run has ended, or is gone."""
        head = await self._head()
        reason = "gone" if head == NO_RUN else "closed"
        return [head, write_event("end", encode({"reason": reason}))]

    async def _wait(self, follower: Follower) -> list[Followed]:
        """Wait for what happens, or for the end of the console."""
        found: list[Followed] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_at_end, self.state, tasks.cancel_scope)
            found = await follower.batch(LOOK)
            tasks.cancel_scope.cancel()
        return found

    async def _head(self) -> bytes:
        """Write how the run stands; nothing in an outage, which the follower tells of.

        Raises:
            RedisRefusedError: Redis refuses for good.
        """
        try:
            run = await self.state.runs.describe(self.run_id)
        except RedisRefusedError:
            raise
        except RedisUnavailableError:
            return b""
        if run is None:
            return NO_RUN
        return write_event("run", encode(make_run_card(run, clock(), whole=True)))


async def _cancel_at_end(state: WebState, scope: anyio.CancelScope) -> None:
    await state.closing.wait()
    scope.cancel()


def _write_outage(error: RedisUnavailableError | None) -> bytes:
    if error is None:
        return write_event("available", b"{}")
    return write_event("unavailable", encode({"kind": error.kind}))


def count_rows(events: Sequence[StreamEvent]) -> int:
    """Count the rows that events fill: text that is streamed on shares one."""
    rows = 0
    speaking: object = None
    for event in events:
        speaker = [event.source] if event.name == "llm.stream" else None
        if speaker is None or speaker != speaking:
            rows += 1
        speaking = speaker
    return rows


def write_followed(found: Sequence[Followed]) -> list[bytes]:
    """Write what a follower was given; events share frames, whose id is the place."""
    frames: list[bytes] = []
    held: list[bytes] = []
    size, place = 0, ""
    for one in found:
        payload = encode_event(one) if isinstance(one, StreamEvent) else b""
        if held and (not payload or size + len(payload) > EVENT_SIZE):
            frames.append(_write_frame(held, place))
            held, size = [], 0
        if isinstance(one, StreamEvent):
            held.append(payload)
            size, place = size + len(payload), one.id
        else:
            name = "gap" if isinstance(one, Gap) else "lost"
            frames.append(write_event(name, encode(one.to_dict())))
    if held:
        frames.append(_write_frame(held, place))
    return frames


def _write_frame(events: Sequence[bytes], place: str) -> bytes:
    return b"id: %s\n" % place.encode() + write_event(
        "events", b"[%s]" % b",".join(events)
    )
