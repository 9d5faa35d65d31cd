"""The fleet on real servers: what is told of agents and of bare keys, and when."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import (
    ProjectAgent,
    RedisRefusedError,
    RedisUnavailableError,
    Status,
)
from bls_agent.devserver import DevServer
from bls_agent.ops.fleet import Fleet, FleetChange, Presence, ProjectView
from tests.harness import eventually, execute, needs_selectors

DOCUMENT = Path(__file__).parents[2] / "docs" / "rights.md"
GBK = "订单".encode("gbk")
QUICK = 0.02


class Watching:
    """A watch in a task of its own, and what it has told."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.views: dict[str, ProjectView] = {}
        self.changes: list[FleetChange] = []
        self.error: RedisRefusedError | None = None
        self._moved = anyio.Event()

    async def run(self) -> None:
        try:
            async for change in self.fleet.watch():
                self.changes.append(change)
                self.views.update(change.views)
                for project in change.removed:
                    del self.views[project]
                self._wake()
        except RedisRefusedError as error:
            self.error = error
            self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    async def until(self, condition: Callable[[], Any], timeout: float = 20.0) -> None:
        """Wait until what was told fits."""
        with anyio.fail_after(timeout):
            while not condition():
                await self._moved.wait()

    async def until_view(self, project: str, **expected: object) -> ProjectView:
        """Wait until a project is told with these values."""

        def fits() -> bool:
            view = self.views.get(project)
            return view is not None and all(
                getattr(view, name) == value for name, value in expected.items()
            )

        await self.until(fits)
        return self.views[project]

    @property
    def outages(self) -> int:
        """How many were told."""
        return sum(change.unavailable is not None for change in self.changes)


@pytest.fixture(autouse=True)
def _quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bls_agent.ops.fleet.fleet.INTERVAL", QUICK)


@pytest.fixture
async def watching(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Watching]:
    """A quick watch over a server of this test alone."""
    for pause in ("LISTS", "SEARCH"):
        monkeypatch.setattr(f"bls_agent.ops.fleet.fleet.{pause}", QUICK)
    async with Fleet(own_server.url) as fleet:
        watching = Watching(fleet)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watching.run)
            yield watching
            tasks.cancel_scope.cancel()


async def plant(admin: Redis) -> None:
    """Keys as bare redis-cli writes them."""
    await admin.set("没有期限_项目状态", "在线")
    await admin.set("有期限_项目状态", "报错", ex=30)
    await admin.set("英文_项目状态", "online", ex=60)
    await admin.set("巨大_项目状态", b"x" * 1_000_000)
    await admin.rpush("列表_项目状态", "在线")
    await admin.set("坏日志_项目控制台", "no list")
    await admin.set("坏队列_控制", "no list")
    await admin.set(GBK + "_项目状态".encode(), "离线")
    await admin.rpush(
        "只有日志_项目控制台", "no JSON", '{"level":"ERROR","message":"x"}', "\x1b"
    )
    await admin.rpush("只有命令_控制", "a", "b")
    await admin.set("bls_agent:{x_控制}:owner", "ours")
    await admin.mset({f"other:{number}": "x" for number in range(3_000)})


async def test_a_look_at_foreign_keys(own_server: DevServer, admin: Redis) -> None:
    """Whatever bare redis-cli has written is shown as it is, and nothing is written."""
    await plant(admin)
    written = (await admin.info("persistence"))["rdb_changes_since_last_save"]
    async with Fleet(own_server.url) as fleet:
        views = await fleet.look()
    gbk = GBK.decode("utf-8", "surrogateescape")
    assert list(views) == sorted(views)
    told = {name: (view.status, view.presence) for name, view in views.items()}
    assert told == {
        "没有期限": (Status.ONLINE, Presence.UNTIMED),
        "有期限": (Status.ERROR, Presence.FRESH),
        "英文": (None, Presence.FRESH),
        "巨大": (None, Presence.UNTIMED),
        "列表": (None, Presence.UNTIMED),
        "坏日志": (None, Presence.STALE),
        "坏队列": (None, Presence.NEVER),
        gbk: (Status.OFFLINE, Presence.UNTIMED),
        "只有日志": (None, Presence.STALE),
        "只有命令": (None, Presence.NEVER),
    }
    assert views["英文"].status_text == "online"
    assert views["巨大"].status_text == "x" * 64
    assert views["列表"].status_text == "WRONGTYPE"
    assert (views["坏日志"].records, views["坏队列"].queue) == (None, None)
    assert views["只有命令"].queue == 2
    logged = views["只有日志"]
    assert (logged.records, logged.queue) == (3, 0)
    assert logged.last_error
    assert logged.last_error.message == "x"
    assert logged.last_record
    assert logged.last_record.message == "\x1b"
    assert (await admin.info("persistence"))["rdb_changes_since_last_save"] == written


async def test_a_look_at_an_agent(own_server: DevServer) -> None:
    """Status, age, queue, log and errors of an agent that has just begun."""
    agent = ProjectAgent("订单系统", redis=own_server.url)
    async with agent, Fleet(own_server.url) as fleet:
        await agent.ready(10)
        for number in range(9):
            agent.log.info(f"line {number}")
        agent.log.error("boom")
        agent.log.info("after")
        await agent.flush(10)
        view = (await fleet.look())["订单系统"]
    assert (view.status, view.presence) == (Status.ONLINE, Presence.FRESH)
    assert view.age is not None
    assert 0.0 <= view.age < 10.0
    assert view.ttl
    assert view.age + view.ttl == pytest.approx(60.0)
    assert (view.queue, view.records, sum(view.rates), view.errors) == (0, 11, 11, 1)
    assert view.last_record
    assert view.last_error
    assert (view.last_record.message, view.last_error.message) == ("after", "boom")
    assert view.last_record_age is not None
    assert view.last_record_age < 10.0


async def test_changes_are_told(watching: Watching, admin: Redis) -> None:
    """The first is complete, also of nothing; then each new thing, and only that."""
    await watching.until(lambda: watching.changes)
    assert watching.changes == [FleetChange()]
    await admin.set("仓库_项目状态", "在线", ex=60)
    first = await watching.until_view("仓库", status=Status.ONLINE)
    await admin.set("仓库_项目状态", "故障", ex=60)
    second = await watching.until_view("仓库", status=Status.FAULT)
    assert second.changed_at > first.changed_at
    assert second.age_exact or second.age == pytest.approx(0.0, abs=1.0)
    told = len(watching.changes)
    await admin.set("支付_项目状态", "在线", ex=60)
    await watching.until_view("支付", status=Status.ONLINE)
    assert [set(change.views) for change in watching.changes[told:]] == [{"支付"}]
    # Records come last, because every ten seconds their rates are a change, too.
    await admin.rpush("仓库_控制", "{}")
    await watching.until_view("仓库", queue=1)
    await admin.rpush("仓库_项目控制台", '{"level":"error","message":"x"}', "{}", "{}")
    view = await watching.until_view("仓库", records=3, errors=1)
    assert sum(view.rates) == 3
    await admin.delete("仓库_项目状态")
    await watching.until_view("仓库", presence=Presence.STALE, status=None)


async def test_an_agent_that_is_killed_and_one_that_ends(
    watching: Watching, own_server: DevServer, admin: Redis
) -> None:
    """A last word stays without TTL; a status that nobody refreshes becomes stale."""
    agent = ProjectAgent("订单系统", redis=own_server.url, status_interval=0.2)
    async with agent:
        view = await watching.until_view("订单系统", status=Status.ONLINE)
        assert view.presence is Presence.FRESH
        await watching.until_view("订单系统", age_exact=True)
    await watching.until_view(
        "订单系统", status=Status.OFFLINE, presence=Presence.UNTIMED, ttl=None
    )
    await admin.set("仓库_项目状态", "在线", px=300)
    await watching.until_view("仓库", status=Status.ONLINE)
    await watching.until_view("仓库", status=None, presence=Presence.STALE)


async def test_an_outage_is_told_once(
    watching: Watching,
    own_server: DevServer,
    admin: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once and once; then it goes on by itself and says so, with what is new."""
    tries: list[None] = []
    advance = watching.fleet._advance

    async def count() -> None:
        tries.append(None)
        await advance()

    monkeypatch.setattr(watching.fleet, "_advance", count)
    await admin.set("仓库_项目状态", "在线")
    await watching.until_view("仓库", status=Status.ONLINE)
    for number in (1, 2):
        own_server.kill()
        await watching.until(lambda: watching.changes[-1].unavailable)
        last = watching.changes[-1]
        assert last.unavailable
        assert (dict(last.views), last.removed) == ({}, frozenset())
        tried = len(tries)
        await eventually(lambda: len(tries) >= tried + 4)  # noqa: B023 - of this turn
        assert watching.outages == number
        own_server.restart()
        await watching.until(lambda: watching.changes[-1].unavailable is None)
        assert watching.views["仓库"].status is Status.ONLINE
    async with Redis.from_url(own_server.url, protocol=2) as client:
        await client.set("仓库_项目状态", "报错")
    await watching.until_view("仓库", status=Status.ERROR)


async def test_down_is_not_empty(own_server: DevServer) -> None:
    """Away from the start: look raises, watch says so first and then tells everything."""
    own_server.kill()
    async with Fleet(own_server.url) as fleet:
        with pytest.raises(RedisUnavailableError):
            await fleet.look()
        watching = Watching(fleet)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watching.run)
            await watching.until(lambda: watching.outages)
            own_server.restart()
            await watching.until(lambda: len(watching.changes) == 2)
            assert watching.changes[1] == FleetChange()
            tasks.cancel_scope.cancel()
        assert await fleet.look() == {}


async def test_what_is_refused_is_raised(own_server: DevServer, admin: Redis) -> None:
    """A missing right is no outage: look and watch raise it and say which."""
    rules = ["on", ">x", "~*", "+@all", "-pttl"]
    await execute(admin, "ACL", "SETUSER", "viewer", *rules)
    await admin.set("仓库_项目状态", "在线")
    url = own_server.url.replace("//", "//viewer:x@")
    async with Fleet(url) as fleet:
        with pytest.raises(RedisRefusedError, match="pttl"):
            await fleet.look()
        watching = Watching(fleet)
        with anyio.fail_after(10):
            await watching.run()
        assert watching.error
        assert watching.changes == []
        await execute(admin, "ACL", "SETUSER", "viewer", "+pttl")
        assert list(await fleet.look()) == ["仓库"]


def documented_rules() -> list[str]:
    """The rights of a fleet, as the document lists them."""
    lines = DOCUMENT.read_text("utf-8").partition("\n### A fleet\n")[2]
    rules = lines.partition("```text\n")[2].partition("\n```")[0]
    return [word.strip() for word in re.findall(r"\([^)]*\)|[^\s()]+", rules)]


@needs_selectors
async def test_the_rights_of_the_document_are_enough(
    own_server: DevServer, admin: Redis
) -> None:
    """With them everything is seen that is seen without limits, and nothing is refused."""
    await plant(admin)
    rules = ["on", ">x", *documented_rules()]
    await execute(admin, "ACL", "SETUSER", "viewer", *rules)
    url = own_server.url.replace("//", "//viewer:x@")
    async with Fleet(url) as fleet, Fleet(own_server.url) as free:
        seen, all_of_it = await fleet.look(), await free.look()
    assert seen.keys() == all_of_it.keys()
    assert all(seen[name].queue == all_of_it[name].queue for name in seen)
    assert all(seen[name].last_record == all_of_it[name].last_record for name in seen)
    assert not await execute(admin, "ACL", "LOG")


@needs_selectors
async def test_projects_that_may_not_be_read_are_left_out(
    own_server: DevServer, admin: Redis
) -> None:
    """Rights for one project: that one is seen, though SCAN tells of all; and its queue not."""
    await plant(admin)
    await admin.rpush("有期限_控制", "{}")
    rules = [word.replace("*", "有期限") for word in documented_rules()]
    rules = ["on", ">x", *(word for word in rules if "控制)" not in word)]
    await execute(admin, "ACL", "SETUSER", "viewer", *rules)
    url = own_server.url.replace("//", "//viewer:x@")
    async with Fleet(url) as fleet:
        (view,) = (await fleet.look()).values()
        assert (view.project, view.status) == ("有期限", Status.ERROR)
        assert view.queue is None
        async for change in fleet.watch():
            assert set(change.views) == {"有期限"}
            break
    await admin.delete("有期限_项目状态", "有期限_控制")
    async with Fleet(url) as fleet:
        with pytest.raises(RedisRefusedError):
            await fleet.look()


async def test_projects_come_and_go(
    watching: Watching, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nothing is left of is told as gone, and nothing of it is kept."""
    monkeypatch.setattr("bls_agent.ops.fleet.project_state.KEPT", 0.1)
    names = [f"短命{number}" for number in range(500)]
    await admin.mset({f"{name}_项目状态": "在线" for name in names})
    await admin.set("长命_项目状态", "在线")
    await watching.until(lambda: len(watching.views) == 501)
    await admin.delete(*[f"{name}_项目状态" for name in names])
    await watching.until(lambda: set(watching.views) == {"长命"})
    assert list(watching.fleet._projects) == ["长命"]
    gone = [name for change in watching.changes for name in change.removed]
    assert sorted(gone) == sorted(names)


async def test_several_watch_one_fleet(own_server: DevServer, admin: Redis) -> None:
    """Each is told everything; a look in between takes nothing from them."""
    await admin.set("仓库_项目状态", "在线")
    async with Fleet(own_server.url) as fleet:
        several = [Watching(fleet) for _ in range(3)]
        async with anyio.create_task_group() as tasks:
            for watching in several:
                tasks.start_soon(watching.run)
            for watching in several:
                await watching.until_view("仓库", status=Status.ONLINE)
            await admin.set("仓库_项目状态", "故障")
            assert (await fleet.look())["仓库"].status is Status.FAULT
            for watching in several:
                await watching.until_view("仓库", status=Status.FAULT)
            tasks.cancel_scope.cancel()
        assert len(await admin.client_list()) == 2


async def test_left_in_the_middle(own_server: DevServer, admin: Redis) -> None:
    """Cancelled at any moment, the fleet can be looked at again and closes cleanly."""
    await admin.mset({f"名{number}_项目状态": "在线" for number in range(600)})
    fleet = Fleet(own_server.url)
    for number in range(12):
        fleet = Fleet(own_server.url)
        async with fleet:
            with anyio.move_on_after(0.002 * number):
                async for _ in fleet.watch():
                    pass
            async for change in fleet.watch():
                assert len(change.views) == 600
                break
    await fleet.aclose()
    assert len(await fleet.look()) == 600
    await fleet.aclose()


async def test_every_look_is_complete(
    own_server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only the first: it searches through all keys, however many steps that takes."""
    monkeypatch.setattr("bls_agent.ops.fleet.fleet.STEPS", 1)
    await plant(admin)
    async with Fleet(own_server.url) as fleet:
        found = len(await fleet.look())
        for number in range(20):
            await admin.set(f"名{number}_项目状态", "在线")
            assert len(await fleet.look()) == found + number + 1


async def test_a_new_project_is_read_at_once(
    own_server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the interval: nobody is told of a project that was not read yet."""
    monkeypatch.setattr("bls_agent.ops.fleet.fleet.INTERVAL", 60.0)
    async with Fleet(own_server.url) as fleet:
        assert await fleet.look() == {}
        await admin.set("仓库_项目状态", "在线")
        await admin.rpush("仓库_控制", "{}")
        await admin.rpush("bls_agent:{仓库_控制}:dead", "{}", "{}")
        fleet._search_at = float("-inf")
        async for change in fleet.watch():
            assert change.views["仓库"].status is Status.ONLINE
            assert change.views["仓库"].queue == 1
            assert change.views["仓库"].dead_letters == 2
            break


async def test_the_clock_is_read_as_often_as_the_lists(
    own_server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a round begins a little before the second is over."""
    monkeypatch.setattr("bls_agent.ops.fleet.fleet.LISTS", 0.1)
    monkeypatch.setattr("bls_agent.ops.fleet.fleet.INTERVAL", 0.085)
    await admin.set("仓库_项目状态", "在线")
    await admin.config_resetstat()

    async def calls_of(name: str) -> int:
        found: dict[str, Any] = await admin.info("commandstats")
        return int(found.get(f"cmdstat_{name}", {}).get("calls", 0))

    async def are_read_often() -> bool:
        return await calls_of("hgetall") >= 12

    async with Fleet(own_server.url) as fleet, anyio.create_task_group() as tasks:
        tasks.start_soon(Watching(fleet).run)
        await eventually(are_read_often)
        assert await calls_of("time") >= 10
        tasks.cancel_scope.cancel()


async def test_without_the_servers_clock(own_server: DevServer, admin: Redis) -> None:
    """Where TIME is refused our own clock must do."""
    await admin.rpush("仓库_项目控制台", '{"timestamp":"2026-01-12T12:35:00.000Z"}')
    rules = ["on", ">x", "~*", "+@all", "-time"]
    await execute(admin, "ACL", "SETUSER", "viewer", *rules)
    async with Fleet(own_server.url.replace("//", "//viewer:x@")) as fleet:
        fleet._clock = lambda: 1_768_221_307.0
        view = (await fleet.look())["仓库"]
        assert view.last_record_age == pytest.approx(7.0, abs=0.5)


async def test_redis_goes_away_during_the_first_search(
    own_server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not searched through is not taken for all there is."""
    await plant(admin)
    async with Fleet(own_server.url) as fleet:
        scan = fleet._scan

        async def break_off() -> AsyncIterator[set[str]]:
            async for names in scan():
                yield names
                raise RedisUnavailableError("connection", "cut")

        monkeypatch.setattr(fleet, "_scan", break_off)
        with pytest.raises(RedisUnavailableError):
            await fleet.look()
        monkeypatch.setattr(fleet, "_scan", scan)
        async for change in fleet.watch():
            assert len(change.views) == 10
            break


async def test_closed_while_somebody_looks(own_server: DevServer, admin: Redis) -> None:
    """Closing waits for the step that is under way, and the look ends or goes on."""
    await admin.mset({f"other:{number}": "x" for number in range(20_000)})
    await admin.set("仓库_项目状态", "在线")
    for number in range(20):
        fleet = Fleet(own_server.url)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fleet.look)
            await anyio.sleep(0.001 * number)
            await fleet.aclose()
        await fleet.aclose()


async def test_many_floods_share_what_may_be_read(
    own_server: DevServer, admin: Redis
) -> None:
    """A hundred projects that all log a lot: a look reads two megabytes, not thirty."""
    names = [f"洪水{number}" for number in range(100)]
    record = '{"level":"info","message":"%s"}' % ("x" * 500)
    async with Fleet(own_server.url) as fleet:
        for name in names:
            await admin.rpush(f"{name}_项目控制台", *[record] * 600, "{}")
        await fleet.look()
        for name in names:
            await admin.rpush(f"{name}_项目控制台", *[record] * 600, "{}")
        before = (await admin.info("stats"))["total_net_output_bytes"]
        views = await fleet.look()
        read = (await admin.info("stats"))["total_net_output_bytes"] - before
    assert read < 2_500_000
    assert all(views[name].at_least for name in names)
    assert {sum(views[name].rates) for name in names} == {39}  # what fits into 2 MB
