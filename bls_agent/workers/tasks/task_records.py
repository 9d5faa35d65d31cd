"""What is written of a task, and how whatever stands there is read: words only.

Contract 001 names the keys ``ginkgo:task_status:{task_id}`` and
``backtest:task:{task_id}:progress`` and leaves their values open. Here both hold one JSON
object: ``task_id``, ``status``, ``timestamp``, then the caller's own fields in their
order, of which ``progress`` (percent) and ``message`` have a meaning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self, cast

from bls_agent.codec import (
    JSONObject,
    JSONValue,
    decode,
    encode_strictly,
    format_timestamp,
    parse_timestamp,
)
from bls_agent.errors import ConfigurationError, DecodeError

__all__ = ["WHOLE", "Task", "change_task", "encode_task"]

WHOLE: Final = 100  # percent
WORD: Final = 64  # characters of a bare text that is taken for a status


@dataclass(frozen=True, kw_only=True)
class Task:
    """What stands under the key of a task, read tolerantly.

    Attributes:
        id: Which task: the id in its key.
        status: How it is, in the writer's words; ``""`` if nothing says so. A bare
            text such as ``running`` is a status, too.
        timestamp: When that was written, aware; ``None`` if nothing says so.
        progress: Percent; ``None`` if nothing says so.
        message: A word for people, or ``""``.
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
        """Read a value; there is none that cannot be read."""
        found, reason = _read(payload)
        if isinstance(found, dict):
            return cls._of_object(task_id, found)
        return cls(
            id=task_id,
            status=_word(found, payload, reason),
            raw=payload.decode("utf-8", "replace"),
            reason=reason,
        )

    @classmethod
    def _of_object(cls, task_id: str, found: JSONObject) -> Self:
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
    """Write a task.

    Args:
        task_id: Which one.
        status: How it is, in words of your own.
        fields: What else is to be said.
        now: Unix seconds.

    Raises:
        ConfigurationError: A field holds what cannot be written.
    """
    said = {"status": status, "timestamp": format_timestamp(now), **fields}
    return _encode({"task_id": task_id, **_checked(said)})


def change_task(
    task_id: str, payload: bytes, changes: Mapping[str, Any], *, now: float
) -> bytes:
    """Give what stands there with some fields changed; all others stay.

    A bare word that stands there becomes the status of an object.

    Raises:
        ConfigurationError: A field holds what cannot be written.
        DecodeError: What stands there is no object and no word; it would be lost.
    """
    found, reason = _read(payload)
    if not isinstance(found, dict):
        status = _word(found, payload, reason)
        if not status:
            raise DecodeError(reason, payload, "set() writes over it")
        found = {"task_id": task_id, "status": status}
    said = {"timestamp": format_timestamp(now), **changes}
    return _encode({**found, **_checked(said)})


def _encode(said: JSONObject) -> bytes:
    return encode_strictly("fields", said)


def _read(payload: bytes) -> tuple[JSONValue, str]:
    """Decode a value, and say in one word why it is no object."""
    try:
        found = decode(payload)
    except DecodeError as error:
        return None, error.reason
    return found, "" if isinstance(found, dict) else "not_an_object"


def _word(found: JSONValue, payload: bytes, reason: str) -> str:
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


def _checked(said: Mapping[str, Any]) -> JSONObject:
    for name, value in said.items():
        if name == "status" and not (isinstance(value, str) and value.strip()):
            raise ConfigurationError(name, value, "a text that is not blank")
        if name == "progress":
            _check_percent(value)
        if name == "message" and not isinstance(value, str | None):
            raise ConfigurationError(name, value, "a text")
        if isinstance(value, datetime) and value.tzinfo is None:
            raise ConfigurationError(name, value, "a time with its zone")
    return dict(said)


def _check_percent(value: object) -> None:
    if value is None:
        return
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or not 0 <= cast("float", value) <= WHOLE:
        raise ConfigurationError("progress", value, "percent, from 0 to 100")
