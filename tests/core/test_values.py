"""Dates, moments, UUIDs and decimal numbers as texts."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given, strategies as st
from pydantic import TypeAdapter

from bls_agent.core.values import TEXT_FORMS

zones = st.integers(-14 * 60, 14 * 60).map(
    lambda minutes: timezone(timedelta(minutes=minutes))
)
values: st.SearchStrategy[Any] = st.one_of(
    st.datetimes(timezones=st.none() | zones | st.just(UTC)),
    st.dates(),
    st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**99), max_value=10**99),
)  # fmt: skip


@given(value=values)
def test_what_is_written_is_read_again(value: Any) -> None:
    """And pydantic, which is asked with validate="pydantic", reads the same."""
    form = TEXT_FORMS[type(value)]
    text = form.write(value)
    assert form.read(text) == value
    assert str(form.read(text)) == str(value)
    assert TypeAdapter(type(value)).validate_python(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (datetime, "2026-01-31"),
        (datetime, "20260131T083000"),
        (datetime, "1769848200"),
        (datetime, "2026-01-31T25:00:00Z"),
        (datetime, "2026-01-31T08:30:00 Z"),
        (datetime, "昨天"),
        (date, "2026-02-30"),
        (date, "20260131"),
        (date, "2026-W05-6"),
        (date, "2026-01-31T00:00:00"),
        (UUID, "{6f1c2a9e-0d4b-4a55-9b1e-2f7d8c3a6e10}"),
        (UUID, "6f1c2a9e0d4b4a559b1e2f7d8c3a6e1"),
        (UUID, "6-f1c2a9e0d4b4a559b1e2f7d8c3a6e10"),
        (Decimal, "nan"),
        (Decimal, "Infinity"),
        (Decimal, "1_000"),
        (Decimal, "12,50"),
        (Decimal, "\uff11\uff12"),
        (Decimal, "1e9999999999"),
        (Decimal, ""),
    ],
    ids=str,
)
def test_nothing_is_guessed(kind: type, text: str) -> None:
    """Python reads most of these, each in its own way."""
    with pytest.raises(ValueError):  # noqa: PT011 - its text is for nobody
        TEXT_FORMS[kind].read(text)


def test_a_decimal_without_digits_has_no_text() -> None:
    """JSON has no word for it."""
    with pytest.raises(ValueError, match="no finite number"):
        TEXT_FORMS[Decimal].write(Decimal("NaN"))


def test_the_texts_are_those_of_results() -> None:
    """A handler may return what another one accepts."""
    moment = datetime(2026, 1, 31, 8, 30, tzinfo=UTC)
    for value in (moment, moment.date(), UUID(int=7)):
        assert orjson.loads(orjson.dumps(value)) == TEXT_FORMS[type(value)].write(value)
