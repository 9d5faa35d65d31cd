"""Reads the facts about one server, and contains the rules about servers."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import anyio

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Argument, Reply, Request
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.ops.doctor.reading import Look
from bls_agent.ops.doctor.rule import Finding, Question, Severity, Source, Values, show

PINGS: Final = 5
CLIENTS: Final = 10_000  # connections above which CLIENT LIST is not sent
_AGENT: Final = re.compile(rb" name=bls-agent:(\S*):")  # in CLIENT LIST
# After this command (Redis 7.2 and newer), reads do not change the idle times of keys.
NO_TOUCH: Final = ("CLIENT", "NO-TOUCH", "ON")

_SETTINGS: Final = (
    "maxmemory", "maxmemory-policy", "maxclients", "timeout", "save",
    "proto-max-bulk-len",
)  # fmt: skip
OLDEST: Final = (5, 0)
FULL: Final = (6, 2)  # first version with everything that this package uses
SLOW: Final = 0.05  # seconds of a round trip above which a server is slow
APART: Final = 2.0  # most seconds between the server's clock and ours
NEARLY: Final = 0.9  # part of a limit above which a finding is made
BULK: Final = 2 * 1024 * 1024  # bytes that a command of 1 MiB may need after escaping


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The data that one server reports about itself."""

    address: str  # without credentials
    # INFO, with all sections in one mapping; empty if refused.
    info: Mapping[str, str] = field(default_factory=dict[str, str])
    # CONFIG GET; empty if refused.
    config: Mapping[str, str] = field(default_factory=dict[str, str])
    rtt: float = 0.0  # round trip in seconds, the median of several
    offset: float = 0.0  # seconds by which the server's clock is ahead of ours
    # Refused command → reason.
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    whole: bool = True  # whether all nodes of a cluster are examined

    @property
    def family(self) -> str:
        """The name of the server program: ``redis``, ``valkey`` or another one."""
        info = self.info
        if "valkey_version" in info or info.get("server_name") == "valkey":
            return "valkey"
        for name in ("dragonfly", "keydb", "kvrocks", "tendis"):
            if any(name in f"{field} {value}".lower() for field, value in info.items()):
                return name
        return info.get("server_name", "redis")

    @property
    def version(self) -> str:
        """The server's version; for Valkey the version of Valkey, not of Redis."""
        return self.info.get("valkey_version") or self.info.get("redis_version", "")

    @property
    def speaks(self) -> tuple[int, ...]:
        """The version of Redis with whose commands the server is compatible."""
        parts = self.info.get("redis_version", "").split(".")
        return tuple(int(part) for part in parts if part.isdecimal())

    def number(self, name: str) -> int:
        """Return a number of INFO or CONFIG; 0 if the number is missing."""
        reported = self.info.get(name) or self.config.get(name, "")
        return int(reported) if reported.isdecimal() else 0


class Server:
    """One server, read over a connection that does not change the idle times of keys."""

    def __init__(self, connection: Connection) -> None:
        self.address: str = connection.address  # without credentials
        self.connection = connection

    async def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Send requests that change nothing; return an error reply in its place."""
        return (await self.connection.read_many([NO_TOUCH, *requests]))[1:]

    async def one(self, *request: Argument) -> Reply:
        """Send one request; return the reply, or ``None`` if the server refuses it."""
        reply = (await self.ask([request]))[0]
        return None if _refusal(reply) else reply

    async def facts(self, clock: Callable[[], float], *, whole: bool) -> Facts:
        """Read the facts, and which reads the server refuses.

        ``clock`` returns the Unix seconds of this machine.
        """
        settings = [("CONFIG", "GET", name) for name in _SETTINGS]
        requests = [("INFO",), ("TIME",), *settings]
        replies = await self.ask(requests)
        asked = zip(requests, replies, strict=True)
        answers: list[Reply] = [b"" if _refusal(one) else one for one in replies]
        reported = _read_info(answers[0])
        if reported.get("cluster_enabled") == "1":
            reported |= _read_info(await self.one("CLUSTER", "INFO") or b"")
        rtt, offset = await self._measure(clock)
        return Facts(
            address=self.address,
            info=reported,
            config={_text(pair[0]): _text(pair[1]) for pair in answers[2:] if pair},
            rtt=rtt,
            offset=offset,
            refused={
                " ".join(request[:2]): why
                for request, reply in asked
                if (why := _refusal(reply))
            },
            whole=whole,
        )

    async def _measure(self, clock: Callable[[], float]) -> tuple[float, float]:
        """Return the seconds of a round trip, and how far the server's clock is ahead."""
        trips: list[float] = []
        offsets = [0.0]
        for _ in range(PINGS):
            began = anyio.current_time()
            moment = await self.one("TIME")
            trips.append(anyio.current_time() - began)
            if moment is not None:
                there = int(moment[0]) + int(moment[1]) / 1e6
                offsets.append(there - (clock() - trips[-1] / 2))
        return statistics.median(trips), statistics.median(offsets[1:] or offsets)

    async def connected(self, facts: Facts) -> frozenset[str] | None:
        """Return the instances of connected agents; ``None`` if unknown."""
        if not 0 < facts.number("connected_clients") <= CLIENTS:
            return None
        reply = await self.one("CLIENT", "LIST")
        if reply is None:
            return None
        return frozenset(name.decode() for name in _AGENT.findall(reply))

    async def fill(self, looks: Sequence[Look]) -> None:
        """Read a part of each key, in two round trips for all keys together."""
        for plan, record in (
            (Look.first, Look.record_first),
            (Look.second, Look.record_second),
        ):
            plans = [plan(look) for look in looks]
            asked = [request for requests in plans for request in requests]
            replies = iter(await self.ask(asked))
            for look, requests in zip(looks, plans, strict=True):
                record(look, [next(replies) for _ in requests])


def _refusal(reply: Reply) -> str:
    return reply.kind if isinstance(reply, RedisUnavailableError) else ""


def _text(payload: bytes) -> str:
    return payload.decode("utf-8", "replace")


def _read_info(reply: bytes) -> dict[str, str]:
    lines = _text(reply).splitlines()
    pairs = (line.partition(":") for line in lines if not line.startswith("#"))
    return {name: value for name, colon, value in pairs if colon}


def answered(
    asked: Iterable[Question], replies: Iterable[Reply]
) -> dict[Question, Reply]:
    """Return the reply to each question, without the questions that Redis refused."""
    pairs = zip(asked, replies, strict=True)
    return {request: reply for request, reply in pairs if not _refusal(reply)}


_Check: TypeAlias = Callable[[Facts], Values | None]


@dataclass(frozen=True)
class ServerRule:
    """One rule about a server."""

    code: str
    severity: Severity
    check: _Check

    def judge(self, facts: Facts) -> Finding | None:
        values = self.check(facts)
        if values is None:
            return None
        values = {"server": facts.address} | values
        return Finding(self.code, self.severity, Source.SERVER, values=values)


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


def _evicts(which: str) -> _Check:
    def check(facts: Facts) -> Values | None:
        info, config = facts.info, facts.config
        policy = info.get("maxmemory_policy") or config.get("maxmemory-policy", "")
        found = facts.number("maxmemory") and policy.startswith(which)
        return {"policy": show(policy)} if found else None

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
    failed = [name for name, reported in facts.info.items() if reported == "err"]
    return {"which": ", ".join(failed)} if failed else None


def _is_replica(facts: Facts) -> Values | None:
    if facts.info.get("role") != "slave":
        return None
    info = facts.info
    return {"master": f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"}


def _unlike(normal: str, name: str, value: str) -> _Check:
    def check(facts: Facts) -> Values | None:
        reported = facts.info.get(name) or facts.config.get(name, normal)
        return None if reported == normal else {value: show(reported)}

    return check


def _small_bulk(facts: Facts) -> Values | None:
    limit = facts.number("proto-max-bulk-len")
    return {"bytes": f"{limit:,}"} if 0 < limit < BULK else None


def _one_node(facts: Facts) -> Values | None:
    clustered = facts.info.get("cluster_enabled") == "1"
    return {} if clustered and not facts.whole else None


def _not_looked_at(facts: Facts) -> Values | None:
    if not facts.refused:
        return None
    refusals = [f"{command} ({why})" for command, why in sorted(facts.refused.items())]
    return {"commands": ", ".join(refusals)}


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
    ServerRule("idle-timeout", _N, _unlike("0", "timeout", "seconds")),
    ServerRule("small-bulk", _N, _small_bulk),
    ServerRule("server-loading", _E, _unlike("0", "loading", "loading")),
    ServerRule("cluster-fails", _E, _unlike("ok", "cluster_state", "state")),
    ServerRule("one-node", _W, _one_node),
    ServerRule("not-looked-at", _N, _not_looked_at),
)
