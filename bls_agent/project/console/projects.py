"""Lists the projects in Redis, and forgets a project, which deletes its keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from bls_agent.connection.endpoint import Reply, Request
from bls_agent.core.errors import (
    BlsError,
    DecodeError,
    LeaseHeldError,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.core.keys import (
    BROADCAST,
    CONTROL,
    DEAD_LETTERS,
    DELIVERIES,
    INFLIGHT,
    INFLIGHT_LISTS,
    INSTANCES,
    INTAKE,
    KEYS,
    OWNER,
    PROJECT_CONSOLE,
    PROJECT_KEYS,
    PROJECT_STATUS,
    SEEN,
    decode_key,
    encode_key,
    find_templates,
    place_beside,
)
from bls_agent.project.messages import Status

if TYPE_CHECKING:
    from bls_agent.connection.pool import ConnectionPool

# The keys that this package writes beside a control list, one of each.
BOOKS: Final = (DELIVERIES, SEEN, DEAD_LETTERS, INTAKE)
NO_KEY: Final = -2  # the reply to PTTL if the key does not exist
REMEDY: Final = "Stop its agent first, or pass force=True."


async def find_projects(pool: ConnectionPool) -> dict[str, Status | None]:
    """Find all projects that have a status, a log or a control list in Redis.

    Return each project's name and status, sorted by name. A status is ``None`` if its
    key is missing or has an invalid value. A project is left out if the ACL forbids
    reading its status key.
    """
    names: set[str] = set()
    for template in PROJECT_KEYS:
        async for key in pool.scan(template.pattern()):
            parsed = template.parse(key)
            if parsed is not None:
                names.add(parsed["project"])
    found = sorted(names)
    keys = [PROJECT_STATUS.locate(project=name) for name in found]
    # MGET is not used, because Redis would refuse it if one key is forbidden.
    requests = [("GET", encode_key(key)) for key in keys]
    replies = await pool.read_many(requests)
    refused = [reply for reply in replies if _is_refusal(reply)]
    if refused and len(refused) == len(replies):
        raise refused[0]
    pairs = zip(found, replies, strict=True)
    return {name: _status_in(reply) for name, reply in pairs if not _is_refusal(reply)}


def _is_refusal(reply: Reply) -> bool:
    return isinstance(reply, RedisRefusedError) and reply.kind == "no_permission"


def _status_in(reply: Reply) -> Status | None:
    if isinstance(reply, RedisUnavailableError):
        if reply.kind != "wrong_type":
            raise reply
        return None
    try:
        return None if reply is None else Status.decode(reply)
    except DecodeError:
        return None


async def has_keys(pool: ConnectionPool, project: str) -> bool:
    """Return whether a project has a status, a log or a control list.

    If Redis refuses to read one of these keys, return true. If Redis cannot answer
    now, raise RedisUnavailableError.
    """
    rows = (("PTTL", PROJECT_STATUS), ("LLEN", PROJECT_CONSOLE), ("LLEN", CONTROL))
    requests = [(name, encode_key(row.locate(project=project))) for name, row in rows]
    replies = await pool.read_many(requests)
    for reply in replies:
        is_error = isinstance(reply, RedisUnavailableError)
        if is_error and not isinstance(reply, RedisRefusedError):
            raise reply
    return replies != [NO_KEY, 0, 0]


async def forget_project(
    pool: ConnectionPool, project: str, *, force: bool
) -> list[str]:
    """Delete every key of a project and return the names of the deleted keys.

    Raises LeaseHeldError if an agent of the project is running, unless ``force`` is
    true.
    """
    status = PROJECT_STATUS.locate(project=project)
    place = place_beside(CONTROL.locate(project=project))
    owner_pattern = OWNER.locate(place=INFLIGHT.pattern(place=place))
    owners = [key async for key in _scan(pool, owner_pattern)]
    if not force:
        await _refuse_online(pool, status, owners)
    keys = [row.locate(project=project) for row in (CONTROL, PROJECT_CONSOLE)]
    keys += [status, INSTANCES.locate(place=place_beside(status))]
    books = [*BOOKS] if owners else [*BOOKS, INFLIGHT_LISTS]
    keys += [row.locate(place=place) for row in books]
    for row in (INFLIGHT, BROADCAST):
        async for key in _scan(pool, row.pattern(place=place)):
            if _tags_of(key) == {place} and _owner_of(key) not in owners:
                keys.append(key)
    replies = await pool.call_many([("DEL", encode_key(key)) for key in keys])
    for reply in replies:
        if isinstance(reply, BlsError):
            raise reply
    return sorted(
        key for key, was_there in zip(keys, replies, strict=True) if was_there
    )


async def _scan(pool: ConnectionPool, pattern: str) -> AsyncIterator[str]:
    async with aclosing(pool.scan_steps(encode_key(pattern))) as steps:
        async for keys in steps:
            for key in keys:
                yield decode_key(key)


def _owner_of(key: str) -> str:
    return OWNER.locate(place=place_beside(key))


def _tags_of(key: str) -> set[str]:
    """Return every value that ``place`` may have in the name of a key.

    There are two values if the name fits two templates.
    """
    readings = (KEYS[row].parse(key) or {} for row in find_templates(key))
    return {reading["place"] for reading in readings if "place" in reading}


async def _refuse_online(pool: ConnectionPool, status: str, owners: list[str]) -> None:
    asked: list[Request] = [("GETRANGE", encode_key(status), 0, 63)]
    asked += [("PTTL", encode_key(key)) for key in (status, *owners)]
    value, *lives = await pool.read_many(asked)
    for reply in (value, *lives):
        if isinstance(reply, RedisUnavailableError) and reply.kind != "wrong_type":
            raise reply
    quiet = (b"", Status.OFFLINE.value.encode())
    if isinstance(value, bytes) and value.strip() not in quiet:
        raise LeaseHeldError(status, _seconds(lives[0]), REMEDY)
    for key, left in zip(owners, lives[1:], strict=True):
        if left != NO_KEY:
            raise LeaseHeldError(key, _seconds(left), REMEDY)


def _seconds(left: Reply) -> float | None:
    return left / 1000 if isinstance(left, int) and left >= 0 else None
