"""The rights that the asset library needs in Redis (contract 000), and ACL rules of it."""

from __future__ import annotations

from typing import Final

from bls_agent.keys import ASSET_FEED, ASSET_REPORT, KEYS, OWNER
from bls_agent.names import place_beside
from bls_agent.room_rights import RoomRight, room_acl_rules

__all__ = ["ASSET_LOOKING", "ASSET_RIGHTS", "asset_acl_rules"]

_METADATA: Final = KEYS["asset_metadata"].pattern()
_CATEGORY: Final = KEYS["asset_category"].pattern()
_INDEX: Final = KEYS["asset_index"].build()
_STATE: Final = KEYS["asset_sync_state"].build()
_CHANGED: Final = KEYS["asset_sync_changed"].build()
_FEED: Final = ASSET_FEED.locate(place=place_beside(_CHANGED))
_REPORT: Final = ASSET_REPORT.locate(place=place_beside(_STATE))
_OWNER: Final = OWNER.locate(place=place_beside(_STATE))
_WRITTEN: Final = (_METADATA, _INDEX, _CHANGED, _FEED, _OWNER, _CATEGORY)

# fmt: off
ASSET_LOOKING: Final = (
    RoomRight("get", (_METADATA,), "hgetall hget"),
    RoomRight("list, search, sync_state", (_INDEX, _STATE), "hgetall"),
    RoomRight("sync_state", (_OWNER,), "exists"),
    RoomRight("sync_state", (_REPORT,), "get"),
    RoomRight("changes, watch", (_CHANGED,), "lrange"),
    RoomRight("watch", (_FEED,), "xread xrevrange"),
)
ASSET_RIGHTS: Final = (
    RoomRight("", (), "select ping client|setname client|id"),
    *ASSET_LOOKING,
    RoomRight("AssetSync", (), "time", writes=True),
    RoomRight("AssetSync", (_CATEGORY,), "smembers", writes=True),
    RoomRight("AssetSync", (_INDEX,), "hgetall", writes=True),
    RoomRight("AssetSync", (_OWNER,), "set pttl exists pexpire", writes=True),
    RoomRight("AssetSync", (_STATE,), "hgetall hset", writes=True),
    RoomRight("AssetSync", (_REPORT,), "get set", writes=True),
    RoomRight("save, delete, AssetSync", _WRITTEN, "evalsha eval get hlen llen xlen scard hget hmget hset hdel del sadd srem rpush ltrim xadd", writes=True),
)
# fmt: on


def asset_acl_rules(*, write: bool = True, selectors: bool = True) -> list[str]:
    """Give the rights of a synchronisation, or of a reader, as words of their own.

    They are enough for everything in :mod:`bls_agent.assets`, of every asset.

    Args:
        write: Whether it synchronises, saves or deletes; else it may only read.
        selectors: For Redis 7 and newer, and Valkey: each command on its keys alone.
    """
    return room_acl_rules(ASSET_RIGHTS, write=write, selectors=selectors)
