"""``TaskStatus``: the status of tasks in Redis, with one key for each task.

The key schema names the keys ``ginkgo:task_status:{task_id}`` and
``backtest:task:{task_id}:progress`` but does not define the values. This module stores
a JSON object with ``task_id``, ``status`` and ``timestamp``, then the caller's own
fields in the caller's order. Two of these fields have a defined meaning: ``progress``
is percent, and ``message`` is a text for people.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Final, Literal, Self, cast
from weakref import WeakValueDictionary

import anyio

from bls_agent.connection.access import LoopLocal, RedisOrAgent, WritingStore
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.pool import ConnectionPool
from bls_agent.connection.scripts import PUT_TEXT, SWAP_TEXT, Script
from bls_agent.core.backoff import Backoff
from bls_agent.core.codec import (
    JSONObject,
    JSONValue,
    decode,
    encode_strictly,
    format_timestamp,
    parse_timestamp,
)
from bls_agent.core.errors import (
    ConfigurationError,
    DecodeError,
    RedisUnavailableError,
)
from bls_agent.core.keys import KEYS, KeyTemplate, checked_reply, encode_key, show_name

WHOLE: Final = 100  # percent
WORD: Final = 64  # most characters of a text that counts as a status
TRIES: Final = 50  # attempts to change a value that other processes keep changing
SHORTEST_PAUSE: Final = 0.001  # seconds, doubled after each attempt
LONGEST_PAUSE: Final = 0.05  # seconds


class TaskState(StrEnum):
    """What the status of a task means. The states that need attention come first.

    Each program writes statuses in its own words. :attr:`Task.state` recognises usual
    English and Chinese words, such as ``running``, ``排队`` and ``回测中``.
    """

    BROKEN = "broken"
    """The value has neither a status nor a progress that can be read."""
    FAILED = "failed"
    RUNNING = "running"
    WAITING = "waiting"
    OTHER = "other"
    """The status is any other word, or is absent."""
    DONE = "done"


# State → usual words for it, in lower case, with "_" between words.
_WORDS: Final[Mapping[TaskState, frozenset[str]]] = {
    state: frozenset(words.split())
    for state, words in {
        TaskState.FAILED: "failed failure error errored crashed aborted timeout timed_out"
        " 失败 已失败 错误 出错 报错 异常 超时 崩溃",
        TaskState.WAITING: "waiting pending queued queueing created scheduled submitted"
        " new retry retrying 等待 等待中 排队 排队中 待处理 待执行 未开始 已提交 已创建",
        TaskState.RUNNING: "running started starting processing in_progress working"
        " active executing 运行 执行 处理 进行",
        TaskState.DONE: "done completed complete finished success succeeded successful"
        " 完成 已完成 成功 结束 已结束",
    }.items()
}
_GOING_ON: Final = "中"  # last character of 运行中, 回测中 and other running states


def find_state(status: str) -> TaskState:
    """Return the meaning of a status.

    An unknown word is ``RUNNING`` if the word ends with 中, otherwise ``OTHER``.
    """
    word = "_".join(status.casefold().replace("-", " ").split())
    for state, words in _WORDS.items():
        if word in words:
            return state
    return TaskState.RUNNING if word.endswith(_GOING_ON) else TaskState.OTHER


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task, as read from the value of its key. The value may have any form.

    Attributes:
        id: The id in the task's key.
        status: The status in the words of its writer, or ``""``. If the value is only a
            text such as ``running``, the text is the status.
        timestamp: The time of the write, as an aware datetime; ``None`` if unknown.
        progress: Percent; ``None`` if unknown.
        message: A text for people, or ``""``.
        fields: The whole JSON object.
        raw: The value as text if it is not a JSON object, else ``None``.
        reason: Why the value is not an object: ``not_json``, ``not_an_object``,
            ``not_utf8``, ``too_deep``, ``wrong_type`` (the key is not a string),
            ``too_large`` (over 64 KiB; after 8 MiB in one call, over 4 KiB; only from
            ``WorkerRegistry.tasks``), or ``""``.
    """

    id: str
    status: str = ""
    timestamp: datetime | None = None
    progress: float | None = None
    message: str = ""
    fields: JSONObject = field(default_factory=dict[str, Any])
    raw: str | None = None
    reason: str = ""

    @classmethod
    def decode(cls, task_id: str, payload: bytes) -> Self:
        """Decode the value of a task. Never raise, whatever the value is."""
        found, reason = _decode(payload)
        if not isinstance(found, dict):
            return cls(
                id=task_id,
                status=_bare_status(found, payload, reason),
                raw=payload.decode("utf-8", "replace"),
                reason=reason,
            )
        return cls.read(task_id, found)

    @classmethod
    def read(cls, task_id: str, fields: JSONObject, reason: str = "") -> Self:
        """Make a task from its fields. Never raise, whatever their values are."""
        return cls(
            id=task_id,
            status=_text(fields.get("status")),
            timestamp=parse_timestamp(fields.get("timestamp")),
            progress=_number(fields.get("progress")),
            message=_text(fields.get("message")),
            fields=fields,
            reason=reason,
        )

    @property
    def state(self) -> TaskState:
        """What the status means."""
        if not self.status and self.progress is None:
            return TaskState.BROKEN
        return find_state(self.status)

    @property
    def problem(self) -> str:
        """The fault of the value: ``reason``, ``no_status``, or ``""`` without a fault.

        A value that is only a text such as ``running`` has no fault.
        """
        if self.raw is not None and self.status:
            return ""
        return self.reason or ("" if self.status else "no_status")

    @property
    def part(self) -> float | None:
        """The progress from 0 to 1; ``None`` if unknown."""
        if self.progress is None:
            return None
        return min(max(self.progress / WHOLE, 0.0), 1.0)

    @property
    def worker(self) -> str:
        """The text in the field ``worker``, or ``""``."""
        return _text(self.fields.get("worker"))

    def describe(self, now: float) -> JSONObject:
        """Return the task as a JSON object. ``now`` is the time in Unix seconds."""
        return {
            "id": show_name(self.id),
            "state": self.state,
            "status": self.status,
            "progress": self.progress,
            "message": self.message,
            "worker": self.worker,
            "age": self.age(now),
            "problem": self.problem,
            "fields": self.fields,
            "raw": self.raw,
        }

    def age(self, now: float) -> float | None:
        """Return the seconds since the last write, or ``None`` if its time is unknown.

        The time of the write comes from the writer's clock. ``now`` is in Unix seconds.
        """
        if self.timestamp is None:
            return None
        return max(0.0, now - self.timestamp.timestamp())


def encode_task(
    task_id: str, status: str, fields: Mapping[str, Any], *, now: float
) -> bytes:
    """Encode the value of a task. ``now`` is in Unix seconds."""
    given = {"status": status, "timestamp": format_timestamp(now), **fields}
    return encode_strictly("fields", {"task_id": task_id, **_checked(given)})


def change_task(
    task_id: str, payload: bytes, changes: Mapping[str, Any], *, now: float
) -> bytes:
    """Return the value of a task with some changed fields.

    If the value is a short text instead of an object, the text becomes the status of a
    new object. If the value is neither, raise ``DecodeError``, because the change would
    destroy the value.
    """
    found, reason = _decode(payload)
    if not isinstance(found, dict):
        status = _bare_status(found, payload, reason)
        if not status:
            raise DecodeError(reason, payload, "set() writes over it")
        found = {"task_id": task_id, "status": status}
    given = {"timestamp": format_timestamp(now), **changes}
    return encode_strictly("fields", {**found, **_checked(given)})


def _decode(payload: bytes) -> tuple[JSONValue, str]:
    """Return a decoded value, and the reason why it is not an object, or ``""``."""
    try:
        found = decode(payload)
    except DecodeError as error:
        return None, error.reason
    return found, "" if isinstance(found, dict) else "not_an_object"


def _bare_status(found: JSONValue, payload: bytes, reason: str) -> str:
    """Return a value that is a short text, with or without quotes, otherwise ``""``."""
    text = payload.decode() if reason == "not_json" else found
    word = text.strip() if isinstance(text, str) else ""
    fits = len(word) <= WORD and word.isprintable() and word[:1].isalnum()
    return word if fits else ""


def _text(value: JSONValue) -> str:
    return value if isinstance(value, str) else ""


def _number(value: JSONValue) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def _checked(given: Mapping[str, Any]) -> JSONObject:
    for name, value in given.items():
        if name == "status" and not (isinstance(value, str) and value.strip()):
            raise ConfigurationError(name, value, "a text that is not blank")
        if name == "progress" and value is not None:
            fits = isinstance(value, int | float) and not isinstance(value, bool)
            if not fits or not 0 <= cast("float", value) <= WHOLE:
                raise ConfigurationError(name, value, "percent, from 0 to 100")
        if name == "message" and not isinstance(value, str | None):
            raise ConfigurationError(name, value, "a text")
        if isinstance(value, datetime) and value.tzinfo is None:
            raise ConfigurationError(name, value, "a time with its zone")
    return dict(given)


class TaskKeys(WritingStore):
    """Stores tasks under one kind of key, which ``row`` defines."""

    client_name: ClassVar[str] = "bls-tasks"
    row: ClassVar[KeyTemplate]

    async def get(self, task_id: str) -> Task | None:
        """Read a task. A value that is not a JSON object is returned as ``raw``.

        Returns:
            The task, or ``None`` if the task is unknown or has expired.
        """
        payload = await read_key(
            self._access.pool, "GET", self.row.locate(task_id=task_id)
        )
        return None if payload is None else Task.decode(task_id, payload)

    async def delete(self, task_id: str) -> bool:
        """Delete a task. Return whether the task was stored."""
        key = self.row.locate(task_id=task_id)
        try:
            return bool(await self._run(PUT_TEXT, key, 0, b""))
        except RedisUnavailableError as error:
            self._absorb(error)
            return False

    async def list(self, status: str | None = None) -> Tasks:
        """Read all tasks.

        The keys are found with SCAN, not with KEYS. A value that is not a JSON object
        is returned as ``raw``. Keys that the user may not read are left out. If there
        are such keys and no other task is found, an error is raised.

        Args:
            status: Return only tasks with this status.

        Returns:
            The tasks, sorted by id.
        """
        found: dict[str, Task] = {}
        refused: Reply = None
        pool = self._access.pool
        async with aclosing(pool.scan_steps(self.row.pattern())) as steps:
            async for keys in steps:
                # GET and not MGET, because MGET has no errors for single keys, and
                # cannot read keys in several slots of a cluster.
                replies = await pool.read_many([("GET", key) for key in keys])
                for key, reply in zip(keys, replies, strict=True):
                    if getattr(reply, "kind", "") == "no_permission":
                        refused = reply
                        continue
                    task = self._task_of(key, reply)
                    if task is not None:
                        found[task.id] = task
        if refused is not None and not found:
            raise refused
        tasks = (found[task_id] for task_id in sorted(found))
        return [task for task in tasks if status in (None, task.status)]

    def _task_of(self, key: bytes, reply: Reply) -> Task | None:
        parsed = self.row.parse(key)
        if parsed is None or reply is None:  # the key has expired since SCAN found it
            return None
        if not isinstance(reply, RedisUnavailableError):
            return Task.decode(parsed["task_id"], cast("bytes", reply))
        if reply.kind != "wrong_type":
            raise reply
        return Task(id=parsed["task_id"], raw="", reason="wrong_type")

    async def _put(
        self, task_id: str, status: str, fields: Mapping[str, Any]
    ) -> Task | None:
        payload = encode_task(task_id, status, fields, now=_now())
        key = self.row.build(task_id=task_id)
        try:
            await self._run(PUT_TEXT, key, cast("int", self.row.ttl), payload)
            return Task.decode(task_id, payload)
        except RedisUnavailableError as error:
            self._absorb(error)
            return None

    async def _run(self, script: Script, key: str, *arguments: Argument) -> Reply:
        runs = [([encode_key(key)], arguments)]
        (reply,) = await script.run_many(self._access.pool, runs)
        return checked_reply(reply, key)


class TaskStatus(TaskKeys):
    """Writes and reads the status of tasks. A status expires a day after :meth:`set`.

    The object works in any event loop, with and without ``async with``. If you do not
    use ``async with``, call :meth:`aclose` at the end.

    The value is a JSON object: ``task_id``, ``status``, ``timestamp`` with its zone,
    then your own fields. :class:`Task` describes them. Every method raises these
    exceptions:

    * :class:`~bls_agent.WrongTypeError`: the key is not a string. The key is not
      changed.
    * :class:`~bls_agent.RedisUnavailableError`: Redis cannot answer. If
      ``error.ambiguous`` is true, Redis may have executed the write. With
      ``on_error="none"``, a write does not raise this exception. The write is counted
      in ``failed_writes``, and a warning is logged at most once a minute.
    """

    row: ClassVar[KeyTemplate] = KEYS["task_status"]

    def __init__(
        self,
        redis: RedisOrAgent | None = None,
        *,
        on_error: Literal["raise", "none"] = "raise",
        timeout: float = 5.0,
    ) -> None:
        super().__init__(redis, on_error=on_error, timeout=timeout)
        # Event loop → key → lock. The changes of one key wait for each other, because
        # simultaneous changes would fail and would have to be repeated.
        self._turns: LoopLocal[WeakValueDictionary[str, anyio.Lock]] = LoopLocal()

    async def set(self, task_id: str, status: str, **fields: Any) -> Task | None:
        """Write the status of a task for a day, and overwrite the former value.

        Args:
            task_id: The id of the task.
            status: Any text, such as ``pending``, ``running`` or ``回测中``.
            fields: Further fields that JSON can hold. ``progress`` is percent,
                ``message`` is a text, and ``timestamp`` is the current time by default.

        Returns:
            The task as it was written. If Redis could not answer and
            ``on_error="none"``, ``None``.

        Raises:
            ConfigurationError: The id cannot be part of a key, or a field cannot be
                written.
        """
        return await self._put(task_id, status, fields)

    async def update(self, task_id: str, **changes: Any) -> Task | None:
        """Change some fields of a task. The other fields and the TTL stay the same.

        The change is atomic. If two callers change different fields at the same time,
        both changes are kept, also if the callers are in two processes.

        Args:
            task_id: The id of the task.
            changes: New values of fields; ``timestamp`` is the current time by default.

        Returns:
            The changed task. ``None`` if the task is unknown or has expired, or if
            Redis could not answer and ``on_error="none"``.

        Raises:
            ConfigurationError: A field cannot be written.
            DecodeError: The value is neither a JSON object nor a short text. The value
                was not changed. :meth:`set` can overwrite the value.
            RedisUnavailableError: Redis cannot answer. If the kind is ``contended``,
                other writers changed the value during each attempt. After an ambiguous
                error, a second ``update`` overwrites changes of the same fields that
                other writers have made meanwhile.
        """
        try:
            return await self._change(task_id, changes)
        except RedisUnavailableError as error:
            self._absorb(error)
            return None

    async def _change(self, task_id: str, changes: Mapping[str, Any]) -> Task | None:
        key = self.row.locate(task_id=task_id)
        turns = self._turns.get(WeakValueDictionary[str, anyio.Lock])
        async with turns.setdefault(key, anyio.Lock()):
            seen: bytes | None = await read_key(self._access.pool, "GET", key)
            pause = Backoff(base=SHORTEST_PAUSE, cap=LONGEST_PAUSE)
            for _ in range(TRIES):
                if seen is None:
                    return None
                payload = change_task(task_id, seen, changes, now=_now())
                reply = await self._run(SWAP_TEXT, key, seen, payload)
                if reply == 1:
                    return Task.decode(task_id, payload)
                seen = cast("bytes | None", reply)
                await anyio.sleep(pause.failed())
        reason = f"others were ahead of each of {TRIES} tries; nothing was written"
        raise RedisUnavailableError("contended", reason)


Tasks = list[Task]


def _now() -> float:
    return time.time()  # noqa: TID251 - the public methods have no parameter for the time


async def read_key(pool: ConnectionPool, command: str, key: str) -> Reply:
    """Read a key. Raise WrongTypeError if the key has another type."""
    (reply,) = await pool.read_many([(command, encode_key(key))])
    return checked_reply(reply, key)
