"""Frames of server-sent events as an answer, which ends in order with its server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Final

import anyio
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from bls_agent.integrations.frame_pump import FramePump, Put

__all__ = ["FrameStream"]

GRACE: Final = 1.0  # seconds for a stream to end when the server stops


class FrameStream(EventSourceResponse):
    """Sends frames, and ends them in order when the server stops."""

    def __init__(self, pump: FramePump, headers: Mapping[str, str]) -> None:
        self._pump = pump
        self._put: Put | None = None
        self._stopping = anyio.Event()
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - a dict of its own
            self._send_all(),
            headers=headers,
            ping=0,  # the pump has heartbeats of its own
            shutdown_event=self._stopping,
            shutdown_grace_period=GRACE,
        )
        del self.headers["connection"]  # the server's own affair

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them until they end, the client leaves, or the server stops."""

        async def put(chunk: bytes) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

        self._put = put
        async with anyio.create_task_group() as tasks:

            async def give_up() -> None:
                with suppress(OSError):  # it left
                    await self._pump.mind(put)
                tasks.cancel_scope.cancel()

            tasks.start_soon(self._end_with_server)
            tasks.start_soon(give_up)
            with suppress(OSError):
                await super().__call__(scope, receive, send)
            tasks.cancel_scope.cancel()

    async def _send_all(self) -> AsyncGenerator[bytes]:
        """Give nothing: the pump sends by itself.

        Each chunk that is given here would be sent with a deadline of its own.
        """
        if self._put is not None:
            await self._pump.run(self._put)
        for chunk in tuple[bytes]():
            yield chunk

    async def _end_with_server(self) -> None:
        await self._stopping.wait()
        self._pump.end()
