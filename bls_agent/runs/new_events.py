"""Checks, encodes and merges events for the script ``add_events``. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias, cast

import anyio

from bls_agent.connection.endpoint import Argument
from bls_agent.core.checks import check_count
from bls_agent.core.codec import (
    JSONObject,
    cut_text,
    encode_strictly,
    encode_within,
    format_timestamp,
    parse_timestamp,
)
from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import check_name
from bls_agent.core.redaction import redact

FIELDS_BYTES: Final = 200  # approximate bytes of an event without its data
SOURCE: Final = ("agent_id", "agent_type", "agent_name", "team_name")
NO_SOURCE: Final[Source] = ("", "", "", "")
_PARTS: Final = frozenset(SOURCE)
_REMEMBERED: Final = 1_024  # largest number of checked names in the cache
_LONGEST: Final = 200  # largest number of characters of a sanitized text
_LARGEST: Final = 10**15 - 1  # the largest sequence that the script can count

LONGEST_REASON: Final = 2_000  # largest number of bytes of an error's message
TOGETHER: Final = 500  # largest number of events that one script call adds
TOGETHER_BYTES: Final = 512 * 1024  # largest number of bytes of these events

TEXTS: Final = frozenset({"content", "delta", "text", "token", "chunk"})
RANKS: Final = 3  # a full buffer drops events of rank 0 first
_STREAM: Final = 0
_OTHERS: Final = 1
_LAST: Final = 2
_LONGEST_TEXT: Final = 10_000  # largest number of characters of a mergeable text
_LONGEST_OTHER: Final = 256  # largest number of characters of the other texts
_MOST: Final = 8  # largest number of fields of mergeable data
_PLAIN: Final = frozenset({str, int, bool, NoneType})

LONGEST: Final = 65_535  # largest number of bytes of a merged text
_WIDEST: Final = 6  # largest number of bytes of a character in JSON, as of \u001b


Source: TypeAlias = tuple[str, str, str, str]
# The nine arguments of an event in ``add_events.lua``: sequence, timestamp, source,
# category, action, data.
Prepared: TypeAlias = tuple[int | str, str, str, str, str, str, str, str, bytes]
# The fields of mergeable data: name, type and value. The field of the text itself has
# ``None`` as type and value.
_Shape: TypeAlias = tuple[tuple[str, type | None, Any], ...]


class NewEvent(NamedTuple):
    """An event that :meth:`EventStore.add_many` adds.

    Attributes:
        category: Such as :attr:`~bls_agent.runs.EventCategory.LLM`; any text is
            allowed.
        action: Such as :attr:`~bls_agent.runs.EventAction.STREAM`; any text is allowed.
        data: Content of the event, as a JSON object; default: ``{}``.
        source: ``agent_id``, ``agent_type``, ``agent_name`` and ``team_name``, as far
            as they are known.
        timestamp: Time of the event, which is written in UTC with milliseconds;
            default: now. A time without a zone is treated as UTC.
        sequence: Number of the event within the run; default: counted by Redis.
    """

    category: str
    action: str
    data: Mapping[str, Any] | None = None
    source: Mapping[str, str | None] | None = None
    timestamp: str | datetime | None = None
    sequence: int | None = None


def encode_new(event: NewEvent, now: float, limit: int) -> Prepared:
    """Encode an event without changes. Raise ConfigurationError for a wrong value."""
    data = check_data(event.data)
    payload = encode_strictly("data", _as_object({} if data is None else data))
    if len(payload) > limit:
        raise ConfigurationError(
            "data",
            f"{len(payload):,} bytes",
            f"at most {limit:,} bytes of JSON",
            "Store it elsewhere and write where, or raise event_size_limit.",
        )
    sequence: int | str = ""
    if event.sequence is not None:
        sequence = check_count("sequence", event.sequence, least=0, most=_LARGEST)
    return (
        sequence,
        _check_timestamp(event.timestamp, now),
        *check_source(event.source),
        _check_word("event_category", event.category),
        _check_word("event_action", event.action),
        payload,
    )


def check_data(data: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    given = cast("object", data)
    if given is not None and not isinstance(given, Mapping):
        rule = f"it must be a JSON object, not {type(given).__name__}"
        raise ConfigurationError("data", given, rule, "Wrap it: {'value': …}.")
    return data


def check_source(source: Mapping[str, str | None] | None) -> Source:
    """Return the four parts of a source. A missing part is an empty text."""
    if source is None:
        return NO_SOURCE
    given = cast("object", source)
    rule = f"a source has the parts {', '.join(SOURCE)}, each a text"
    if not isinstance(given, Mapping):
        raise ConfigurationError("source", given, rule)
    if not _PARTS.issuperset(source):
        shown = ", ".join(sorted(str(name) for name in source if name not in _PARTS))
        raise ConfigurationError("source", shown, rule, "Put the rest into the data.")
    get = source.get
    one, two, three, four = SOURCE
    return (
        _check_part(one, get(one)),
        _check_part(two, get(two)),
        _check_part(three, get(three)),
        _check_part(four, get(four)),
    )


def _check_part(name: str, value: str | None) -> str:
    if value is None or value == "":
        return ""
    return _check_word(f"source[{name!r}]", value)


def _check_word(name: str, value: str) -> str:
    """Check a name as :func:`check_name` does, with a cache of valid names."""
    if type(value) is str:
        return _check_text(name, value)
    check_name(name, value)
    return str.__str__(value)


@lru_cache(_REMEMBERED)
def _check_text(name: str, value: str) -> str:
    check_name(name, value)
    return value


def _check_timestamp(timestamp: str | datetime | None, now: float) -> str:
    if timestamp is None:
        return format_timestamp(now)
    if isinstance(timestamp, datetime):
        moment: datetime | None = (
            timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
        )
    else:
        moment = parse_timestamp(timestamp)
    with suppress(OverflowError):  # raised near the years 1 and 9999
        if moment is not None:
            utc = moment.astimezone(UTC).isoformat(timespec="milliseconds")
            return utc.replace("+00:00", "Z")
    rule = "it must be ISO 8601, such as 2026-01-31T12:00:00.123Z, or a datetime"
    raise ConfigurationError("timestamp", timestamp, rule)


def _as_object(data: object) -> object:
    if isinstance(data, dict):
        return cast("object", data)
    return dict(cast("Any", data)) if isinstance(data, Mapping) else {"value": data}


def sanitize_data(data: object, limit: int) -> tuple[bytes, bool]:
    """Return any data as JSON, and whether they were shortened. Never raise."""
    if data is None:
        return b"{}", False
    try:
        given = _as_object(data)
    except Exception as error:  # noqa: BLE001 - the caller's Mapping may raise anything
        given = {"value": f"<not readable: {type(error).__name__}>"}
    payload, was_cut = encode_within(cast("JSONObject", given), limit)
    if not payload.startswith(b"{"):  # the text that replaces a dict that raises
        payload = b'{"value":%b}' % payload
    return payload, was_cut


def sanitize_source(source: object) -> Source:
    """Return the four parts of a source as short texts. Never raise."""
    if not isinstance(source, Mapping):
        return NO_SOURCE
    try:
        get = cast("Mapping[str, object]", source).get
        one, two, three, four = SOURCE
        return (
            sanitize_word(get(one)),
            sanitize_word(get(two)),
            sanitize_word(get(three)),
            sanitize_word(get(four)),
        )
    except Exception:  # noqa: BLE001 - the caller's Mapping may raise anything
        return NO_SOURCE


def sanitize_word(value: object) -> str:
    """Return any value as a short text of one line in valid Unicode. Never raise."""
    if value is None:
        return ""
    if type(value) is str and len(value) <= _LONGEST:
        return _sanitize_short(value)
    return _sanitize_text(value)


def _sanitize_text(value: object) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
        plain = str.encode(text[:_LONGEST], "utf-8", "backslashreplace").decode()
        return "".join(one if one.isprintable() else " " for one in plain).strip()
    except Exception:  # noqa: BLE001 - the caller's __repr__ may raise anything
        return type(value).__name__


_sanitize_short: Final = lru_cache(_REMEMBERED)(_sanitize_text)


def as_new(event: Any) -> NewEvent:
    """Return a ``NewEvent`` unchanged, or make it from a tuple of its first fields."""
    if isinstance(event, NewEvent):
        return event
    parts = list(cast("Any", event)) if isinstance(event, tuple) else []
    if 2 <= len(parts) <= len(NewEvent._fields):  # noqa: PLR2004
        return NewEvent(*parts)
    rule = "an event is a NewEvent, or a tuple (category, action, data)"
    raise ConfigurationError("events", cast("object", event), rule)


def encode_all(events: Iterable[object], now: float, limit: int) -> list[Prepared]:
    """Encode all events or none, and shorten nothing.

    Raise ConfigurationError for the first wrong event. Among several events the name in
    the error has the position of the event, for example ``events[3].data``.
    """
    prepared: list[Prepared] = []
    given = list(events)
    for at, event in enumerate(given):
        try:
            prepared.append(encode_new(as_new(event), now, limit))
        except ConfigurationError as error:
            if len(given) == 1:
                raise
            name = f"events[{at}].{error.name}".replace(".events", "")
            remedy = f"{error.remedy} No event was added.".strip()
            raise ConfigurationError(name, error.value, error.rule, remedy) from None
    return prepared


def portions(events: Sequence[Prepared]) -> list[list[Prepared]]:
    """Divide events into lists that are short enough for one call of the script."""
    found: list[list[Prepared]] = []
    size = 0
    for one in events:
        length = len(one[-1]) + FIELDS_BYTES
        size += length
        if not found or len(found[-1]) == TOGETHER or size > TOGETHER_BYTES:
            found.append([])
            size = length
        found[-1].append(one)
    return found


def add_arguments(
    events: Iterable[Sequence[Argument]],
    *,
    maxlen: int,
    ttl: int,
    floor: tuple[int, str],
    token: str = "",
    number: int = 0,
    lease: float = 0.0,
    ends: bool = False,
) -> list[Argument]:
    sequence, last = floor
    milliseconds, _, count = last.partition("-")
    head: tuple[Argument, ...] = (
        maxlen, ttl, sequence, milliseconds, count, token, number,
        int(lease * 1000), int(ends),
    )  # fmt: skip
    return [*head, *chain.from_iterable(events)]


def describe_end(error: BaseException | None, result: object) -> tuple[str, object]:
    """Return the action of the ``lifecycle`` event that ends a run, and its data.

    The action is ``cancelled`` after a cancellation, Ctrl-C, ``sys.exit()`` without an
    error code, or if the generator that contains the block was closed.
    """
    if error is None:
        return "completed", result
    error = _unwrap(error)
    if _cuts_short(error):
        return "cancelled", {"reason": type(error).__name__}
    return "failed", {"error": _describe(error)}


def _unwrap(error: BaseException) -> BaseException:
    group: Any = error
    if (
        isinstance(group, BaseExceptionGroup)
        and len(cast("Any", group).exceptions) == 1
    ):
        return _unwrap(cast("Any", group).exceptions[0])
    return error


def _cuts_short(error: BaseException) -> bool:
    if isinstance(error, SystemExit):
        return not error.code
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return True
    return isinstance(error, anyio.get_cancelled_exc_class())


def _describe(error: BaseException) -> JSONObject:
    try:
        text = redact(str(error))
    except Exception as failure:  # noqa: BLE001 - the caller's __str__ may raise anything
        text = f"<its text raised {type(failure).__name__}>"
    return {"type": type(error).__name__, "message": cut_text(text, LONGEST_REASON)}


@dataclass(slots=True, eq=False)
class PendingEvent:
    """An event in a writer's buffer, with a copy of the caller's data."""

    category: str
    action: str
    source: Source
    at: float  # time of the event in Unix seconds
    payload: bytes  # data of the event as JSON; empty for a piece of a text
    shape: _Shape | None  # other fields of a piece of a text; ``None`` for other events
    text: str  # the text of a piece
    rank: int  # a full buffer drops events of the lowest rank first
    size: int  # approximate bytes in memory
    was_cut: bool = False  # whether the data were too long and were shortened
    ends: bool = False  # whether it is the outcome of the run, or its ``system.close``

    @property
    def starts_run(self) -> bool:
        return (self.category, self.action) == ("lifecycle", "started")

    def encode(self, limit: int) -> tuple[bytes, bool]:
        """Return the event's data as JSON, and whether they were shortened."""
        if self.shape is None:
            return self.payload, self.was_cut
        data = {
            name: self.text if kind is None else value
            for name, kind, value in self.shape
        }
        return encode_within(data, limit)


def capture(
    category: str,
    action: str,
    data: object,
    source: Source,
    *,
    at: float,
    limit: int,
    merges: bool,
) -> PendingEvent:
    streams = category == "llm" and action == "stream"
    if streams and merges and type(data) is dict:
        found = _find_text(cast("dict[object, object]", data))
        if found is not None:
            shape, text = found
            size = len(text) * (1 if text.isascii() else 3) + FIELDS_BYTES
            return PendingEvent(
                category, action, source, at, b"", shape, text, _STREAM, size
            )
    payload, cut = sanitize_data(data, limit)  # pyright: ignore[reportUnknownArgumentType]
    rank = _STREAM if streams else _OTHERS
    if category in ("lifecycle", "system"):
        rank = _LAST
    size = len(payload) + FIELDS_BYTES
    return PendingEvent(
        category, action, source, at, payload, None, "", rank, size, cut
    )


def _find_text(data: dict[object, object]) -> tuple[_Shape, str] | None:
    """Split mergeable data into shape and text. Return ``None`` for other data.

    Mergeable data have no nested values, and exactly one text that may be merged.
    """
    if len(data) > _MOST:
        return None
    found: str | None = None
    shape: list[tuple[str, type | None, Any]] = []
    for name, value in data.items():
        if type(value) not in _PLAIN or type(name) is not str:
            return None
        if isinstance(value, str):
            if name in TEXTS:
                if found is not None or len(value) > _LONGEST_TEXT:
                    return None
                found = value
                shape.append((name, None, None))
                continue
            if len(value) > _LONGEST_OTHER:
                return None
        shape.append((name, type(value), value))
    return None if found is None else (tuple(shape), found)


def merge(events: Sequence[PendingEvent], limit: int) -> list[PendingEvent]:
    """Join neighbouring pieces of a text whose sources and other fields are equal.

    A merged event has the time of its first piece. Its text stays below 64 KiB, and its
    data below ``limit`` bytes.
    """
    merged: list[PendingEvent] = []
    texts: list[str] = []
    size = room = 0
    for event in events:
        width = _width(event.text)
        if texts and _continues(merged[-1], event):
            if len(texts) == 1:
                room = min(LONGEST, limit - _beside(merged[-1], limit))
            fits = size + width <= room
        else:
            fits = False
        if fits:
            texts.append(event.text)
            size += width
            continue
        _join(merged, texts)
        merged.append(event)
        texts, size = ([event.text], width) if event.shape is not None else ([], 0)
    _join(merged, texts)
    return merged


def _continues(first: PendingEvent, event: PendingEvent) -> bool:
    return first.shape == event.shape and first.source == event.source


def _join(merged: list[PendingEvent], texts: Sequence[str]) -> None:
    if len(texts) > 1:  # a copy, because a repeated call merges the same pieces
        merged[-1] = replace(merged[-1], text="".join(texts))


def _beside(event: PendingEvent, limit: int) -> int:
    payload, was_cut = replace(event, text="").encode(limit)
    return limit if was_cut else len(payload)


def _width(text: str) -> int:
    """Return an upper bound for the bytes of a text in JSON."""
    plain = text.isascii() and text.isprintable()
    if plain and '"' not in text and "\\" not in text:
        return len(text)
    return len(text) * _WIDEST
