"""What the host's log is told: each cause once, then once a minute, for all parts."""

from __future__ import annotations

import logging

import pytest

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.reconnect import (
    REMIND_EVERY,
    ReconnectGate,
    ThrottledLog,
    wait_after_failure,
)
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.devserver import DevServer
from tests.harness import eventually


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def of_package(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Leave out what asyncio says of the garbage of other tests."""
    return [one for one in caplog.records if one.name.startswith("bls_agent.")]


class Pauses(Backoff):
    """Writes down which pauses are asked for, and grants none."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[bool, bool]] = []  # permanent, longest

    def failed(self, *, permanent: bool = False, longest: bool = False) -> float:
        self.asked.append((permanent, longest))
        return 0.0


async def test_a_key_of_another_type_has_the_long_pauses_of_a_refusal() -> None:
    """Somebody has to change the key first; an outage ends without that."""
    pauses = Pauses()
    for error in (
        WrongTypeError("订单系统_控制", "list"),
        RedisRefusedError("no_permission", "NOPERM"),
        RedisUnavailableError("timeout", "no reply"),
    ):
        await wait_after_failure(error, "no commands", pauses, ThrottledLog(Clock()))
    assert pauses.asked == [(True, False), (True, False), (False, False)]


async def test_a_refused_password_has_the_longest_pause() -> None:
    """A server may lock a user out who tries too often."""
    pauses = Pauses()
    gate = ReconnectGate(pauses)
    errors = [
        RedisRefusedError("auth", "WRONGPASS", connecting=True),
        RedisRefusedError("no_permission", "NOPERM", connecting=True),
        RedisUnavailableError("connection", "refused", connecting=True),
    ]

    async def fail() -> None:
        raise errors[len(pauses.asked)]

    for error in errors:
        with pytest.raises(type(error)):
            await gate.enter(fail)
    assert pauses.asked == [(True, True), (True, False), (False, False)]


def test_a_state_of_the_server_is_said_once_for_all_parts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Status, log and intake meet the same full disk: one warning, then one a minute."""
    clock = Clock()
    throttled_log = ThrottledLog(clock)
    disk = RedisUnavailableError("disk", "MISCONF", address="redis://a:1/0")
    for _ in range(2):
        assert throttled_log.warn("the status cannot be written", disk)
        for _ in range(100):
            assert not throttled_log.warn("records cannot be written", disk)
            clock.now += REMIND_EVERY / 101
        clock.now += REMIND_EVERY / 101
    assert throttled_log.warn(
        "no commands", RedisUnavailableError("loading", "LOADING")
    )
    assert len(of_package(caplog)) == 3


def test_a_refusal_of_one_request_is_said_for_each_part(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What one part cannot do says nothing of the others."""
    throttled_log = ThrottledLog(Clock())
    refused = RedisRefusedError("unknown_command", "unknown command")
    for consequence in ("no commands", "no status", "no commands"):
        throttled_log.warn(consequence, refused)
    for key in ("a", "b", "a"):
        throttled_log.warn("no status", WrongTypeError(key, "list"))
    assert len(of_package(caplog)) == 4


def test_a_missing_right_is_said_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """What is weaker, once, and what the parts say of it is not said again."""
    throttled_log = ThrottledLog(Clock())
    refused = RedisRefusedError("no_permission", "no permissions to run the 'lpop'")
    for consequence in ("not served", "not served", "not seen"):
        throttled_log.warn(consequence, refused)  # nobody looks for missing rights yet
    assert len(of_package(caplog)) == 2
    caplog.clear()
    for _ in range(3):
        throttled_log.note_denied(
            [("BLPOP", "a_控制", 2), ("LPOP", "a_控制", 3)], [None, refused]
        )
        assert not throttled_log.warn("no commands can be received", refused)
    throttled_log.note_denied([("FLUSHALL",)], [refused])
    lpop, other = (r.getMessage() for r in of_package(caplog))
    assert "LPOP" in lpop
    assert "one at a time" in lpop
    assert "FLUSHALL" in other
    assert throttled_log.warn(
        "", RedisRefusedError("no_permission", "", connecting=True)
    )


async def test_an_outage_begins_when_it_is_noticed(
    own_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Not when an idle connection ends, which nobody needs for hours."""
    caplog.set_level(logging.INFO, "bls_agent.connection")
    clock = Clock()
    throttled_log = ThrottledLog(clock)
    place, outage = Endpoint.of(own_server.url), throttled_log.outage
    connection = Connection(place, "test", outage=outage)
    for kind in ("busy", "connection"):
        await connection.open()
        own_server.restart()
        await eventually(lambda: not connection.connected)
        clock.now += 7_200
        throttled_log.warn("", RedisUnavailableError(kind, "away"))
        clock.now += 2
    own_server.kill()
    with pytest.raises(RedisUnavailableError):
        await connection.open()
    clock.now += 1
    own_server.restart()
    await connection.open()
    await connection.aclose()
    ends = [one.getMessage() for one in of_package(caplog) if one.levelname == "INFO"]
    assert ends == ["Redis answers again after 3.0 s"]


def test_what_was_said_long_ago_is_forgotten() -> None:
    """A fleet of a million keys of the wrong type costs no memory for each."""
    clock = Clock()
    throttled_log = ThrottledLog(clock)
    for number in range(3_000):
        assert throttled_log.warn(
            "not written", WrongTypeError(f"键{number}", "string")
        )
        clock.now += REMIND_EVERY / 500
    assert len(throttled_log._reminders._warned_at) <= 1_000
    assert not throttled_log.warn("not written", WrongTypeError("键2999", "string"))
