"""What a check may be, and which source the status comes from: no Redis needed."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from bls_agent.core.errors import ConfigurationError
from bls_agent.project.messages import Status
from bls_agent.project.status.health import (
    HealthCheck,
    HealthChecks,
    StatusAggregator,
)

INFINITE = math.inf


# --- what may be declared


def plain() -> None: ...
def with_default(path: str = "/tmp") -> None: ...
async def waiting() -> bool:
    return True


def needy(path: str) -> None: ...
def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


class GeneratorObject:
    def __call__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize(
    "function",
    [
        plain,
        with_default,
        waiting,
        functools.partial(needy, "/tmp"),
        functools.partial(functools.partial(waiting)),
        lambda: False,
        dict,
        "a text".strip,
        threading.Event().wait,
    ],
)
def test_what_can_be_called_without_arguments_is_a_check(function: Any) -> None:
    """Functions, partials, methods, classes, builtins."""
    check = HealthCheck(name="数据库", function=function)
    assert (check.interval, check.timeout, check.failures) == (10.0, 5.0, 2)
    assert check.source == "health check 数据库"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": ""}, "health check: '' is not allowed"),
        ({"name": 5}, "a name is text"),
        ({"name": "x" * 513}, "512"),
        (
            {"interval": 0},
            "interval: '0.0' is not allowed; between 0.001 and 86400 seconds",
        ),
        ({"interval": -1.0}, "interval: '-1.0' is not allowed; between 0.001"),
        ({"interval": math.inf}, "interval: '1e+300'"),
        ({"interval": math.nan}, "interval: 'nan'"),
        ({"interval": True}, "interval: 'True'"),
        ({"interval": 10**400}, "interval: "),
        ({"interval": "10"}, "interval: '10'"),
        ({"timeout": 0.0}, "timeout: '0.0' is not allowed; between 0.001 and 86400"),
        ({"timeout": None}, "timeout: 'None' is not allowed; a number of seconds"),
        ({"timeout": -math.inf}, "timeout: '-1e+300'"),
        ({"failures": 0}, "failures: '0' is not allowed; between 1 and 1e+06 failures"),
        ({"failures": 2.0}, "a whole number of failures in a row"),
        ({"failures": True}, "failures: 'True'"),
        ({"function": needy}, "missing a required argument: 'path'"),
        ({"function": functools.partial(needy)}, "functools.partial(function, …)"),
        ({"function": None}, "health check 数据库: 'None' is not allowed; a function"),
        ({"function": generator}, "Return or raise instead of yielding."),
        ({"function": functools.partial(generator)}, "generator function"),
        ({"function": async_generator}, "generator function"),
        ({"function": GeneratorObject()}, "generator function"),
    ],
)
def test_what_cannot_be_served_is_refused(wrong: dict[str, Any], said: str) -> None:
    """The error names the argument, its value, the rule and what to do."""
    with pytest.raises(ConfigurationError) as caught:
        HealthCheck(**{"name": "数据库", "function": plain, **wrong})
    assert said in str(caught.value)


def test_a_name_is_registered_once() -> None:
    """The second one is refused and the first one stays."""
    checks = HealthChecks()
    first = HealthCheck(name="数据库", function=plain)
    checks.add(first)
    with pytest.raises(ConfigurationError, match=r"'数据库' .* registered already"):
        checks.add(HealthCheck(name="数据库", function=waiting))
    assert checks.all == {"数据库": first}


# --- who speaks on the board

ONLINE, OFFLINE, ERROR, FAULT = (
    Status.ONLINE,
    Status.OFFLINE,
    Status.ERROR,
    Status.FAULT,
)


@pytest.mark.parametrize(
    ("host", "database", "window", "speaker", "status"),
    [
        (ONLINE, ONLINE, ONLINE, "host", ONLINE),
        (ONLINE, ONLINE, ERROR, "error window", ERROR),
        (ONLINE, FAULT, ERROR, "health check 数据库", FAULT),
        (ERROR, ONLINE, ERROR, "host", ERROR),
        (ERROR, FAULT, ERROR, "health check 数据库", FAULT),
        (FAULT, FAULT, ERROR, "host", FAULT),
        (OFFLINE, ONLINE, ONLINE, "host", OFFLINE),
        (OFFLINE, ONLINE, ERROR, "error window", ERROR),
        (OFFLINE, FAULT, ONLINE, "health check 数据库", FAULT),
    ],
    ids=lambda value: value.name if isinstance(value, Status) else value,
)
def test_the_worst_of_all_sources(
    host: Status, database: Status, window: Status, speaker: str, status: Status
) -> None:
    """故障 > 报错 > 在线 > 离线; a source without complaint leaves the host its word."""
    board = StatusAggregator()
    board.set("health check 数据库", database)
    board.set("error window", window)
    board.set(StatusAggregator.HOST, host)
    assert board.worst_source(0.0) == (speaker, status, "")
    assert board.status(0.0) is status
    assert board.list_sources(0.0) == {
        "host": host,
        "health check 数据库": database,
        "error window": window,
    }


def test_a_timed_word_ends_by_itself() -> None:
    """A word holds until its moment, and the board tells the next such moment."""
    board = StatusAggregator()
    assert board.next_change(0.0) == INFINITE
    board.set("error window", ERROR, until=10.0)
    board.set("another one", FAULT, until=5.0)
    assert [board.status(now) for now in (0.0, 4.9, 5.0, 9.9, 10.0)] == [
        FAULT,
        FAULT,
        ERROR,
        ERROR,
        ONLINE,
    ]
    assert [board.next_change(now) for now in (0.0, 4.9, 5.0, 9.9, 10.0)] == [
        5.0,
        5.0,
        10.0,
        10.0,
        INFINITE,
    ]
    board.set("error window", ERROR, until=20.0)
    assert board.status(10.0) is ERROR
