"""Finds and reads many small values. A key may have any type and any size."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import anyio.lowlevel

from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.core.keys import OWNER, KeyTemplate, encode_key, place_beside

T = TypeVar("T")

TOGETHER: Final = 250  # keys whose requests are sent together
LARGEST: Final = 65_536  # largest number of bytes of a value that is read whole
LEASE: Final = 255  # largest number of bytes of a lease that are read
SHOWN: Final = 4_096  # bytes that are kept of a larger value
PLENTY: Final = 8 * 2**20  # bytes per call, after which only SHOWN bytes are read
LARGE: Final = 65_536  # bytes of values that are decoded before other tasks run
NO_KEY: Final = -2  # PTTL of a missing key
NO_TTL: Final = -1


class Value(NamedTuple):
    """The value of one key.

    ``payload`` is truncated after ``largest`` + 1 bytes, and ``None`` if the key is not
    a string. ``ttl`` is in seconds, and ``None`` if the key does not expire. ``lease``
    is the token of the key's lease; ``None`` if the token was not or could not be read.
    """

    key: bytes
    payload: bytes | None
    ttl: float | None
    largest: int
    lease: bytes | None = None


def head_of(row: KeyTemplate) -> str:
    """Return the beginning of every key of a row, before the first field."""
    return row.template.partition("{")[0]


def common_pattern(heads: Iterable[str]) -> str:
    """Make one SCAN pattern that matches every key with one of these beginnings."""
    places = zip(*heads, strict=False)
    return "".join(f"[{''.join(sorted(set(place)))}]" for place in places) + "*"


def portions_of(things: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the things in portions that fit into one write."""
    for begin in range(0, len(things), TOGETHER):
        yield things[begin : begin + TOGETHER]


def owner_of(key: bytes) -> bytes:
    """Return the key of the lease on a key."""
    text = key.decode("utf-8", "surrogateescape")
    return encode_key(OWNER.locate(place=place_beside(text)))


async def read_values(
    pool: ConnectionPool, keys: Sequence[bytes], *, leases: bool = False
) -> AsyncGenerator[Value]:
    """Read values, their TTLs and perhaps their leases, in one round trip.

    Missing and forbidden keys are left out.

    MGET is not used because it hides keys of other types, reads huge values, and fails
    for all keys if one key is forbidden. Raises RedisUnavailableError if Redis cannot
    answer, or if every key is forbidden.
    """
    refused: list[RedisUnavailableError] = []
    size = total = 0
    for part in portions_of(keys):
        largest = LARGEST if total <= PLENTY else SHOWN
        replies = await _read_part(pool, part, largest, leases=leases)
        for key, (left, value, lease) in zip(part, replies, strict=True):
            if error := _refusal_in(left, value):
                refused.append(error)
            elif left != NO_KEY or value:  # the key may have been written after PTTL
                payload = None if isinstance(value, Exception) else value
                ttl = None if left == NO_TTL else max(0.0, left / 1000)
                yield Value(key, payload, ttl, largest, lease)
                length = len(payload or b"")
                size += length
                total += length if length <= largest else SHOWN
            if size >= LARGE:  # decoding many large values takes a second
                size = 0
                await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    if refused and len(refused) == len(keys):
        raise refused[0]


async def _read_part(
    pool: ConnectionPool, keys: Sequence[bytes], largest: int, *, leases: bool
) -> list[tuple[Reply, Reply, bytes | None]]:
    """Return the replies about the TTL and the value of each key, and its lease."""
    requests: list[Request] = []
    for key in keys:
        requests += [("PTTL", key), ("GETRANGE", key, 0, largest)]
    count = len(requests)
    if leases:
        requests += [("GETRANGE", owner_of(key), 0, LEASE) for key in keys]
    replies = await pool.read_many(requests)
    found = replies[count:] if leases else [None] * len(keys)
    tokens = (one if isinstance(one, bytes) else None for one in found)
    return [*zip(replies[:count:2], replies[1:count:2], tokens, strict=True)]


def _refusal_in(left: Reply, value: Reply) -> RedisUnavailableError | None:
    """Return the error of a forbidden key. Ignore a wrong type. Raise other errors."""
    for reply in (left, value):
        if isinstance(reply, RedisUnavailableError):
            if reply.kind == "no_permission":
                return reply
            if reply.kind != "wrong_type":
                raise reply
    return None
