"""What a doctor's rule looks at, and what it says: values only.

In ``rules/`` is one module for each contract: the rules about its keys. A rule is a
pure function of one :class:`Sample`. What it has to know of other keys it asks for
(:attr:`Rule.asks`); the doctor finds out and does the I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, TypeAlias

from bls_agent.core.codec import JSONObject, cut_text, decode_object, parse_timestamp
from bls_agent.core.errors import DecodeError
from bls_agent.core.redaction import redact

__all__ = [
    "JSON_LIMIT",
    "Check",
    "Finding",
    "Question",
    "Rule",
    "Sample",
    "Severity",
    "Values",
    "bad_items",
    "bad_objects",
    "bad_texts",
    "count_bad",
    "is_no_text",
    "lacks_zone",
    "no_questions",
    "read_object",
    "show",
]

SHOWN = 80  # bytes of a value that a finding quotes
ABSENT = "—"
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
        """Whether something has to be done about it."""
        return self is not Severity.NOTE


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One key as it was found.

    Attributes:
        key: The key; bytes that are not UTF-8 are kept as surrogates.
        row: Name of its row in ``KEYS``; ``""`` for a key of no contract, of which
            nothing else is known.
        fields: What the key says: field of the row → value.
        type: Its Redis type, as TYPE names it.
        ttl: Seconds it still lives, ``None`` for ever.
        size: Bytes of a string, else the number of elements.
        items: Some of what it holds, never more than the doctor's bounds: of a string
            its beginning, of a list the oldest elements and then the newest, of a set
            or sorted set some members.
        oldest: How many of the items are the oldest of a list.
        pairs: Some of a hash.
        entries: The newest of a stream, newest first: id and fields.
        complete: Whether this is all that it holds.
        mean_bytes: Bytes that an element takes on average, 0 where nobody knows.
        now: Unix seconds by the server's clock.
        connected: Instances of agents that are connected, as CLIENT LIST names them;
            ``None`` where nobody knows.
        answers: What was found out for :attr:`Rule.asks`; a question that could not
            be answered is missing.
    """

    key: str
    row: str = ""
    fields: Values = field(default_factory=dict[str, str])
    type: str = ""
    ttl: float | None = None
    size: int = 0
    items: Sequence[bytes] = ()
    oldest: int = 0
    pairs: Mapping[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]] = ()
    complete: bool = False
    mean_bytes: float = 0.0
    now: float
    connected: frozenset[str] | None = None
    answers: Mapping[Question, Any] = field(default_factory=dict[Question, Any])

    @property
    def value(self) -> bytes:
        """A string's value, as far as it was read."""
        return self.items[0] if self.items else b""

    @cached_property
    def objects(self) -> list[JSONObject | None]:
        """The items as JSON objects; ``None`` for one that is none."""
        return [read_object(item) for item in self.items]

    @cached_property
    def records(self) -> list[JSONObject]:
        """Those of the items that are JSON objects."""
        return [one for one in self.objects if one is not None]


def read_object(payload: bytes) -> JSONObject | None:
    """Read a JSON object; ``None`` for anything else."""
    try:
        return decode_object(payload, limit=JSON_LIMIT)
    except DecodeError:
        return None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
        rule: Code of the rule: key of its texts in the catalogue.
        severity: How bad it is.
        source: Contract and section: ``002 §2.1``.
        key: The key, or ``""`` if it is about the server.
        values: What the texts name: name → text, as it was found.
    """

    rule: str
    severity: Severity
    source: str
    key: str = ""
    values: Values = field(default_factory=dict[str, str])


Check: TypeAlias = Callable[[Sample], Values | None]


def no_questions(sample: Sample) -> Sequence[Question]:  # noqa: ARG001 - by its form
    """Ask nothing: the sample says it all."""
    return ()


@dataclass(frozen=True)
class Rule:
    """One rule about the keys of one kind.

    Attributes:
        code: Its name, in words: ``status-unknown``; one rule may hold for several
            kinds of keys.
        row: Name of the kind of key in ``KEYS``; ``""`` for keys of no contract.
        severity: How bad it is when it is broken.
        source: Contract and section: ``002 §2.1``.
        check: Gives the values of a finding if a sample breaks the rule, else ``None``.
        asks: What has to be known of other keys.
    """

    code: str
    row: str
    severity: Severity
    source: str
    check: Check
    asks: Callable[[Sample], Sequence[Question]] = no_questions

    def judge(self, sample: Sample) -> Finding | None:
        """Apply the rule."""
        values = self.check(sample)
        if values is None:
            return None
        return Finding(
            rule=self.code,
            severity=self.severity,
            source=self.source,
            key=sample.key,
            values=values,
        )


def lacks_zone(timestamp: object) -> bool:
    """Tell an ISO-8601 timestamp without a time zone."""
    if not isinstance(timestamp, str) or _ZONE.search(timestamp[10:]):
        return False
    return parse_timestamp(timestamp) is not None


_ZONE: Final = re.compile(r"([zZ]|[+-]\d\d(:?\d\d)?)\s*$")  # behind the time of day


def show(value: object) -> str:
    """Quote a value in a finding: short, without secrets; a dash for none."""
    if value is None:
        return ABSENT
    if isinstance(value, bytes):
        value = value[: SHOWN * 2].decode("utf-8", "backslashreplace")
    return cut_text(redact(str(value)), SHOWN)


def bad_items(is_bad: Callable[[bytes], bool]) -> Check:
    """Make a check of elements one by one: how many are bad, and the first one."""

    def check(sample: Sample) -> Values | None:
        found = [item for item in sample.items if is_bad(item)]
        return count_bad(found, sample)

    return check


def bad_texts(sample: Sample) -> Values | None:
    """Find elements that are not UTF-8: no JSON, either."""
    if None not in sample.objects:
        return None
    return bad_items(is_no_text)(sample)


def is_no_text(item: bytes) -> bool:
    """Tell bytes that are not UTF-8."""
    try:
        item.decode()
    except UnicodeDecodeError:
        return True
    return False


def bad_objects(is_bad: Callable[[JSONObject], bool]) -> Check:
    """Make a check of those elements that are JSON objects."""

    def check(sample: Sample) -> Values | None:
        if not any(map(is_bad, sample.records)):  # as a rule
            return None
        pairs = zip(sample.items, sample.objects, strict=True)
        found = [item for item, read in pairs if read is not None and is_bad(read)]
        return count_bad(found, sample)

    return check


def count_bad(found: Sequence[object], sample: Sample) -> Values | None:
    """Give the values of a finding about some elements of those that were read."""
    if not found:
        return None
    looked = len(sample.items) or len(sample.pairs) or len(sample.entries)
    return {"count": str(len(found)), "of": str(looked), "shown": show(found[0])}
