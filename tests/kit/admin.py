"""A bare connection for orders to a server: nothing is tried again or converted."""

from __future__ import annotations

from typing import Any, Final

from redis.connection import Connection

ADMIN_TIMEOUT: Final = 10.0


class AdminConnection:
    """One blocking connection of redis-py. It connects when it is asked, also again.

    Args:
        port: Where the server listens on loopback.
        timeout: Seconds that one reply may take.
    """

    def __init__(self, port: int, timeout: float = ADMIN_TIMEOUT) -> None:
        make: Any = Connection  # redis-py leaves it untyped
        self._connection = make(
            "127.0.0.1",
            port,
            protocol=2,
            socket_timeout=timeout,
            redis_connect_func=_say_nothing,
        )

    def ask(self, *words: str | bytes | float) -> Any:
        """Send one request and give the reply.

        Raises:
            redis.RedisError: The server answered with an error, or not at all.
        """
        self._connection.send_command(*words)
        return self._connection.read_response()

    def close(self) -> None:
        """Close it."""
        self._connection.disconnect()


def _say_nothing(connection: Any) -> None:
    """Send nothing before the first request: a server that refuses it says why."""
    connection._parser.on_connect(connection)
