"""Blocking reads, such as BLPOP, whose replies come when there is data.

Receivers of commands and readers that follow a run use them.
"""

from __future__ import annotations

from collections.abc import Sequence

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.faults import translate
from bls_agent.connection.transport import ChannelState
from bls_agent.core.errors import RedisUnavailableError


class BlockingConnection:
    """The blocking requests of one reader, on a connection of its own.

    A request that was sent by :meth:`post` has no deadline. Cancelling :meth:`collect`
    loses no reply, because the next call returns the reply. If the node of a cluster
    redirects a request, the reader gets the redirection as an error.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @property
    def pending(self) -> int:
        """Number of posted requests whose replies were not collected yet."""
        return self.connection.pending

    @property
    def received(self) -> int | None:
        """Number of bytes that have arrived; ``None`` if the connection is not open."""
        channel = self.connection.channel
        return None if channel is None else channel.received

    async def post(self, requests: Sequence[Request]) -> None:
        """Send requests without waiting for the replies."""
        channel = self.connection.channel
        if channel is None or channel.state is ChannelState.ENDED:
            channel = await self.connection.open()
        channel.post(requests)

    async def collect(self, patience: float | None = None) -> Reply:
        """Return the next pending reply; cancelling loses no reply.

        Raises RedisUnavailableError for an error reply or a lost connection, and
        TimeoutError if no reply has come after ``patience`` seconds.
        """
        connection, channel = self.connection, self.connection.channel
        if channel is None:
            reason = "the connection is closed"
            raise RedisUnavailableError(
                "connection", reason, address=connection.address
            )
        try:
            reply, request = await channel.collect(patience)
        except Exception as error:
            if channel.state is not ChannelState.ENDED:
                raise
            if channel is connection.channel:
                connection.channel = None
            raise translate(error, connection.address, ambiguous=True) from error
        if isinstance(reply, RedisUnavailableError):
            connection.note_refused(channel, [request], [reply])
            raise reply
        return reply

    async def unblock(self, admin: Connection) -> bool:
        """Make the server end the blocking read; return whether the server has replied."""
        number = self.connection.client_id
        if number is None:
            return False
        try:
            await admin.call("CLIENT", "UNBLOCK", number)
        except RedisUnavailableError:
            return False
        return True
