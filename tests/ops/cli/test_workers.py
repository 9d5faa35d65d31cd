"""``bls-agent workers``: who is there, in words, as JSON, at a terminal, and by exit code."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import anyio.to_thread
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent.devserver import DevServer
from bls_agent.ops.cli.commands.workers import (
    WORKERS,
    arrange_workers,
    count_workers,
    find_kind,
    task_cells,
    worker_cells,
)
from bls_agent.ops.texts import load_texts
from bls_agent.workers import (
    BacktestWorkerHeartbeat,
    ExecutionNodeHeartbeat,
    GenericHeartbeat,
    SchedulerHeartbeat,
    Task,
    TaskState,
    TaskStatus,
    Worker,
    WorkerStatus,
)
from bls_agent.workers.worker import HEARTBEATS
from tests.corpus.hostile_texts import HOSTILE_TEXTS
from tests.corpus.loader import load_heartbeats
from tests.ops.cli.conftest import Bls
from tests.ops.cli.terminal import (
    SGR,
    live_table,
    obeyed,
    show,
    start_piped,
)

TEXTS = load_texts("cli", "en")
GBK = "订单".encode("gbk")


def worker(beat: Any, ttl: float | None = 29.0) -> Worker:
    """What a look finds of a heartbeat."""
    return Worker.read(beat.kind, beat.key.encode(), beat.to_json().encode(), ttl)


def cells_of(worker: Worker, **options: Any) -> list[Any]:
    """Its cells, in the order of the table."""
    cells = worker_cells(worker, TEXTS, **options)
    assert [*cells] == [*WORKERS.fields]
    return [*cells.values()]


def broken(name: str, payload: bytes | None, ttl: float | None = 29.0) -> Worker:
    """What a look finds of something else."""
    key = f"heartbeat:node:{name}".encode()
    return Worker.read("execution_node_heartbeat", key, payload, ttl)


WELL = worker(BacktestWorkerHeartbeat.create("回测-1", running_tasks=2, max_tasks=5))
OWN = worker(
    GenericHeartbeat(kind_name="下载", worker_id="上海-1", own={"页": 3}), 28.0
)
BUSY = worker(SchedulerHeartbeat.create("调度-1", running_tasks=3, pending_tasks=4))
STALE = worker(BacktestWorkerHeartbeat.create("回测-2"), ttl=9.0)
ERROR = worker(ExecutionNodeHeartbeat.create("执行-1", "a", 1, WorkerStatus.ERROR))


async def plant(admin: Redis, *, well: bool = False) -> None:
    """A worker that is well, and ones that are not."""
    await admin.set(WELL.key, WELL.payload, ex=30)
    if not well:
        await admin.set(STALE.key, STALE.payload, ex=10)
        await admin.set(ERROR.key, ERROR.payload, ex=30)
        await admin.rpush("heartbeat:node:列表", "x")


# --- in words


def test_the_worst_comes_first() -> None:
    """Broken, in error, stale, the others; then by kind and id."""
    odd = broken("坏", b"[]")
    ordered = arrange_workers([BUSY, WELL, STALE, ERROR, odd])
    assert ordered == [odd, ERROR, STALE, WELL, BUSY]
    told = "Workers: 5, broken or in error: 2, stale: 1"
    assert count_workers(ordered, TEXTS) == told


def test_who_is_well() -> None:
    """Whoever can be believed and is not in error; one without TTL cannot be."""
    assert [one.healthy for one in (WELL, BUSY, STALE, ERROR)] == [
        True,
        True,
        False,
        False,
    ]
    assert not worker(BacktestWorkerHeartbeat.create("x"), ttl=None).healthy
    stopping = BacktestWorkerHeartbeat.create("x", WorkerStatus.STOPPING)
    assert worker(stopping).healthy


def test_the_cells_for_people() -> None:
    """Kinds, statuses and problems in words; what else it says, cut."""
    assert cells_of(WELL) == [
        "回测-1", ("running", "green"), "", "1s", "backtest worker", "2/5", "task_uuids=[]",
    ]  # fmt: skip
    assert cells_of(ERROR)[1:3] == [("error", "bold red"), ""]
    assert cells_of(STALE)[2:4] == [("stale", "bold yellow"), "21s"]
    assert cells_of(BUSY)[4:] == [
        "scheduler",
        "3",
        "pending_tasks=4",
    ]
    assert cells_of(OWN) == [
        "上海-1", ("running", "green"), "", "2s", "下载", "-", "页=3",
    ]  # fmt: skip
    busy = Worker.read(OWN.row, OWN.key.encode(), '{"status":"忙"}'.encode(), 25.0)
    assert cells_of(busy)[1] == "忙"
    large = broken("大", b'{"status": "?", "note": "' + b"x" * 9_000 + b'"}', None)
    cells = cells_of(large)
    assert cells[1:4] == [("invalid: ?", "bold red"), ("wrong field", "bold red"), "-"]
    assert len(cells[6]) <= 200
    zh = worker_cells(WELL, load_texts("cli", "zh"))
    assert (zh["status"], zh["kind"]) == (("running 运行中", "green"), "回测工作进程")


def test_the_cells_for_programs() -> None:
    """The contract's words, problems in one word, nothing cut."""
    cells = cells_of(broken("坏", b"alive " * 100), people=False)
    assert cells[:6] == [
        "坏",
        "-",
        ("not_json", "bold red"),
        "1s",
        "execution_node",
        "-",
    ]
    assert orjson.loads(str(cells[6])) == {"raw": "alive " * 100}
    assert cells_of(WELL, people=False)[1] == ("running", "green")


def test_narrow_terminals_drop_what_matters_least() -> None:
    """Who, how, and what is wrong stay at any width."""
    assert WORKERS.fitting(20) == ["id", "status", "problem"]
    assert WORKERS.fitting(200) == [*WORKERS.fields]


@pytest.mark.parametrize(
    ("word", "row"),
    [
        ("backtest_worker", "backtest_worker_heartbeat"),
        ("backtest_worker_heartbeat", "backtest_worker_heartbeat"),
        ("Backtest-Worker", "backtest_worker_heartbeat"),
        ("data", "data_worker_heartbeat"),
        ("s", "scheduler_heartbeat"),
        ("下载-Alt", "下载-Alt"),
        ("", None),
    ],
)
def test_a_kind_is_found_by_its_beginning(word: str, row: str | None) -> None:
    """As people type it; any other word is a kind of somebody's own."""
    assert find_kind(word) == row


def test_every_kind_and_problem_has_a_word() -> None:
    """Also those of the corpus."""
    kinds = {f"worker_kind_{row.removesuffix('_heartbeat')}" for row in HEARTBEATS}
    problems = {"wrong_type", "no_ttl", "stale"}
    problems |= {item.problem for item in load_heartbeats().values()} - {""}
    problems |= {"no_status"}
    words = {f"worker_problem_{one}" for one in problems}
    words |= {f"task_{state}" for state in TaskState}
    assert kinds | words <= TEXTS.keys()


# --- the command


async def test_exit_codes(bls: Bls, own_server: DevServer, admin: Redis) -> None:
    """0 if nobody is there and if all are well; 3 if one is not; 2, 4 as everywhere."""
    ran = await bls("workers", url=own_server.url)
    assert (ran.code, ran.out) == (0, b"")
    assert "No worker" in ran.said
    await plant(admin, well=True)
    ran = await bls("workers", url=own_server.url)
    assert ran.code == 0
    assert ran.text.split("\t")[:3] == ["回测-1", "running", ""]
    await plant(admin)
    assert (await bls("workers", url=own_server.url)).code == 3
    assert (await bls("workers", "scheduler", url=own_server.url)).code == 0
    ran = await bls("workers", "下载", url=own_server.url)
    assert (ran.code, "下载" in ran.said) == (0, True)
    await admin.set(OWN.key, OWN.payload, ex=30)
    for word in ("下载", "generic"):
        ran = await bls("workers", word, url=own_server.url)
        assert (ran.code, ran.text.split("\t")[:2]) == (0, ["上海-1", "running"])
    ran = await bls("workers", "backtest_wroker", url=own_server.url)
    assert (ran.code, "backtest_worker" in ran.said) == (0, True)
    ran = await bls("workers", "task", url=own_server.url)
    assert (ran.code, ran.out) == (0, b"")
    own_server.kill()
    assert (await bls("workers", url=own_server.url)).code == 4


async def test_json(bls: Bls, own_server: DevServer, admin: Redis) -> None:
    """One object on each line, with all that was written."""
    await plant(admin)
    ran = await bls("workers", "--json", url=own_server.url)
    told = [orjson.loads(line) for line in ran.out.splitlines()]
    assert {one["kind"] for one in told} <= set(HEARTBEATS)  # as everywhere else
    assert [one["id"] for one in told] == ["列表", "执行-1", "回测-2", "回测-1"]
    assert [one["healthy"] for one in told] == [False, False, False, True]
    assert told[0]["problem"] == "wrong_type"
    assert (told[1]["status"], told[1]["heartbeat"]["host"]) == ("error", "a")
    assert told[2]["stale"]
    assert 20 <= told[2]["age"] < 25
    assert told[3].keys() == WELL.describe().keys()
    assert told[3]["key"] == "backtest:worker:回测-1"
    assert told[3]["heartbeat"] == WELL.raw


async def test_a_watch_in_a_pipe(own_server: DevServer, admin: Redis) -> None:
    """Each change on a line, outages beside them, until it is ended."""
    await plant(admin, well=True)
    process = start_piped(
        "workers", "backtest", "--watch", "--json", "--redis", own_server.url
    )
    assert process.stdout is not None
    assert process.stderr is not None
    read = partial(anyio.to_thread.run_sync, process.stdout.readline)
    told = orjson.loads(await read())
    assert (told["what"], told["id"]) == ("joined", "回测-1")
    assert told["seenAt"].endswith("Z")
    await admin.delete(WELL.key)
    assert orjson.loads(await read())["what"] == "left"
    own_server.kill()
    said = await anyio.to_thread.run_sync(process.stderr.readline)
    assert b"does not answer" in said
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130


async def test_a_live_table(own_server: DevServer, admin: Redis) -> None:
    """It begins with nobody, follows what comes, and tells of outages."""
    with live_table("workers", "--watch", url=own_server.url) as shown:
        shown.until("0 个工作进程")
        await plant(admin)
        shown.until("4 个工作进程，2 个有误或报错，1 个未按时刷新")
        shown.until("回测工作进程")
        await admin.delete(STALE.key)
        shown.until("3 个工作进程")
        shown.until_back(own_server, "3 个工作进程")


# --- tasks


def test_the_cells_of_a_task() -> None:
    """In words and with a bar for people, as they are for programs."""
    payload = orjson.dumps(
        {"status": "回测中", "progress": 42.5, "worker": "回测-1", "message": "2025"}
    )
    task = Task.decode("均线-7", payload)
    assert [*task_cells(task, TEXTS).values()] == [
        "均线-7", ("running", "green"), "回测中", "████░░░░░░ 42.5 %", "-", "回测-1", "2025",
    ]  # fmt: skip
    assert task_cells(task, TEXTS, people=False)["progress"] == "42.5"
    half = Task.decode("半截", b'{"status":"run')
    assert [*task_cells(half, load_texts("cli", "zh")).values()] == [
        "半截", ("无法读取", "bold red"), ("不是 JSON", "bold red"), "", "-", "", '{"status":"run',
    ]  # fmt: skip
    assert task_cells(half, TEXTS, people=False)["status"] == ("not_json", "bold red")


async def test_tasks(bls: Bls, own_server: DevServer, admin: Redis) -> None:
    """0 if there are none and if all can be read; 3 if one cannot; 4 in an outage."""
    ran = await bls("tasks", url=own_server.url)
    assert (ran.code, ran.out) == (0, b"")
    async with TaskStatus(own_server.url) as tasks:
        await tasks.set("均线-7", "running", progress=42, worker="回测-1")
        await tasks.set("均线-8", "失败")
    ran = await bls("tasks", url=own_server.url)
    assert ran.code == 0
    lines = [line.split("\t") for line in ran.text.splitlines()]
    assert [line[:4] for line in lines] == [
        ["均线-8", "failed", "失败", ""],
        ["均线-7", "running", "running", "42"],
    ]
    await admin.set("ginkgo:task_status:半截", b'{"status":"run')
    ran = await bls("tasks", "--json", url=own_server.url)
    told = [orjson.loads(line) for line in ran.out.splitlines()]
    assert (ran.code, told[0]["problem"], told[0]["raw"]) == (
        3,
        "not_json",
        '{"status":"run',
    )
    assert told[2].keys() == Task.decode("x", b"{}").describe(0).keys()
    assert 0 <= told[2]["age"] < 30
    own_server.kill()
    assert (await bls("tasks", url=own_server.url)).code == 4


async def test_a_live_table_of_tasks(own_server: DevServer) -> None:
    """It follows what changes."""
    with live_table("tasks", "--watch", url=own_server.url) as shown:
        shown.until("没有任务的状态或进度")
        async with TaskStatus(own_server.url) as tasks:
            await tasks.set("均线-7", "running", progress=40)
            shown.until("运行中 1")
            shown.until("████░░░░░░ 40 %")
            await tasks.set("均线-7", "done", progress=100)
            shown.until("██████████ 100 %")


# --- hostile texts


async def plant_hostile(admin: Redis) -> None:
    """Every text as an id, a status, a field's name and value; bytes that are none."""
    for number, text in enumerate(HOSTILE_TEXTS.values()):
        name = text.encode("utf-8", "surrogatepass")
        value = {"status": text, "running_tasks": text, "max_tasks": text, text: text}
        await admin.set(b"heartbeat:node:" + name, orjson.dumps(value), ex=30)
        await admin.set(f"heartbeat:component:feed:{number}", text, ex=30)
        await admin.set(f"ginkgo:heartbeat:{number}", orjson.dumps({text: [text]}))
    await admin.set(b"heartbeat:scheduler:" + GBK, GBK, ex=30)


@pytest.mark.parametrize("columns", [20, 40, 120])
@pytest.mark.parametrize("encoding", ["gbk", "ascii", "utf-8"])
async def test_nothing_is_obeyed(
    own_server: DevServer, admin: Redis, columns: int, encoding: str
) -> None:
    """No control character, no markup, whatever the terminal can show."""
    await plant_hostile(admin)
    env = {"BLS_REDIS_URL": own_server.url, "BLS_LANG": "zh"}
    run = partial(show, "workers", columns=columns, encoding=encoding, **env)
    ran = await anyio.to_thread.run_sync(run)
    shown = ran.out.decode(encoding)
    assert ran.code == 3
    assert obeyed(shown) == set()
    assert "Traceback" not in shown
    plain = SGR.sub("", shown).replace("\r\n", "").replace(" ", "")
    assert columns < 120 or "[boldred]owned[/]" in plain


async def test_one_worker_is_one_line(
    bls: Bls, own_server: DevServer, admin: Redis
) -> None:
    """In a pipe, with as many fields on each; JSON gives the values unchanged."""
    await plant_hostile(admin)
    ran = await bls("workers", url=own_server.url)
    lines = ran.text.splitlines()
    assert len(lines) == 3 * len(HOSTILE_TEXTS) + 1
    assert {line.count("\t") for line in lines} == {len(WORKERS.fields) - 1}
    assert obeyed(ran.text.replace("\t", "")) == set()
    ran = await bls("workers", "execution", "--json", url=own_server.url)
    told = [orjson.loads(line) for line in ran.out.splitlines()]
    assert {one["id"] for one in told} == set(HOSTILE_TEXTS.values())
    assert {one["heartbeat"]["status"] for one in told} == set(HOSTILE_TEXTS.values())
