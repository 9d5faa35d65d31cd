"""What a rule of the doctor gets, and what it gives: values only.

``rules/`` has one module for each protocol. A rule is a function of one
:class:`Sample`. If it depends on other keys, it asks (:meth:`Sample.ask`); the doctor
does the I/O and applies the rule again.
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
DIGITS = 20  # of a number of 64 bit
JSON_LIMIT = 65_536  # bytes of a value that is parsed

Values: TypeAlias = dict[str, str]
Question: TypeAlias = tuple[str, ...]  # a command that only reads, about one key


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"  # the contract is broken: peers will misunderstand
    WARNING = "warning"  # it holds now, and will not for long
    NOTE = "note"  # worth knowing, nothing is wrong

    @property
    def is_fault(self) -> bool:
        """Whether the finding needs a repair."""
        return self is not Severity.NOTE


class Unanswered(Exception):  # noqa: N818 - a signal: the rule is applied again
    """A rule has asked about other keys."""


@dataclass(kw_only=True)
class Sample:
    """One key as it was found."""

    key: str  # bytes that are not UTF-8 are surrogates
    row: str = ""  # name in `KEYS`; `""`: a key of no contract, nothing else is known
    fields: Values = field(default_factory=dict[str, str])  # of the key's name
    type: str = ""  # as TYPE names it
    ttl: float | None = None  # seconds, `None` for ever
    size: int = 0  # bytes of a string, else the number of elements
    # Within bounds: the beginning of a string; of a list the oldest elements, then the
    # newest; of a set or sorted set some members.
    items: Sequence[bytes] = ()
    oldest: int = 0  # how many of the items are the oldest of a list
    pairs: Mapping[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]] = ()  # newest first
    complete: bool = False  # whether this is the whole value
    mean_bytes: float = 0.0  # of an element; 0 where unknown
    now: float = 0.0  # Unix seconds by the server's clock
    # Instances of agents, from CLIENT LIST; `None` where unknown.
    connected: frozenset[str] | None = None
    # What rules have asked, and the replies; a question that was refused is missing.
    questions: dict[Question, None] = field(default_factory=dict[Question, None])
    answers: Mapping[Question, Any] | None = None

    @property
    def value(self) -> bytes:
        """The beginning of a string."""
        return self.items[0] if self.items else b""

    @cached_property
    def objects(self) -> list[JSONObject | None]:
        """The items as JSON objects; ``None`` for any other value."""
        return [read_object(item) for item in self.items]

    @property
    def document(self) -> JSONObject | None:
        """The whole value, if it was read to its end and is a JSON object."""
        return self.objects[0] if self.complete and self.objects else None

    @cached_property
    def records(self) -> list[JSONObject]:
        """The items that are JSON objects."""
        return [one for one in self.objects if one is not None]

    def ask(self, *question: str) -> Any:
        """Return the reply to one question, ``None`` if it was refused."""
        return self.ask_all([question])[0]

    def ask_all(self, questions: Sequence[Question], refused: Any = None) -> list[Any]:
        """Return the replies, and ``refused`` for each question that was refused.

        Raises ``Unanswered`` before the questions were sent.
        """
        if self.answers is None and questions:
            self.questions.update(dict.fromkeys(questions))
            raise Unanswered
        return [(self.answers or {}).get(question, refused) for question in questions]


def read_object(payload: bytes) -> JSONObject | None:
    """Read a JSON object; ``None`` for anything else."""
    try:
        return decode_object(payload, limit=JSON_LIMIT)
    except DecodeError:
        return None


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    rule: str  # its code, key of its texts in the catalogue
    severity: Severity
    source: str  # contract and section, as in the documents: `002 §2.1`
    key: str = ""  # `""` if the finding is about the server
    values: Values = field(default_factory=dict[str, str])  # the values in its texts


Check: TypeAlias = Callable[[Sample], Values | None]


@dataclass(frozen=True)
class Rule:
    """One rule about the keys of one kind; several kinds may share a ``code``."""

    code: str
    row: str  # name of the kind in `KEYS`; `""` for keys of no contract
    severity: Severity
    source: str  # as in a finding
    check: Check  # gives a finding's values, or `None`

    def judge(self, sample: Sample) -> Finding | None:
        """Apply the rule; raises ``Unanswered`` if it needs answers first."""
        values = self.check(sample)
        if values is None:
            return None
        return Finding(self.code, self.severity, self.source, sample.key, values)


def is_no_time(written: object) -> bool:
    """Whether a value is no ISO-8601 timestamp."""
    return parse_timestamp(written) is None


def lacks_zone(timestamp: object) -> bool:
    """Whether an ISO-8601 timestamp has no time zone."""
    if not isinstance(timestamp, str) or _ZONE.search(timestamp[10:]):
        return False
    return parse_timestamp(timestamp) is not None


def seconds_ahead(written: object, sample: Sample) -> float:
    """Return how far a timestamp is ahead of the server's clock, 0 without a zone."""
    moment = parse_timestamp(written)
    if moment is None or lacks_zone(written):
        return 0.0
    return moment.timestamp() - sample.now


_ZONE: Final = re.compile(r"([zZ]|[+-]\d\d(:?\d\d)?)\s*$")  # behind the time of day


def show(value: object) -> str:
    """Quote a value in a finding: short, without secrets; a dash for none."""
    if value is None:
        return ABSENT
    if isinstance(value, bytes):
        value = value[: SHOWN * 2].decode("utf-8", "backslashreplace")
    return cut_text(redact(str(value)), SHOWN)


def shown_if(is_bad: object, value: object) -> Values | None:
    """Return the values of a finding that quotes a value, if it is bad."""
    return {"shown": show(value)} if is_bad else None


def longer_than(limit: int, name: str = "length") -> Check:
    """Make a check of a value's size, which is told as ``name``."""

    def check(sample: Sample) -> Values | None:
        return {name: f"{sample.size:,}"} if sample.size > limit else None

    return check


def is_number(text: bytes, digits: int = DIGITS) -> bool:
    """Whether bytes are a number of at most so many digits."""
    return text.isdigit() and len(text) <= digits


def text_of(payload: bytes) -> str:
    """Return the text; bytes that are not UTF-8 are surrogates, as in keys."""
    return payload.decode("utf-8", "surrogateescape")


def bad_items(is_bad: Callable[[bytes], bool]) -> Check:
    """Make a check of single elements: how many are bad, and the first one."""

    def check(sample: Sample) -> Values | None:
        found = [item for item in sample.items if is_bad(item)]
        return count_bad(found, sample)

    return check


def is_no_text(item: bytes, *, whole: bool = True) -> bool:
    """Whether bytes are not UTF-8; if not ``whole`` the last letter may be cut."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(item, whole)
    except UnicodeDecodeError:
        return True
    return False


def bad_field(name: str, is_bad: Callable[[Any], bool]) -> Check:
    """Make a check of one field of the elements that are JSON objects."""
    return bad_objects(lambda read: is_bad(read.get(name)))


def bad_objects(is_bad: Callable[[JSONObject], bool]) -> Check:
    """Make a check of the elements that are JSON objects."""

    def check(sample: Sample) -> Values | None:
        pairs = zip(sample.items, sample.objects, strict=True)
        found = [item for item, read in pairs if read is not None and is_bad(read)]
        return count_bad(found, sample)

    return check


def count_bad(
    found: Sequence[object], sample: Sample, asked: int = sys.maxsize
) -> Values | None:
    """Return the values of a finding about some of the elements that were looked at."""
    if not found:
        return None
    read = len(sample.items) or len(sample.pairs) or len(sample.entries)
    return {
        "count": str(len(found)),
        "of": str(min(read, asked)),
        "shown": show(found[0]),
    }
