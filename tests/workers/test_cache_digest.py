"""What a result is cached under: pure, and the same in every process."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from bls_agent.core.codec import encode_sorted
from bls_agent.core.errors import ConfigurationError
from bls_agent.workers.caching.key import Arguments, MisfitError, canonical_form

TODAY = date(2026, 1, 12)


class Side(Enum):
    """A plain enum."""

    BUY = 1
    SELL = 2


class Number(IntEnum):
    """Members equal to integers."""

    ONE = 1


class Rights(Flag):
    """Members that are set together."""

    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True)
class Window:
    """A dataclass."""

    days: int
    label: str = ""


def written(value: object) -> bytes:
    """The canonical text of a value."""
    return encode_sorted(canonical_form(value))


def one(value: object) -> None:
    """Take one argument."""


SHANGHAI = ZoneInfo("Asia/Shanghai")
DIFFERENT: list[object] = [
    None, True, False, 0, 1, 0.0, -0.0, 1.0, "", "1", "é", "e\u0301", "\ud800", "True", "null",
    b"", b"1", [], [1], [[1]], [1, [2]], [1, 2], (), (1,), (1, 2), {}, {"a": 1}, {"a": 1.0}, {"!a": 1},
    {"!!a": 1}, {"!tuple": [1]}, {"!bytes": "31"}, {"!float": "1.0"}, {"!str": "eda080"}, {"!str 61": 1},
    set(), {1}, {1, 2}, frozenset(), frozenset({1}), 2**63, 2**64, -(2**63), -(2**63) - 1, 10**400,
    {"!int": hex(2**64)}, date(2026, 1, 12), datetime(2026, 1, 12), datetime(2026, 1, 12, fold=1),  # noqa: DTZ001 - also without
    datetime(2026, 1, 12, tzinfo=UTC), datetime(2026, 1, 12, 8, tzinfo=timezone(timedelta(hours=8))),
    datetime(2026, 1, 12, 8, tzinfo=SHANGHAI), time(12), time(12, fold=1), time(12, tzinfo=UTC),
    timedelta(1), timedelta(seconds=1), Decimal(1), Decimal("1.0"), Decimal("1.00"), UUID(int=1),
    Side.BUY, Side.SELL, Number.ONE, Rights.READ, Rights.READ | Rights.WRITE, Window(1), Window(1, "1"),
    "2026-01-12", "\ud83d\ude00", "\U0001f600",
]  # fmt: skip


def test_different_values_have_different_forms() -> None:
    """No two of these can be taken for each other."""
    forms = [written(value) for value in DIFFERENT]
    assert len(set(forms)) == len(forms)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        ({3, 1, 2}, {2, 3, 1}),
        (frozenset("abc"), frozenset("cba")),
        ({"x": {"b": [], "a": ()}}, {"x": {"a": (), "b": []}}),
        (Window(days=1, label="x"), Window(1, "x")),
        (Rights.WRITE | Rights.READ, Rights.READ | Rights.WRITE),
    ],
)
def test_equal_values_have_one_form(one: object, other: object) -> None:
    """The order in which a dict or a set was filled does not matter."""
    assert written(one) == written(other)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters())
    | st.binary(max_size=8)
    | st.dates()
    | st.datetimes()
    | st.timedeltas()
    | st.uuids()
    | st.sampled_from(Side)
    | st.sets(st.integers(0, 3)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=6,
)


def typed(value: Any) -> Any:
    """A value that is equal to another one only if their types are, all the way down."""
    if isinstance(value, dict):
        return (dict, {key: typed(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return (type(value), [typed(item) for item in value])
    if isinstance(value, float):
        return (float, value, math.copysign(1, value))
    if isinstance(value, datetime):
        return (datetime, value, value.fold)
    return (type(value), value)


@given(plain, plain)
def test_equal_arguments_and_only_they_have_one_digest(first: Any, other: Any) -> None:
    """Equal and of equal types: the same digest, otherwise another one."""
    arguments = Arguments("f", one)
    same = arguments.digest([first], {}) == arguments.digest([], {"value": other})
    assert same == (typed(first) == typed(other))


@given(plain)
def test_a_digest_does_not_depend_on_identity(value: Any) -> None:
    """A copy has the digest of the original."""
    import copy  # noqa: PLC0415

    assert written(value) == written(copy.deepcopy(value))


def every_way(code: str, /, day: int, adjust: bool = True, *, limit: int = 5) -> None:
    """A signature with every kind of named parameter."""


def test_however_it_is_called() -> None:
    """By place or by name, given or left at its default: what arrives counts."""
    arguments = Arguments("f", every_way)
    expected = arguments.digest(["a", 1], {})
    for args, kwargs in (
        (["a"], {"day": 1}),
        (["a", 1, True], {}),
        (["a", 1], {"adjust": True}),
        (["a"], {"limit": 5, "adjust": True, "day": 1}),
    ):
        assert arguments.digest(args, kwargs) == expected
    assert arguments.digest(["a", 1, False], {}) != expected
    assert arguments.digest(["a", 1], {"limit": 6}) != expected


def test_plain_parameters_take_the_fast_way() -> None:
    """The binding of most functions is as exact as inspect's."""

    def plain_one(a: int, b: int = 2, c: int = 3) -> None: ...

    arguments = Arguments("f", plain_one)
    assert arguments.digest([1], {}) == arguments.digest([], {"a": 1, "c": 3, "b": 2})
    assert arguments.digest([1], {"c": 4}) == arguments.digest([1, 2, 4], {})
    for args, kwargs in (
        ([], {}),
        ([1, 2, 3, 4], {}),
        ([1], {"a": 1}),
        ([1], {"d": 1}),
        ([], {"b": 1, "d": 1}),
    ):
        with pytest.raises(TypeError):
            arguments.digest(args, kwargs)


def test_the_rest_is_part_of_it() -> None:
    """``*args`` and ``**kwargs`` count, the latter in no order."""

    def open_ended(*codes: str, **options: int) -> None: ...

    arguments = Arguments("f", open_ended)
    one = arguments.digest(["a", "b"], {"x": 1, "y": 2})
    assert one == arguments.digest(["a", "b"], {"y": 2, "x": 1})
    assert one != arguments.digest(["b", "a"], {"x": 1, "y": 2})
    assert arguments.digest(["a"], {}) != arguments.digest([], {"a": 1})


def test_what_is_ignored() -> None:
    """A parameter that does not matter may be anything."""

    def load(session: object, code: str) -> None: ...

    arguments = Arguments("f", load, ignore=("session",))
    assert arguments.digest([object(), "a"], {}) == arguments.digest([None, "a"], {})
    assert arguments.digest([None, "a"], {}) != arguments.digest([None, "b"], {})


def test_a_key_of_ones_own() -> None:
    """``key`` says what matters."""
    arguments = Arguments("f", one, key=lambda path: path.name)
    assert arguments.digest([Path("/a/x")], {}) == arguments.digest([Path("/b/x")], {})
    assert arguments.digest([Path("/a/x")], {}) != arguments.digest([Path("/a/y")], {})


def test_a_key_that_raises_is_no_call_that_does_not_fit() -> None:
    """Whoever wrote it hears of it; a function that cannot be called says so itself."""
    arguments = Arguments("f", one, key=lambda number: number + 1)
    with pytest.raises(TypeError) as caught:
        arguments.digest(["text"], {})
    assert not isinstance(caught.value, MisfitError)
    for args in ([], [1, 2, 3, 4, 5]):
        with pytest.raises(MisfitError):
            arguments.digest(args, {})


class Odd:
    """No plain value."""


class Code(str):
    """A text, and who knows what else."""

    __slots__ = ()


class Wider(Window):
    """Extends a dataclass by something that no field shows."""


@dataclasses.dataclass
class Listed(list[int]):
    """A dataclass, and a list as well."""


class Nowhere(tzinfo):
    """A zone with a name that others have, too."""

    def utcoffset(self, _: datetime | None, /) -> timedelta:
        return timedelta(hours=-6)

    def tzname(self, _: datetime | None, /) -> str:
        return "CST"

    def dst(self, _: datetime | None, /) -> None:
        return None


deep: list[Any] = []
for _ in range(100):
    deep = [deep]
circle: list[Any] = []
circle.append(circle)


@pytest.mark.parametrize(
    "value",
    [
        Odd(), Odd, len, math.nan, math.inf, Decimal("NaN"), {1: 2}, {(1,): 2}, [Odd()], {"a": {"b": Odd()}},
        bytearray(b"1"), memoryview(b"1"), Code("a"), range(3), iter([]), 1j, deep, circle, Path("a"),
        Window(1, Odd()),  # type: ignore[arg-type]
        Wider(1), Listed(), datetime(2026, 1, 12, tzinfo=Nowhere()),
    ],
)  # fmt: skip
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    """The error names the function, the parameter, the type and what to do."""

    def load(source: object) -> None: ...

    arguments = Arguments("orders.load", load)
    with pytest.raises(ConfigurationError) as caught:
        arguments.digest([value], {})
    message = str(caught.value)
    assert "orders.load(source=…)" in message
    assert type(value).__qualname__ in message
    assert 'ignore=("source",)' in message
    assert "key=…" in message


def test_a_wrong_declaration_is_refused_at_once() -> None:
    """An unknown parameter, a default without a form."""

    def load(missing: object = circle) -> None: ...

    with pytest.raises(ConfigurationError, match="ignore"):
        Arguments("f", load, ignore=("b",))
    with pytest.raises(ConfigurationError, match="missing"):
        Arguments("f", load)
    Arguments("f", load, ignore=("missing",))


def test_the_same_in_every_process() -> None:
    """Python's salt, another one in each run, does not matter; the digest never changes."""

    def bars(
        code: object, *rest: object, day: date = TODAY, **more: object
    ) -> None: ...

    given = (
        ["平安", 1.5, {"b", "a", "c"}],
        {"z": {"y": 0.1, "x": 1e22}, "a": (1, None)},
    )
    assert Arguments("orders.f", bars).digest(*given) == (
        "90a8bf5c83fa86b87805b95591f2f1e113b91cd9be0c0bc0c0040a99ab9c6ce6"
    )
