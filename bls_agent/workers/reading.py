"""Finds and reads many small values. A key may have any type and any size."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import anyio.lowlevel

from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.core.keys import KeyTemplate

T = TypeVar("T")

TOGETHER: Final = 250  # keys whose requests are sent together
LARGEST: Final = 65_536  # largest number of bytes of a value that is read whole
SHOWN: Final = 4_096  # bytes that are kept of a larger value
PLENTY: Final = 8 * 2**20  # bytes per call, after which only SHOWN bytes are read
LARGE: Final = 65_536  # bytes of values that are decoded before other tasks run
NO_KEY: Final = -2  # PTTL of a missing key
NO_TTL: Final = -1


class Value(NamedTuple):
    """The value of one key.

    ``payload`` is truncated after ``largest`` + 1 bytes, and ``None`` if the key is not
    a string. ``ttl`` is in seconds, and ``None`` if the key does not expire.
    """

    key: bytes
    payload: bytes | None
    ttl: float | None
    largest: int


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


async def read_values(
    pool: ConnectionPool, keys: Sequence[bytes]
) -> AsyncGenerator[Value]:
    """Read values and their TTLs. Leave out missing and forbidden keys.

    MGET is not used because it hides keys of other types, reads huge values, and fails
    for all keys if one key is forbidden. Raises RedisUnavailableError if Redis cannot
    answer, or if every key is forbidden.
    """
    refused: list[RedisUnavailableError] = []
    size = total = 0
    for part in portions_of(keys):
        requests: list[Request] = []
        largest = LARGEST if total <= PLENTY else SHOWN
        for key in part:
            requests += [("PTTL", key), ("GETRANGE", key, 0, largest)]
        replies = await pool.read_many(requests)
        for key, left, value in zip(part, replies[::2], replies[1::2], strict=True):
            if error := _refusal_in(left, value):
                refused.append(error)
            elif left != NO_KEY or value:  # the key may have been written after PTTL
                payload = None if isinstance(value, Exception) else value
                ttl = None if left == NO_TTL else max(0.0, left / 1000)
                yield Value(key, payload, ttl, largest)
                length = len(payload or b"")
                size += length
                total += length if length <= largest else SHOWN
            if size >= LARGE:  # decoding many large values takes a second
                size = 0
                await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    if refused and len(refused) == len(keys):
        raise refused[0]


def _refusal_in(left: Reply, value: Reply) -> RedisUnavailableError | None:
    """Return the error of a forbidden key. Ignore a wrong type. Raise other errors."""
    for reply in (left, value):
        if isinstance(reply, RedisUnavailableError):
            if reply.kind == "no_permission":
                return reply
            if reply.kind != "wrong_type":
                raise reply
    return None
