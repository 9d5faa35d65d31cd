"""One server that is examined: pipelined reads over one connection, and its facts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import anyio

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Argument, Reply, Request
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.core.keys import encode_key
from bls_agent.ops.doctor.reading import Look
from bls_agent.ops.doctor.rule import Question
from bls_agent.ops.doctor.rules.server import Facts

__all__ = ["Server", "answer"]

PINGS: Final = 5
BATCH: Final = 2_000  # requests in one write
CLIENTS: Final = 10_000  # connections; of more, CLIENT LIST is not asked for
AGENT: Final = "bls-agent:"

_SETTINGS: Final = (
    "maxmemory", "maxmemory-policy", "maxclients", "timeout", "save",
    "proto-max-bulk-len",
)  # fmt: skip


class Server:
    """One server, over one connection that does not change the keys' idle times."""

    def __init__(self, connection: Connection, *, whole: bool) -> None:
        self._connection = connection
        self._whole = whole  # all nodes are looked at, if it is a cluster's
        self._quiet = -1  # in which life of the connection NO-TOUCH was asked for

    @property
    def address(self) -> str:
        """Its address, without credentials."""
        return self._connection.address

    async def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Send requests that change nothing; error replies stand in the list.

        A lost connection is opened once more.
        """
        replies: list[Reply] = []
        for begin in range(0, len(requests), BATCH):
            replies += await self._send(requests[begin : begin + BATCH])
        return replies

    async def _send(self, requests: Sequence[Request]) -> list[Reply]:
        try:
            await self._disable_touch()
            return await self._connection.call_many(requests)
        except RedisUnavailableError as error:
            if error.kind != "connection" or error.connecting:
                raise
        await self._disable_touch()
        return await self._connection.call_many(requests)

    async def _disable_touch(self) -> None:
        """Ask once on each connection that reads do not reset a key's idle time."""
        if self._quiet != self._connection.generation or not self._connection.connected:
            await self._connection.call_many(
                [("CLIENT", "NO-TOUCH", "ON")]
            )  # since 7.2
            self._quiet = self._connection.generation

    async def one(self, *request: Argument) -> Reply:
        """Send one request; an error reply is raised."""
        reply = (await self.ask([request]))[0]
        if isinstance(reply, RedisUnavailableError):
            raise reply
        return reply

    async def facts(self, clock: Callable[[], float]) -> Facts:
        """Ask for the server's facts, or why not; ``clock`` gives Unix seconds."""
        refused: dict[str, str] = {}
        rtt, offset = await self._measure(clock, refused)
        names = [("CONFIG", "GET", name) for name in _SETTINGS]
        info, cluster, *settings = await self.ask(
            [("INFO",), ("CLUSTER", "INFO"), *names]
        )
        told = {} if _refusal(info) else _read_info(info)
        if why := _refusal(info):
            refused["INFO"] = why
        if told.get("cluster_enabled") == "1" and not _refusal(cluster):
            told |= _read_info(cluster)
        config: dict[str, str] = {}
        for reply in settings:
            if why := _refusal(reply):
                refused["CONFIG GET"] = why
            elif len(reply) == 2:  # noqa: PLR2004 - name and value
                config[reply[0].decode()] = reply[1].decode("utf-8", "replace")
        return Facts(
            address=self._connection.address,
            info=told,
            config=config,
            rtt=rtt,
            offset=offset,
            refused=refused,
            whole=self._whole,
        )

    async def _measure(
        self, clock: Callable[[], float], refused: dict[str, str]
    ) -> tuple[float, float]:
        """Give the seconds of a round trip, and those by which the clock is ahead."""
        trips: list[float] = []
        offsets: list[float] = []
        await self.ask([("TIME",)])  # connects
        for _ in range(PINGS):
            began = anyio.current_time()
            reply = (await self.ask([("TIME",)]))[0]
            trip = anyio.current_time() - began
            trips.append(trip)
            if why := _refusal(reply):
                refused["TIME"] = why
            else:
                there = int(reply[0]) + int(reply[1]) / 1e6
                offsets.append(there - (clock() - trip / 2))
        return statistics.median(trips), statistics.median(offsets or [0.0])

    async def count_keys(self) -> int:
        """Give the number of keys, 0 if that is refused."""
        reply = (await self.ask([("DBSIZE",)]))[0]
        return reply if isinstance(reply, int) else 0

    async def connected(self, facts: Facts) -> frozenset[str] | None:
        """Name the instances of connected agents, ``None`` if unknown."""
        if not 0 < facts.number("connected_clients") <= CLIENTS:
            return None
        reply = (await self.ask([("CLIENT", "LIST")]))[0]
        if _refusal(reply):
            return None
        lines = [line.split(b" ") for line in reply.splitlines()]
        words = [
            word[5:].decode() for line in lines for word in line if word[:5] == b"name="
        ]
        return frozenset(
            word.removeprefix(AGENT).rpartition(":")[0]
            for word in words
            if word.startswith(AGENT)
        )

    async def fill(self, looks: Sequence[Look]) -> None:
        """Read some of each key, all of them in two trips."""
        await self._trip(looks, Look.first, Look.record_first)
        await self._trip(looks, Look.second, Look.record_second)

    async def _trip(
        self,
        looks: Sequence[Look],
        plan: Callable[[Look], list[Request]],
        note: Callable[[Look, Sequence[Reply]], None],
    ) -> None:
        plans = [plan(look) for look in looks]
        replies = iter(await self.ask([request for one in plans for request in one]))
        for look, requests in zip(looks, plans, strict=True):
            note(look, [next(replies) for _ in requests])

    async def who(self) -> str:
        """Name our own user, ``""`` if that is refused."""
        reply = (await self.ask([("ACL", "WHOAMI")]))[0]
        return "" if _refusal(reply) else reply.decode("utf-8", "replace")

    async def dry_run(
        self, user: str, requests: Iterable[tuple[Argument, ...]]
    ) -> dict[tuple[Argument, ...], Reply]:
        """Try requests as a user with ACL DRYRUN; unanswered ones are omitted."""
        asked = list(requests)
        encoded = [["ACL", "DRYRUN", user, *map(_encode, one)] for one in asked]
        replies = await self.ask(encoded)
        pairs = zip(asked, replies, strict=True)
        return {request: reply for request, reply in pairs if not _refusal(reply)}


def _encode(word: Argument) -> Argument:
    return encode_key(word) if isinstance(word, str) else word


def _refusal(reply: Reply) -> str:
    return reply.kind if isinstance(reply, RedisUnavailableError) else ""


def _read_info(reply: bytes) -> dict[str, str]:
    lines = reply.decode("utf-8", "replace").splitlines()
    pairs = (line.partition(":") for line in lines if not line.startswith("#"))
    return {name: value for name, colon, value in pairs if colon}


async def answer(
    pool: ConnectionPool, questions: Iterable[Question]
) -> Mapping[Question, Any]:
    """Answer questions about keys on whichever server has them; omits refused ones."""
    asked = list(questions)
    replies = await pool.read_many([[*map(encode_key, words)] for words in asked])
    pairs = zip(asked, replies, strict=True)
    return {question: reply for question, reply in pairs if not _refusal(reply)}
