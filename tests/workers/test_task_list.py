"""Every task of a server, whatever its keys hold, and never too many."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, RedisRefusedError, RedisUnavailableError
from bls_agent.devserver import DevServer
from bls_agent.workers import (
    BacktestProgress,
    Task,
    TaskList,
    TaskState,
    TaskStatus,
    WorkerRegistry,
)
from bls_agent.workers.task_list import merge_tasks
from bls_agent.workers.tasks import find_state
from tests.harness import url_with_rights
from tests.workers.test_tasks import CORPUS

STATUS, PROGRESS = "ginkgo:task_status:", "backtest:task:"


def progress_key(task_id: str) -> str:
    return f"{PROGRESS}{task_id}:progress"


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("running", TaskState.RUNNING), ("In-Progress", TaskState.RUNNING),
        ("回测中", TaskState.RUNNING), ("排队中", TaskState.WAITING),
        ("PENDING", TaskState.WAITING), ("timed out", TaskState.FAILED),
        ("失败", TaskState.FAILED), ("done", TaskState.DONE), ("已完成", TaskState.DONE),
        ("cancelled", TaskState.OTHER), ("", TaskState.OTHER),
    ],
)  # fmt: skip
def test_a_status_has_a_state(status: str, state: TaskState) -> None:
    """By the usual words of both languages; another word is shown as it is."""
    assert find_state(status) is state


def task(payload: str) -> Task:
    return Task.decode("均线-7", payload.encode())


@pytest.mark.parametrize(
    ("progress", "status", "state", "percent", "problem"),
    [
        # the newer write of each field counts, whichever key it is in
        ('{"status":"running","progress":42,"timestamp":"2026-01-12T12:00:09Z"}',
         '{"status":"running","progress":0,"worker":"w","timestamp":"2026-01-12T12:00:00Z"}',
         "running", 42, ""),
        ('{"status":"running","progress":90,"timestamp":"2026-01-12T12:00:00Z"}',
         '{"status":"done","timestamp":"2026-01-12T12:00:09Z"}', "done", 90, ""),
        ('{"status":"running","progress":90}', '{"status":"failed"}', "failed", 90, ""),
        ('{"progress":7}', "done", "done", 7, ""),  # a bare status is a status
        # one of the keys cannot be read, or none
        ('{"status":"run', '{"status":"done"}', "done", None, "not_json"),
        ('{"progress":7}', "[1]", "other", 7, "not_an_object"),
        ("[1]", '{"status":"run', "broken", None, "not_an_object"),
        ('{"progress":7}', "{}", "other", 7, "no_status"),
    ],
)  # fmt: skip
def test_two_keys_of_one_task(
    progress: str, status: str, state: str, percent: float | None, problem: str
) -> None:
    """Whatever is half there is shown, with the problem beside it."""
    merged = merge_tasks([task(progress), task(status)])
    assert (merged.state, merged.progress, merged.problem) == (state, percent, problem)


def test_ages() -> None:
    """From the time of the write; one in the future is now, an unknown one is unknown."""
    written = task('{"status":"x","timestamp":"2026-01-12T00:00:00Z"}')
    assert written.timestamp is not None
    then = written.timestamp.timestamp()
    assert (written.age(then + 7), written.age(then - 7)) == (7, 0)
    assert task('{"status":"x"}').age(then) is None


async def look(url: str, limit: int = 10_000) -> TaskList:
    async with WorkerRegistry(url) as registry:
        return await registry.tasks(limit)


async def test_every_task_is_found(own_server: DevServer, admin: Redis) -> None:
    """With the worst first; what others wrote hides nothing, and nothing is written."""
    async with TaskStatus(own_server.url) as tasks:
        await tasks.set("均线-7", "running", worker="回测-1", progress=0)
        await tasks.set("均线-8", "排队")
    async with BacktestProgress(own_server.url) as backtests:
        await backtests.set("均线-7", 42.5)
        await backtests.set("只有进度", 7)
    for name, (payload, *_) in CORPUS.items():
        await admin.set(f"{STATUS}{name}", payload, ex=60)
    await admin.rpush(f"{STATUS}列表", "x")
    await admin.set(f"{STATUS}大", b'{"status":"running","x":"' + b"x" * 70_000 + b'"}')
    await admin.mset({f"foreign:{n}": "x" for n in range(2_000)})
    await admin.mset({"backtest:task:x": "{}", "ginkgo:task_statuses:x": "{}"})
    before = (await admin.info("persistence"))["rdb_changes_since_last_save"]
    found = await look(own_server.url)
    assert found.complete
    by_id = {task.id: task for task in found.tasks}
    assert by_id.keys() == {*CORPUS, "均线-7", "均线-8", "只有进度", "列表", "大"}
    states = [task.state for task in found.tasks]
    assert states == sorted(states, key=[*TaskState].index)
    seven = by_id["均线-7"]
    assert (seven.state, seven.progress, seven.worker) == ("running", 42.5, "回测-1")
    assert (by_id["列表"].problem, by_id["大"].problem) == ("wrong_type", "too_large")
    assert len(by_id["大"].raw or "") == 4_096
    assert by_id["empty"].state is TaskState.BROKEN  # not taken for an expired key
    assert (await admin.info("persistence"))["rdb_changes_since_last_save"] == before
    assert "cmdstat_keys" not in await admin.info("commandstats")


async def test_no_more_than_the_limit(own_server: DevServer, admin: Redis) -> None:
    """A read is bounded, and tells that there is more."""
    await admin.mset({f"{STATUS}{n}": "running" for n in range(30)})
    await admin.mset({progress_key(str(n)): '{"progress":1}' for n in range(30)})
    for limit, complete in ((29, False), (30, True), (10_000, True)):
        found = await look(own_server.url, limit)
        assert (len(found.tasks), found.complete) == (min(limit, 30), complete)
    for wrong in (0, 10_001):
        with pytest.raises(ConfigurationError, match="limit"):
            await look("redis://127.0.0.1:1", wrong)


async def test_outage_and_rights(own_server: DevServer, admin: Redis) -> None:
    """Down is not empty; what may not be read is left out."""
    assert await look(own_server.url) == ([], True)
    await admin.set(f"{STATUS}1", "running", ex=60)
    await admin.set(progress_key("2"), '{"progress":1}', ex=60)
    rights = ("+scan", "+getrange", "+pttl", f"~{PROGRESS}*")
    url = await url_with_rights(admin, own_server, *rights)
    assert [task.id for task in (await look(url)).tasks] == ["2"]
    await admin.delete(progress_key("2"))
    with pytest.raises(RedisRefusedError, match="no_permission"):
        await look(url)
    own_server.kill()
    with pytest.raises(RedisUnavailableError):
        await look(own_server.url)
