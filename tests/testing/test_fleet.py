"""Agents on a real server, as a project that has installed bls-agent tests them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bls_agent import ConfigurationError
from bls_agent.devserver import DevServer
from bls_agent.testing.fleet import FleetServer, open_server

pytest_plugins = ["pytester"]

SERVICE = """
from bls_agent import ProjectAgent

agent = ProjectAgent("库存系统", redis="redis://127.0.0.1:1/0", reconnect_max=0.1)

class OutOfStock(Exception):
    pass

@agent.command
async def take(goods: str, count: int = 1) -> dict[str, int]:
    if count > 12:
        raise OutOfStock(f"no {count} of {goods}")
    agent.log.warn("stock is low", left=12 - count)
    return {goods: 12 - count}
"""
CONFTEST = """
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""
HEAD = """
import re
import subprocess
import sys
import time
import pytest
from anyio import sleep_forever
from contextlib import AsyncExitStack
from functools import partial
from unittest.mock import ANY
from bls_agent import ArgumentError, Console, EventStore, ProjectAgent, RedisRefusedError, Status
from bls_agent.testing import Hold, eventually
from stock import OutOfStock, agent

eventually = partial(eventually, within=30)  # a busy machine
TEA = {"goods": "茶", "count": 4}

def connected():
    return all(agent.stats().connections.values())
"""


@pytest.fixture
def shop(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with a service and a strict configuration, and no server of its own."""
    monkeypatch.delenv("BLS_REDIS_URL", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makepyfile(stock=SERVICE)
    pytester.makeconftest(CONFTEST)
    pytester.makepyprojecttoml(
        '[tool.pytest]\nstrict = true\nanyio_mode = "auto"\npythonpath = ["."]\n'
        'filterwarnings = ["error", "ignore:_pytest.python.CallSpec2"]'
    )
    return pytester


def run(shop: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    shop.makepyfile(test_stock=HEAD + tests)
    return shop.runpytest("-p", "no:cacheprovider", *options)


COMMANDS = """
async def test_dropped_records_that_were_looked_at(bls_fleet):
    small = ProjectAgent("库存系统", log_buffer=10)
    async with bls_fleet.run(small) as running:
        for number in range(30):
            small.log.info("much", number=number)
        assert running.stats().logs_dropped

async def test_a_command_comes_back(bls_fleet):
    async with bls_fleet.run(agent) as running:
        assert await running.call("take", **TEA) == {"茶": 8}
        assert running.assert_called_once_with("take", goods=ANY).outcome.succeeded
        running.assert_not_called("reload")
        assert running.assert_logged("warn", re.compile("is low"), left=8)
        assert running.status is Status.ONLINE
        assert running.stats().outcomes == {"succeeded": 1}
    assert bls_fleet.status("库存系统") is Status.OFFLINE
    assert agent.endpoint.address == "redis://127.0.0.1:1/0"

async def test_the_exception_of_the_handler_is_raised(bls_fleet):
    async with bls_fleet.run(agent) as running:
        with pytest.raises(OutOfStock, match="no 40 of 茶"):
            await running.call("take", goods="茶", count=40)
        with pytest.raises(ArgumentError):
            await running.call("take")
        outcome = await running.call("take", {"goods": "茶", "count": 40}, check=False)
        assert outcome.error["type"] == "OutOfStock"

async def test_no_data_and_no_state_of_the_tests_before(bls_fleet):
    async with Console() as console:
        assert await console.projects() == {}
    async with bls_fleet.run(agent) as running:
        assert running.commands == [] and running.logs == []
        agent.set_status(Status.FAULT)
        await eventually(lambda: running.status is Status.FAULT)

async def test_the_status_is_restored(bls_fleet):
    async with bls_fleet.run(agent) as running:
        assert running.status is Status.ONLINE
        agent.log.info("kept again")
        running.assert_logged("info", "kept again")

async def test_an_outcome_that_call_did_not_wait_for(bls_fleet):
    async with bls_fleet.run(agent) as running:
        await running.console.send("库存系统", "take", {"goods": "茶", "count": 40})
        await eventually(
            lambda: running.assert_outcome("take", "failed", type="OutOfStock")
        )

async def test_another_replica_takes_the_command(bls_fleet):
    first = ProjectAgent("库存系统", replicas=True)
    second = ProjectAgent("库存系统", replicas=True)
    second.command("take")(agent._state.router.find("take").call)
    async with bls_fleet.run(first) as idle, bls_fleet.run(second) as busy:
        await first.pause()
        with pytest.raises(OutOfStock, match="no 40 of 茶"):
            await idle.call("take", goods="茶", count=40)
        assert idle.commands == []
        busy.assert_called_once_with("take")

async def test_an_invoked_command_does_not_come_over_redis(bls_fleet):
    async with bls_fleet.run(agent) as running:
        assert not (await agent.invoke("take", goods="茶", count=40)).succeeded
        running.assert_not_called("take")

async def test_readers_and_stores_use_the_server(bls_fleet):
    async with bls_fleet.run(agent) as running, EventStore() as store:
        await store.add(7, "log", "info", {"text": "begun"})
        [event] = await running.events.get_events(7)
        assert await running.workers.alive() == []
        assert await running.assets.list() == []
        assert await running.crawl_queue("新闻").size() == 0
    assert not running.events._access._by_loop.values()

async def test_an_application_opens_the_agent(bls_fleet):
    async with bls_fleet.run(agent, lifespan=agent.lifespan(None)) as running:
        assert await running.call("take", **TEA)

@pytest.mark.bls(allow_failed=True)
async def test_the_marker_ends_the_check(bls_fleet):
    async with bls_fleet.run(agent) as running:
        await running.console.call("库存系统", "take", {"goods": "茶", "count": 40})
"""


POSITIONAL = """
@pytest.mark.bls(True)
async def test_it(bls_fleet): ...
"""


def test_the_marker_takes_its_argument_by_name(shop: pytest.Pytester) -> None:
    """It would have no effect otherwise, and nobody would see it."""
    result = run(shop, POSITIONAL)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*pass allow_failed=* to pytest.mark.bls by its name"])


def test_a_test_of_commands_passes(shop: pytest.Pytester) -> None:
    """What the test expects happens, over Redis; the module is as it was afterwards."""
    run(shop, COMMANDS).assert_outcomes(passed=COMMANDS.count("async def test_"))


FAULTS = """
async def test_redis_is_away(bls_fleet):
    async with bls_fleet.run(agent) as running:
        async with bls_fleet.redis_away(seconds=0.2):
            await eventually(lambda: not any(agent.stats().connections.values()))
            agent.log.info("kept")
            assert running.status is Status.ONLINE
        await eventually(connected)
        await running.call("take", **TEA)
        assert "kept" in [e.message for e in await running.console.logs("库存系统")]

async def test_redis_is_silent(bls_fleet):
    quick = ProjectAgent("库存系统", redis_timeout=0.2, reconnect_max=0.1)
    async with bls_fleet.run(quick) as running:
        async with bls_fleet.redis_away(silent=True):
            quick.log.info("kept")
            assert not await quick.flush(0.1)
        await eventually(lambda: quick.stats().logs_queued == 0)

async def test_a_full_server_refuses_writes(bls_fleet):
    async with bls_fleet.run(agent) as running:
        await running.console.send("库存系统", "ping")
        async with bls_fleet.full():
            with pytest.raises(Exception, match="maxmemory"):
                await running.console.send("库存系统", "ping")
        assert await running.call("take", **TEA)

async def test_a_right_is_missing(bls_fleet):
    async with bls_fleet.run(agent) as running:
        async with bls_fleet.deny("BLPOP"):
            await eventually(lambda: agent.stats().mode == "compat")
            assert await running.call("take", **TEA)
    async with Console() as console:
        async with bls_fleet.deny("rpush", "@scripting"):
            with pytest.raises(RedisRefusedError):
                await console.send("库存系统", "take", TEA)
        await console.send("库存系统", "take", TEA)
        with pytest.raises(ValueError, match="commands or categories of Redis"):
            async with bls_fleet.deny("nonsense"):
                pass

async def test_an_inner_fault_leaves_the_outer_one_on(bls_fleet):
    async with Console() as console:
        send = partial(console.send, "库存系统", "take", TEA, create=True)
        async with bls_fleet.deny("@write"):
            async with bls_fleet.deny("rpush"):
                pass
            with pytest.raises(RedisRefusedError, match="permission"):
                await send()
        async with bls_fleet.full():
            async with bls_fleet.full():
                pass
            with pytest.raises(Exception, match="maxmemory"):
                await send()
        async with bls_fleet.cut(after_bytes=1):
            async with bls_fleet.cut(after_bytes=1):
                await console.projects()
            await console.projects()
        await send()

async def test_a_command_whose_reply_is_cut_is_not_lost(bls_fleet):
    safe = ProjectAgent("库存系统", mode="reliable", reconnect_max=0.1, prefetch=1)
    safe.command("take")(agent._state.router.find("take").call)
    async with bls_fleet.run(safe) as running:
        async with bls_fleet.cut(after_bytes=60):
            assert await running.call("take", **TEA) == {"茶": 8}

async def test_a_slow_link(bls_fleet):
    async with bls_fleet.run(agent) as running:
        async with bls_fleet.slow(0.05, bytes_per_second=100_000):
            began = time.monotonic()
            outcome = await running.call("take", check=False, **TEA)
            assert outcome.succeeded and time.monotonic() - began > 0.09

async def test_another_condition(bls_fleet):
    async with bls_fleet.run(agent) as running:
        async with bls_fleet.during(Hold()):
            await running.console.send("库存系统", "take", TEA)
            agent.log.info("held")
            assert agent.stats().logs_queued
            assert running.commands == []
        await eventually(lambda: running.assert_called_once_with("take"))

async def test_what_waits_at_the_end_of_a_test_is_dropped(bls_fleet):
    late = ProjectAgent("库存系统", reconnect_max=0.1, shutdown_timeout=0.1)
    late.set_status(Status.FAULT, reason="no tea")
    async with AsyncExitStack() as faults:
        async with bls_fleet.run(late):
            late.set_status(Status.ONLINE)
            assert await late.flush(30)
            await faults.enter_async_context(bls_fleet.redis_away())
            late.log.info("left over")
    assert late._state.board.reason(time.monotonic()) == "no tea"
    assert late.stats().logs_queued == 0
    async with bls_fleet.run(late) as running:
        assert running.status is Status.FAULT
        await running.call("ping")
        logged = [e.message for e in await running.console.logs("库存系统")]
        assert not [one for one in logged if "left over" in one or "dropped" in one]

async def test_a_process_is_killed(bls_fleet):
    program = "from stock import agent; import anyio; agent._endpoint = None; anyio.run(agent.run)"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        await eventually(lambda: bls_fleet.status("库存系统") is Status.ONLINE)
        await bls_fleet.kill(process)
        assert process.returncode == -9
    assert bls_fleet.status("库存系统") is Status.ONLINE  # until its TTL ends
"""


def test_a_test_under_faults_passes(shop: pytest.Pytester) -> None:
    """Each fault hurts the agent and ends with its block."""
    run(shop, FAULTS).assert_outcomes(passed=FAULTS.count("async def test_"))


FAILING = """
async def test_other_arguments(bls_fleet):
    async with bls_fleet.run(agent) as running:
        await running.call("take", **TEA)
        running.assert_called_once_with("take", goods="米")

async def test_twice(bls_fleet):
    async with bls_fleet.run(agent) as running:
        await running.call("take", **TEA)
        await running.call("take", **TEA)
        running.assert_called_once_with("take", count=4)

async def test_called_after_all(bls_fleet):
    async with bls_fleet.run(agent) as running:
        await running.call("take", **TEA)
        running.assert_not_called("take")

async def test_other_record(bls_fleet):
    async with bls_fleet.run(agent) as running:
        await running.call("take", **TEA)
        running.assert_logged("warn", "stock is low", left=7)

async def test_other_outcome(bls_fleet):
    async with bls_fleet.run(agent) as running:
        running.assert_outcome("take", "failed", type="OutOfStock")

async def test_never(bls_fleet):
    async with bls_fleet.run(agent) as running:
        await eventually(lambda: running.commands, within=0.05)

async def test_never_logged(bls_fleet):
    async with bls_fleet.run(agent) as running:
        await eventually(lambda: running.assert_logged("info", "done"), within=0.05)

async def test_never_returned(bls_fleet):
    await eventually(sleep_forever, within=0.05)

async def test_nothing_is_cut(bls_fleet):
    async with bls_fleet.run(agent) as running:
        async with bls_fleet.cut(after_bytes=9_000):
            pass

async def test_unseen(bls_fleet):
    async with bls_fleet.run(agent) as running:
        await running.console.call("库存系统", "take", {"goods": "茶", "count": 40})
        running.assert_called_once_with("take")

async def test_dropped(bls_fleet):
    small = ProjectAgent("库存系统", log_buffer=10)
    async with bls_fleet.run(small) as running:
        for number in range(30):
            small.log.info("much", number=number)

async def test_faulty(bls_fleet):
    async with bls_fleet.run(agent) as running:
        agent._session.faults += 1
"""


def test_a_failing_test_says_why(shop: pytest.Pytester) -> None:
    """The message has what was expected and what came; teardown names what was not seen."""
    result = run(shop, FAILING)
    result.assert_outcomes(failed=9, passed=3, errors=3)
    result.stdout.fnmatch_lines_random(
        [
            "E * expected one command take(goods='米'), perhaps with more arguments",
            "E * take(goods='茶', count=4): succeeded",
            "E * expected one command take(count=4), perhaps with more arguments",
            "E * got 2 commands:",
            "E * expected no command take",
            "E * expected a record warn 'stock is low' left=7",
            "E * warn 'stock is low' *left=8",
            "E * expected a command take that failed with type='OutOfStock'",
            "E * got 0 commands",
            "E * the condition did not hold within 0.05 s (*test_stock.py:*); it returned *",
            "E * expected a record info 'done'",
            "E * the condition has not returned",
            "E * cut(after_bytes=9000): no connection was cut; the server sent only * bytes *",
            "库存系统: take(goods='茶', count=40): failed (OutOfStock: no 40 of 茶)",
            "库存系统: log records dropped: buffer_full=20",
            "库存系统: 1 faults of the agent; see the log",
            "*@pytest.mark.bls(allow_failed=True)*",
        ]
    )
    result.stdout.no_fnmatch_line("During handling of the above exception*")


TOGETHER = """
@pytest.mark.parametrize("number", range(4))
async def test_alone(bls_fleet, number):
    async with bls_fleet.run(agent) as running:
        assert await running.console.projects() == {"库存系统": Status.ONLINE}
        await running.call("take", **TEA)
        assert len([e for e in await running.console.logs("库存系统") if e.outcome]) == 1
"""


def test_each_process_of_xdist_has_a_server(shop: pytest.Pytester) -> None:
    """Tests that run at the same time do not see each other's keys."""
    shop.makepyfile(test_stock=HEAD + TOGETHER)
    shop.runpytest_subprocess("-n", "2").assert_outcomes(passed=4)


@pytest.fixture
def other_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetServer]:
    """A server that BLS_REDIS_URL chooses."""
    with DevServer() as server:
        monkeypatch.setenv("BLS_REDIS_URL", server.url)
        with FleetServer(server.url, is_ours=True) as asked:
            yield asked


CHOSEN = """
async def test_it(bls_fleet):
    async with bls_fleet.run(agent) as running:
        await running.call("take", **TEA)
        with pytest.raises(ValueError, match="needs one of its own"):
            async with bls_fleet.full():
                pass
"""


def test_a_chosen_server_keeps_its_data(
    shop: pytest.Pytester, other_server: FleetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has to be empty before, and is empty afterwards; full() is not for it."""
    monkeypatch.setenv("BLS_REDIS_URL", other_server.server_url)
    run(shop, CHOSEN).assert_outcomes(passed=1)
    assert other_server.ask("DBSIZE") == 0
    other_server.ask("SET", "needed", "1")
    result = run(shop, CHOSEN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*its database has to be empty*Unset the variable*"])
    assert other_server.ask("GET", "needed") == b"1"


def test_workers_of_xdist_share_a_chosen_server(other_server: FleetServer) -> None:
    """Each one has a database of its own."""
    environ = {**os.environ, "BLS_REDIS_URL": other_server.server_url}
    with open_server({**environ, "PYTEST_XDIST_WORKER": "gw3"}) as server:
        assert server.server_url == other_server.server_url[:-1] + "3"
        assert not server.is_ours


@pytest.mark.parametrize("url", ["rediss://127.0.0.1/0", "unix:///run/redis.sock"])
def test_a_chosen_server_is_reached_through_a_proxy(url: str) -> None:
    """A URL that a proxy cannot forward is refused, with the reason."""
    with (
        pytest.raises(ConfigurationError, match="because a proxy reads it"),
        open_server({"BLS_REDIS_URL": url}),
    ):
        pass
