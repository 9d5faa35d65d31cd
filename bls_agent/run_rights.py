"""The rights that the room of runs needs in Redis (contract 003), and ACL rules of it."""

from __future__ import annotations

from typing import Final, NamedTuple

from bls_agent.keys import OWNER, RUN_BOOKS, RUN_EVENTS
from bls_agent.names import place_beside

__all__ = ["RUN_LOOKING", "RUN_RIGHTS", "RunRight", "run_acl_rules"]

_PLACE: Final = place_beside(RUN_EVENTS.pattern())
_EVENTS: Final = RUN_EVENTS.pattern()
_BOOKS: Final = RUN_BOOKS.locate(place=_PLACE)
_OWNER: Final = OWNER.locate(place=_PLACE)


class RunRight(NamedTuple):
    """What one part of the room needs.

    Attributes:
        part: What it is for.
        keys: Glob patterns; none for commands without keys.
        commands: As an ACL names them.
        writes: Whether it is for writing.
    """

    part: str
    keys: tuple[str, ...]
    commands: str
    writes: bool = False

    @property
    def words(self) -> list[str]:
        """Its commands, as an ACL allows them."""
        return [f"+{command}" for command in self.commands.split()]

    @property
    def selector(self) -> str:
        """Its commands on its keys alone."""
        access = "%RW~" if self.writes else "%R~"
        opened = (f"{access}{pattern}" for pattern in self.keys)
        return f"({' '.join([*self.words, *opened])})"


# fmt: off
RUN_LOOKING: Final = (
    RunRight("reading, following, listing", (_EVENTS,), "xread xrange xrevrange xlen exists pttl xinfo|stream"),
    RunRight("following, listing", (_BOOKS,), "hget hmget"),
    RunRight("following, listing", (_OWNER,), "pttl"),
)
RUN_RIGHTS: Final = (
    RunRight("", (), "select ping client|setname client|id"),
    RunRight("following, listing", (), "client|unblock scan"),
    *RUN_LOOKING,
    RunRight("writing", (), "time", writes=True),
    RunRight("writing", (_EVENTS, _BOOKS, _OWNER), "evalsha eval xadd xlen xrange xrevrange hmget hset hdel get set del pttl pexpire expire", writes=True),
    RunRight("deleting", (_EVENTS, _BOOKS), "unlink", writes=True),
)
# fmt: on


def run_acl_rules(*, write: bool = True, selectors: bool = True) -> list[str]:
    """Give the rights of who writes runs, or only follows them, as words of their own.

    They are enough for everything in :mod:`bls_agent.runs`, of every run: who writes
    makes up new ids.

    Args:
        write: Whether it writes; else it may only read and follow.
        selectors: For Redis 7 and newer, and Valkey: each command on its keys alone.
    """
    rights = [right for right in RUN_RIGHTS if write or not right.writes]
    words = (word for right in rights if not right.keys for word in right.words)
    rules = ["-@all", *words]
    keyed = [right for right in rights if right.keys]
    if selectors:
        return [*rules, *(right.selector for right in keyed)]
    rules += (word for right in keyed for word in right.words)
    patterns = (f"~{one}" for right in keyed for one in right.keys)
    return list(dict.fromkeys([*rules, *patterns]))
