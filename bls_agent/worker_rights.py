"""The rights that the room of workers needs in Redis (contract 001), and ACL rules of it."""

from __future__ import annotations

from typing import Final

from bls_agent.keys import KEYS, OWNER, Contract
from bls_agent.room_rights import RoomRight, room_acl_rules

__all__ = ["WORKER_LOOKING", "WORKER_RIGHTS", "worker_acl_rules"]


def _keys_of(*rows: str, leased: bool = False) -> tuple[str, ...]:
    """Make the patterns of kinds of keys, with the owners' tokens beside them if leased."""
    found = [KEYS[row].pattern() for row in rows]
    if leased:  # an id with a hash tag of its own lends that
        found += [OWNER.locate(place=f"{{{one}}}") for one in found[:]]
        found += [OWNER.locate(place=KEYS[row].pattern()) for row in rows]
    return tuple(found)


_KINDS: Final = tuple(
    name
    for name, row in KEYS.items()
    if row.contract is Contract.WORKERS and name.endswith("_heartbeat")
)
_HEARTBEATS: Final = _keys_of(*_KINDS)
_TASKS: Final = _keys_of("task_status", "backtest_task_progress")
_DAYS: Final = _keys_of("sync_progress")
_OF_HEARTBEATS: Final = _keys_of(*_KINDS, leased=True)
_OF_CACHE: Final = _keys_of("func_cache", leased=True)

# fmt: off
WORKER_LOOKING: Final = (
    RoomRight("WorkerRegistry", _HEARTBEATS, "getrange pttl"),
    RoomRight("WorkerRegistry", _keys_of("owner"), "getrange"),  # a lease tells its TTL
)
WORKER_RIGHTS: Final = (
    RoomRight("", (), "select ping client|setname client|id scan"),
    *WORKER_LOOKING,
    RoomRight("TaskStatus, BacktestProgress", _TASKS, "get"),
    RoomRight("SyncProgress", _DAYS, "scard smembers sscan sismember"),
    RoomRight("Heartbeat", _OF_HEARTBEATS, "evalsha eval type get set del pttl pexpire", writes=True),
    RoomRight("TaskStatus, BacktestProgress", _TASKS, "evalsha eval get set del exists pttl strlen", writes=True),
    RoomRight("SyncProgress", _DAYS, "evalsha eval sadd expire srem unlink", writes=True),
    RoomRight("FunctionCache", _OF_CACHE, "evalsha eval get getrange set del unlink pttl pexpire", writes=True),
)
# fmt: on


def worker_acl_rules(*, write: bool = True, selectors: bool = True) -> list[str]:
    """Give the rights of a worker, or of whoever looks at workers, as words of their own.

    They are enough for everything in :mod:`bls_agent.workers`, of every worker: the
    names of a fleet's workers are not known beforehand.

    Args:
        write: Whether it is a worker; else it may only look.
        selectors: For Redis 7 and newer, and Valkey: each command on its keys alone.
    """
    return room_acl_rules(WORKER_RIGHTS, write=write, selectors=selectors)
