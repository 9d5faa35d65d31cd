"""Pause, resume and drain, in every mode: by command, by method, with replicas."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import CallNext, CommandContext, Console, ProjectAgent
from bls_agent.core.codec import encode
from bls_agent.devserver import DevServer
from bls_agent.project.commands import pausing
from bls_agent.project.status.intake import (
    describe_reports,
    intake_key,
    read_reports,
)
from bls_agent.testing import Delay
from tests.harness import (
    PASSWORD,
    History,
    command_bytes,
    eventually,
    execute,
    is_there,
    needs_selectors,
    records,
    status_of,
    url_with_rights,
)
from tests.kit import Cut, Direction, FaultProxy

MODES = ["auto", "blocking", "compat", "reliable"]
in_each_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for built-in commands more often, to save time."""
    monkeypatch.setattr(pausing, "LOOK_EVERY", 0.05)


@asynccontextmanager
async def opened(
    url: str, project: str, **options: Any
) -> AsyncGenerator[ProjectAgent]:
    agent = ProjectAgent(project, redis=url, **options)
    async with agent:
        await agent.ready(5)
        yield agent


class Door:
    """A handler that waits until it is let through."""

    def __init__(self, agent: ProjectAgent) -> None:
        self.entered = 0
        self.open = anyio.Event()
        agent.command(self.hold)

    async def hold(self, number: int) -> None:
        self.entered = number
        await self.open.wait()


@in_each_mode
async def test_a_paused_agent_takes_built_in_commands_alone(
    redis_url: str, redis: Redis, console: Console, project: str, mode: str
) -> None:
    """They are found behind others; the others wait in their order, and then run."""
    history = History()
    agent = ProjectAgent(project, redis=redis_url, mode=mode, instance="北京-1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    history.attach(agent)
    async with agent:
        paused = await console.call(project, "pause", {"reason": "发布"})
        assert paused.result == {"instance": "北京-1", "intake": "paused"}
        for _ in range(60):  # more than one read of the list returns
            await history.push(redis, project)
        assert (await console.call(project, "ping")).result == {"pong": True}
        assert agent.stats().intake == "paused"
        assert history.handled == []
        report = (await console.intakes([project]))[project]["北京-1"]
        assert (report.state.value, report.reason) == ("paused", "发布")
        resumed = await console.call(project, "resume")
        assert resumed.result == {"instance": "北京-1", "intake": "open"}
        await eventually(lambda: history.handled == history.pushed)
        await eventually(lambda: not_paused(console, project))
        assert agent.stats().faults == 0
    texts = [record["message"] for record in await records(redis, project)]
    assert texts[0] == "paused: no more commands are taken: 发布"
    assert not [text for text in texts if "trimmed" in text]


async def not_paused(console: Console, project: str) -> bool:
    return not await console.intakes([project])


@in_each_mode
async def test_a_drain_ends_when_no_command_is_in_hand(
    redis_url: str, redis: Redis, console: Console, project: str, mode: str
) -> None:
    """What runs ends, what was prefetched goes back, and SIGTERM then loses nothing."""
    history = History()
    agent = ProjectAgent(project, redis=redis_url, mode=mode, prefetch=4)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    history.attach(agent)
    door = Door(agent)
    await redis.rpush(f"{project}_控制", command_bytes(7, "hold"))
    drained: list[str] = []

    async def drain() -> None:
        outcome = await console.call(project, "drain")
        drained.append(outcome.result["intake"])

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            await history.push(redis, project)
        tasks.start_soon(agent.run)
        await eventually(lambda: door.entered == 7)
        tasks.start_soon(drain)  # it overtakes the five commands
        await eventually(lambda: agent.stats().intake == "draining")
        await eventually(lambda: has_length(redis, project, 5 + (mode == "compat")))
        assert not drained
        door.open.set()
        await eventually(lambda: drained == ["drained"])
        assert agent.stats().intake == "drained"
        await eventually(lambda: has_length(redis, project, 5))
        os.kill(os.getpid(), signal.SIGTERM)
    assert history.handled == []
    assert await history.waiting(redis, project) == history.pushed
    assert await status_of(redis, project) == "离线"
    assert not await redis.exists(intake_key(project))


async def has_length(redis: Redis, project: str, length: int) -> bool:
    return await redis.llen(f"{project}_控制") == length


async def test_pause_and_drain_overtake_a_backlog(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """With every slot taken they are run, and what waits in front of them goes on waiting."""
    history = History()
    agent = ProjectAgent(project, redis=redis_url)
    history.attach(agent)
    door = Door(agent)
    async with agent:
        await agent.ready(5)
        await redis.rpush(f"{project}_控制", command_bytes(7, "hold"))
        for _ in range(3):
            await history.push(redis, project)
        await eventually(lambda: door.entered == 7)
        await console.call(project, "pause")
        door.open.set()
        assert await agent.drain()
        assert agent.stats().intake == "drained"
        agent.resume()
        await eventually(lambda: history.handled == history.pushed)


async def test_a_pause_reaches_an_agent_whose_only_slot_is_held_by_a_thread(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """A plain function runs beyond its time limit, after its outcome was written."""
    agent = ProjectAgent(project, redis=redis_url)
    release = threading.Event()

    @agent.command(timeout=0.1)
    def hang() -> None:
        release.wait(30)

    async with agent:
        await redis.rpush(f"{project}_控制", b'{"command":"hang"}')
        await eventually(lambda: agent.stats().outcomes == {"timed_out": 1})
        try:
            paused = await console.call(project, "pause", timeout=5)
            assert paused.result["intake"] == "paused"
            with anyio.move_on_after(0.3) as waiting:
                await agent.drain()
            assert waiting.cancelled_caught
            assert agent.stats().intake == "draining"
        finally:
            release.set()
        assert await agent.drain()


@pytest.mark.parametrize(
    ("command", "state"), [("resume", "open"), ("pause", "paused")]
)
async def test_a_drain_that_is_ended_by_another_command_is_rejected(
    redis_url: str,
    redis: Redis,
    console: Console,
    project: str,
    command: str,
    state: str,
) -> None:
    """Also while a handler holds every slot; a method of the agent returns false."""
    agent = ProjectAgent(project, redis=redis_url)
    door = Door(agent)
    results: list[object] = []

    async def drain() -> None:
        outcome = await console.call(project, "drain")
        results.append(outcome.error["message"])

    async def drain_here() -> None:
        results.append(await agent.drain())

    async with agent, anyio.create_task_group() as tasks:
        await agent.ready(5)
        await redis.rpush(f"{project}_控制", command_bytes(7, "hold"))
        await eventually(lambda: door.entered == 7)
        tasks.start_soon(drain)
        tasks.start_soon(drain_here)
        await eventually(lambda: agent.stats().intake == "draining")
        await console.call(project, command)
        await eventually(lambda: len(results) == 2)
        door.open.set()
        await eventually(lambda: agent.stats().commands_running == 0)
        assert agent.stats().intake == state
    text = f"before it was empty, the agent became {state}"
    assert sorted(results, key=str) == [False, text]


@pytest.mark.parametrize("mode", ["blocking", "compat", "reliable"])
async def test_a_drain_ends_when_the_agent_is_closed(
    redis_url: str, redis: Redis, project: str, mode: Any
) -> None:
    """The handler is cancelled, so its command has not ended."""
    agent = ProjectAgent(project, redis=redis_url, mode=mode, shutdown_timeout=0.1)
    door = Door(agent)
    results: list[bool] = []

    async def drain() -> None:
        results.append(await agent.drain())

    await redis.rpush(f"{project}_控制", command_bytes(7, "hold"))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks, agent:
            await eventually(lambda: door.entered == 7)
            tasks.start_soon(drain)
            await eventually(lambda: agent.stats().intake == "draining")
    assert results == [False]


@pytest.mark.parametrize("mode", ["blocking", "reliable"])  # compat holds at once
@pytest.mark.parametrize("method", ["pause", "drain"])
async def test_a_pause_that_is_cancelled_is_ended_by_resume(
    own_server: DevServer, admin: Redis, project: str, mode: str, method: str
) -> None:
    """Also if Redis answers nothing at the time: afterwards commands are taken again."""
    history = History()
    agent = ProjectAgent(project, redis=own_server.url, mode=mode)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    history.attach(agent)
    async with agent:
        await agent.ready(5)
        await history.push(admin, project)
        await eventually(lambda: history.handled == [0])
        await admin.client_pause(1_000)
        with anyio.move_on_after(0.2) as scope:
            await getattr(agent, method)()
        assert scope.cancelled_caught
        agent.resume()
        await history.push(admin, project)
        await eventually(lambda: history.handled == [0, 1])


async def test_resume_does_not_wait_for_the_search_of_a_long_list(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """A paused agent reads 400 pages over a slow link, and stops after the next page."""
    history = History()
    await admin.rpush(f"{project}_控制", *map(command_bytes, range(20_000)))

    async def is_searching() -> bool:
        calls = (await admin.info("commandstats")).get("cmdstat_lrange", {})
        return bool(calls.get("calls", 0) > 3)

    async with FaultProxy(own_server.url) as link:
        agent = ProjectAgent(project, redis=link.url)
        history.attach(agent)
        await agent.__aenter__()
        await agent.pause()
        before = len(history.handled)
        async with link.during(Delay(0.02)):
            await eventually(is_searching)
            agent.resume()
            began = anyio.current_time()
            await eventually(lambda: len(history.handled) > before)
            assert anyio.current_time() - began < 4  # 400 pages take 16 s
        await agent.aclose()


async def test_a_command_that_still_stands_in_the_list_is_not_taken_again(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """Mode compat removes ``pause`` from the list after its end, and runs it once."""
    agent = ProjectAgent(project, redis=redis_url, mode="compat")

    @agent.middleware
    async def slow(context: CommandContext, call_next: CallNext) -> object:
        result = await call_next(context)
        await anyio.sleep(0.3)  # several looks at the list
        return result

    async with agent:
        await console.call(project, "pause", create=True)
        assert agent.stats().outcomes == {"succeeded": 1}
    found = await records(redis, project)
    assert not [one for one in found if "trimmed" in one["message"]]


async def test_a_handler_may_drain_its_own_agent(
    redis_url: str, console: Console, project: str
) -> None:
    """It does not wait for itself."""
    agent = ProjectAgent(project, redis=redis_url)
    agent.command("deploy")(agent.drain)
    async with agent:
        await agent.ready(5)
        assert (await console.call(project, "deploy")).result is True


async def test_commands_of_one_id_drain_together(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Each leaves itself out, also inside of a call of invoke."""
    agent = ProjectAgent(project, redis=redis_url, concurrency=2)
    found: list[str] = []
    both = anyio.Event()

    @agent.command
    async def leave() -> None:
        if agent.stats().commands_running == 2:
            both.set()
        await both.wait()
        found.append((await agent.invoke("drain")).kind)

    same = b'{"id":"1","command":"leave"}'
    await redis.rpush(f"{project}_控制", same, same)
    with anyio.fail_after(20):
        async with agent:
            await eventually(lambda: len(found) == 2)
    assert set(found) == {"succeeded"}


async def test_a_task_of_an_ended_handler_waits_for_the_running_ones(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """Its drain leaves no command out, and its aclose returns when the agent is closed."""
    agent = ProjectAgent(project, redis=redis_url, concurrency=2)
    door = Door(agent)
    results: list[bool] = []

    async def stop() -> None:
        results.append(await agent.drain())
        await agent.aclose()
        results.append(agent.stats().open)

    async with agent, anyio.create_task_group() as tasks:

        @agent.command
        async def restart() -> None:
            tasks.start_soon(stop)

        await redis.rpush(f"{project}_控制", command_bytes(7, "hold"))
        await eventually(lambda: door.entered == 7)
        await console.call(project, "restart")
        await console.call(project, "ping")  # taken by an agent that holds already
        assert agent.stats().intake == "draining"
        door.open.set()
        await eventually(lambda: results == [True, False])


async def test_a_pause_outlasts_an_outage(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """A new server knows nothing of it; the agent takes nothing, and says so again."""
    history = History()
    agent = ProjectAgent(project, redis=own_server.url, reconnect_max=0.2)
    history.attach(agent)
    async with agent, Console(own_server.url) as console:
        await agent.ready(5)
        await agent.pause("维护")
        own_server.kill()
        await eventually(lambda: not any(agent.stats().connections.values()))
        own_server.restart()
        await history.push(admin, project)

        async def is_shown() -> bool:
            return project in await console.intakes([project])

        await eventually(is_shown)
        await console.call(project, "ping")
        assert history.handled == []
        await console.call(project, "resume")
        await eventually(lambda: history.handled == [0])


async def test_a_reason_is_shown_without_its_secrets(
    redis_url: str, redis: Redis, project: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the package's own log nor the shown state has the password."""
    caplog.set_level("INFO")
    async with opened(redis_url, project) as agent:
        await agent.pause(f"redis://user:{PASSWORD}@host/0 is away")
        await eventually(lambda: is_there(redis, intake_key(project)))
        shown = await execute(redis, "HVALS", intake_key(project))
    for text in (caplog.text, b"".join(shown).decode()):
        assert "is away" in text
        assert PASSWORD not in text


async def test_replicas(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """A pause reaches all of them, or the one that it names, whoever takes it."""
    names = ["北京-1", "上海-1", "广州-1"]
    async with AsyncExitStack() as stack:
        agents = {
            name: await stack.enter_async_context(
                opened(redis_url, project, replicas=True, instance=name)
            )
            for name in names
        }

        def states() -> list[str]:
            return [agents[name].stats().intake for name in names]

        for instance in names[:2]:  # none of them has to be the one that takes it
            outcome = await console.call(project, "drain", {"instance": instance})
            assert outcome.result == {"instance": instance, "intake": "drained"}
        assert states() == ["drained", "drained", "open"]
        assert sorted((await console.intakes([project]))[project]) == names[:2][::-1]
        outcome = await console.call(project, "pause", {"instance": "深圳-1"})
        assert outcome.kind.value == "rejected"
        assert "no living replica is called '深圳-1'" in outcome.error["message"]
        await redis.rpush(f"{project}_控制", b'{"command":"resume"}')
        await eventually(lambda: states() == ["open"] * 3)
        await redis.rpush(f"{project}_控制", b'{"command":"pause"}')
        await eventually(lambda: states() == ["paused"] * 3)
        ended = await console.call_all(project, "resume", timeout=10)
        assert sorted(ended) == sorted(names)


@needs_selectors
async def test_a_pause_without_the_right_to_look_is_rejected(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Because ``resume`` would not be found; the method works, and so does its end."""
    keys = f"(+@all ~{project}_项目控制台 ~{project}_项目状态 ~*intake)"
    url = await url_with_rights(
        admin, own_server, "+client", "+select", "+ping", "+time", keys,
        f"(+blpop +lpush ~{project}_控制)",
    )  # fmt: skip
    history = History()
    agent = ProjectAgent(project, redis=url)
    history.attach(agent)
    async with agent, Console(own_server.url) as console:
        outcome = await console.call(project, "pause", create=True)
        assert "could not take 'resume' here" in outcome.error["message"]
        assert agent.stats().intake == "open"
        await agent.pause()
        await history.push(admin, project)
        await eventually(lambda: is_shown_as_paused(console, project))
        assert history.handled == []
        agent.resume()
        await eventually(lambda: history.handled == [0])


async def is_shown_as_paused(console: Console, project: str) -> bool:
    return bool(await console.intakes([project]))


async def held(
    admin: Redis, url: str, project: str, *, behind: int
) -> tuple[ProjectAgent, History, Door]:
    """Make an agent that will prefetch commands behind one that waits at the door."""
    history = History()
    agent = ProjectAgent(project, redis=url, prefetch=behind + 1)
    history.attach(agent)
    door = Door(agent)
    await admin.rpush(f"{project}_控制", command_bytes(7, "hold"))
    for _ in range(behind):
        await history.push(admin, project)
    return agent, history, door


async def test_a_pause_that_is_cancelled_puts_the_prefetched_commands_back(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Redis answers later: they are in the queue, and not reported as cancelled."""
    agent, history, door = await held(admin, own_server.url, project, behind=3)
    async with agent:
        await eventually(lambda: door.entered == 7)
        await admin.client_pause(2_500)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(agent.pause(), 0.2)
        await eventually(lambda: has_length(admin, project, 3))
        assert agent.stats().outcomes == {}
        agent.resume()
        door.open.set()
        await eventually(lambda: history.handled == history.pushed)


async def test_what_redis_does_not_take_back_is_run(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Without the right to LPUSH the prefetched commands are run, each once."""
    url = await url_with_rights(admin, own_server, "~*", "+@all", "-lpush")
    agent, history, door = await held(admin, url, project, behind=3)
    async with agent:
        await eventually(lambda: door.entered == 7)
        await agent.pause()
        await history.push(admin, project)
        door.open.set()
        assert await agent.drain()
        assert history.handled == history.pushed[:3]
    await history.check(admin, project)


async def test_what_redis_may_have_taken_back_is_not_run(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """The reply is lost: a prefetched command that is also in the queue runs once."""
    async with FaultProxy(own_server.url) as link:
        agent, history, door = await held(admin, link.url, project, behind=2)
        async with agent:
            await eventually(lambda: door.entered == 7)
            await eventually(lambda: has_length(admin, project, 0))
            link.arm(Cut(direction=Direction.REPLIES, command="LPUSH"))
            await agent.pause()
            assert link.fired
            assert agent.stats().outcomes == {"cancelled": 2}
            assert await history.waiting(admin, project) == history.pushed
            agent.resume()
            door.open.set()
            await eventually(lambda: history.handled == history.pushed)
    await history.check(admin, project)


async def test_how_long_a_report_is_valid(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Half a minute, so that a killed process is not shown as paused for longer."""
    async with opened(redis_url, project) as agent:
        await agent.pause()
        await eventually(lambda: is_there(redis, intake_key(project)))
        (report,) = await redis.hvals(intake_key(project))
        now = (await redis.time())[0]
        assert now + 20 < orjson.loads(report)["until"] / 1000 <= now + 31
        assert 20_000 < await redis.pttl(intake_key(project)) <= 30_000


def test_a_report_that_has_expired_or_cannot_be_read_is_left_out() -> None:
    """A killed process is not shown for ever, and a broken report hides no other one."""
    good = {"state": "paused", "since": 1_000, "until": 3_000, "inHand": 2}
    entries = [
        *(b"a", encode(good)),
        *(b"b", encode(good | {"until": 2_000})),
        *(b"c", encode(good | {"state": "open"})),
        *(b"d", encode(good | {"state": "x"})),
        *(b"e", b"no JSON"),
        *(b"f", orjson.dumps({"state": "drained", "until": 3_000, "since": "x"})),
    ]
    found = read_reports(entries, 2.0)
    assert list(found) == ["a", "f"]
    assert describe_reports(found)[0] == {
        "instance": "a",
        "state": "paused",
        "reason": "",
        "since": "1970-01-01T00:00:01.000Z",
        "age": 1.0,
        "inHand": 2,
    }
