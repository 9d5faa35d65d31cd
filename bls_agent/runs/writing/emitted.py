"""An event that waits to be written: taken in the caller's thread; no I/O here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, TypeAlias, cast

from bls_agent.core.codec import encode_within
from bls_agent.runs.new_events import FIELDS_BYTES, Source, tame_data

__all__ = ["RANKS", "TEXTS", "Emitted", "Shape", "take"]

TEXTS: Final = frozenset({"content", "delta", "text", "token", "chunk"})
RANKS: Final = 3  # 0 goes first when a buffer is full
_STREAM: Final = 0
_OTHERS: Final = 1
_LAST: Final = 2
_LONGEST: Final = 10_000  # characters of a text that may be merged
_LONGEST_OTHER: Final = 256  # characters of the other ones in its data
_MOST: Final = 8  # fields of data that may be merged
_PLAIN: Final = frozenset({str, int, bool, NoneType})

# Name, type and value of each field; of the text neither type nor value.
Shape: TypeAlias = tuple[tuple[str, type | None, Any], ...]


@dataclass(slots=True, eq=False)
class Emitted:
    """An event of a writer, not numbered yet.

    Its data are taken when it is emitted, because its host may change them at once:
    encoded, or for a piece of a text that may be merged with others as they are, which
    is cheaper: those are encoded when they are written.

    Attributes:
        category: What kind of event it is.
        action: What happened.
        source: Who it comes from.
        at: When, in Unix seconds.
        payload: Its data as JSON; empty for a piece of a text.
        shape: What the data of a piece are beside its text; ``None`` for others.
        text: The text of a piece.
        rank: What a full buffer goes by.
        size: About how many bytes it takes.
        ends: Whether the run ends with it.
    """

    category: str
    action: str
    source: Source
    at: float
    payload: bytes
    shape: Shape | None
    text: str
    rank: int
    size: int
    ends: bool = False

    def encode(self, limit: int) -> tuple[bytes, bool]:
        """Give its data as JSON.

        Args:
            limit: Longest in bytes; what is longer is cut.

        Returns:
            The JSON, and whether something had to be cut just now.
        """
        if self.shape is None:
            return self.payload, False
        return encode_within(dict(self._fields(self.shape)), limit)

    def _fields(self, shape: Shape) -> Iterator[tuple[str, Any]]:
        for name, kind, value in shape:
            yield name, self.text if kind is None else value


def take(
    category: str,
    action: str,
    data: object,
    source: Source,
    *,
    at: float,
    limit: int,
    merges: bool,
) -> tuple[Emitted, bool]:
    """Take an event, whatever its data hold; never raises.

    Args:
        category: What kind of event it is.
        action: What happened.
        data: What it says.
        source: Who it comes from.
        at: When, in Unix seconds.
        limit: Longest data in bytes; what is longer is cut.
        merges: Whether pieces of a text are to be merged.

    Returns:
        The event, and whether its data had to be cut.
    """
    streams = category == "llm" and action == "stream"
    if streams and merges and type(data) is dict:
        found = _find_text(cast("dict[object, object]", data))
        if found is not None:
            shape, text = found
            size = len(text) * (1 if text.isascii() else 3) + FIELDS_BYTES
            return Emitted(
                category, action, source, at, b"", shape, text, _STREAM, size
            ), False
    payload, cut = tame_data(data, limit)  # pyright: ignore[reportUnknownArgumentType]
    rank = _STREAM if streams else _OTHERS
    if category in ("lifecycle", "system"):
        rank = _LAST
    size = len(payload) + FIELDS_BYTES
    return Emitted(category, action, source, at, payload, None, "", rank, size), cut


def _find_text(data: dict[object, object]) -> tuple[Shape, str] | None:
    """Tell the text of flat data from the rest; ``None`` if they are not of that kind."""
    if len(data) > _MOST:
        return None
    found: str | None = None
    shape: list[tuple[str, type | None, Any]] = []
    for name, value in data.items():
        if type(value) not in _PLAIN or type(name) is not str:
            return None
        if isinstance(value, str):
            if name in TEXTS:
                if found is not None or len(value) > _LONGEST:
                    return None
                found = value
                shape.append((name, None, None))
                continue
            if len(value) > _LONGEST_OTHER:
                return None
        shape.append((name, type(value), value))
    return None if found is None else (tuple(shape), found)
