"""The rules about the server itself: pure functions of its facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from bls_agent.ops.doctor.rule import Finding, Severity, Values, show

__all__ = ["SERVER_RULES", "Facts", "ServerRule"]

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


@dataclass(frozen=True)
class ServerRule:
    """One rule about a server."""

    code: str
    severity: Severity
    check: Callable[[Facts], Values | None]

    def judge(self, facts: Facts) -> Finding | None:
        """Apply the rule."""
        values = self.check(facts)
        if values is None:
            return None
        return Finding(
            rule=self.code,
            severity=self.severity,
            source="server",
            values={"server": facts.address} | values,
        )


def _too_old(facts: Facts) -> Values | None:
    old = facts.speaks and facts.speaks < OLDEST
    return {"version": facts.version} if old else None


def _old(facts: Facts) -> Values | None:
    old = facts.speaks and OLDEST <= facts.speaks < FULL
    return {"version": facts.version} if old else None


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


def _evicts_all(facts: Facts) -> Values | None:
    policy = _policy(facts)
    return {"policy": show(policy)} if policy.startswith("allkeys") else None


def _evicts_timed(facts: Facts) -> Values | None:
    policy = _policy(facts)
    return {"policy": show(policy)} if policy.startswith("volatile") else None


def _memory_full(facts: Facts) -> Values | None:
    limit, used = facts.number("maxmemory"), facts.number("used_memory")
    if not limit or used < NEARLY * limit:
        return None
    return {"used": f"{used:,}", "limit": f"{limit:,}"}


def _clients_full(facts: Facts) -> Values | None:
    limit, used = facts.number("maxclients"), facts.number("connected_clients")
    if not limit or used < NEARLY * limit:
        return None
    return {"used": f"{used:,}", "limit": f"{limit:,}"}


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
    ServerRule("server-too-old", _E, _too_old),
    ServerRule("server-old", _N, _old),
    ServerRule("server-family", _N, _other_family),
    ServerRule("server-slow", _W, _slow),
    ServerRule("server-clock", _W, _other_clock),
    ServerRule("evicts-all", _E, _evicts_all),
    ServerRule("evicts-timed", _W, _evicts_timed),
    ServerRule("memory-full", _W, _memory_full),
    ServerRule("clients-full", _W, _clients_full),
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
