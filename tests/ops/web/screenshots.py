"""Pictures of the console for the documents: ``make screenshots`` writes docs/images/.

A fleet of a made-up trading company: one real agent, the other projects are keys as
anybody may write them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import orjson
from redis import Redis
from redis.asyncio import Redis as RedisClient

from bls_agent import ProjectAgent
from bls_agent.assets import AssetLibrary, AssetManifest, SyncReport
from bls_agent.assets.library import REPORT, STATE
from bls_agent.core.codec import format_timestamp
from bls_agent.core.errors import ManifestFault
from bls_agent.core.keys import DEAD_LETTERS, place_beside
from bls_agent.crawl import RedisKeyManager
from bls_agent.devserver import DevServer
from bls_agent.ops.web.config import WebConfig
from bls_agent.runs import EventStore, NewEvent
from bls_agent.runs.reading import RunKeys
from bls_agent.workers import (
    BacktestWorkerHeartbeat,
    DataWorkerHeartbeat,
    ExecutionNodeHeartbeat,
    SchedulerHeartbeat,
    TaskStatus,
    TaskTimerHeartbeat,
    WorkerHeartbeat,
    WorkerStatus,
)
from tests.ops.web.browsers import Foreign, Watched, a_browser, looking, record, until
from tests.ops.web.palette import shrink
from tests.ops.web.serving import served

IMAGES = Path(__file__).parents[3] / "docs" / "images"
LARGEST = 200_000  # bytes of a picture
MAIN = "订单系统"
QUIET = 2_000  # ms until everything has come

# name: status, seconds it lives, records in five minutes, errors, waiting commands
FLEET: dict[str, tuple[str, int | None, int, list[str], int]] = {
    "支付网关": (
        "故障",
        55,
        48,
        ["银联通道超时：连续 3 次未应答，已切换备用线路"] * 7,
        0,
    ),
    "库存同步": ("报错", 58, 52, ["SKU 10086 库存为负，已跳过本次扣减"] * 2, 0),
    "日志归档": ("running", None, 12, [], 0),
    "报表生成": ("", None, 3, [], 0),
    "短信平台": ("离线", None, 9, [], 0),
    "风控引擎": ("在线", 52, 58, [], 4),
    "推荐引擎": ("在线", 59, 62, [], 0),
    "搜索服务": ("在线", 57, 55, [], 0),
    "用户中心": ("在线", 48, 49, ["会话校验失败：令牌已过期"], 0),
    "物流追踪": ("在线", None, 70, [], 0),
    "客服机器人": ("在线", 56, 30, [], 0),
    "数据仓库": ("在线", 44, 20, [], 0),
    "行情接入": ("在线", 59, 63, [], 0),
    "清算中心": ("在线", 53, 45, [], 0),
    "发票服务": ("在线", 51, 25, [], 0),
    "优惠券": ("", None, 0, [], 2),
}
TROUBLE = {
    "type": "ConnectionResetError",
    "message": "华南节点关闭了连接",
    "traceback": """Traceback (most recent call last):
  File "/srv/orders/sync.py", line 88, in push
    await peer.send(batch, timeout=5.0)
  File "/srv/orders/peers.py", line 41, in send
    raise ConnectionResetError(f"{self.name}节点关闭了连接")
ConnectionResetError: 华南节点关闭了连接
""",
}
ASSETS = [
    ("google_search", "tool", "Google 搜索", "在 Google 上搜索内容"),
    (
        "http_request",
        "tool",
        "HTTP request",
        "Sends GET and POST requests to allowed hosts",
    ),
    ("quotes", "tool", "行情查询", "查询股票、期货的最新行情和历史行情"),
    ("sql_query", "tool", "SQL query", "Runs a reading query against the warehouse"),
    ("summarizer", "prompt", "文本总结", "将长文本总结为简洁的摘要"),
    (
        "translator",
        "prompt",
        "Translator",
        "Translates between Chinese and English, keeps terms",
    ),
    ("code_reviewer", "prompt", "代码评审", "按团队规范检查一个改动，指出问题和改法"),
    ("data_analysis", "skill", "数据分析", "取数、清洗、统计、作图，并写出结论"),
    (
        "morning_note",
        "skill",
        "Morning note",
        "Writes the one-page market note before the open",
    ),
]
TOOL = {
    "agent_specs": {
        "function_name": "run",
        "description": "x",
        "parameters": {"type": "object"},
    },
    "runtime": {"language": "python", "entry": "main.py", "handler": "run"},
}
STEPS = ["订单已入库", "库存已锁定", "支付已确认", "运单已生成"]


NOTE = (
    "Both markets opened slightly higher, and turnover is a tenth above "
    "yesterday's. Consumer names lead; the spread has narrowed to two ticks "
    "while volume kept growing.\n\nNothing in the order book points to a reversal "
    "before the close."
)
PLAN = "The quotes do not come. I ask the second source, and then go on with the"


def write_statuses(redis: Redis) -> None:
    """Write the statuses of the other projects again, just before a picture is taken."""
    for name, (status, ttl, *_) in FLEET.items():
        if status:
            Foreign(redis, name).status(status, ttl)


def write_fleet(redis: Redis) -> None:
    """Write the projects of everybody else."""
    write_statuses(redis)
    for number, (name, (status, _, count, errors, waiting)) in enumerate(FLEET.items()):
        project = Foreign(redis, name)
        chance = random.Random(number)
        times = sorted(
            (chance.betavariate(1.1, 1.3) * 295 for _ in range(count)), reverse=True
        )
        if count:
            shift = 0 if status else 4_000
            project.log(*(record("批次处理完成", "info", shift + ago) for ago in times))
        for place, message in enumerate(errors):
            project.log(record(message, "error", 40.0 - place * 5))
        for place in range(waiting):
            command = {"id": f"cmd-{place}", "command": "reload"}
            redis.rpush(f"{name}_控制", orjson.dumps(command))
    dead = DEAD_LETTERS.locate(place=place_beside("清算中心_控制"))
    redis.rpush(dead, *(orjson.dumps({"id": f"d-{n}"}) for n in range(3)))


async def write_run(url: str) -> None:
    """Write what a run has said so far; its writer has an hour to live."""
    lead = {"agent_name": "supervisor", "team_name": "research"}
    analyst = {"agent_name": "market analyst", "team_name": "research"}
    async with EventStore(url) as store:
        task = {"task": "Write this morning's one-page market note"}
        assigned = {"to": "market analyst", "priority": 2}
        call = {"tool": "quotes.latest", "symbols": ["600519.SH", "000858.SZ"]}
        events = [
            NewEvent("lifecycle", "started", task, lead),
            NewEvent("dispatch", "assigned", assigned, lead),
            NewEvent("agent", "tool_call", call, analyst),
            NewEvent("agent", "tool_result", {"rows": 2, "ms": 183}, analyst),
            *(
                NewEvent("llm", "stream", {"content": f"{one} "}, analyst)
                for one in NOTE.split(" ")
            ),
            NewEvent("system", "warning", {"message": "the quotes are 2.3 s late"}),
            NewEvent("agent", "tool_call", call, analyst),
            NewEvent("agent", "error", {"message": "quotes.latest: timeout"}, analyst),
            *(
                NewEvent("llm", "stream", {"content": f"{one} "}, lead)
                for one in PLAN.split(" ")
            ),
        ]
        await store.add_many(42, events)


# Project, spider, requests that wait, in flight, failed.
QUEUES = [
    ("新闻", "每日", 1_234, 16, 7), ("新闻", "存档", 50, 0, 0),
    ("商品", "价格监控", 312, 4, 0), ("论坛", None, 0, 0, 2), ("政策", None, 0, 0, 0),
]  # fmt: skip


async def write_assets(url: str) -> None:
    """Write an asset library, and how its last synchronisation failed for one file."""
    fault = ManifestFault(
        "tools/天气.yaml", "the version is no semantic version", "Write it as 1.2.0.",
        "version", 2, "weather",
    )  # fmt: skip
    report = SyncReport(
        status="failed", reason="1 file could not be used", broken=(fault,),
        source="https://git.example/research/assets",
    )  # fmt: skip
    state: dict[Any, Any] = {
        "last_sync_time": int(time.time()) - 200, "synced_count": len(ASSETS),
        "last_commit_sha": "4f2c81d09ab3e6d7c5510f8e2b94a7d6c3e1f005",
        "sync_status": "failed",
    }  # fmt: skip
    async with AssetLibrary(url) as library, RedisClient.from_url(url) as redis:
        for number, (asset_id, category, name, description) in enumerate(ASSETS):
            one = AssetManifest.model_validate(
                {
                    **(TOOL if category == "tool" else {}),
                    "id": asset_id, "version": f"1.{number % 4}.0", "name": name,
                    "category": category, "description": description,
                }
            )  # fmt: skip
            path = f"{category}s/{asset_id}.yaml"
            await library.save(one, path=path, sha=f"{number:040x}")
        await redis.hset("asset:index", "chart_style", b"{")
        await redis.hset(STATE, mapping=state)
        await redis.set(REPORT, orjson.dumps(report))


async def write_queues(url: str) -> None:
    """Write crawl queues: waiting, worked on, done, with a failure, of another type."""
    async with RedisClient.from_url(url) as redis:
        for project, spider, waiting, taken, failed in QUEUES:
            manager = RedisKeyManager(project, spider)
            requests = manager.get_requests_queue_key()
            if waiting:
                members: dict[Any, Any] = {f"{n:016}": 0 for n in range(waiting)}
                await redis.zadd(requests, members)
            counts: dict[Any, Any] = {
                "pushed": 40 * waiting + 900,
                "taken": 39 * waiting + 900,
            }
            await redis.hset(manager.get_own_key("crawl_counters"), mapping=counts)
            for number in range(taken):
                leases = manager.get_own_key("crawl_leases")
                await redis.hset(leases, f"{waiting + number:016}", "worker 0")
            for number in range(failed):
                await redis.rpush(manager.get_failed_queue_key(), f"{number}")
        await redis.set("crawlo:旧系统:queue:requests", "x")


# Id, status, percent, worker, message.
TASKS = [
    ("均线-10", "running", 62.0, "回测-1", "2024-07-01"),
    ("均线-11", "running", 31.5, "回测-1", "2022-03-14"),
    ("均线-20", "running", 87.0, "回测-2", "2025-11-03"),
    ("均线-30", "running", 5.0, "回测-3", "2020-01-20"),
    ("均线-41", "failed", 44.0, "回测-4", "缺少 600519.SH 2023-05-04 的行情"),
    ("均线-51", "排队", 0.0, "", ""), ("均线-52", "排队", 0.0, "", ""),
    ("均线-01", "completed", 100.0, "回测-1", ""),
    ("均线-02", "completed", 100.0, "回测-3", ""),
]  # fmt: skip


async def write_tasks(url: str) -> None:
    """Write what the workers of the backtests do."""
    async with TaskStatus(url) as tasks:
        for task, status, progress, worker, message in TASKS:
            more = {"worker": worker, "message": message}
            known = {name: text for name, text in more.items() if text}
            await tasks.set(task, status, progress=progress, **known)


def write_workers(redis: Redis) -> None:
    """Write the heartbeats of a fleet, just before a picture is taken."""

    def say(beat: WorkerHeartbeat) -> None:
        redis.set(beat.key, beat.to_json(), ex=12 if beat.id == "执行-上海-2" else 30)

    for number, running in enumerate((5, 3, 4, 0, 2), 1):
        tasks = [f"均线-{number}{task}" for task in range(running)]
        say(
            BacktestWorkerHeartbeat.create(
                f"回测-{number}",
                WorkerStatus.ERROR if number == 4 else WorkerStatus.RUNNING,
                running, 5, task_uuids=tasks,
            )
        )  # fmt: skip
    say(
        DataWorkerHeartbeat.create(
            "数据-1", stats={"行情条数": 182_340, "延迟毫秒": 3.2}
        )
    )
    say(
        DataWorkerHeartbeat.create(
            "数据-2", stats={"行情条数": 97_105, "延迟毫秒": 4.8}
        )
    )
    for number, count in enumerate((12, 9, 11), 1):
        node = ExecutionNodeHeartbeat.create(
            f"执行-上海-{number}", host=f"10.0.0.{number}", port=8080,
            active_strategies=count,
        )  # fmt: skip
        say(node)
    say(SchedulerHeartbeat.create("主调度", running_tasks=14, pending_tasks=7))
    say(TaskTimerHeartbeat.create("定时器", jobs_count=42))
    redis.set("heartbeat:node:执行-北京-1", b"alive", ex=30)
    redis.set("ginkgo:heartbeat:4711", b"ok", ex=30)


# The twelve projects of the first hour in docs/console.md; the three that are ill follow.
WELL = (
    "订单系统", "推荐引擎", "搜索服务", "用户中心", "物流追踪", "客服机器人", "数据仓库",
    "行情接入", "清算中心",
)  # fmt: skip
GONE, REFUSED, DEADLY = "库存同步", "支付网关", "风控引擎"
REFUSAL = "health check '数据库': ConnectionRefusedError: 10.0.0.9:5432 拒绝连接"


def write_first_hour(redis: Redis) -> None:
    """Write twelve projects: a failed check, a killed process, a deadly command."""
    for number, name in enumerate((*WELL, GONE, REFUSED, DEADLY)):
        steps = (290 - n * (7 + number % 4) for n in range(22))
        Foreign(redis, name).log(*(record(STEPS[0], "info", ago) for ago in steps))
    Foreign(redis, GONE).log(record("内存不足", "error", 23, rss_mb=3_970))
    redis.rpush(f"{GONE}_控制", orjson.dumps({"id": "cmd-1", "command": "reload"}))
    failures = (record("支付失败：数据库不可用", "error", ago) for ago in (50, 31, 12))
    trouble = record(REFUSAL, "error", 65, statusReason=REFUSAL)
    Foreign(redis, REFUSED).log(trouble, *failures)
    sent = format_timestamp(time.time() - 95)
    letter = {
        "id": "cmd-1768474853841-e8b511", "timestamp": sent, "source": "值班",
        "command": "导入", "args": {"file": "2026-01-14.csv"},
    }  # fmt: skip
    place = place_beside(f"{DEADLY}_控制")
    redis.rpush(DEAD_LETTERS.locate(place=place), orjson.dumps(letter))
    dead = "command '导入' dead lettered: it was started 3 times without an end"
    failed = "command '重算' failed: ValueError: 没有 2026-01-14 的行情"
    Foreign(redis, DEADLY).log(record(failed, "error", 60), record(dead, "error", 41))


def write_first_statuses(redis: Redis) -> None:
    """Write the statuses of the twelve again, just before a picture is taken."""
    for number, name in enumerate((*WELL, DEADLY)):
        Foreign(redis, name).status("在线", 52 + number % 8)
    Foreign(redis, REFUSED).status("故障", 58)


@dataclass
class Line:
    """A row of the form."""

    sku: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    """A group of the form."""

    lines: list[Line]
    due: datetime | None = None
    mode: Literal["普通", "加急"] = "普通"


@contextmanager
def order_system(url: str, redis: Redis) -> Iterator[ProjectAgent]:
    """Run the one real agent, with a log behind it."""
    agent = ProjectAgent(MAIN, redis=url, instance="orders-1")

    @agent.command
    def reload(force: bool = False) -> dict[str, int]:
        """重新加载规则。"""
        agent.log.info("规则已重新加载", force=force, rules=42)
        return {"rules": 42}

    @agent.command("导入订单")
    def load(
        file: str,
        mode: Literal["fast", "safe"] = "fast",
        limit: int = 1_000,
        note: str | None = None,
    ) -> dict[str, Any]:
        """从文件导入订单，重复的订单会被跳过。"""
        if file.endswith(".bak"):
            raise FileNotFoundError(file)
        return {"imported": 986, "skipped": 14, "mode": mode}

    @agent.command("下单")
    def place(order: Order) -> Decimal:
        """登记一张订单，并通知仓库。"""
        return sum((line.price * line.count for line in order.lines), Decimal(0))

    past = [
        record(
            STEPS[n % 4],
            "info",
            290 - n * 5.6,
            order_id=20_260_115 + n // 4,
            warehouse="华东一号仓",
        )
        for n in range(50)
    ]
    Foreign(redis, MAIN).log(*past)
    with agent.in_thread():
        for number in range(9):
            agent.log.info(
                STEPS[number % 4],
                order_id=20_260_128 + number // 4,
                warehouse="华东一号仓",
            )
        agent.log.debug("缓存命中", key="sku:10086", ttl=120)
        agent.log.warn("库存偏低", sku="10086", left=3)
        agent.log.error("同步失败，10 秒后重试", peer="华南", exception=TROUBLE)
        agent.log.info("同步恢复", peer="华南", lag_ms=180)
        until(lambda: redis.llen(f"{MAIN}_项目控制台") > len(past) + 12)
        until(lambda: redis.get(f"{MAIN}_项目状态") is not None)
        yield agent


Show = Callable[[Watched], None]


def page_at(path: str) -> Show:
    """Make a function that opens a page as it is."""
    return lambda looked: looked.open(path)


def ask(looked: Watched) -> None:
    """Ask the agent what it can do, if that is not known yet."""
    looked.page.locator("form.command").wait_for()
    if not looked.page.locator("select[name=chosen]").count():
        looked.page.click("#command button.main")
    looked.page.locator("select[name=chosen]").wait_for()


def send(looked: Watched, file: str) -> None:
    """Send a command by its form."""
    page = looked.page
    ask(looked)
    with page.expect_response("**/fragments/commands**"):
        page.select_option("select[name=chosen]", label="导入订单")
    page.wait_for_timeout(100)
    page.fill("[name='arg.file']", file)
    page.select_option("[name='arg.mode']", label="safe")
    page.fill("[name='arg.limit']", "1000")
    page.click("#command button.main")
    page.click(".review button.main")


def show_project(looked: Watched) -> None:
    """Open a project, send two commands, prepare a third."""
    page = looked.page
    looked.open_project(MAIN)
    send(looked, "orders-0112.bak")
    page.locator(".sent [data-bad]").first.wait_for()
    send(looked, "orders-0112.csv")
    page.locator(".sent [data-good]").first.wait_for()
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")


def show_details(looked: Watched) -> None:
    """Open a project, unfold an exception."""
    page = looked.page
    looked.open_project(MAIN)
    ask(looked)
    page.select_option("select[name=chosen]", label="reload")
    page.locator("[name='arg.force']").wait_for()
    page.select_option("[name='arg.force']", "true")
    page.click("#command button.main")
    page.locator(".review").wait_for()
    page.locator(".row[data-level=error] .more").first.click()
    page.evaluate(
        """() => { const box = document.querySelector("#log");
             box.scrollTop = document.querySelector(".row pre").parentElement.offsetTop - box.offsetTop - 150;
             scrollTo(0, 0); }"""
    )


def show_narrow_project(looked: Watched) -> None:
    """Open a project on a telephone."""
    looked.open_project(MAIN)
    ask(looked)


def show_letters(looked: Watched) -> None:
    """Open the project with a dead letter."""
    looked.open_project(DEADLY)
    looked.page.locator("#queue, .lists").first.wait_for()


def show_form(looked: Watched) -> None:
    """Open a project, and fill in a form with two rows."""
    page = looked.page
    looked.open_project(MAIN)
    ask(looked)
    page.select_option("select[name=chosen]", label="下单")
    for row, (sku, price) in enumerate((("茶-龙井-250", "68.50"), ("茶-普洱-357", ""))):
        page.click("[hx-post*='add=order.lines']")
        page.fill(f"[name='arg.order.lines.{row}.sku']", sku)
        page.fill(f"[name='arg.order.lines.{row}.price']", price)
    page.fill("[name='arg.order.due']", "2026-01-31T18:00")
    page.click("#command button.main")
    page.locator(".complaint").wait_for()
    page.evaluate("scrollTo(0, 0)")


def show_run(looked: Watched) -> None:
    """Open a run, with one event unfolded."""
    looked.open("/runs/42")
    looked.wait("document.querySelectorAll('#events .speech').length === 2")
    looked.page.locator(".row .more").nth(2).click()
    looked.page.mouse.move(0, 0)


Picture = tuple[str, Show, str, str, tuple[int, int]]
PICTURES: list[Picture] = [
    ("console-wallboard-zh.png", page_at("/"), "zh", "light", (1280, 760)),
    ("console-wallboard-en.png", page_at("/"), "en", "dark", (1280, 760)),
    ("console-table-en.png", page_at("/?view=table"), "en", "light", (1280, 700)),
    ("console-narrow-wallboard.png", page_at("/"), "zh", "dark", (360, 740)),
    ("console-project-zh.png", show_project, "zh", "dark", (1280, 900)),
    ("console-project-en.png", show_details, "en", "light", (1280, 860)),
    ("console-form-zh.png", show_form, "zh", "light", (1280, 900)),
    ("console-form-en.png", show_form, "en", "dark", (1280, 900)),
    ("console-narrow-project.png", show_narrow_project, "en", "light", (360, 740)),
    ("console-workers-zh.png", page_at("/workers"), "zh", "light", (1280, 760)),
    ("console-workers-en.png", page_at("/workers"), "en", "dark", (1280, 760)),
    ("console-assets-zh.png", page_at("/assets"), "zh", "light", (1280, 600)),
    ("console-queues-zh.png", page_at("/crawl"), "zh", "light", (1280, 420)),
    ("console-run-en.png", show_run, "en", "light", (1280, 800)),
    ("console-tasks-zh.png", page_at("/tasks"), "zh", "light", (1280, 720)),
    ("console-tasks-en.png", page_at("/tasks"), "en", "dark", (1280, 720)),
]
FIRST_HOUR: list[Picture] = [
    ("console-first-hour-zh.png", page_at("/"), "zh", "light", (1280, 500)),
    ("console-dead-letters-en.png", show_letters, "en", "light", (1280, 720)),
]


def take(
    browser: Any, url: str, pictures: Sequence[Picture], refresh: Callable[[], None]
) -> None:
    """Take pictures of one console; ``refresh`` writes what expires."""
    for name, show, language, scheme, size in pictures:
        with looking(
            browser, url, language=language, scheme=scheme, size=size
        ) as looked:
            refresh()
            show(looked)
            looked.page.wait_for_timeout(QUIET)
            path = IMAGES / name
            path.write_bytes(shrink(looked.page.screenshot()))
            assert path.stat().st_size < LARGEST, name
            print(path, path.stat().st_size)  # noqa: T201 - a program


def main() -> None:
    """Take all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with DevServer() as server, Redis.from_url(server.url, protocol=2) as redis:
        write_fleet(redis)
        anyio.run(write_run, server.url)
        anyio.run(write_assets, server.url)
        anyio.run(write_queues, server.url)
        anyio.run(write_tasks, server.url)
        books, owner = RunKeys(42).all[1:]
        redis.hset(books, "owner", "writer")
        redis.set(owner, "writer", ex=3_600)
        console = served(WebConfig(redis=server.url, port=0, title="生产"))
        with order_system(server.url, redis), console as site, a_browser() as browser:

            def refresh() -> None:
                write_statuses(redis)
                write_workers(redis)

            take(browser, site.url, PICTURES, refresh)
        url = f"{server.url.removesuffix('/0')}/1"
        console = served(WebConfig(redis=url, port=0, title="生产"))
        with Redis.from_url(url, protocol=2) as other, a_browser() as browser:
            write_first_hour(other)
            write_first_statuses(other)
            with console as site:
                take(
                    browser, site.url, FIRST_HOUR, partial(write_first_statuses, other)
                )


if __name__ == "__main__":
    main()
