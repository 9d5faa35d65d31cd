"""What lies under a connection: questions to its transport, and its sudden end."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, cast

from bls_agent.connection.endpoint import RawConnection

__all__ = [
    "abort",
    "bytes_received",
    "descriptor_of",
    "leaves_at_once",
    "own_address",
    "peer_has_closed",
    "socket_of",
]

RECEIVED: Final = slice(128, 136)  # tcpi_bytes_received in Linux's struct tcp_info
SMALL: Final = 16_384  # bytes; asyncio makes a writer wait from 64 KB on


def peer_has_closed(raw: RawConnection) -> bool:
    """Notice an end of file that the event loop has already seen."""
    reader = getattr(raw, "_reader", None)
    return reader is not None and bool(reader.at_eof())


def leaves_at_once(raw: RawConnection, packed: Sequence[bytes]) -> bool:
    """Tell whether a request goes to the system in one step, with nothing to wait for."""
    writer = getattr(raw, "_writer", None)
    return (
        writer is not None
        and not writer.transport.get_write_buffer_size()
        and sum(map(len, packed)) < SMALL
    )


def bytes_received(raw: RawConnection | None) -> int | None:
    """Count what has arrived over TCP, whether or not anybody has read it.

    Returns:
        ``None`` where nobody tells: not on Linux, not TCP, not connected.
    """
    asked = getattr(socket, "TCP_INFO", None)
    connection = socket_of(raw)
    if asked is None or connection is None or sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError, NotImplementedError):
        told = connection.getsockopt(socket.IPPROTO_TCP, asked, RECEIVED.stop)
        if len(told) == RECEIVED.stop:
            return int.from_bytes(told[RECEIVED], sys.byteorder)
    return None


def own_address(raw: RawConnection) -> str:
    """Give our end of a TCP connection in the form of CLIENT LIST, or ``""``."""
    writer = getattr(raw, "_writer", None)
    name = writer.get_extra_info("sockname") if writer is not None else None
    if not isinstance(name, tuple):
        return ""
    host, port = cast("tuple[str, int]", name)[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def abort(raw: RawConnection) -> None:
    """Throw away what is not sent yet, so that it cannot arrive later."""
    writer = getattr(raw, "_writer", None)
    if writer is not None:
        writer.transport.abort()


def descriptor_of(raw: RawConnection | None) -> int:
    """Give the number of a connection's socket, or -1 if there is none any more."""
    found = socket_of(raw)
    return -1 if found is None else int(found.fileno())


def socket_of(raw: RawConnection | None) -> Any:
    """Give a connection's socket, or what the loop shows of it."""
    writer = getattr(raw, "_writer", None)
    return writer.get_extra_info("socket") if writer is not None else None
