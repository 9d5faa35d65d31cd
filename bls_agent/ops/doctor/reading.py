"""What a key is, and how much of it is read: decided here, without I/O, within bounds.

Two trips for many keys at once. The first asks for a key's TTL, length and weight; the
second for some of its content, as much as the weight allows. A list of ten million
elements or a string of 100 MB costs as much as a short one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

from bls_agent.connection.endpoint import Reply, Request
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.core.keys import KEYS, KeyTemplate, RedisType, encode_key, key_beside
from bls_agent.ops.doctor.rule import Sample, Values

__all__ = ["Kind", "Look", "is_loose", "kind_of", "project_of"]

BEGINNING: Final = 4_096  # bytes of a string that are read at first
WHOLE: Final = 65_536  # bytes of a string that is read to its end
WEIGHT: Final = 131_072  # bytes of elements that are read of one key
SOME: Final = 20  # members of a set, requests of a queue, fields of a long hash
SHORT_HASH: Final = 64  # fields of a hash that is read whole
EVENTS: Final = 50
WEIGHED: Final = "20"  # elements by which Redis estimates how heavy they are

# How many of the oldest and of the newest elements of a list are read.
_ENDS: Final = {"control": (20, 5), "project_console": (3, 25)}
_OTHER_ENDS: Final = (5, 10)

_LENGTH: Final = {
    RedisType.LIST: "LLEN",
    RedisType.SET: "SCARD",
    RedisType.ZSET: "ZCARD",
    RedisType.HASH: "HLEN",
    RedisType.STREAM: "XLEN",
}
# Of a key that can be read in many ways all of them are made: of none that is as long
# as no pair of names makes it.
LONGEST: Final = 1_200

_CONSOLE_ROWS: Final = ("project_status", "project_console", "control")


@dataclass
class Look:
    """One key, and what was read of it."""

    key: str
    kind: Kind
    refused: str = ""  # why it could not be read
    gone: bool = False  # it has vanished meanwhile
    _type: str = ""
    _ttl: float | None = None
    _size: int = 0
    _usage: int = 0
    _parts: Sequence[Reply] = field(default_factory=list[Reply])

    @property
    def _expected(self) -> RedisType | None:
        return KEYS[self.kind.row].type

    def first(self) -> list[Request]:
        """Ask for the TTL, and for the size that a key of the expected type has."""
        key, expected = encode_key(self.key), self._expected
        if expected is None:
            return [("PTTL", key), ("TYPE", key)]
        if expected is RedisType.STRING:
            return [("PTTL", key), ("GETRANGE", key, 0, BEGINNING - 1)]
        return [
            ("PTTL", key),
            (_LENGTH[expected], key),
            ("MEMORY", "USAGE", key, "SAMPLES", WEIGHED),
        ]

    def record_first(self, replies: Sequence[Reply]) -> None:
        """Record the replies to :meth:`first`."""
        lives, told, *usage = replies
        if isinstance(lives, RedisUnavailableError):
            self.refused = lives.kind
            return
        self.gone = lives == -2  # noqa: PLR2004 - what PTTL says of no key
        self._ttl = None if lives < 0 else lives / 1000
        if isinstance(told, RedisUnavailableError):
            if told.kind != "wrong_type":
                self.refused = told.kind
            return
        self._record_reply(told)
        if usage and isinstance(usage[0], int):
            self._usage = usage[0]

    def _record_reply(self, told: Reply) -> None:
        expected = self._expected
        self._type = str(expected)
        if expected is None:
            self._type = cast("bytes", told).decode()
        elif expected is RedisType.STRING:
            self._parts, self._size = [told], len(told)
        else:
            self._size = told
            self.gone |= not told and expected is not RedisType.STREAM

    def second(self) -> list[Request]:
        """Ask for content, or for the type if it is not the expected one."""
        key = encode_key(self.key)
        if self.refused or self.gone:
            return []
        if not self._type:
            return [("TYPE", key)]
        if self._expected is RedisType.STRING:
            if self._size < BEGINNING:
                return []
            return [("STRLEN", key), ("GETRANGE", key, 0, WHOLE - 1)]
        if self._expected is None:
            return []
        return _plan_content(
            self._expected, key, self.kind.row, self._size, self._fitting
        )

    def record_second(self, replies: Sequence[Reply]) -> None:
        """Record the replies to :meth:`second`."""
        refusal = next(
            (r for r in replies if isinstance(r, RedisUnavailableError)), None
        )
        if refusal is not None:
            if refusal.kind != "wrong_type":  # it was replaced just now
                self.refused = refusal.kind
            self.gone |= refusal.kind == "wrong_type"
        elif not self._type and replies:
            self._type = cast("bytes", replies[0]).decode()
            self.gone |= self._type == "none"
        elif self._expected is RedisType.STRING and replies:
            self._size, self._parts = replies[0], [replies[1]]
        elif replies:
            self._parts = replies

    def _fitting(self, count: int) -> int:
        """Decide how many elements to read, by their average weight."""
        mean = self._usage / max(self._size, 1)
        return count if mean * count <= WEIGHT else int(WEIGHT / mean)

    def sample(self, now: float, connected: frozenset[str] | None) -> Sample:
        """Make the sample."""
        expected, content = self._expected, self._type == self._expected
        items, oldest = self._items() if content else ([], 0)
        read = len(items)
        is_hash = content and expected is RedisType.HASH
        pairs = self._pairs() if is_hash else dict[bytes, bytes]()
        if expected is RedisType.STRING:
            complete = bool(items) and len(items[0]) == self._size
        else:
            complete = read == self._size or len(pairs) == self._size
        return Sample(
            key=self.key,
            row=self.kind.row,
            fields=self.kind.fields,
            type=self._type,
            ttl=self._ttl,
            size=self._size,
            items=items,
            oldest=oldest,
            pairs=pairs,
            entries=self._entries() if expected is RedisType.STREAM else (),
            complete=content and complete,
            mean_bytes=self._usage / max(self._size, 1),
            now=now,
            connected=connected,
        )

    def _items(self) -> tuple[list[bytes], int]:
        """Give the elements, and how many of them are the oldest of a longer list."""
        parts, expected = self._parts, self._expected
        if expected is RedisType.STRING:
            return list(parts), 0
        if not parts or expected in (None, RedisType.HASH, RedisType.STREAM):
            return [], 0
        if expected is RedisType.SET:
            return list(parts[0][1]), 0
        if len(parts) == 1:
            return list(parts[0]), 0
        return [*parts[0], *parts[1]], len(parts[0])

    def _pairs(self) -> Mapping[bytes, bytes]:
        if not self._parts:
            return {}
        flat = self._parts[0]
        if len(flat) == 2 and isinstance(flat[1], list):  # noqa: PLR2004 - HSCAN: a cursor in front
            flat = flat[1]
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def _entries(self) -> list[tuple[bytes, Mapping[bytes, bytes]]]:
        if not self._parts or self._type != RedisType.STREAM:
            return []
        return [
            (number, dict(zip(flat[::2], flat[1::2], strict=True)))
            for number, flat in self._parts[0]
            if flat is not None
        ]


def _plan_content(
    kind: RedisType, key: bytes, row: str, size: int, fit: Callable[[int], int]
) -> list[Request]:
    """Ask for as many elements as the rules need and as fit by their weight."""
    match kind:
        case RedisType.LIST:
            oldest, newest = map(fit, _ENDS.get(row, _OTHER_ENDS))
            if size <= oldest + newest:
                return [("LRANGE", key, 0, size - 1)]
            parts = [("LRANGE", key, 0, oldest - 1), ("LRANGE", key, -newest, -1)]
            return [
                part
                for part, count in zip(parts, (oldest, newest), strict=True)
                if count
            ]
        case RedisType.HASH if size <= fit(SHORT_HASH):
            return [("HGETALL", key)]
        case RedisType.STREAM:
            count = fit(EVENTS)
            return [("XREVRANGE", key, "+", "-", "COUNT", count)] if count else []
        case RedisType.ZSET:
            count = fit(SOME)
            return [("ZRANGE", key, 0, count - 1)] if count else []
        case _:
            scan, count = "SSCAN" if kind is RedisType.SET else "HSCAN", fit(SOME)
            return [(scan, key, 0, "COUNT", count)] if count else []


class Kind(NamedTuple):
    """What a key is."""

    row: str  # in `KEYS`; `""` for a key of no contract
    fields: Values  # of the key's name: field of the row → value


def is_loose(row: KeyTemplate) -> bool:
    """Whether foreign keys may well match a form, such as ``{type}_update_{code}``."""
    return row.ambiguous and row.template.startswith("{")


def _ends(row: KeyTemplate) -> tuple[str, str]:
    return row.template.partition("{")[0], row.template.rpartition("}")[2]


def _order(name: str) -> tuple[bool, bool]:
    """Sort loose forms last, and a form with a suffix before one without."""
    return is_loose(KEYS[name]), not _ends(KEYS[name])[1]


_ROWS: Final = [
    (name, *_ends(KEYS[name]), KEYS[name]) for name in sorted(KEYS, key=_order)
]


def kind_of(key: str) -> Kind:
    """Find the row of a key; of several the most specific one."""
    for name, head, tail, row in _ROWS:
        if key.startswith(head) and key.endswith(tail):
            if row.ambiguous and len(key) > LONGEST:
                continue
            readings = row.readings(key)
            if readings:
                return Kind(name, readings[0] if len(readings) == 1 else {})
    return Kind("", {})


def project_of(kind: Kind) -> str:
    """Give the project that a key belongs to, ``""`` if none."""
    if kind.row in _CONSOLE_ROWS:
        return kind.fields["project"]
    place = kind.fields.get("place", "")
    return project_of(kind_of(key_beside(place))) if place else ""
