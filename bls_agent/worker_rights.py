"""The rights that the room of workers needs in Redis (contract 001), and ACL rules of it."""

from __future__ import annotations

from typing import Final, NamedTuple

from bls_agent.keys import KEYS, OWNER, Contract

__all__ = ["LOOKING", "WORKER_RIGHTS", "WorkerRight", "worker_acl_rules"]

_HEARTBEATS: Final = tuple(
    name
    for name, row in KEYS.items()
    if row.contract is Contract.WORKERS and name.endswith("_heartbeat")
)
_TASKS: Final = ("task_status", "backtest_task_progress")


class WorkerRight(NamedTuple):
    """What one part of the room needs.

    Attributes:
        part: Which part: a class of :mod:`bls_agent.workers`.
        rows: Kinds of keys; none for commands without keys.
        commands: As an ACL names them.
        writes: Whether it is for writing.
        leased: Whether the owners' tokens lie beside these keys.
    """

    part: str
    rows: tuple[str, ...]
    commands: str
    writes: bool = False
    leased: bool = False

    @property
    def words(self) -> list[str]:
        """Its commands, as an ACL allows them."""
        return [f"+{command}" for command in self.commands.split()]

    @property
    def selector(self) -> str:
        """Its commands on its keys alone."""
        access = "%RW~" if self.writes else "%R~"
        opened = (f"{access}{pattern}" for pattern in self.patterns())
        return f"({' '.join([*self.words, *opened])})"

    def patterns(self) -> list[str]:
        """Make the glob patterns of its keys."""
        found = [KEYS[row].pattern() for row in self.rows]
        if self.leased:  # an id with a hash tag of its own lends that
            found += [OWNER.locate(place=f"{{{one}}}") for one in found[:]]
            found += [OWNER.locate(place=KEYS[row].pattern()) for row in self.rows]
        return found


LOOKING: Final = (
    WorkerRight("WorkerRegistry", _HEARTBEATS, "getrange pttl"),
    WorkerRight("WorkerRegistry", ("owner",), "getrange"),  # a lease tells its TTL
)

# fmt: off
WORKER_RIGHTS: Final = (
    WorkerRight("", (), "select ping client|setname client|id scan"),
    *LOOKING,
    WorkerRight("TaskStatus, BacktestProgress", _TASKS, "get"),
    WorkerRight("SyncProgress", ("sync_progress",), "scard smembers sscan sismember"),
    WorkerRight("Heartbeat", _HEARTBEATS, "evalsha eval type get set del pttl pexpire", writes=True, leased=True),
    WorkerRight("TaskStatus, BacktestProgress", _TASKS, "evalsha eval get set del exists pttl strlen", writes=True),
    WorkerRight("SyncProgress", ("sync_progress",), "evalsha eval sadd expire srem unlink", writes=True),
    WorkerRight("FunctionCache", ("func_cache",), "evalsha eval get getrange set del unlink pttl pexpire", writes=True, leased=True),
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
    rights = [right for right in WORKER_RIGHTS if write or not right.writes]
    keyless = (right for right in rights if not right.rows)
    rules = ["-@all", *(word for right in keyless for word in right.words)]
    keyed = [right for right in rights if right.rows]
    if selectors:
        return [*rules, *(right.selector for right in keyed)]
    rules += (word for right in keyed for word in right.words)
    patterns = (f"~{one}" for right in keyed for one in right.patterns())
    return list(dict.fromkeys([*rules, *patterns]))
