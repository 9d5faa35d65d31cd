"""``TaskStatus``: how the tasks of a fleet are, one key for each.

The key schema names the keys ``ginkgo:task_status:{task_id}`` and
``backtest:task:{task_id}:progress`` and leaves their values open. Here both hold one
JSON object: ``task_id``, ``status``, ``timestamp``, then the caller's own fields in
their order, of which ``progress`` (percent) and ``message`` have a meaning.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, Self, cast
from weakref import WeakValueDictionary

import anyio

from bls_agent.connection.access import LoopLocal, WritingStore
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
from bls_agent.core.keys import KEYS, KeyTemplate, checked_reply, encode_key

WHOLE: Final = 100  # percent
WORD: Final = 64  # characters of a bare text that is taken for a status
TRIES: Final = 50  # of a change that other processes are always ahead of
SHORTEST_PAUSE: Final = 0.001  # seconds, doubled from try to try
LONGEST_PAUSE: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class Task:
    """The value under the key of a task, read tolerantly.

    Attributes:
        id: The id in its key.
        status: Its state, in the writer's words; ``""`` if there is none. A bare
            text such as ``running`` is a status, too.
        timestamp: When that was written, aware; ``None`` if that is not known.
        progress: Percent; ``None`` if that is not known.
        message: A text for people, or ``""``.
        fields: The whole object, as it stands there.
        raw: The text that stands there instead of an object, else ``None``.
        reason: Why it is no object: ``not_json``, ``not_an_object``, ``not_utf8``,
            ``too_deep``, or ``wrong_type`` for a key that holds no string; else ``""``.
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
        """Decode a value, whatever it holds; never raises."""
        found, reason = _decode(payload)
        if not isinstance(found, dict):
            return cls(
                id=task_id,
                status=_bare_status(found, payload, reason),
                raw=payload.decode("utf-8", "replace"),
                reason=reason,
            )
        return cls(
            id=task_id,
            status=_text(found.get("status")),
            timestamp=parse_timestamp(found.get("timestamp")),
            progress=_number(found.get("progress")),
            message=_text(found.get("message")),
            fields=found,
        )


def encode_task(
    task_id: str, status: str, fields: Mapping[str, Any], *, now: float
) -> bytes:
    """Make the value of a task; ``now`` is in Unix seconds."""
    given = {"status": status, "timestamp": format_timestamp(now), **fields}
    return encode_strictly("fields", {"task_id": task_id, **_checked(given)})


def change_task(
    task_id: str, payload: bytes, changes: Mapping[str, Any], *, now: float
) -> bytes:
    """Change some fields of a value; a bare word becomes the status of an object.

    A value that is neither object nor word would be lost: it raises ``DecodeError``.
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
    """Decode a value; the second part names in one word why it is no object."""
    try:
        found = decode(payload)
    except DecodeError as error:
        return None, error.reason
    return found, "" if isinstance(found, dict) else "not_an_object"


def _bare_status(found: JSONValue, payload: bytes, reason: str) -> str:
    """Take a bare text for a status, quoted or not, if it looks like one."""
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
    """One kind of key of tasks; ``row`` is that of the table of keys."""

    client_name: ClassVar[str] = "bls-tasks"
    row: ClassVar[KeyTemplate]

    async def get(self, task_id: str) -> Task | None:
        """Read a task; what cannot be read as one comes back as ``raw``.

        Returns:
            ``None`` if there is no such task, or no more.
        """
        payload = await read_key(
            self._access.pool, "GET", self.row.locate(task_id=task_id)
        )
        return None if payload is None else Task.decode(task_id, payload)

    async def delete(self, task_id: str) -> bool:
        """Delete a task; return whether there was one."""
        key = self.row.locate(task_id=task_id)
        try:
            return bool(await self._run(PUT_TEXT, key, 0, b""))
        except RedisUnavailableError as error:
            self._absorb(error)
            return False

    async def list(self, status: str | None = None) -> Tasks:
        """Read all tasks.

        Uses SCAN, never KEYS. A value that cannot be read as a task comes back as
        ``raw`` and hides no other one. Keys that may not be read are left out, unless
        that is so for every one.

        Args:
            status: Only tasks of this status.

        Returns:
            Tasks in order of their ids.
        """
        found: dict[str, Task] = {}
        refused: Reply = None
        async for keys in self._access.pool.scan_steps(self.row.pattern()):
            # Not MGET: a key of another type, or one that may not be read, needs a
            # reply of its own; and on a cluster the keys lie in many slots.
            requests = [("GET", key) for key in keys]
            replies = await self._access.pool.read_many(requests)
            for key, reply in zip(keys, replies, strict=True):
                if getattr(reply, "kind", "") == "no_permission":
                    refused = reply
                    continue
                task = self._task_of(key, reply)
                if task is not None and status in (None, task.status):
                    found[task.id] = task
        if refused is not None and not found:
            raise refused
        return [found[task_id] for task_id in sorted(found)]

    def _task_of(self, key: bytes, reply: Reply) -> Task | None:
        parsed = self.row.parse(key)
        if parsed is None or reply is None:  # expired since SCAN found it
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
    """Writes how a task is, and reads what others wrote; each write lives a day.

    Works with and without ``async with``, in any event loop; close it with
    :meth:`aclose` when it was used without.

    The value is a JSON object: ``task_id``, ``status``, ``timestamp`` with its zone,
    then fields of your own; see :class:`Task`. Every method raises
    :class:`~bls_agent.WrongTypeError` for a key that is no string, which is left alone,
    and :class:`~bls_agent.RedisUnavailableError` if Redis cannot answer; a write was
    then perhaps executed if ``error.ambiguous``. With ``on_error="none"`` a write counts
    in ``failed_writes`` instead, and logs a warning, once a minute at most.
    """

    row: ClassVar[KeyTemplate] = KEYS["task_status"]

    def __init__(
        self,
        redis: object = None,
        *,
        on_error: Literal["raise", "none"] = "raise",
        timeout: float = 5.0,
    ) -> None:
        super().__init__(redis, on_error=on_error, timeout=timeout)
        # By event loop and key: changes together would all have to try again.
        self._turns: LoopLocal[WeakValueDictionary[str, anyio.Lock]] = LoopLocal()

    async def set(self, task_id: str, status: str, **fields: Any) -> Task | None:
        """Write how a task is, over whatever was written before; for a day from now.

        Args:
            task_id: Which task.
            status: Any text: ``pending``, ``running``, ``回测中``.
            fields: What JSON can hold: ``progress`` is percent, ``message`` a text,
                ``timestamp`` now unless it is given.

        Returns:
            The task as it was written; with ``on_error="none"`` ``None`` where Redis
            could not answer.

        Raises:
            ConfigurationError: The id cannot be part of a key, or a field cannot be
                written.
        """
        return await self._put(task_id, status, fields)

    async def update(self, task_id: str, **changes: Any) -> Task | None:
        """Change some fields; the others stay, and so does the time of its expiry.

        In one step: two callers, also in two processes, that change different fields at
        once lose neither change.

        Args:
            task_id: Which task.
            changes: Fields and their new values; ``timestamp`` becomes now by itself.

        Returns:
            The task as it is now. ``None``, and nothing was written, if there is none
            any more; with ``on_error="none"`` also where Redis could not answer.

        Raises:
            ConfigurationError: A field cannot be written.
            DecodeError: The value is neither an object nor a word; it was left alone.
                :meth:`set` writes over it.
            RedisUnavailableError: ``contended``: other writers were always ahead.
                After an ambiguous error it may be done again, and then stands last.
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
    return time.time()  # noqa: TID251 - the public face


async def read_key(pool: ConnectionPool, command: str, key: str) -> Reply:
    """Read a key of the table; WrongTypeError if it holds another type."""
    (reply,) = await pool.read_many([(command, encode_key(key))])
    return checked_reply(reply, key)
