"""Keys that hold what is said of one task each: read, listed, written, changed."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final, cast
from weakref import WeakKeyDictionary

import anyio

from bls_agent.access import Store
from bls_agent.endpoint import Argument, Reply
from bls_agent.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.keyed_wires import KeyedWires
from bls_agent.keys import KEYS, KeyTemplate
from bls_agent.scripts import PUT_TEXT, SWAP_TEXT, Script
from bls_agent.workers.tasks.task_records import Task, change_task, encode_task

__all__ = ["TaskKeys"]

TRIES: Final = 50  # of a change that others are always ahead of
SHORTEST_PAUSE: Final = 0.001  # seconds, doubled from try to try
LONGEST_PAUSE: Final = 0.05


def _now() -> float:
    return time.time()  # noqa: TID251 - the outermost place


class TaskKeys(Store):
    """One kind of key of tasks, by its row in the table of keys.

    Attributes:
        kind: The row.
    """

    client_name: ClassVar[str] = "bls-tasks"
    kind: ClassVar[str] = ""

    def __init__(self, redis: object = None, *, timeout: float = 5.0) -> None:
        """Remember where Redis is, as every store does; nothing is opened yet."""
        super().__init__(redis, timeout=timeout)
        self._turns: WeakKeyDictionary[KeyedWires, dict[str, anyio.Lock]]
        self._turns = WeakKeyDictionary()

    async def get(self, task_id: str) -> Task | None:
        """Read what is said of a task.

        Returns:
            ``None`` if there is no such task, or no more; what cannot be read as one
            comes back as ``raw``.

        Raises:
            WrongTypeError: The key is no string.
            RedisUnavailableError: Redis cannot answer.
        """
        key = self._row.locate(task_id=task_id)
        try:
            payload: bytes | None = await self._access.wires.read(key, "GET")
        except RedisUnavailableError as error:
            raise _as_wrong_type(error, key) from error
        return None if payload is None else Task.decode(task_id, payload)

    async def delete(self, task_id: str) -> bool:
        """Delete what is said of a task.

        Returns:
            Whether there was anything.

        Raises:
            WrongTypeError: The key is no string; it was left alone.
            RedisUnavailableError: Not deleted; or perhaps, if ``error.ambiguous``.
        """
        key = self._row.locate(task_id=task_id)
        return bool(await self._run(PUT_TEXT, key, 0, b""))

    async def list(self, status: str | None = None) -> Tasks:
        """Read every task there is.

        Uses SCAN, never KEYS. A value that cannot be read as a task comes back as
        ``raw`` and hides no other one; keys that may not be read are left out.

        Args:
            status: Only tasks that say this.

        Returns:
            Tasks in order of their ids.

        Raises:
            RedisUnavailableError: Redis cannot answer, or refuses every one.
        """
        found: dict[str, Task] = {}
        refused: RedisUnavailableError | None = None
        async for keys in self._access.wires.scan_steps(self._row.pattern()):
            # Not MGET: of a key of another type, and of one that may not be read, the
            # reply has to tell; and on a cluster the keys lie in many slots.
            requests = [("GET", key) for key in keys]
            replies = await self._access.wires.read_many(requests) if keys else []
            for key, reply in zip(keys, replies, strict=True):
                if _is_forbidden(reply):
                    refused = reply
                    continue
                task = self._task_of(key, reply)
                if task is not None and status in (None, task.status):
                    found[task.id] = task
        if refused is not None and not found:
            raise refused
        return [found[task_id] for task_id in sorted(found)]

    def _task_of(self, key: bytes, reply: Reply) -> Task | None:
        parsed = self._row.parse(key)
        if parsed is None or reply is None:  # expired since it was found
            return None
        if not isinstance(reply, RedisUnavailableError):
            return Task.decode(parsed["task_id"], cast("bytes", reply))
        if reply.kind != "wrong_type":
            raise reply
        return Task(id=parsed["task_id"], raw="", reason="wrong_type")

    async def _put(self, task_id: str, status: str, fields: Mapping[str, Any]) -> Task:
        payload = encode_task(task_id, status, fields, now=_now())
        key = self._row.build(task_id=task_id)
        await self._run(PUT_TEXT, key, cast("int", self._row.ttl), payload)
        return Task.decode(task_id, payload)

    async def _change(self, task_id: str, changes: Mapping[str, Any]) -> Task | None:
        """Look, change, and write if nobody else has written meanwhile; else again."""
        key = self._row.locate(task_id=task_id)
        async with self._turn(key):
            return await self._change_in_turn(task_id, key, changes)

    @asynccontextmanager
    async def _turn(self, key: str) -> AsyncGenerator[None]:
        """Let one change of a key after the other go: they would be in each other's way."""
        turns = self._turns.setdefault(self._access.wires, {})
        lock = turns.setdefault(key, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():  # else it is somebody else's turn
                turns.pop(key, None)

    async def _change_in_turn(
        self, task_id: str, key: str, changes: Mapping[str, Any]
    ) -> Task | None:
        async with self._access.wires.to(key) as wire:
            try:
                seen: bytes | None = await wire.read("GET", _encode(key))
            except RedisUnavailableError as error:
                raise _as_wrong_type(error, key) from error
        pause = SHORTEST_PAUSE
        for _ in range(TRIES):
            if seen is None:
                return None
            payload = change_task(task_id, seen, changes, now=_now())
            reply = await self._run(SWAP_TEXT, key, seen, payload)
            if reply == 1:
                return Task.decode(task_id, payload)
            seen = cast("bytes | None", reply)
            await anyio.sleep(random.uniform(0, pause))  # noqa: S311 - to get out of step
            pause = min(pause * 2, LONGEST_PAUSE)
        reason = f"others were ahead of each of {TRIES} tries; nothing was written"
        raise RedisUnavailableError("contended", reason)

    async def _run(self, script: Script, key: str, *arguments: Argument) -> Reply:
        async with self._access.wires.to(key) as wire:
            try:
                return await script.run(wire, [_encode(key)], arguments)
            except RedisUnavailableError as error:
                raise _as_wrong_type(error, key) from error

    @property
    def _row(self) -> KeyTemplate:
        return KEYS[self.kind]


Tasks = list[Task]


def _encode(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _is_forbidden(reply: Reply) -> bool:
    return isinstance(reply, RedisRefusedError) and reply.kind == "no_permission"


def _as_wrong_type(error: RedisUnavailableError, key: str) -> Exception:
    return WrongTypeError(key, "string") if error.kind == "wrong_type" else error
