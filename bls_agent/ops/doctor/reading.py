"""Decides, without I/O, to which protocol a key belongs and which part of it is read.

Many keys are read together in two round trips. The first one reads TTL, length and
memory usage of each key. The second one reads some of the elements, and fewer elements
if they are large. A list of ten million elements or a string of 100 MB therefore costs
no more than other keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bls_agent.connection.endpoint import Reply, Request
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.core.keys import KEYS, KeyTemplate, RedisType, encode_key, key_beside
from bls_agent.ops.doctor.rule import Sample, Values

WHOLE: Final = 65_536  # bytes of a string that are read at most
WEIGHT: Final = 131_072  # bytes of elements of one key that are read at most
SOME: Final = 20  # elements that are read of a set, sorted set or long hash
SHORT_HASH: Final = 64  # most fields of a hash that is read whole
EVENTS: Final = 50
WEIGHED: Final = "20"  # elements that Redis samples to estimate the memory usage

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
# A longer key is not parsed by an ambiguous template, because the number of possible
# readings grows with the length. No pair of valid names makes a longer key.
LONGEST: Final = 1_200

_CONSOLE_ROWS: Final = ("project_status", "project_console", "control")


@dataclass
class Look:
    """The plan to read one key, and the sample with the data that was read so far."""

    sample: Sample
    refused: str = ""  # why the key could not be read
    vanished: bool = False  # whether the key was deleted or replaced meanwhile

    @property
    def _expected(self) -> RedisType | None:
        return KEYS[self.sample.row].type

    def first(self) -> list[Request]:
        """Return the requests of the first round trip: TTL, and string or size."""
        key, expected = encode_key(self.sample.key), self._expected
        if expected is None:
            return [("PTTL", key), ("TYPE", key)]
        if expected is RedisType.STRING:
            return [("PTTL", key), ("GETRANGE", key, 0, WHOLE - 1)]
        weight = ("MEMORY", "USAGE", key, "SAMPLES", WEIGHED)
        return [("PTTL", key), (_LENGTH[expected], key), weight]

    def record_first(self, replies: Sequence[Reply]) -> None:
        lives, answer, *usage = replies
        for reply in (lives, answer):
            if isinstance(reply, RedisUnavailableError) and reply.kind != "wrong_type":
                self.refused = reply.kind
                return
        sample, expected = self.sample, self._expected
        sample.ttl = None if lives < 0 else lives / 1000
        self.vanished = lives == -2  # noqa: PLR2004 - PTTL of a missing key
        if isinstance(answer, RedisUnavailableError):
            return
        if expected is None:
            sample.type = answer.decode()
            return
        sample.type = str(expected)
        if expected is RedisType.STRING:
            sample.items, sample.size = [answer], len(answer)
            sample.complete = len(answer) < WHOLE
            return
        sample.size = answer
        if isinstance(usage[0], int):
            sample.mean_bytes = usage[0] / max(answer, 1)

    def second(self) -> list[Request]:
        """Return the requests of the second round trip.

        They read elements, or the key's type if the value has an unexpected type.
        """
        key, expected = encode_key(self.sample.key), self._expected
        if self.refused or self.vanished:
            return []
        if not self.sample.type:
            return [("TYPE", key)]
        if expected in (None, RedisType.STRING):
            return []
        return self._plan_content(key)

    def _plan_content(self, key: bytes) -> list[Request]:
        """Return requests for the elements that the rules need, fewer if they are large."""
        size, fit, some = self.sample.size, self._fitting, self._fitting(SOME)
        match self._expected:
            case RedisType.LIST:
                oldest, newest = map(fit, _ENDS.get(self.sample.row, _OTHER_ENDS))
                if size <= oldest + newest:
                    return [("LRANGE", key, 0, size - 1)]
                ends = [(0, oldest - 1)] * bool(oldest) + [(-newest, -1)] * bool(newest)
                both = [("LLEN", key)] * (len(ends) > 1)
                return [*both, *(("LRANGE", key, *end) for end in ends)]
            case RedisType.HASH if size <= fit(SHORT_HASH):
                return [("HGETALL", key)]
            case RedisType.HASH:
                request: Request = ("HSCAN", key, 0, "COUNT", some)
            case RedisType.STREAM:
                some = fit(EVENTS)
                request = ("XREVRANGE", key, "+", "-", "COUNT", some)
            case RedisType.ZSET:
                request = ("ZRANGE", key, 0, some - 1)
            case _:
                request = ("SSCAN", key, 0, "COUNT", some)
        return [request] if some else []

    def _fitting(self, count: int) -> int:
        """Return how many elements to read: ``count``, or fewer if they are large."""
        mean = self.sample.mean_bytes
        return count if mean * count <= WEIGHT else int(WEIGHT / mean)

    def record_second(self, replies: Sequence[Reply]) -> None:
        sample = self.sample
        refusals = [one for one in replies if isinstance(one, RedisUnavailableError)]
        if refusals and refusals[0].kind == "wrong_type":  # the key was just replaced
            self.vanished = True
        elif refusals:
            self.refused = refusals[0].kind
        elif not sample.type and replies:
            sample.type = replies[0].decode()
            self.vanished |= sample.type == "none"
        elif replies:
            self._record_content(replies)
            read = len(sample.items) or len(sample.pairs)
            sample.complete = read == sample.size

    def _record_content(self, replies: Sequence[Reply]) -> None:
        sample, first = self.sample, replies[0]
        match self._expected:
            case RedisType.STREAM:
                events = [(number, flat) for number, flat in first if flat is not None]
                sample.entries = [(number, _pairs(flat)) for number, flat in events]
            case RedisType.HASH:
                scanned = len(first) == 2 and isinstance(first[1], list)  # noqa: PLR2004 - HSCAN: cursor and fields
                sample.pairs = _pairs(first[1] if scanned else first)
            case RedisType.SET:
                sample.items = first[1]
            case RedisType.LIST if len(replies) > 1:  # both ends of a long list
                length, oldest, newest = replies
                # The list may have become so short that its ends overlap.
                twice = max(0, len(oldest) + len(newest) - length)
                sample.items = [*oldest, *newest[twice:]]
                sample.oldest = len(oldest)
            case _:
                sample.items = first


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


class Kind(NamedTuple):
    """The key template that a key matches, and the values in the key's name."""

    row: str  # name of the template in `KEYS`; `""` for a key of no protocol
    fields: Values  # field of the template → value in the key's name


def is_loose(row: KeyTemplate) -> bool:
    """Return whether keys of other programs may match the template by chance.

    An example is the template ``{type}_update_{code}``.
    """
    return row.ambiguous and row.template.startswith("{")


def _ends(row: KeyTemplate) -> tuple[str, str]:
    return row.template.partition("{")[0], row.template.rpartition("}")[2]


def _order(name: str) -> tuple[bool, bool]:
    """Return a sort key: templates with a suffix come first, loose templates last."""
    return is_loose(KEYS[name]), not _ends(KEYS[name])[1]


_ROWS: Final = [
    (name, *_ends(KEYS[name]), KEYS[name]) for name in sorted(KEYS, key=_order)
]


def kind_of(key: str) -> Kind:
    """Return the template that a key matches; of several, the most specific one."""
    for name, head, tail, row in _ROWS:
        if key.startswith(head) and key.endswith(tail):
            if row.ambiguous and len(key) > LONGEST:
                continue
            readings = row.readings(key)
            if readings:
                return Kind(name, readings[0] if len(readings) == 1 else {})
    return Kind("", {})


def project_of(kind: Kind) -> str:
    """Return the project that a key belongs to, or ``""``."""
    if kind.row in _CONSOLE_ROWS:
        return kind.fields["project"]
    place = kind.fields.get("place", "")
    return project_of(kind_of(key_beside(place))) if place else ""
