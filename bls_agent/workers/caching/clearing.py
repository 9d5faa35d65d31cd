"""Removes entries: exactly those of one function, or one of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from bls_agent.codec import encode
from bls_agent.endpoint import Reply
from bls_agent.errors import RedisUnavailableError
from bls_agent.keyed_wires import KeyedWires
from bls_agent.workers.caching.arguments import DIGEST_LENGTH
from bls_agent.workers.caching.cached_function import FUNC_CACHE
from bls_agent.workers.caching.entries import BrokenEntryError, read_entry

__all__ = ["clear_all", "clear_one"]

TOGETHER: Final = 200  # entries looked at in one write
TAIL: Final = 64  # bytes more than a name: blanks of other writers
DIGEST: Final = re.compile(rb"[0-9a-f]{%d}" % DIGEST_LENGTH)


async def clear_one(wires: KeyedWires, key: str) -> int:
    """Remove one entry.

    Returns:
        How many there were: 1 or 0.

    Raises:
        RedisUnavailableError: Redis did not answer, or refuses.
    """
    removed: int = await wires.call(key, "UNLINK")
    return removed


async def clear_all(wires: KeyedWires, name: str) -> int:
    """Remove every entry of a function: its layout and its name inside, both.

    Returns:
        How many there were.

    Raises:
        RedisUnavailableError: Redis did not answer, or refuses.
    """
    removed = 0
    prefix = FUNC_CACHE.build(func=name, key="0")[:-1].encode()
    async for found in wires.scan_steps(FUNC_CACHE.pattern(func=name)):
        keys = [
            key
            for key in found
            if key.startswith(prefix) and DIGEST.fullmatch(key, len(prefix))
        ]
        for begin in range(0, len(keys), TOGETHER):
            removed += await _remove(wires, name, keys[begin : begin + TOGETHER])
    return removed


async def _remove(wires: KeyedWires, name: str, keys: Sequence[bytes]) -> int:
    length = len(name.encode()) * 6 + TAIL
    tails = await wires.read_many([("GETRANGE", key, -length, -1) for key in keys])
    ours = [
        key
        for key, tail in zip(keys, tails, strict=True)
        if await _is_of(wires, name, key, tail)
    ]
    replies = await wires.call_many([("UNLINK", key) for key in ours]) if ours else []
    return sum(map(_checked, replies))


async def _is_of(wires: KeyedWires, name: str, key: bytes, tail: Reply) -> bool:
    """Tell whose entry it is, by its end if it is written as we write it."""
    if isinstance(tail, RedisUnavailableError) and tail.kind == "wrong_type":
        return False
    if _checked(tail).endswith(_ending(name)):
        return True
    payload = await wires.read(key.decode("utf-8", "surrogateescape"), "GET")
    try:
        read_entry(name, payload or b"")
    except BrokenEntryError:
        return False
    return True


def _ending(name: str) -> bytes:
    return b'"func_name":%b}' % encode(name)


def _checked(reply: Reply) -> Reply:
    if isinstance(reply, RedisUnavailableError):
        raise reply
    return reply
