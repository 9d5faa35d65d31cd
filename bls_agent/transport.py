"""What lies under a connection: questions to its transport, and its sudden end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from bls_agent.endpoint import RawConnection

__all__ = [
    "abort",
    "descriptor_of",
    "leaves_at_once",
    "own_address",
    "peer_has_closed",
    "socket_of",
]

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
    socket = socket_of(raw)
    return -1 if socket is None else int(socket.fileno())


def socket_of(raw: RawConnection | None) -> Any:
    """Give a connection's socket, or what the loop shows of it."""
    writer = getattr(raw, "_writer", None)
    return writer.get_extra_info("socket") if writer is not None else None
