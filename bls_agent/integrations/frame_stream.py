"""Frames of server-sent events as an answer, which ends in order with its server."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Final

import anyio
from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from bls_agent.errors import BlsError
from bls_agent.runs.sse import EventFrames

__all__ = ["FrameStream"]

GRACE: Final = 1.0  # seconds for a stream to end when the server stops
STALLED: Final = 60.0  # seconds for a client to take what it is sent

_log = logging.getLogger(__name__)


class FrameStream(EventSourceResponse):
    """Sends frames, and ends them in order when the server stops."""

    def __init__(self, frames: EventFrames, headers: Mapping[str, str]) -> None:
        self._frames = frames
        self._stopping = anyio.Event()
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - a dict of its own
            _quietly(frames),
            headers=headers,
            ping=0,  # the frames have heartbeats of their own
            send_timeout=STALLED,
            shutdown_event=self._stopping,
            shutdown_grace_period=GRACE,
        )
        del self.headers["connection"]  # the server's own affair

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them until they end, the client leaves, or the server stops."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_with_server)
            with suppress(OSError, SendTimeoutError):  # it left, or takes nothing
                await super().__call__(scope, receive, send)
            tasks.cancel_scope.cancel()

    async def _end_with_server(self) -> None:
        await self._stopping.wait()
        self._frames.end()


async def _quietly(frames: EventFrames) -> AsyncGenerator[bytes]:
    """Give frames; where following cannot go on, end: who comes back is told why."""
    try:
        async for chunk in frames:
            yield chunk
    except BlsError as error:
        _log.warning("a stream ends: %s", error)
    finally:
        await frames.aclose()
