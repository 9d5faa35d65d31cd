"""What a key is, and how much of it is read: decided here, without I/O, within bounds.

Two trips for many keys at once. The first asks for a key's TTL, length and weight; the
second for some of its content, as much as the weight allows. A list of ten million
elements or a string of 100 MB costs as much as a short one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    """One key that is read, and its sample as far as it is known."""

    sample: Sample
    refused: str = ""  # why it could not be read
    gone: bool = False  # it has vanished meanwhile

    @property
    def _expected(self) -> RedisType | None:
        return KEYS[self.sample.row].type

    def first(self) -> list[Request]:
        """Ask for the TTL, and for the size that a key of the expected type has."""
        key, expected = encode_key(self.sample.key), self._expected
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
        sample, expected = self.sample, self._expected
        sample.ttl = None if lives < 0 else lives / 1000
        if isinstance(told, RedisUnavailableError):
            if told.kind != "wrong_type":
                self.refused = told.kind
            return
        sample.type = str(expected)
        if expected is None:
            sample.type = cast("bytes", told).decode()
        elif expected is RedisType.STRING:
            sample.items, sample.size = [told], len(told)
        else:
            sample.size = told
            self.gone |= not told and expected is not RedisType.STREAM
            if isinstance(usage[0], int):
                sample.mean_bytes = usage[0] / max(told, 1)

    def second(self) -> list[Request]:
        """Ask for content, or for the type if it is not the expected one."""
        sample, expected = self.sample, self._expected
        key = encode_key(sample.key)
        if self.refused or self.gone:
            return []
        if not sample.type:
            return [("TYPE", key)]
        if expected is RedisType.STRING:
            if sample.size < BEGINNING:
                return []
            return [("STRLEN", key), ("GETRANGE", key, 0, WHOLE - 1)]
        if expected is None:
            return []
        return _plan_content(expected, key, sample.row, sample.size, self._fitting)

    def _fitting(self, count: int) -> int:
        """Decide how many elements to read, by their average weight."""
        mean = self.sample.mean_bytes
        return count if mean * count <= WEIGHT else int(WEIGHT / mean)

    def record_second(self, replies: Sequence[Reply]) -> None:
        """Record the replies to :meth:`second`."""
        sample, expected = self.sample, self._expected
        refusals = [one for one in replies if isinstance(one, RedisUnavailableError)]
        if refusals and refusals[0].kind == "wrong_type":  # it was replaced just now
            self.gone = True
        elif refusals:
            self.refused = refusals[0].kind
        elif not sample.type and replies:
            sample.type = cast("bytes", replies[0]).decode()
            self.gone |= sample.type == "none"
        elif expected is RedisType.STRING and replies:
            sample.size, sample.items = replies[0], [replies[1]]
        elif replies:
            self._record_content(replies)
        is_text = expected is RedisType.STRING
        read = len(sample.value) if is_text else len(sample.items) or len(sample.pairs)
        sample.complete = sample.type == expected and read == sample.size

    def _record_content(self, replies: Sequence[Reply]) -> None:
        sample, first = self.sample, replies[0]
        match self._expected:
            case RedisType.STREAM:
                events = [(number, flat) for number, flat in first if flat is not None]
                sample.entries = [(number, _pairs(flat)) for number, flat in events]
            case RedisType.HASH:
                scanned = len(first) == 2 and isinstance(first[1], list)  # noqa: PLR2004 - HSCAN: a cursor in front
                sample.pairs = _pairs(first[1] if scanned else first)
            case RedisType.SET:
                sample.items = first[1]
            case _:
                sample.items = [one for part in replies for one in part]
                sample.oldest = len(first) if len(replies) > 1 else 0


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


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
