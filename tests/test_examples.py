"""The examples as people start them: each works, is seen, and ends in order."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import anyio
import anyio.abc
import httpx2
import pytest
from anyio.streams.text import TextReceiveStream
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from redis.asyncio import Redis

from bls_agent import Console, EventStore, OutcomeKind, ProjectAgent, Status
from bls_agent.core.keys import CONTROL
from bls_agent.devserver import DevServer
from bls_agent.integrations.otel import instrument
from bls_agent.workers import TaskStatus
from tests.http_server import HTTPServer, QuietHandler

REPOSITORY = Path(__file__).parents[1]
PROGRAMS = [*(REPOSITORY / "examples").glob("*.py")]
EXAMPLES = sorted([*PROGRAMS, REPOSITORY / "examples/asset_library/agent.py"])
LIST = REPOSITORY / "examples/README.md"
PATIENCE = 30.0


def test_the_list_names_every_program() -> None:
    """One row for each program and each folder, and none that is gone."""
    named = re.findall(
        r"^\| `([^`]+)` \| .*?\]\(([^)]+)\)", LIST.read_text("utf-8"), re.MULTILINE
    )
    folder = LIST.parent
    there = {
        one.name for one in folder.iterdir() if one.suffix == ".py" or one.is_dir()
    }
    assert {name for name, _ in named} == there - {"__pycache__"}
    assert all((folder / link).is_file() for _, link in named)


@asynccontextmanager
async def _started(
    name: str, url: str, project: str, *arguments: str
) -> AsyncIterator[anyio.abc.Process]:
    """Start an example on this server, and see that it is gone at the end."""
    kept = {key: text for key, text in os.environ.items() if not key.startswith("BLS_")}
    environment = {
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONIOENCODING": "utf-8",
        "PYTHONUNBUFFERED": "1",  # each line is read when it is printed
    }
    environment["BLS_BANNER"] = "0"  # standard error is for what goes wrong
    async with await anyio.open_process(
        [sys.executable, str(REPOSITORY / "examples" / name), project, *arguments],
        env={**kept, **environment, "BLS_REDIS_URL": url},
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()  # else the failure of a test would wait for its example
            raise


async def _end(process: anyio.abc.Process, number: signal.Signals) -> tuple[int, bytes]:
    """Send a signal, and tell the exit code and what stands on standard error."""
    assert process.stderr is not None
    process.send_signal(number)
    with anyio.fail_after(PATIENCE):
        errors = b"".join([part async for part in process.stderr])
        return await process.wait(), errors


async def _read_until(process: anyio.abc.Process, text: str) -> str:
    """Read what an example writes until this text is among it."""
    assert process.stdout is not None
    output, shown = TextReceiveStream(process.stdout), ""
    with anyio.fail_after(PATIENCE):
        while text not in shown:
            shown += await output.receive()
    return shown


async def _until_online(console: Console, project: str) -> None:
    await _until(console, project, Status.ONLINE)


async def _until(console: Console, project: str, status: Status) -> None:
    with anyio.fail_after(PATIENCE):
        while await console.status(project) is not status:
            await anyio.sleep(0.02)


async def _assert_ends(
    process: anyio.abc.Process, console: Console, project: str, warned: bytes = b""
) -> None:
    """A SIGTERM ends an agent in order: no other warning than that, and 离线 stays."""
    code, complaints = await _end(process, signal.SIGTERM)
    assert code == 0
    assert warned in complaints if warned else not complaints
    assert await console.status(project) is Status.OFFLINE


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    """An example is short and opens with what it shows, needs, and how to run it."""
    text = path.read_text("utf-8")
    opening = ast.get_docstring(ast.parse(text)) or ""
    most = 100 if path.stem == "crawl" else 60  # it brings a site along
    assert len(text.splitlines()) < most
    for word in ("Shows:", "Needs:", "Run:", str(path.relative_to(REPOSITORY))):
        assert word in opening


@pytest.mark.usefixtures("redis")  # it removes the keys
async def test_quickstart(redis_url: str, project: str, console: Console) -> None:
    """The quickstart is on the console, answers, and leaves in order."""
    async with _started("quickstart.py", redis_url, project) as example:
        await _until_online(console, project)
        outcome = await console.call(project, "reload", {"force": True})
        assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCEEDED, {"rules": 42})
        records = await console.logs(project)
        told = [entry for entry in records if entry.message == "configuration reloaded"]
        assert [entry.metadata["force"] for entry in told] == [True]
        await _assert_ends(example, console, project)


@pytest.mark.usefixtures("redis")  # it removes the keys
async def test_logging_setup(redis_url: str, project: str, console: Console) -> None:
    """What the standard library logs is on the terminal and on the console."""
    async with _started("logging_setup.py", redis_url, project) as example:
        shown = await _read_until(example, "the payment gateway is gone")
        assert "INFO     shop.orders: order 17 accepted" in shown
        await _until_online(console, project)
        outcome = await console.call(project, "ping")
        assert outcome.kind is OutcomeKind.SUCCEEDED
        found = (await console.logs(project))[:4]
        accepted, failed, gone, bound = (entry.metadata for entry in found)
        assert [(entry.level.value, entry.message) for entry in found] == [
            ("info", "order 17 accepted"),
            ("error", "order 18 failed"),
            ("error", "the payment gateway is gone"),
            ("warn", "stock is low"),
        ]
        assert (accepted["logger"], accepted["商品"]) == ("shop.orders", "茶")
        assert failed["exception"]["type"] == "KeyError"
        assert gone["severity"] == "CRITICAL"
        assert (bound["worker"], bound["left"]) == ("w-1", {"茶": 1})
        await _assert_ends(example, console, project)


CALLS: dict[str, tuple[str, dict[str, object], OutcomeKind, str]] = {
    "plain": (
        "count_stock",
        {"warehouse": "上海", "articles": [1, 2]},
        OutcomeKind.SUCCEEDED,
        "上海",
    ),
    "misfit": (
        "count_stock",
        {"warehouse": "上海", "articles": ["1"]},
        OutcomeKind.REJECTED,
        "must be an integer",
    ),
    "chinese": ("切换模式", {"mode": "维护"}, OutcomeKind.SUCCEEDED, "now 维护"),
    "default": ("切换模式", {}, OutcomeKind.SUCCEEDED, "now 正常"),
    "no-choice": ("切换模式", {"mode": "别的"}, OutcomeKind.REJECTED, "must be one of"),
    "context": ("发货", {"order": 7}, OutcomeKind.SUCCEEDED, "BLS Project Console"),
    "reject": ("发货", {"order": 0}, OutcomeKind.REJECTED, "no such order"),
    "timeout": (
        "发货",
        {"order": 7, "weight": 60},
        OutcomeKind.TIMED_OUT,
        "within 2 s",
    ),
    "fallback": ("唱歌", {"loud": True}, OutcomeKind.SUCCEEDED, "唱歌"),
}


@pytest.mark.usefixtures("redis")  # it removes the keys
async def test_commands(redis_url: str, project: str, console: Console) -> None:
    """Each kind of handler does what its example says."""
    async with _started("commands.py", redis_url, project) as example:
        await _until_online(console, project)
        for name, (command, args, kind, said) in CALLS.items():
            outcome = await console.call(project, command, args)
            assert outcome.kind is kind, name
            assert said in str(outcome.result) + outcome.message, name
        await _assert_ends(example, console, project)


async def test_middleware_of_commands(
    redis_url: str, project: str, console: Console, redis: Redis
) -> None:
    """The middleware turns down what comes from nobody."""
    async with _started("commands.py", redis_url, project) as example:
        await _until_online(console, project)
        await redis.rpush(CONTROL.build(project=project), b'{"command":"ship"}')
        with anyio.fail_after(PATIENCE):
            async for entry in console.follow_logs(project, last=10, interval=0.02):
                if entry.outcome is not None:
                    assert entry.outcome.kind is OutcomeKind.REJECTED
                    assert "who are you?" in entry.message
                    break
        await _assert_ends(example, console, project)


@pytest.mark.usefixtures("redis")  # it removes the keys
async def test_health_and_status(
    redis_url: str, project: str, console: Console, tmp_path: Path
) -> None:
    """The status follows the database, the errors and the maintenance."""
    name, database = "health_and_status.py", tmp_path / "数据库"
    database.touch()
    async with _started(name, redis_url, project, str(database)) as example:
        await _read_until(example, "在线, says the host\n")
        await _until_online(console, project)
        database.unlink()
        await _read_until(example, "故障, says the health check database\n")
        await _until(console, project, Status.FAULT)
        assert (await console.call(project, "ping")).succeeded
        database.touch()
        await _read_until(example, "在线, says the host\n")
        await _until_online(console, project)
        assert (await console.call(project, "maintain", {"seconds": 0.3})).succeeded
        await _read_until(example, "离线, says the host\n在线, says the host\n")
        await console.call(project, "sell", {"count": 0})
        await _read_until(example, "报错, says the error window\n")
        await _until(console, project, Status.ERROR)
        await _assert_ends(example, console, project, b"health check 'database' failed")


class Collector(HTTPServer):
    """Takes spans and metrics over OTLP, on loopback."""

    def __init__(self) -> None:
        self.spans: dict[str, tuple[str, Span]] = {}  # name → service and span
        self.metrics: set[str] = set()
        super().__init__(_Export)


class _Export(QuietHandler):
    def do_POST(self) -> None:
        collector = cast("Collector", self.server)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/traces":
            for traces in ExportTraceServiceRequest.FromString(body).resource_spans:
                names = {one.key: one.value for one in traces.resource.attributes}
                service = names["service.name"].string_value
                for scope in traces.scope_spans:
                    found = {span.name: (service, span) for span in scope.spans}
                    collector.spans.update(found)
        else:
            request = ExportMetricsServiceRequest.FromString(body)
            for measured in request.resource_metrics:
                for scope in measured.scope_metrics:
                    collector.metrics.update(one.name for one in scope.metrics)
        self.send_response(200)
        self.end_headers()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as serving:
        yield serving


@pytest.mark.usefixtures("redis")  # it removes the keys
async def test_tracing(
    redis_url: str,
    project: str,
    console: Console,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command that one process sends and another one runs is one trace."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    sender = Resource.create({"service.name": "控制台"})
    provider = TracerProvider(resource=sender, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    instrument(console, tracer_provider=provider)
    async with _started("tracing.py", redis_url, project) as example:
        await _until_online(console, project)
        assert (await console.call(project, "reload")).result == {"rules": 42}
        logged = {one.message: one.metadata for one in await console.logs(project)}
        await _assert_ends(example, console, project)
    provider.shutdown()
    chain = [
        collector.spans[name]
        for name in ("send reload", "process reload", "read rules")
    ]
    assert [service for service, _ in chain] == ["控制台", project, project]
    sent, run, own = (span for _, span in chain)
    assert {span.trace_id for span in (sent, run, own)} == {sent.trace_id}
    assert (run.parent_span_id, own.parent_span_id) == (sent.span_id, run.span_id)
    assert logged["configuration reloaded"]["trace_id"] == sent.trace_id.hex()
    assert logged["configuration reloaded"]["span_id"] == own.span_id.hex()
    assert logged["command 'reload' succeeded"]["span_id"] == run.span_id.hex()
    assert "messaging.process.duration" in collector.metrics


@pytest.mark.usefixtures("redis")  # it removes the keys
async def test_plain_script(redis_url: str, project: str, console: Console) -> None:
    """A script without an event loop is on the console, answers, and leaves in order."""
    async with _started("plain_script.py", redis_url, project) as example:
        await _until_online(console, project)
        assert (await console.call(project, "ping")).succeeded
        outcome = await console.call(project, "set_pace", {"seconds": 0.02})
        assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCEEDED, 0.02)
        outcome = await console.call(project, "set_pace", {"seconds": 0})
        assert outcome.kind is OutcomeKind.REJECTED
        with anyio.fail_after(PATIENCE):
            async for entry in console.follow_logs(project, last=10, interval=0.02):
                if entry.message == "order shipped" and entry.metadata["order"] > 2:
                    break
        await _assert_ends(example, console, project)


@pytest.mark.usefixtures("redis")  # it removes the keys
async def test_follow_console(redis_url: str, project: str) -> None:
    """The other end finds the project, calls it, and shows what it says."""
    agent = ProjectAgent(project, redis=redis_url)

    @agent.command
    async def reload(*, force: bool) -> None:
        agent.log.info("configuration reloaded", force=force)

    async with agent:
        await agent.ready(PATIENCE)
        async with _started("follow_console.py", redis_url, project) as example:
            shown = await _read_until(example, "command 'reload' succeeded")
            assert await _end(example, signal.SIGINT) == (0, b"")
    for line in (
        f"found {project} 在线",
        "status 在线",
        "ping succeeded {'pong': True}",
    ):
        assert line in shown
    assert "info 'configuration reloaded' {" in shown


@pytest.mark.usefixtures("redis")  # it removes the keys
async def test_follow_console_without_an_agent(redis_url: str, project: str) -> None:
    """Where nobody answers the other end says so, and goes on."""
    async with _started("follow_console.py", redis_url, project) as example:
        shown = await _read_until(example, "sent cmd-")
        assert "status None" in shown
        assert "no outcome of 'ping'" in shown
        assert await _end(example, signal.SIGINT) == (0, b"")


@pytest.mark.usefixtures("redis")  # it removes the keys
async def test_reliable_worker(redis_url: str, project: str, console: Console) -> None:
    """What a killed worker had is run by the other one, and an id only once."""
    name = "reliable_worker.py"
    async with _started(name, redis_url, project, "first") as first:
        await console.send(
            project,
            "ship",
            {"order": 7, "seconds": 2.0},
            id="order-7",
            create=True,
        )
        await _read_until(first, "order 7, delivery 1\n")
        first.kill()
    async with _started(name, redis_url, project, "second") as second:
        await _until_online(console, project)
        await _read_until(second, "order 7, delivery 2\n")
        outcome = await console.call(project, "ship", {"order": 8})
        assert outcome.result == "shipped"
        await console.send(project, "ship", {"order": 7}, id="order-7")
        with anyio.fail_after(PATIENCE):
            async for entry in console.follow_logs(project, last=20, interval=0.02):
                if entry.outcome and entry.outcome.kind is OutcomeKind.DUPLICATE:
                    break
        await _assert_ends(second, console, project)


async def test_workers(redis_url: str, project: str, redis: Redis) -> None:
    """Two workers come, do all tasks, and leave; what they said of them stays."""
    async with _started("workers.py", redis_url, project) as example:
        shown = await _read_until(example, f"{project}-2 joined")
        keys = [f"backtest:worker:{project}-{number}" for number in (1, 2)]
        assert await redis.exists(*keys) == 2
        shown += await _read_until(example, f"{project}-2 left")
        with anyio.fail_after(PATIENCE):
            assert await example.wait() == 0
        assert await _end_of_errors(example) == b""
    assert not await redis.exists(*keys)
    assert shown.count("missing=()") == 4
    async with TaskStatus(redis_url) as tasks:
        mine = [task for task in await tasks.list() if task.id.startswith(project)]
        assert [(task.status, task.progress) for task in mine] == [("done", 100)] * 4
        for task in mine:
            await tasks.delete(task.id)
    async for key in redis.scan_iter(f"{project}_update_*"):
        assert await redis.scard(key) == 5
        await redis.delete(key)


async def test_workers_interrupted(redis_url: str, project: str, redis: Redis) -> None:
    """Ctrl-C ends them in order: no traceback, and their keys are gone."""
    async with _started("workers.py", redis_url, project) as example:
        await _read_until(example, f"{project}-2 joined")
        assert await _end(example, signal.SIGINT) == (0, b"")
    assert not await redis.exists(f"backtest:worker:{project}-1")
    async for key in redis.scan_iter(f"*{project}*"):
        await redis.delete(key)


async def _end_of_errors(process: anyio.abc.Process) -> bytes:
    assert process.stderr is not None
    return b"".join([part async for part in process.stderr])


async def test_run_events(redis_url: str, project: str) -> None:
    """The run is followed to its end while it is written, and replayed afterwards."""
    async with _started("run_events.py", redis_url, project) as example:
        shown = await _read_until(example, "replayed ")
        with anyio.fail_after(PATIENCE):
            assert await example.wait() == 0
        assert await _end_of_errors(example) == b""
    first, started, *events, completed, closed, _ = shown.splitlines()
    number = int(first.removeprefix("run "))
    assert started == "1 lifecycle.started {}"
    assert completed.endswith("lifecycle.completed {}")
    assert closed == f"{len(events) + 3} system.close {{}}"
    told = [ast.literal_eval(one.split(" ", 2)[2]) for one in events]
    assert told[:2] == [{"tool": "prices", "goods": "茶"}, {"rows": 30}]
    whole = "".join(one["text"] for one in told[2:])
    assert whole == "茶的价格上涨了三成，因为春天的雨水太少。"
    async with EventStore(redis_url) as store:
        assert await store.delete(number)


async def test_crawl(redis_url: str, project: str, redis: Redis) -> None:
    """Each page is crawled although a worker is killed; nothing stays in Redis."""
    async with _started("crawl.py", redis_url, project) as example:
        shown = await _read_until(example, "fetched twice")
        with anyio.fail_after(PATIENCE):
            assert await example.wait() == 0
        assert await _end_of_errors(example) == b""
    assert shown.startswith("100 of 100 pages crawled, 0 failed; 1 came back")
    assert [key async for key in redis.scan_iter(f"*crawlo:{project}:*")] == []


@pytest.mark.skipif(os.name != "posix", reason="signals")
async def test_fastapi_events(redis_url: str) -> None:
    """The page's run is streamed to its end, no other one exists, the server ends."""
    async with await anyio.open_process(
        [sys.executable, "-m", "uvicorn", "fastapi_events:app", "--port", "0"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "BLS_REDIS_URL": redis_url},
        cwd=REPOSITORY / "examples",
    ) as process:
        try:
            assert process.stderr is not None
            url = await _read_address(process.stderr)
            async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
                assert "EventSource" in (await client.get("/")).text
                number = (await client.post("/start")).json()
                stream = (await client.get(f"/runs/{number}/events/stream")).text
                unknown = await client.get("/runs/7/events/stream")
                assert unknown.status_code == 404
                told = (await client.get("/runs/7/events")).json()
                assert told == {"error": "there is no such run"}
            assert stream.endswith('event: close\ndata: {"reason":"closed"}\n\n')
            texts = re.findall(r'"data":\{"text":"(.*?)"\}', stream)
            assert "".join(texts) == "春眠不觉晓，处处闻啼鸟。"
            async with EventStore(redis_url) as store:
                assert await store.delete(number)
            ended, errors = await _end(process, signal.SIGTERM)
            assert ended in {0, -signal.SIGTERM}
            assert b"Traceback" not in errors
        except BaseException:
            process.kill()
            raise


async def _read_address(stream: anyio.abc.ByteReceiveStream) -> str:
    said = b""
    with anyio.fail_after(PATIENCE):
        while (found := re.search(rb"http://127\.0\.0\.1:[1-9]\d*", said)) is None:
            said += await stream.receive()
    return found[0].decode()


async def test_asset_library(
    own_server: DevServer, project: str, tmp_path: Path
) -> None:
    """The agent has what the folder has, also what is changed while it runs."""
    folder = tmp_path / "library"
    shutil.copytree(REPOSITORY / "examples/asset_library", folder)
    url, name = own_server.url, "asset_library/agent.py"
    async with (
        Console(url) as console,
        _started(name, url, project, str(folder)) as example,
    ):
        await _until_online(console, project)
        await _read_until(example, "weekly_report 2.0.1")
        tools = await console.call(project, "tools")
        for tool in ("stock_level", "web_search"):
            assert tool in str(tools.result)
        said = await console.call(project, "summarize", {"text": "茶涨价了。"})
        assert "用 3 句话" in str(said.result)
        assert "茶涨价了。" in str(said.result)
        prompt = folder / "prompts/summary.yaml"
        prompt.write_text(prompt.read_text("utf-8").replace("1.0.0", "1.1.0"), "utf-8")
        await _read_until(example, "summarizer 1.1.0")
        await _assert_ends(example, console, project)
