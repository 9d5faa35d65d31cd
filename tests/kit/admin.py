"""A bare connection for orders to a server, so that hurting it needs no client."""

from __future__ import annotations

import socket
from typing import Final, TypeAlias

from bls_agent.core.errors import RedisUnavailableError

ADMIN_TIMEOUT: Final = 10.0

AdminReply: TypeAlias = "bytes | int | list[AdminReply] | None"


class AdminConnection:
    """One blocking connection that sends words and reads the reply (RESP2).

    Args:
        port: Where the server listens on loopback.
        timeout: Seconds that one reply may take.
    """

    def __init__(self, port: int, timeout: float = ADMIN_TIMEOUT) -> None:
        address = ("127.0.0.1", port)
        self._address = f"{address[0]}:{port}"
        try:
            self._socket = socket.create_connection(address, timeout)
        except OSError as error:
            raise self._away(error) from error
        self._replies = self._socket.makefile("rb")

    def ask(self, *words: str | bytes | float) -> AdminReply:
        """Send one request and give the reply.

        Raises:
            RedisUnavailableError: The server answered with an error, which is the
                reason then, or not at all.
        """
        encoded = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        lines = [b"*%d" % len(encoded)]
        for word in encoded:
            lines += [b"$%d" % len(word), word]
        try:
            self._socket.sendall(b"\r\n".join([*lines, b""]))
            return self._read()
        except OSError as error:
            raise self._away(error) from error

    def close(self) -> None:
        """Close it."""
        self._replies.close()
        self._socket.close()

    def _read(self) -> AdminReply:
        line = self._replies.readline()
        if not line.endswith(b"\r\n"):
            reason = "the server closed the connection"
            raise ConnectionResetError(reason)
        kind, rest = line[:1], line[1:-2]
        match kind:
            case b"+":
                return rest
            case b":":
                return int(rest)
            case b"$":
                return self._read_bulk(int(rest))
            case b"*":
                return [self._read() for _ in range(int(rest))]
            case _:
                raise RedisUnavailableError(
                    "answered", rest.decode("utf-8", "replace"), address=self._address
                )

    def _read_bulk(self, size: int) -> bytes | None:
        if size < 0:
            return None
        value = self._replies.read(size + 2)
        if len(value) < size + 2:
            reason = "the server closed the connection"
            raise ConnectionResetError(reason)
        return value[:-2]

    def _away(self, error: OSError) -> RedisUnavailableError:
        return RedisUnavailableError("lost", str(error), address=self._address)
