"""Values that JSON holds as text: dates, times, UUIDs and decimal numbers. No I/O.

Handlers of commands receive such values, forms of the console check them, and the
function cache makes keys of them. A text that does not have the form of its type is
refused, because a guess could be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from bls_agent.core.codec import JSONObject

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT: Final = re.compile(
    rf"{_DAY.pattern}[T ][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}([.][0-9]{{1,9}})?)?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_DECIMAL: Final = re.compile(
    r"[+-]?([0-9]{1,400}([.][0-9]{0,400})?|[.][0-9]{1,400})([eE][+-]?[0-9]{1,5})?"
)


@dataclass(frozen=True)
class TextForm:
    """How the values of one type are written as text."""

    format: str  # the ``format`` of the type in JSON Schema
    read: Callable[[str], Any]  # raises ValueError for a text of another form
    write: Callable[[Any], str]  # raises ValueError for a value without a text
    example: str  # the accepted form, in words for an error message
    accepts: tuple[type, ...] = (str,)  # the types of JSON values that are accepted

    @property
    def schema(self) -> JSONObject:
        text: JSONObject = {"type": "string", "format": self.format}
        return {"anyOf": [{"type": "number"}, text]} if float in self.accepts else text


def _matching(text: str, form: re.Pattern[str]) -> str:
    if form.fullmatch(text):
        return text
    raise ValueError(form.pattern)


def _read_uuid(text: str) -> UUID:
    value = UUID(text)
    if text.lower() in (str(value), value.hex):
        return value
    raise ValueError(text)  # UUID() also accepts braces, and dashes in any place


def _write_decimal(value: Decimal) -> str:
    if value.is_finite():
        return str(value)
    message = f"{value} is no finite number"
    raise ValueError(message)


TEXT_FORMS: Final[Mapping[type, TextForm]] = MappingProxyType(
    {
        datetime: TextForm(
            "date-time",
            lambda text: datetime.fromisoformat(_matching(text, _MOMENT)),
            datetime.isoformat,
            "a time such as '2026-01-31T08:30:00+08:00'",
        ),
        date: TextForm(
            "date",
            lambda text: date.fromisoformat(_matching(text, _DAY)),
            date.isoformat,
            "a date such as '2026-01-31'",
        ),
        UUID: TextForm(
            "uuid",
            _read_uuid,
            str,
            "a UUID such as '6f1c2a9e-0d4b-4a55-9b1e-2f7d8c3a6e10'",
        ),
        Decimal: TextForm(
            "decimal",
            lambda text: Decimal(_matching(text, _DECIMAL)),
            _write_decimal,
            "a number, or its digits such as '12.50'",
            (str, int, float),
        ),
    }
)
