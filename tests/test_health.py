"""Health checks and the error window, as the console sees them."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, Console, ProjectAgent, Status
from tests.harness import eventually, records, status_of
from tests.programs import run_python

OFTEN: dict[str, Any] = {"interval": 0.05, "timeout": 0.5}


@dataclass
class Database:
    """Something to look after: down or up, and when it was looked at."""

    down: bool = False
    looks: list[float] = field(default_factory=list)

    def look(self) -> None:
        self.looks.append(time.monotonic())
        if self.down:
            raise ConnectionError("no database")

    async def wait_and_look(self) -> None:
        await anyio.sleep(0)
        self.look()

    async def looked_again(self, times: int = 2) -> None:
        target = len(self.looks) + times
        await eventually(lambda: len(self.looks) >= target)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """What hanging checks wait for: set at the end, so that no thread stays behind."""
    event = threading.Event()
    yield event
    event.set()


def shows(redis: Redis, project: str, status: Status) -> Callable[[], Any]:
    async def look() -> bool:
        return await status_of(redis, project) == status.value

    return look


async def told(redis: Redis, project: str) -> list[dict[str, Any]]:
    """The records of health checks, oldest first."""
    found = await records(redis, project)
    return [r for r in found if "healthCheck" in r.get("metadata", {})]


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_alarm_and_recovery(
    redis_url: str,
    redis: Redis,
    project: str,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """故障 with the reason, said once; 在线 again, with how long it lasted."""
    agent = ProjectAgent(project, redis=redis_url, status_interval=20)
    database = Database()
    check = database.look if kind == "plain" else database.wait_and_look
    assert agent.health_check("数据库", **OFTEN)(check) is check
    caplog.set_level(logging.INFO, "bls_agent")
    async with agent:
        agent.log.info("opened")
        await (
            agent.flush()
        )  # a connection that connects later would have it written, too
        await eventually(shows(redis, project, Status.ONLINE))
        began = time.monotonic()
        database.down = True
        await eventually(shows(redis, project, Status.FAULT), 2)
        await database.looked_again(3)
        assert agent.stats().status_source == "health check 数据库"
        assert agent.stats().status_sources == {
            "host": "在线",
            "health check 数据库": "故障",
        }
        database.down = False
        await eventually(shows(redis, project, Status.ONLINE), 2)
        lasted = (time.monotonic() - began) * 1000
        assert agent.stats().status_source == "host"
        assert agent.stats().faults == 0
    alarm, recovery = await told(redis, project)
    assert alarm["level"] == "error"
    assert "'数据库' failed 2 times in a row: ConnectionError: no" in alarm["message"]
    assert alarm["metadata"]["failures"] == 2
    assert alarm["metadata"]["error"]["type"] == "ConnectionError"
    assert "in look" in alarm["metadata"]["error"]["traceback"]
    assert recovery["level"] == "info"
    assert "'数据库' is good again after" in recovery["message"]
    assert 50 < recovery["metadata"]["durationMs"] <= lasted
    said = [r for r in caplog.records if "health check" in r.getMessage()]
    assert [r.levelname for r in said] == ["ERROR", "INFO"]


async def test_one_failure_is_no_alarm(
    redis_url: str, redis: Redis, project: str
) -> None:
    """With good calls between them, failures leave the status alone."""
    agent = ProjectAgent(project, redis=redis_url)
    results = iter([True, False, True, False, None, False, 0] + [True] * 1_000)
    seen: list[object] = []

    @agent.health_check(interval=0.02)
    async def database() -> object:
        seen.append(agent.status)
        return next(results)

    async with agent:
        await eventually(lambda: len(seen) > 9)
    assert set(seen) == {Status.ONLINE}
    assert await told(redis, project) == []


async def look() -> bool:
    return False


async def forget_to_await() -> object:
    return look()


@pytest.mark.parametrize(
    "check", [lambda: False, look, forget_to_await], ids=lambda check: check.__name__
)
async def test_failures_says_how_many(
    redis_url: str, redis: Redis, project: str, check: Callable[[], object]
) -> None:
    """Exactly False fails, and one failure is enough where the host says so."""
    agent = ProjectAgent(project, redis=redis_url)
    agent.health_check("cache", failures=1)(check)
    async with agent:
        await eventually(shows(redis, project, Status.FAULT), 2)
    [alarm] = await told(redis, project)
    assert "'cache' failed once: ReturnedFalse: it returned False" in alarm["message"]


async def test_the_worst_counts(redis_url: str, redis: Redis, project: str) -> None:
    """Host and checks each say theirs; when one falls silent the others still stand."""
    agent = ProjectAgent(project, redis=redis_url, status_interval=20)
    one, two = Database(), Database(down=True)
    agent.health_check("one", **OFTEN)(one.look)
    agent.health_check("two", **OFTEN)(two.wait_and_look)
    agent.set_status(Status.OFFLINE)
    async with agent:
        await eventually(shows(redis, project, Status.FAULT), 2)
        assert agent.stats().status_source == "health check two"
        one.down = True
        await eventually(
            lambda: agent.stats().status_sources["health check one"] == "故障"
        )
        assert agent.stats().status_source == "health check one"
        agent.set_status(Status.ERROR)
        one.down = two.down = False
        await eventually(shows(redis, project, Status.ERROR), 2)
        assert agent.stats().status_source == "host"
        agent.set_status(Status.OFFLINE)  # good checks leave the host its word
        await eventually(shows(redis, project, Status.OFFLINE), 2)


async def test_each_on_its_own_schedule(redis_url: str, project: str) -> None:
    """All begin at once, none waits for another, and the pause follows the end."""
    agent = ProjectAgent(project, redis=redis_url)
    database, spans = Database(), list[tuple[float, float]]()

    @agent.health_check(interval=0.2)
    async def slow() -> None:
        began = time.monotonic()
        await anyio.sleep(0.3)
        spans.append((began, time.monotonic()))

    agent.health_check("fast", interval=0.02)(database.wait_and_look)
    opened = time.monotonic()
    async with agent:
        await eventually(lambda: len(spans) == 2)
    (first, end), (second, _) = spans
    assert first - opened < 0.15
    assert database.looks[0] - opened < 0.15
    assert sum(first < look < end for look in database.looks) > 3
    assert second - end > 0.155


# --- checks that misbehave


class Strange(BaseException):
    """What no except Exception catches."""


@pytest.mark.parametrize(
    "error",
    [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), Strange("故障")],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_whatever_a_check_raises(
    redis_url: str, console: Console, project: str, error: BaseException, kind: str
) -> None:
    """It is a failure of the check, and the agent lives on."""
    agent = ProjectAgent(project, redis=redis_url)
    database = Database()

    def plain() -> None:
        database.look()
        raise error

    async def waiting() -> None:
        plain()

    agent.health_check("bad", **OFTEN)(plain if kind == "plain" else waiting)
    async with agent:
        await eventually(lambda: agent.status is Status.FAULT)
        await database.looked_again()
        assert (await console.call(project, "ping")).succeeded
        assert agent.stats().faults == 0


async def test_a_check_that_cancels_itself(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Cancelling its own task ends that one call, whether or not it notices."""
    agent = ProjectAgent(project, redis=redis_url)

    @agent.health_check("unnoticed", **OFTEN)
    async def unnoticed() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async with agent:
        await eventually(lambda: agent.status is Status.FAULT)
        assert agent.stats().faults == 0
    [alarm] = await told(redis, project)
    assert "was cancelled from inside" in alarm["message"]


async def test_a_check_that_swallows_its_cancellation(
    redis_url: str, redis: Redis, project: str
) -> None:
    """It is not begun a second time, and does not keep the loop busy."""
    agent = ProjectAgent(project, redis=redis_url)
    begun, swallowed, closed = list[int](), list[int](), anyio.Event()

    @agent.health_check("deaf", interval=0.05, timeout=0.05, failures=3)
    async def deaf() -> None:
        begun.append(1)
        while not closed.is_set():
            try:
                await closed.wait()
            except asyncio.CancelledError:
                swallowed.append(1)

    try:
        async with agent:
            await eventually(shows(redis, project, Status.FAULT), 3)
            assert begun == [1]
            assert 1 <= len(swallowed) < 20
            before = time.monotonic()
        assert time.monotonic() - before < 1
    finally:
        closed.set()  # else the loop would wait for it
    [alarm] = await told(redis, project)
    assert "StillRunning: it has not returned since 20" in alarm["message"]


async def test_a_slow_async_check_is_cancelled(
    redis_url: str, redis: Redis, project: str
) -> None:
    """At its timeout, and tried again."""
    agent = ProjectAgent(project, redis=redis_url)
    cancelled: list[int] = []

    @agent.health_check("slow", interval=0.02, timeout=0.05)
    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(1)

    async with agent:
        await eventually(shows(redis, project, Status.FAULT), 3)
        await eventually(lambda: len(cancelled) > 2)
    [alarm] = await told(redis, project)
    assert "TimedOut: it has not returned within 0.05 s" in alarm["message"]


async def test_a_hanging_plain_check(
    redis_url: str,
    redis: Redis,
    console: Console,
    project: str,
    released: threading.Event,
) -> None:
    """One thread, however long it hangs and however often the agent is opened."""
    agent = ProjectAgent(project, redis=redis_url)
    begun: list[int] = []

    @agent.health_check("hangs", interval=0.02, timeout=0.05)
    def hangs() -> None:
        begun.append(1)
        released.wait(60)

    @agent.command
    def plain() -> int:
        return 7

    for life in range(3):
        async with agent:
            assert agent.status is Status.ONLINE
            await eventually(shows(redis, project, Status.FAULT), 3)
            await anyio.sleep(0.2)  # ten more times it could have been begun
            assert begun == [1], life
            assert (await console.call(project, "plain")).result == 7
            assert agent.stats().commands_stuck == 0
        assert agent.status is Status.ONLINE
        assert agent.stats().status_sources == {"host": "在线"}
    assert "StillRunning" in (await told(redis, project))[-1]["message"]
    async with agent:
        await eventually(shows(redis, project, Status.FAULT), 3)
        released.set()
        await eventually(shows(redis, project, Status.ONLINE), 3)
        assert len(begun) > 1


async def test_a_call_beside_the_scheduled_calls_disturbs_nothing(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Two calls at a time within the timeout: neither of them has failed."""
    agent = ProjectAgent(project, redis=redis_url)
    begun: list[int] = []

    @agent.health_check("slow", interval=0.01, timeout=30, failures=1)
    def slow() -> None:
        begun.append(1)
        time.sleep(0.1)

    async with agent:
        await agent.ready(5)
        for _ in range(5):
            begun.clear()
            await eventually(lambda: bool(begun))
            result = (await agent.run_checks())["slow"]
            assert result.ok, result.reason
        assert agent.status is Status.ONLINE
    assert await told(redis, project) == []


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_closing_does_not_wait_for_a_hanging_check(
    redis_url: str, redis: Redis, project: str, kind: str, released: threading.Event
) -> None:
    """An idle agent closes within 100 ms all the same (the best of three)."""
    agent = ProjectAgent(project, redis=redis_url)
    took: list[float] = []
    hanging = asyncio.Event()

    async def hangs() -> None:
        hanging.set()
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await anyio.sleep(0.2)

    def hangs_plainly() -> None:
        loop.call_soon_threadsafe(hanging.set)
        released.wait(60)

    loop = asyncio.get_running_loop()
    agent.health_check("hangs")(hangs_plainly if kind == "plain" else hangs)
    for _ in range(3):
        await agent.__aenter__()
        await agent.ready(5)
        await hanging.wait()
        began = time.monotonic()
        await agent.aclose()
        took.append(time.monotonic() - began)
        assert await status_of(redis, project) == "离线"
    assert min(took) < 0.1
    released.set()
    await anyio.sleep(0.25)  # until the deaf ones have noticed


async def test_a_new_life_begins_afresh(
    redis_url: str, redis: Redis, project: str
) -> None:
    """What failed in the former life is not 故障 in the next one before it is tried."""
    agent = ProjectAgent(project, redis=redis_url, status_interval=20)
    database = Database(down=True)
    agent.health_check("数据库", **OFTEN)(database.look)
    async with agent:
        await eventually(shows(redis, project, Status.FAULT), 2)
    assert await status_of(redis, project) == "离线"
    database.down = False
    async with agent:
        await agent.ready(5)
        assert await status_of(redis, project) == "在线"
        await database.looked_again()
    assert [record["level"] for record in await told(redis, project)] == ["error"]


# --- registration


async def test_late_registration(redis_url: str, redis: Redis, project: str) -> None:
    """Registered from a thread while the agent is open, a check begins at once."""
    agent = ProjectAgent(project, redis=redis_url, status_interval=20)
    database = Database(down=True)
    async with agent:
        await agent.ready(5)
        began = time.monotonic()
        register = agent.health_check("late", **OFTEN)
        thread = threading.Thread(target=register, args=(database.wait_and_look,))
        thread.start()
        await eventually(lambda: bool(database.looks), 2)
        assert database.looks[0] - began < 1
        await eventually(shows(redis, project, Status.FAULT), 2)
        thread.join()


def test_registration_gives_the_function_back() -> None:
    """The function comes back unchanged, and a second one of its name is refused."""
    agent = ProjectAgent("订单系统")

    def database() -> None: ...
    def other_one() -> None: ...

    assert agent.health_check(database) is database
    assert agent.health_check("again")(database) is database
    assert agent.health_check()(other_one) is other_one
    with pytest.raises(ConfigurationError, match="'database' is not allowed"):
        agent.health_check(database)


# --- the error window


async def test_the_error_window(redis_url: str, redis: Redis, project: str) -> None:
    """An error record shows as 报错 at once, and no longer than the window after it."""
    agent = ProjectAgent(project, redis=redis_url, status_interval=20, error_window=0.4)
    agent.log.error("before it was opened")
    async with agent:
        await agent.ready(5)
        assert agent.stats().status_sources == {"host": "在线", "error window": "在线"}
        agent.log.warn("not grave")
        assert agent.status is Status.ONLINE
        agent.log.error("库存 < 0")
        await eventually(shows(redis, project, Status.ERROR))
        assert agent.stats().status_source == "error window"
        await anyio.sleep(0.2)
        agent.log.error("again")  # the window counts from the last one
        began = time.monotonic()
        await eventually(shows(redis, project, Status.ONLINE), 5)
        assert time.monotonic() - began > 0.3
        assert agent.stats().status_writes < 8
        agent.log.error("at the end")
    assert agent.status is Status.ONLINE
    agent.log.error("after it was closed")
    assert agent.status is Status.ONLINE


async def test_a_failed_command_opens_the_window(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """Outcome records of level error count as well, others do not."""
    agent = ProjectAgent(project, redis=redis_url, error_window=0.5)

    @agent.command
    async def ship(order: int) -> None:
        raise LookupError(order)

    async with agent:
        await console.call(project, "ship", {"order": "7"})  # rejected: a warning
        assert agent.status is Status.ONLINE
        await console.call(project, "ship", {"order": 7})
        assert agent.stats().status is Status.ERROR


async def test_a_health_alarm_does_not_open_the_window(
    redis_url: str, redis: Redis, project: str
) -> None:
    """When the fault is over the status is 在线 at once; the status had told it all."""
    agent = ProjectAgent(project, redis=redis_url, error_window=60)
    database = Database(down=True)
    agent.health_check("数据库", **OFTEN)(database.look)
    async with agent:
        await eventually(shows(redis, project, Status.FAULT), 2)
        assert agent.stats().status_sources["error window"] == "在线"
        database.down = False
        await eventually(shows(redis, project, Status.ONLINE), 2)


INTERRUPTED = """
import signal, sys
import anyio
from bls_agent import ProjectAgent, Status

agent = ProjectAgent(sys.argv[1], redis=sys.argv[2], error_window=0.3)
interruptions = 0

def interrupt(number, frame):
    global interruptions
    interruptions += 1
    agent.log.error("interrupted")
    agent.set_status(Status.ONLINE)
    if interruptions < 2000:
        signal.setitimer(signal.ITIMER_REAL, 0.0002)  # once: handlers do not nest

async def main():
    async with agent:
        await agent.ready(5)
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.0002)
        while interruptions < 2000:
            for _ in range(100):
                agent.set_status(Status.FAULT)
                agent.set_status(Status.ONLINE)
                agent.stats()
            await anyio.sleep(0)
        assert agent.status is Status.ERROR, agent.stats()
        with anyio.fail_after(2):
            while agent.status is not Status.ONLINE:
                await anyio.sleep(0.01)
        assert not agent.stats().faults, agent.stats()
        assert not agent.stats().logs_not_encoded, agent.stats()

anyio.run(main)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no setitimer")
@pytest.mark.usefixtures("redis")  # it removes the keys
async def test_a_signal_handler_may_interrupt_any_line(
    redis_url: str, project: str
) -> None:
    """log.error and set_status inside set_status and stats() never wait for a lock."""
    assert run_python("-c", INTERRUPTED, project, redis_url) == (0, "", "")


async def test_a_secret_of_a_failing_check_stays_here(
    project: str, redis_url: str, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the console nor the host's log gets what an exception gives away."""
    agent = ProjectAgent(project, redis=redis_url)

    @agent.health_check("database", failures=1, **OFTEN)
    def look() -> None:
        raise ConnectionError("password=hunter2-canary redis://u:hunter2-canary@h")

    async with agent:
        await eventually(lambda: agent.status is Status.FAULT)
        assert await agent.flush(5.0)
    told = str(await records(redis, project))
    assert "redacted" in told
    assert "look" in caplog.text  # the traceback
    assert "hunter2-canary" not in told + caplog.text


async def test_a_check_of_an_agent_that_a_command_has_opened_belongs_to_no_command(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """The supervisor's command has ended; its id is not in the tenant's records."""
    supervisor = ProjectAgent(project, redis=redis_url)
    tenant = ProjectAgent(f"{project}-租户", redis=redis_url)

    @supervisor.command
    async def start() -> None:
        await tenant.__aenter__()

    @tenant.health_check
    def check() -> None:
        tenant.log.info("checked")

    async with supervisor:
        assert (await console.call(project, "start")).succeeded
        await eventually(lambda: tenant.stats().logs_delivered > 0)
        await tenant.aclose()
    (found, *_) = await records(redis, tenant.project)
    assert found["message"] == "checked"
    assert "commandId" not in found["metadata"]
