"""The input and output of a rule of the doctor, as plain values without I/O.

``rules/`` has one module for each protocol. A rule is a function of one
:class:`Sample`. If a rule depends on other keys, it calls :meth:`Sample.ask`. The doctor
then reads these keys and applies the rule again.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, TypeAlias

from bls_agent.core.codec import JSONObject, cut_text, decode_object, parse_timestamp
from bls_agent.core.errors import DecodeError
from bls_agent.core.redaction import redact

SHOWN = 80  # bytes of a value that a finding quotes
ABSENT = "—"
DIGITS = 20  # most digits of a 64-bit number
JSON_LIMIT = 65_536  # bytes; longer values are not parsed

Values: TypeAlias = dict[str, str]
Question: TypeAlias = tuple[str, ...]  # a command that only reads, about one key


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"  # violates the protocol, so that other programs misread the key
    WARNING = "warning"  # may become an error soon, or an operator has to decide
    NOTE = "note"  # useful to know, although nothing is wrong

    @property
    def is_fault(self) -> bool:
        return self is not Severity.NOTE


class Unanswered(Exception):  # noqa: N818 - no error, because the rule is applied again
    """Raised if a rule needs data of other keys that were not read yet."""


@dataclass(kw_only=True)
class Sample:
    """One key and the part of its value that was read."""

    key: str  # bytes that are not UTF-8 are surrogates
    row: str = ""  # name in `KEYS`; `""` for a key of no protocol, which is not read
    fields: Values = field(default_factory=dict[str, str])  # fields of the key's name
    type: str = ""  # reply to TYPE
    ttl: float | None = None  # seconds; `None` for a key that does not expire
    size: int = 0  # bytes of a string, else the number of elements
    # A part of the value: the beginning of a string, the oldest and then the newest
    # elements of a list, or some members of a set or sorted set.
    items: Sequence[bytes] = ()
    oldest: int = 0  # number of items that are the oldest of a list
    pairs: Mapping[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]] = ()  # newest first
    complete: bool = False  # whether the whole value was read
    mean_bytes: float = 0.0  # average size of an element; 0 if unknown
    now: float = 0.0  # Unix seconds by the server's clock
    # Instances of connected agents, from CLIENT LIST; `None` if unknown.
    connected: frozenset[str] | None = None
    # Questions of rules, and the replies; a question that Redis refuses has no reply.
    questions: dict[Question, None] = field(default_factory=dict[Question, None])
    answers: Mapping[Question, Any] | None = None

    @property
    def value(self) -> bytes:
        return self.items[0] if self.items else b""

    @cached_property
    def objects(self) -> list[JSONObject | None]:
        """One JSON object for each item; ``None`` for an item that is no JSON object."""
        return [read_object(item) for item in self.items]

    @property
    def document(self) -> JSONObject | None:
        """The whole value, if it was read completely and is a JSON object."""
        return self.objects[0] if self.complete and self.objects else None

    @cached_property
    def records(self) -> list[JSONObject]:
        return [one for one in self.objects if one is not None]

    def ask(self, *question: str) -> Any:
        """Return the reply to one question, or ``None`` if Redis has refused it."""
        return self.ask_all([question])[0]

    def ask_all(self, questions: Sequence[Question], refused: Any = None) -> list[Any]:
        """Return the replies, and ``refused`` for each question that Redis has refused.

        Raises ``Unanswered`` if the questions were not sent yet.
        """
        if self.answers is None and questions:
            self.questions.update(dict.fromkeys(questions))
            raise Unanswered
        return [(self.answers or {}).get(question, refused) for question in questions]


def read_object(payload: bytes) -> JSONObject | None:
    """Parse a JSON object; return ``None`` for anything else."""
    try:
        return decode_object(payload, limit=JSON_LIMIT)
    except DecodeError:
        return None


class Source(StrEnum):
    """Where the documentation describes what a rule checks: page and heading."""

    PROJECT = "protocol.md#three-keys"
    STATUS = "protocol.md#status"
    LOG = "protocol.md#console-log"
    COMMANDS = "protocol.md#commands"
    RUNS = "protocol.md#events-of-runs"
    WORKERS = "workers.md#keys-and-values"
    ASSETS = "protocol.md#assets"
    CRAWL = "protocol.md#crawl-queues"
    OWN = "bls_agent"  # an additional key of this package
    SERVER = "server"


@dataclass(frozen=True)
class Finding:
    """A fault of a key or server, or something useful to know about it."""

    rule: str  # code of the rule, and key of the texts in the catalogue
    severity: Severity
    source: Source
    key: str = ""  # `""` if the finding is about the server
    values: Values = field(default_factory=dict[str, str])  # values for the texts


Check: TypeAlias = Callable[[Sample], Values | None]


@dataclass(frozen=True)
class Rule:
    """One rule about the keys of one template; several rules may share a ``code``."""

    code: str
    row: str  # name of the template in `KEYS`; `""` for keys of no protocol
    severity: Severity
    source: Source
    check: Check  # returns the values of a finding, or `None`

    def judge(self, sample: Sample) -> Finding | None:
        """Apply the rule; raise ``Unanswered`` if it needs data of other keys first."""
        values = self.check(sample)
        if values is None:
            return None
        return Finding(self.code, self.severity, self.source, sample.key, values)


def is_no_time(written: object) -> bool:
    return parse_timestamp(written) is None


def lacks_zone(timestamp: object) -> bool:
    if not isinstance(timestamp, str) or _ZONE.search(timestamp[10:]):
        return False
    return parse_timestamp(timestamp) is not None


def seconds_ahead(written: object, sample: Sample) -> float:
    """Return by how many seconds a timestamp is ahead of the server's time.

    Return 0 if the timestamp cannot be read or has no time zone.
    """
    moment = parse_timestamp(written)
    if moment is None or lacks_zone(written):
        return 0.0
    return moment.timestamp() - sample.now


_ZONE: Final = re.compile(r"([zZ]|[+-]\d\d(:?\d\d)?)\s*$")  # after the time of day


def show(value: object) -> str:
    """Return a short text of a value, without secrets; a dash for ``None``."""
    if value is None:
        return ABSENT
    if isinstance(value, bytes):
        value = value[: SHOWN * 2].decode("utf-8", "backslashreplace")
    return cut_text(redact(str(value)), SHOWN)


def shown_if(is_bad: object, value: object) -> Values | None:
    """Return the values of a finding that quotes ``value``, or ``None`` if not bad."""
    return {"shown": show(value)} if is_bad else None


def longer_than(limit: int, name: str = "length") -> Check:
    """Make a check of the size of a key's value; the finding's text calls it ``name``."""

    def check(sample: Sample) -> Values | None:
        return {name: f"{sample.size:,}"} if sample.size > limit else None

    return check


def is_number(text: bytes, digits: int = DIGITS) -> bool:
    """Return whether bytes are a whole number of at most ``digits`` digits."""
    return text.isdigit() and len(text) <= digits


def text_of(payload: bytes) -> str:
    """Decode UTF-8; other bytes become surrogates, as in the names of keys."""
    return payload.decode("utf-8", "surrogateescape")


def bad_items(is_bad: Callable[[bytes], bool]) -> Check:
    """Make a check that counts bad elements and quotes the first bad one."""

    def check(sample: Sample) -> Values | None:
        found = [item for item in sample.items if is_bad(item)]
        return count_bad(found, sample)

    return check


def is_no_text(item: bytes, *, whole: bool = True) -> bool:
    """Return whether bytes are no UTF-8.

    If they are not the ``whole`` value, an incomplete character at the end is allowed.
    """
    try:
        codecs.getincrementaldecoder("utf-8")().decode(item, whole)
    except UnicodeDecodeError:
        return True
    return False


def bad_field(name: str, is_bad: Callable[[Any], bool]) -> Check:
    """Make a check that counts JSON objects in which the field ``name`` is bad."""
    return bad_objects(lambda read: is_bad(read.get(name)))


def bad_objects(is_bad: Callable[[JSONObject], bool]) -> Check:
    """Make a check that counts bad elements among those that are JSON objects."""

    def check(sample: Sample) -> Values | None:
        pairs = zip(sample.items, sample.objects, strict=True)
        found = [item for item, read in pairs if read is not None and is_bad(read)]
        return count_bad(found, sample)

    return check


def count_bad(
    found: Sequence[object], sample: Sample, asked: int = sys.maxsize
) -> Values | None:
    """Return the values of a finding about bad elements; ``None`` if there are none."""
    if not found:
        return None
    read = len(sample.items) or len(sample.pairs) or len(sample.entries)
    return {
        "count": str(len(found)),
        "of": str(min(read, asked)),
        "shown": show(found[0]),
    }
