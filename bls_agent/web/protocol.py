"""HTTP/1.1 as uvicorn speaks it, with patience that ends.

uvicorn waits for ever for a request that does not come, and for a client that reads
nothing. Both hold a connection, and the second one memory; here both are dropped.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from bls_agent.web.headers import HEADERS

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport  # noqa: TID251 - the server's own types

__all__ = ["make_protocol"]

_HEAD: Final = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
_REFUSAL: Final = (
    "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\n"
    "content-length: {length}\r\nconnection: close\r\ncache-control: no-store\r\n"
    + _HEAD
    + "\r\n{text}"
)


def make_protocol(
    *, stall: float, connections: int, count: Callable[[str], None]
) -> type[H11Protocol]:
    """Make the class of connections that uvicorn is given.

    Args:
        stall: Seconds for a request's head to come, or for an answer to be taken.
        connections: Connections that may be open; more are refused.
        count: Told one word about each connection that is dropped.
    """

    class PatientProtocol(H11Protocol):
        _waiting_for_head: TimerHandle | None = None
        _waiting_for_reader: TimerHandle | None = None

        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            _watch_peer(transport, stall)
            if len(self.connections) > connections:
                count("connections_refused")
                transport.write(_refusal("503 Service Unavailable", "too many"))
                transport.close()
                return
            self._wait_for_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._is_answering():
                self._cancel_head()
            elif self._waiting_for_head is None:
                self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel_head()
            self._cancel_reader()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._cancel_reader()
            self._waiting_for_reader = self.loop.call_later(stall, self._give_up_reader)

        def resume_writing(self) -> None:
            self._cancel_reader()
            super().resume_writing()

        def send_400_response(self, msg: str) -> None:
            """Answer what is no HTTP, with the headers of every answer."""
            count("not_http")
            self.transport.write(_refusal("400 Bad Request", msg))
            self.transport.close()

        def _is_answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _wait_for_head(self) -> None:
            self._waiting_for_head = self.loop.call_later(stall, self._give_up_head)

        def _give_up_head(self) -> None:
            self._waiting_for_head = None
            if not self._is_answering():
                count("requests_stalled")
                self.transport.abort()

        def _give_up_reader(self) -> None:
            count("readers_stalled")
            self.transport.abort()

        def _cancel_head(self) -> None:
            if self._waiting_for_head is not None:
                self._waiting_for_head.cancel()
                self._waiting_for_head = None

        def _cancel_reader(self) -> None:
            if self._waiting_for_reader is not None:
                self._waiting_for_reader.cancel()
                self._waiting_for_reader = None

    return PatientProtocol


def _watch_peer(transport: Any, stall: float) -> None:
    """Let the kernel notice a peer that has vanished without a word."""
    channel = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if channel is None or option is None:
        return
    with suppress(OSError):  # a Unix socket knows neither
        channel.setsockopt(socket.IPPROTO_TCP, option, int(stall * 1000))


def _refusal(status: str, text: str) -> bytes:
    return _REFUSAL.format(status=status, text=text, length=len(text)).encode()
