"""A server that is hurt answers as it would in life, and is well again afterwards."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError as LostError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError as SlowError,
)

from tests.kit import HurtableServer
from tests.kit.admin import AdminConnection

PAGE = Path(__file__).parents[2] / "docs/chaos.md"
INJURIES: dict[str, tuple[type[RedisError], str, bool]] = {
    # What a write raises, its text, and whether PING is answered.
    "full": (OutOfMemoryError, "used memory", True),
    "demoted": (ReadOnlyError, "read only", True),
    "without_disk": (ResponseError, "MISCONF", False),
    "without_replicas": (ResponseError, "NOREPLICAS", True),
    "loading": (BusyLoadingError, "loading", False),
    "killed": (LostError, "refused", False),
    "crowded": (LostError, "max number of clients", False),
}


@pytest.fixture(params=[False, True], ids=["memory", "append-only"])
def server(request: pytest.FixtureRequest) -> Iterator[HurtableServer]:
    with HurtableServer(append_only=request.param) as server:
        yield server


def keeps(server: HurtableServer) -> bool:
    """Tell whether what was answered survives a kill."""
    found = server.ask("CONFIG", "GET", "appendonly")
    return bool(found == [b"appendonly", b"yes"])


@pytest.fixture
def one_server() -> Iterator[HurtableServer]:
    with HurtableServer() as server:
        yield server


@pytest.mark.parametrize("injury", INJURIES)
def test_it_hurts_and_heals(server: HurtableServer, injury: str) -> None:
    """Inside of the block it refuses as it should, afterwards it takes writes again."""
    error, text, answers = INJURIES[injury]
    server.ask("SET", "before", "1")
    with getattr(server, injury)():
        with pytest.raises(error, match=text):
            server.ask("SET", "key", "value")
        if answers:
            assert server.ask("PING") == b"PONG"
        else:
            with pytest.raises(error, match=text):
                server.ask("PING")
    assert server.ask("SET", "key", "value") == b"OK"
    forgets = injury == "killed" and not keeps(server)
    assert server.ask("DBSIZE") == (1 if forgets else 2)


def test_a_killed_server_forgets_without_a_log(one_server: HurtableServer) -> None:
    """No injury before leaves a snapshot that would be read again."""
    for injury in (one_server.loading, one_server.without_disk):
        one_server.ask("SET", "key", "value")
        with injury():
            pass
        assert one_server.ask("DBSIZE") == 1
        with one_server.killed():
            pass
        assert one_server.ask("DBSIZE") == 0


def test_frozen_it_accepts_and_does_not_answer(one_server: HurtableServer) -> None:
    """Connections stay, and what was sent is answered later."""
    with one_server.frozen():
        connection = AdminConnection(one_server.port, timeout=0.05)
        with pytest.raises(SlowError):
            connection.ask("PING")
        connection.close()
    assert one_server.ask("PING") == b"PONG"


def test_paused_it_holds_requests(one_server: HurtableServer) -> None:
    """All requests, until its time is over."""
    begin = time.monotonic()
    with one_server.paused(0.1):
        one_server.ask("PING")
    assert time.monotonic() - begin >= 0.1


def test_clients_are_disconnected(one_server: HurtableServer) -> None:
    """As an administrator does it."""
    client = AdminConnection(one_server.port)
    client.ask("SET", "key", "value")
    one_server.disconnect_clients()
    with pytest.raises(LostError, match="closed"):
        client.ask("PING")
    client.close()


def test_the_page_names_the_injuries_that_there_are() -> None:
    """Each method of the server is in the page's section, and nothing else is."""
    section = PAGE.read_text().split("`HurtableServer`\n")[1].split("\n## ")[0]
    calls = dict(re.findall(r"`(\w+)\((.*?)\)`", section))
    public = {name for name in vars(HurtableServer) if not name.startswith("_")}
    assert set(calls) == public
    for name, arguments in calls.items():
        method = getattr(HurtableServer, name)
        assert set(re.findall(r"\w+", arguments)) <= {*signature(method).parameters}
