"""The rights that the room of runs needs in Redis (contract 003), and ACL rules of it."""

from __future__ import annotations

from typing import Final

from bls_agent.keys import OWNER, RUN_BOOKS, RUN_EVENTS
from bls_agent.names import place_beside
from bls_agent.room_rights import RoomRight, room_acl_rules

__all__ = ["RUN_LOOKING", "RUN_RIGHTS", "run_acl_rules"]

_PLACE: Final = place_beside(RUN_EVENTS.pattern())
_EVENTS: Final = RUN_EVENTS.pattern()
_BOOKS: Final = RUN_BOOKS.locate(place=_PLACE)
_OWNER: Final = OWNER.locate(place=_PLACE)

# fmt: off
RUN_LOOKING: Final = (
    RoomRight("reading, following, listing", (_EVENTS,), "xread xrange xrevrange xlen exists pttl xinfo|stream"),
    RoomRight("following, listing", (_BOOKS,), "hget hmget"),
    RoomRight("following, listing", (_OWNER,), "pttl"),
)
RUN_RIGHTS: Final = (
    RoomRight("", (), "select ping client|setname client|id"),
    RoomRight("following, listing", (), "client|unblock scan"),
    *RUN_LOOKING,
    RoomRight("writing", (), "time", writes=True),
    RoomRight("writing", (_EVENTS, _BOOKS, _OWNER), "evalsha eval xadd xlen xrange xrevrange hmget hset hdel get set del pttl pexpire expire", writes=True),
    RoomRight("deleting", (_EVENTS, _BOOKS), "unlink", writes=True),
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
    return room_acl_rules(RUN_RIGHTS, write=write, selectors=selectors)
