"""What a doctor's rule looks at, and what it says: values only.

Each room has its ``rules.py``: the rules about its keys, beside the code that writes
them. A rule is a pure function of one :class:`Sample`; the doctor reads the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from bls_agent.keys import KeyTemplate

__all__ = ["Finding", "Rule", "Sample", "Severity", "Values"]

Values: TypeAlias = dict[str, str]


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"  # the contract is broken: peers will misunderstand
    WARNING = "warning"  # it holds now, and will not for long
    NOTE = "note"  # worth knowing, nothing is wrong


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One key as it was found.

    Attributes:
        key: The key; bytes that are not UTF-8 are kept as surrogates.
        row: Name of its row in ``KEYS``.
        fields: What the key says: field of the row → value.
        type: Its Redis type, as TYPE names it.
        ttl: Seconds it still lives, ``None`` for ever.
        size: Bytes of a string, else the number of elements.
        items: Some of what it holds, never more than the doctor's bounds: of a string
            its first bytes, of a list the oldest and the newest elements, of a set or
            sorted set some members, of a hash pairs as ``(field, value)`` one after
            the other, of a stream the newest entries likewise.
        now: Unix seconds by the server's clock.
    """

    key: str
    row: str
    fields: Values = field(default_factory=dict[str, str])
    type: str
    ttl: float | None
    size: int
    items: Sequence[bytes] = ()
    now: float


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
        rule: Code of the rule: key of its texts in the catalogue.
        severity: How bad it is.
        key: The key, or ``""`` if it is about the server.
        values: What the texts name: name → text, as it was found.
    """

    rule: str
    severity: Severity
    key: str = ""
    values: Values = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule about the keys of one kind.

    Attributes:
        code: Its name, unique, in words: ``status-is-no-status``.
        row: The kind of key.
        severity: How bad it is when it is broken.
        source: Contract and section: ``002 §2.1``.
        check: Gives the values of a finding for each way in which a sample breaks it.
    """

    code: str
    row: KeyTemplate
    severity: Severity
    source: str
    check: Callable[[Sample], Iterator[Values]]
