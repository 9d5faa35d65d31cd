"""One server that is examined: pipelined reads, its facts, and the rules about them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import anyio

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Argument, Reply, Request
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.core.keys import encode_key
from bls_agent.ops.doctor.reading import Look
from bls_agent.ops.doctor.rule import Finding, Question, Severity, Values, show

__all__ = ["SERVER_RULES", "Facts", "Server", "ServerRule", "answer"]

PINGS: Final = 5
CLIENTS: Final = 10_000  # connections; of more, CLIENT LIST is not asked for
AGENT: Final = "bls-agent:"
NO_TOUCH: Final = ("CLIENT", "NO-TOUCH", "ON")  # reads make no key younger; since 7.2

_SETTINGS: Final = (
    "maxmemory", "maxmemory-policy", "maxclients", "timeout", "save",
    "proto-max-bulk-len",
)  # fmt: skip
OLDEST: Final = (5, 0)
FULL: Final = (6, 2)  # from here on everything that this package uses is there
SLOW: Final = 0.05  # seconds for an answer
APART: Final = 2.0  # seconds between two clocks
NEARLY: Final = 0.9  # of what is allowed
BULK: Final = 2 * 1024 * 1024  # bytes: a command of 1 MiB, escaped


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What one server reports of itself."""

    address: str  # without credentials
    # INFO, all sections in one; empty where refused.
    info: Mapping[str, str] = field(default_factory=dict[str, str])
    # CONFIG GET; empty where refused.
    config: Mapping[str, str] = field(default_factory=dict[str, str])
    rtt: float = 0.0  # seconds, the median of several
    offset: float = 0.0  # seconds by which its clock is ahead of ours
    refused: Mapping[str, str] = field(default_factory=dict[str, str])  # command → why
    whole: bool = True  # all nodes of its cluster are examined

    @property
    def family(self) -> str:
        """``redis``, ``valkey``, or another name in its INFO."""
        info = self.info
        if "valkey_version" in info or info.get("server_name") == "valkey":
            return "valkey"
        for name in ("dragonfly", "keydb", "kvrocks", "tendis"):
            if any(name in f"{field} {value}".lower() for field, value in info.items()):
                return name
        return info.get("server_name", "redis")

    @property
    def version(self) -> str:
        """Its version; for Valkey not that of the Redis it emulates."""
        return self.info.get("valkey_version") or self.info.get("redis_version", "")

    @property
    def speaks(self) -> tuple[int, ...]:
        """The version of Redis whose commands it implements."""
        return tuple(
            int(part)
            for part in self.info.get("redis_version", "").split(".")
            if part.isdecimal()
        )

    def number(self, name: str) -> int:
        """Give a number of INFO or CONFIG, 0 if it is missing."""
        told = self.info.get(name) or self.config.get(name, "")
        return int(told) if told.isdecimal() else 0


class Server:
    """One server, over one connection that does not change the keys' idle times."""

    def __init__(self, connection: Connection) -> None:
        self.address = connection.address  # without credentials
        self._connection = connection

    async def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Send requests that change nothing; error replies stand in the list."""
        return (await self._connection.read_many([NO_TOUCH, *requests]))[1:]

    async def one(self, *request: Argument) -> Reply:
        """Send one request; ``None`` if it is refused."""
        reply = (await self.ask([request]))[0]
        return None if _refusal(reply) else reply

    async def scan(self, cursor: bytes, count: int) -> Reply:
        """Take one step through the keys; raises if that is refused."""
        return await self._connection.read("SCAN", cursor, "COUNT", count)

    async def facts(self, clock: Callable[[], float], *, whole: bool) -> Facts:
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
            address=self.address,
            info=told,
            config=config,
            rtt=rtt,
            offset=offset,
            refused=refused,
            whole=whole,
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

    async def connected(self, facts: Facts) -> frozenset[str] | None:
        """Name the instances of connected agents, ``None`` if unknown."""
        if not 0 < facts.number("connected_clients") <= CLIENTS:
            return None
        reply = await self.one("CLIENT", "LIST")
        if reply is None:
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
        for plan, record in (
            (Look.first, Look.record_first),
            (Look.second, Look.record_second),
        ):
            plans = [plan(look) for look in looks]
            asked = [request for requests in plans for request in requests]
            replies = iter(await self.ask(asked))
            for look, requests in zip(looks, plans, strict=True):
                record(look, [next(replies) for _ in requests])

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


_Check: TypeAlias = Callable[[Facts], Values | None]


@dataclass(frozen=True)
class ServerRule:
    """One rule about a server."""

    code: str
    severity: Severity
    check: _Check

    def judge(self, facts: Facts) -> Finding | None:
        """Apply the rule."""
        values = self.check(facts)
        if values is None:
            return None
        values = {"server": facts.address} | values
        return Finding(self.code, self.severity, "server", values=values)


def _version(begin: tuple[int, ...], end: tuple[int, ...]) -> _Check:
    def check(facts: Facts) -> Values | None:
        found = facts.speaks and begin <= facts.speaks < end
        return {"version": facts.version} if found else None

    return check


def _other_family(facts: Facts) -> Values | None:
    known = not facts.info or facts.family in ("redis", "valkey")
    return None if known else {"family": show(facts.family)}


def _slow(facts: Facts) -> Values | None:
    return {"ms": f"{facts.rtt * 1000:,.0f}"} if facts.rtt > SLOW else None


def _other_clock(facts: Facts) -> Values | None:
    if abs(facts.offset) <= APART + facts.rtt:
        return None
    return {"seconds": f"{facts.offset:+,.1f}"}


def _policy(facts: Facts) -> str:
    """Give the eviction policy, ``""`` if memory has no limit."""
    if not facts.number("maxmemory"):
        return ""
    return facts.info.get("maxmemory_policy") or facts.config.get(
        "maxmemory-policy", ""
    )


def _evicts(which: str) -> _Check:
    def check(facts: Facts) -> Values | None:
        policy = _policy(facts)
        return {"policy": show(policy)} if policy.startswith(which) else None

    return check


def _nearly(limit_name: str, used_name: str) -> _Check:
    def check(facts: Facts) -> Values | None:
        limit, used = facts.number(limit_name), facts.number(used_name)
        if not limit or used < NEARLY * limit:
            return None
        return {"used": f"{used:,}", "limit": f"{limit:,}"}

    return check


def _not_persistent(facts: Facts) -> Values | None:
    if facts.info.get("aof_enabled") != "0" or facts.config.get("save") != "":
        return None
    return {}


def _save_failed(facts: Facts) -> Values | None:
    names = (
        "rdb_last_bgsave_status",
        "aof_last_bgrewrite_status",
        "aof_last_write_status",
    )
    failed = [name for name in names if facts.info.get(name) == "err"]
    return {"which": ", ".join(failed)} if failed else None


def _is_replica(facts: Facts) -> Values | None:
    if facts.info.get("role") != "slave":
        return None
    info = facts.info
    return {"master": f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"}


def _idle_timeout(facts: Facts) -> Values | None:
    seconds = facts.config.get("timeout", "0")
    return None if seconds == "0" else {"seconds": show(seconds)}


def _small_bulk(facts: Facts) -> Values | None:
    limit = facts.number("proto-max-bulk-len")
    return {"bytes": f"{limit:,}"} if 0 < limit < BULK else None


def _is_loading(facts: Facts) -> Values | None:
    return None if facts.info.get("loading", "0") == "0" else {}


def _cluster_fails(facts: Facts) -> Values | None:
    state = facts.info.get("cluster_state", "ok")
    return None if state == "ok" else {"state": show(state)}


def _one_node(facts: Facts) -> Values | None:
    clustered = facts.info.get("cluster_enabled") == "1"
    return {} if clustered and not facts.whole else None


def _not_looked_at(facts: Facts) -> Values | None:
    if not facts.refused:
        return None
    said = [f"{command} ({why})" for command, why in sorted(facts.refused.items())]
    return {"commands": ", ".join(said)}


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

SERVER_RULES: Final = (
    ServerRule("server-too-old", _E, _version((), OLDEST)),
    ServerRule("server-old", _N, _version(OLDEST, FULL)),
    ServerRule("server-family", _N, _other_family),
    ServerRule("server-slow", _W, _slow),
    ServerRule("server-clock", _W, _other_clock),
    ServerRule("evicts-all", _E, _evicts("allkeys")),
    ServerRule("evicts-timed", _W, _evicts("volatile")),
    ServerRule("memory-full", _W, _nearly("maxmemory", "used_memory")),
    ServerRule("clients-full", _W, _nearly("maxclients", "connected_clients")),
    ServerRule("not-persistent", _N, _not_persistent),
    ServerRule("save-failed", _E, _save_failed),
    ServerRule("read-only", _E, _is_replica),
    ServerRule("idle-timeout", _N, _idle_timeout),
    ServerRule("small-bulk", _N, _small_bulk),
    ServerRule("server-loading", _E, _is_loading),
    ServerRule("cluster-fails", _E, _cluster_fails),
    ServerRule("one-node", _W, _one_node),
    ServerRule("not-looked-at", _N, _not_looked_at),
)
