"""HTTP/1.1 as uvicorn speaks it, with patience that ends.

uvicorn waits for ever for a request that does not come, and for a client that reads
nothing. Both hold a connection, and the second one memory; here both are dropped.
"""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from bls_agent.web.door.headers import HEADERS

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport  # noqa: TID251 - the server's own types

__all__ = ["PatientProtocol", "make_protocol", "write_refusal"]

UNIX: Final = ("unix", 0)  # a peer without an address: a proxy, if there is one, too
_HEAD: Final = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
_REFUSAL: Final = (
    "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\n"
    "content-length: {length}\r\nconnection: close\r\ncache-control: no-store\r\n"
    "{head}\r\n{text}"
)


# Asked by a tool that sends an address as it was typed.
_ASCII: Final = "In an address every byte that is not ASCII has to be written as %NN."


class PatientProtocol(H11Protocol):
    """One connection.

    Attributes:
        stall: Seconds for a request's head to come, or for an answer to be taken.
        most: Connections that may be open; more are refused.
        counts: Counts the connections that were dropped, by reason.
    """

    stall: ClassVar[float]
    most: ClassVar[int]
    counts: ClassVar[Counter[str]]
    _for_head: TimerHandle | None = None
    _for_reader: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is room."""
        super().connection_made(transport)
        self.client = self.client or UNIX
        _watch_peer(transport, self.stall)
        if len(self.connections) > self.most:
            self._refuse("503 Service Unavailable", "too many connections")
            self.counts["connections_refused"] += 1
        else:
            self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Take what comes; the head of a request has to come within its time."""
        super().data_received(data)
        if self._is_answering():
            self._cancel_head()
        elif self._for_head is None:
            self._wait_for_head()

    def on_response_complete(self) -> None:
        """Wait for the next request, of which some may have come already."""
        super().on_response_complete()
        if self.conn.trailing_data[0] and not self._is_answering():
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the clocks."""
        self._cancel_head()
        self._cancel_reader()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the peer to read, and not for ever."""
        super().pause_writing()
        self._cancel_reader()
        self._for_reader = self.loop.call_later(self.stall, self._give_up, "readers")

    def resume_writing(self) -> None:
        """Go on writing."""
        self._cancel_reader()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, with the headers of every answer."""
        self.counts["not_http"] += 1
        self._refuse("400 Bad Request", f"{msg} {_ASCII}\n")

    def _refuse(self, status: str, text: str) -> None:
        self.transport.write(write_refusal(status, text))
        self.transport.close()

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _wait_for_head(self) -> None:
        self._cancel_head()
        self._for_head = self.loop.call_later(self.stall, self._give_up, "requests")

    def _give_up(self, what: str) -> None:
        if what == "readers" or not self._is_answering():
            self.counts[f"{what}_stalled"] += 1
            self.transport.abort()

    def _cancel_head(self) -> None:
        if self._for_head is not None:
            self._for_head.cancel()
            self._for_head = None

    def _cancel_reader(self) -> None:
        if self._for_reader is not None:
            self._for_reader.cancel()
            self._for_reader = None


def write_refusal(status: str, text: str) -> bytes:
    """Write an answer after which the connection is closed."""
    answer = _REFUSAL.format(status=status, text=text, length=len(text), head=_HEAD)
    return answer.encode()


def make_protocol(
    *, stall: float, most: int, counts: Counter[str]
) -> type[PatientProtocol]:
    """Make the class of connections that uvicorn is given; see its attributes."""
    attributes = {"stall": stall, "most": most, "counts": counts}
    return type("ConsoleProtocol", (PatientProtocol,), attributes)


def _watch_peer(transport: Transport, stall: float) -> None:
    """Let the kernel notice a peer that has vanished without a word."""
    channel = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if channel is None or option is None:
        return
    with suppress(OSError):  # a Unix socket has no such thing
        # Later than our own clocks, which count what they drop.
        channel.setsockopt(socket.IPPROTO_TCP, option, int(stall * 1500))
