"""What the options of a heartbeat may be."""

from __future__ import annotations

from typing import Final

from bls_agent.endpoint import Endpoint
from bls_agent.errors import ConfigurationError
from bls_agent.names import shares_slot
from bls_agent.settings import check_seconds
from bls_agent.workers.heartbeats import WorkerHeartbeat

__all__ = ["check_interval", "check_slot", "check_stall_after"]

SHORTEST: Final = 0.1  # seconds: a shorter interval or stall_after makes no sense


def check_interval(interval: float | None, ttl: float) -> float:
    """Give the time between two beats, a third of the TTL by default, or refuse it."""
    if interval is None:
        return ttl / 3
    rule = f"at least {SHORTEST:g} s"
    if check_seconds("interval", interval, rule) < SHORTEST:
        raise ConfigurationError("interval", interval, rule)
    if interval * 3 > ttl:
        rule = f"at most a third of ttl ({ttl:g} s)"
        remedy = "Two lost beats must not make a living worker vanish."
        raise ConfigurationError("interval", interval, rule, remedy)
    return interval


def check_stall_after(stall_after: float | None) -> float | None:
    """Give the time after which a motionless event loop is a fault, or refuse it."""
    if stall_after is None:
        return None
    rule = f"at least {SHORTEST:g} s, or None"
    if check_seconds("stall_after", stall_after, rule) < SHORTEST:
        raise ConfigurationError("stall_after", stall_after, rule)
    return stall_after


def check_slot(heartbeat: WorkerHeartbeat, endpoint: Endpoint | None) -> None:
    """Refuse a key beside which a cluster can hold no other one."""
    if endpoint is not None and endpoint.is_cluster and not shares_slot(heartbeat.key):
        rule = "on a cluster its owner stands beside it, and the braces of this id make a slot that no other key can be put into"
        raise ConfigurationError(
            heartbeat.id_field, heartbeat.id, rule, "Use an id without { and }."
        )
