"""The rights that crawl queues and filters need in Redis (contract 004), and ACL rules of it."""

from __future__ import annotations

from typing import Final

from bls_agent.errors import ConfigurationError
from bls_agent.keys import CRAWL_LEASES, KEYS
from bls_agent.names import escape_glob
from bls_agent.room_rights import RoomRight, room_acl_rules

__all__ = ["CRAWL_LOOKING", "CRAWL_REQUEUE", "crawl_acl_rules", "crawl_rights"]

_REQUESTS: Final = KEYS["crawl_requests"]
_OURS: Final = CRAWL_LEASES.template.partition("{")[0]
_KEYLESS: Final = "select ping client|setname client|id time scan"
_READING: Final = "zcard hlen llen scard hgetall lrange sismember"
_WRITING: Final = (
    "evalsha eval get zrange zrangebyscore zcard zcount hget hgetall hlen llen lrange scard "
    "pttl zadd zrem hset hdel hincrby rpush ltrim lrem blpop sadd incr del pexpire type unlink"
)


def crawl_rights(
    project: str | None = None, spider: str | None = None
) -> tuple[RoomRight, ...]:
    """Give what crawlers need, by parts; arguments as for :func:`crawl_acl_rules`."""
    keys = _patterns(project, spider)
    return (
        RoomRight("", (), _KEYLESS),
        RoomRight("stats, failed, contains", keys, _READING),
        RoomRight("RequestQueue, SeenFilter, cleanup", keys, _WRITING, writes=True),
    )


def _patterns(project: str | None, spider: str | None) -> tuple[str, ...]:
    """Give patterns of the keys, and of ours beside them, with a hash tag or without."""
    begin, parts = _REQUESTS.template.partition("{")[0], [project, spider]
    names = [name for name in parts if name is not None]
    if names:
        _REQUESTS.build(project=project, spider=spider)
    for name in names:
        if " " in name:
            rule = "an ACL pattern holds no blanks"
            raise ConfigurationError("project", name, rule, "Use '_' instead.")
        begin += f"{escape_glob(name)}:"
    return f"{begin}*", f"{_OURS}{{{begin}*", f"{_OURS}{begin}*"


# What an operator needs: to see all queues, and to queue again what failed.
CRAWL_LOOKING: Final = RoomRight(
    "console", _patterns(None, None), "zcard hlen llen hgetall lrange"
)
CRAWL_REQUEUE: Final = RoomRight(
    "console",
    _patterns(None, None),
    "evalsha eval zcard hlen hget llen lrange scard lrem zadd hset hincrby rpush type",
    writes=True,
)


def crawl_acl_rules(
    project: str | None = None,
    spider: str | None = None,
    *,
    write: bool = True,
    selectors: bool = True,
) -> list[str]:
    """Give the rights of a crawler, or of a reader, as words of their own.

    They are enough for everything in :mod:`bls_agent.crawl` but Bloom filters, whose
    commands only a server with the module knows: add ``+bf.add +bf.exists +bf.card``.

    Args:
        project: The only project; ``None`` for all.
        spider: The only spider of it; ``None`` for the project with all its spiders.
        write: Whether it queues, takes, filters or cleans up; else it may only look.
        selectors: For Redis 7 and newer, and Valkey: each command on its keys alone.

    Raises:
        ConfigurationError: A name breaks a rule, or holds a blank.
    """
    rights = crawl_rights(project, spider)
    return room_acl_rules(rights, write=write, selectors=selectors)
