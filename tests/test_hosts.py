"""Services under the servers that people use: seen, answering, ending in order.

The examples, and the programs that docs/embedding.md shows.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
import httpx2
import pytest
from redis.asyncio import Redis

from bls_agent import Console, LogEntry, OutcomeKind, Status
from bls_agent.core.keys import PROJECT_STATUS
from tests.harness import eventually

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and fork")

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGES = [ROOT / "docs" / name for name in ("embedding.md", "embedding.zh-CN.md")]
SITE = EXAMPLES / "django_service"
START, STOP = 20.0, 10.0  # seconds
ADDRESS = re.compile(r"http://127\.0\.0\.1:[1-9]\d*")
# What would change a server behind the test's back.
FOREIGN = re.compile(
    "BLS_(?!SERVER_BINARY)|DJANGO_|FLASK_|GUNICORN_|PYTEST_|UVICORN_|WEB_|WERKZEUG_"
)

GUNICORN = (sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:0")
UVICORN = (sys.executable, "-m", "uvicorn", "--port", "0")
PRELOAD = (*GUNICORN, "-c", "python:gunicorn_preload")
UNDER_GUNICORN = (*GUNICORN, "--threads", "8", "flask_service:create_app()")
# With their exit codes: uvicorn ends by the signal that it was sent.
SELLERS: dict[str, tuple[Sequence[str], int]] = {
    "uvicorn": ((*UVICORN, "fastapi_service:app"), -signal.SIGTERM),
    "fastapi": ((sys.executable, "fastapi_service.py"), -signal.SIGTERM),
    "flask": ((sys.executable, "flask_service.py"), 0),
    "gunicorn": (UNDER_GUNICORN, 0),
}


@dataclass
class Service:
    """A program that serves HTTP, in a session of its own."""

    process: anyio.abc.Process
    output: Path

    def read_output(self) -> str:
        return self.output.read_text("utf-8")

    def is_listening(self) -> bool:
        assert self.process.returncode is None, self.read_output()
        return ADDRESS.search(self.read_output()) is not None

    async def get(self, path: str) -> httpx2.Response:
        """Ask for a page; the connection does not outlive the answer."""
        found = ADDRESS.search(self.read_output())
        assert found is not None
        async with httpx2.AsyncClient(trust_env=False, timeout=START) as client:
            return await client.get(found[0] + path)

    def is_gone(self) -> bool:
        """Tell whether nothing is left of it, neither program nor worker."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, 0)
            return False
        return True

    async def stop(self) -> int:
        """End it in order, and see that nothing is left and that it had no trouble."""
        self.process.send_signal(signal.SIGTERM)
        with anyio.fail_after(STOP):
            code = await self.process.wait()
            await eventually(self.is_gone, STOP)
        assert "Traceback" not in self.read_output()
        return code


@dataclass
class Stage:
    """What a service needs around it: a server, a project, a folder."""

    url: str
    project: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not FOREIGN.match(k)}
        return {
            **kept,
            "BLS_REDIS_URL": self.url,
            "PROJECT": self.project,
            "PORT": "0",
            "DATABASE": str(self.folder / "shop.sqlite3"),
            "XDG_RUNTIME_DIR": str(self.folder),  # gunicorn's control socket
            "PYTHONPATH": str(ROOT),
            "PYTHONIOENCODING": "utf-8",
            "PYTHONUNBUFFERED": "1",
        }

    @asynccontextmanager
    async def run(
        self, command: Sequence[str], cwd: Path = EXAMPLES, **variables: str
    ) -> AsyncIterator[Service]:
        """Start a program, and see that nothing is left of it at the end."""
        output = self.folder / "output"
        with output.open("wb") as file:
            process = await anyio.open_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**self.environment, **variables},
                start_new_session=True,
            )
        async with process:
            try:
                yield Service(process, output)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    @asynccontextmanager
    async def serve(
        self, command: Sequence[str], console: Console, cwd: Path = EXAMPLES
    ) -> AsyncIterator[Service]:
        """Start a service, and wait until it listens and is on the console."""
        async with self.run(command, cwd) as service:
            await eventually(service.is_listening, START)
            await self.until_online(console)
            yield service

    async def until_online(self, console: Console) -> None:
        async def is_online() -> bool:
            return await console.status(self.project) is Status.ONLINE

        await eventually(is_online, START)

    async def finish(self, command: Sequence[str], cwd: Path = EXAMPLES) -> str:
        """Run a program that ends by itself, and give what it printed."""
        async with self.run(command, cwd) as service:
            with anyio.fail_after(START):
                code = await service.process.wait()
            assert code == 0, service.read_output()
            return service.read_output()

    def write(self, name: str, code: str) -> str:
        """Put a program for this project into the folder."""
        path = self.folder / name
        path.write_text(code.replace("订单系统", self.project), "utf-8")
        return str(path)


@pytest.fixture
def stage(redis_url: str, project: str, tmp_path: Path) -> Stage:
    return Stage(redis_url, project, tmp_path)


async def assert_offline(console: Console, redis: Redis, project: str) -> None:
    """The last word was said, and stays."""
    assert await console.status(project) is Status.OFFLINE
    assert await redis.ttl(PROJECT_STATUS.build(project=project)) == -1


def fields(entry: LogEntry) -> dict[str, object]:
    """The record's fields, without what the agent adds."""
    return {k: v for k, v in entry.metadata.items() if k != "agent"}


@pytest.mark.parametrize(("command", "code"), SELLERS.values(), ids=SELLERS)
async def test_fastapi_and_flask(
    command: Sequence[str], code: int, stage: Stage, console: Console, redis: Redis
) -> None:
    """Requests and commands work on one state, what they log arrives, SIGTERM is 离线."""
    async with stage.serve(command, console) as service:
        assert (await service.get("/prices/茶")).json() == {"price": 12.5}
        outcome = await console.call(
            stage.project, "set_price", {"goods": "茶", "price": 15.0}
        )
        assert (outcome.kind, outcome.result) == (
            OutcomeKind.SUCCEEDED,
            {"before": 12.5},
        )
        assert (await service.get("/prices/茶")).json() == {"price": 15.0}
        assert (await service.get("/prices/咖啡")).status_code == 404
        assert await service.stop() == code
    await assert_offline(console, redis, stage.project)
    before, _, after = await console.logs(stage.project)
    assert before.message == after.message == "price shown"
    assert fields(before) == {"goods": "茶", "price": 12.5}
    assert fields(after) == {"goods": "茶", "price": 15.0}
    assert [entry.number for entry in (before, after)] == [1, 3]


async def test_metrics(stage: Stage, console: Console) -> None:
    """A command that has ended is in the next scrape."""
    command = (sys.executable, "fastapi_metrics.py")
    async with stage.serve(command, console) as service:
        await console.call(stage.project, "take", {"goods": "茶"})
        metrics = (await service.get("/metrics")).text
        labels = f'command="take",outcome="succeeded",project="{stage.project}"'
        assert f"bls_commands_total{{{labels}}} 1.0" in metrics
        assert await service.stop() == -signal.SIGTERM


async def test_django(stage: Stage, console: Console, redis: Redis) -> None:
    """The site that serves is on the console with all that it logs; manage.py is not."""
    manage = [sys.executable, str(SITE / "manage.py"), "migrate", "--run-syncdb"]
    await stage.finish(manage)
    assert await console.status(stage.project) is None
    command = (*GUNICORN, "--chdir", str(SITE), "--threads", "8", "shop.wsgi")
    async with stage.serve(command, console) as service:
        outcome = await console.call(stage.project, "accept", {"goods": "茶"})
        assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCEEDED, {"order": 1})
        assert (await service.get("/orders/1")).json() == {"goods": "茶"}
        assert (await service.get("/orders/2")).status_code == 404
        assert await service.stop() == 0
    await assert_offline(console, redis, stage.project)
    accepted, _, shown, missing = await console.logs(stage.project)
    assert accepted.message == "order 1 accepted"
    assert fields(accepted) == {
        "logger": "shop.orders",
        "goods": "茶",
        "commandId": outcome.command_id,
    }
    assert shown.message == "order 1 shown"
    assert fields(shown) == {"logger": "shop.orders", "goods": "茶"}
    assert (missing.level.value, missing.metadata["logger"]) == (
        "warn",
        "django.request",
    )


async def test_gunicorn_with_preload(
    stage: Stage, console: Console, redis: Redis
) -> None:
    """Four forked workers share the commands; each counts its own records from one."""

    async def read() -> list[LogEntry]:
        return await console.logs(stage.project, 1_000)

    async def all_have_started() -> bool:
        return len([e for e in await read() if e.message == "worker started"]) == 4

    async def all_have_ended() -> bool:
        return len([e for e in await read() if e.outcome]) >= len(sent)

    async with stage.serve(PRELOAD, console) as service:
        await eventually(all_have_started)
        sent = [
            (await console.send(stage.project, "whoami", create=True)).id
            for _ in range(40)
        ]
        pages = [(await service.get(f"/orders/{number}")).text for number in range(8)]
        await eventually(all_have_ended)
        assert await service.stop() == 0
        master = service.process.pid
    await assert_offline(console, redis, stage.project)

    entries = await read()
    pid_of = {
        entry.instance: entry.metadata["pid"]
        for entry in entries
        if entry.message == "worker started"
    }
    assert len(set(pid_of.values()) - {master}) == 4
    for instance, pid in pid_of.items():
        assert f"-{pid}-" in instance  # made in the worker, not in the master

    numbers: dict[str, list[int | None]] = defaultdict(list)
    for entry in entries:
        numbers[entry.instance].append(entry.number)
    assert numbers.keys() == pid_of.keys()
    for counted in numbers.values():
        assert counted == list(range(1, len(counted) + 1))

    outcomes = [(entry.instance, entry.outcome) for entry in entries if entry.outcome]
    assert Counter(outcome.command_id for _, outcome in outcomes) == Counter(sent)
    assert all(pid_of[instance] == outcome.result for instance, outcome in outcomes)
    assert len({outcome.result for _, outcome in outcomes}) > 1

    requests = [entry for entry in entries if entry.message == "request"]
    assert {(e.metadata["path"], f"{pid_of[e.instance]}\n") for e in requests} == {
        (f"/orders/{number}", page) for number, page in enumerate(pages)
    }
    assert len(requests) == len(pages)


async def test_gunicorn_does_not_start_without_the_agent(
    stage: Stage, console: Console
) -> None:
    """A wrong setting is told on the terminal, and gunicorn gives up: no endless loop."""
    async with stage.run(PRELOAD, BLS_CONCURRENCY="many") as service:
        with anyio.fail_after(STOP):
            assert await service.process.wait() in (1, 3)  # gunicorn is unsure
        assert "BLS_CONCURRENCY" in service.read_output()
    assert await console.status(stage.project) is None


def blocks(page: Path, title: str = "") -> list[str]:
    """The Python blocks of a page, or of one section of it."""
    text = page.read_text("utf-8")
    if title:
        text = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


async def test_asyncio_program_of_the_page(
    stage: Stage, console: Console, redis: Redis
) -> None:
    """The agent stands around the work; SIGTERM ends both in order."""
    program = stage.write("program.py", blocks(PAGES[0], "asyncio programs")[0])
    async with stage.run([sys.executable, program]) as service:
        await stage.until_online(console)
        assert (await console.call(stage.project, "ping")).succeeded
        assert await service.stop() == 0
    await assert_offline(console, redis, stage.project)
    assert (await console.logs(stage.project))[0].message == "order shipped"


@pytest.mark.usefixtures("redis")  # it removes the keys
async def test_cron_job_of_the_page(stage: Stage, console: Console) -> None:
    """A job of no time is seen all the same; one that fails shows until the next."""
    job, project = blocks(PAGES[0], "Plain scripts and cron jobs")[0], stage.project
    job = job.replace("订单系统-夜间对账", "订单系统")
    await stage.finish([sys.executable, stage.write("job.py", job)])
    (entry,) = await console.logs(project)
    assert (entry.message, fields(entry)) == ("accounts compared", {"orders": 1024})
    assert await console.status(project) is Status.OFFLINE
    failing = stage.write("failing.py", job.replace("orders=1024)", "); sys.exit(2)"))
    async with stage.run([sys.executable, failing]) as service:
        with anyio.fail_after(START):
            assert await service.process.wait() == 2
    assert await console.status(project) is Status.FAULT


async def test_gunicorn_configuration_of_the_page(
    stage: Stage, console: Console, redis: Redis
) -> None:
    """The hooks suit any WSGI program, here the one of the Flask example."""
    stage.write("shop.py", (EXAMPLES / "flask_service.py").read_text("utf-8"))
    title = "gunicorn and uWSGI with preload"
    configuration = blocks(PAGES[0], title)[0].replace("workers = 4", "workers = 1")
    stage.write("gunicorn.conf.py", configuration)
    command = (*GUNICORN, "shop:app")
    async with stage.serve(command, console, stage.folder) as service:
        assert (await service.get("/prices/茶")).json() == {"price": 12.5}
        assert await service.stop() == 0
    await assert_offline(console, redis, stage.project)
    (shown,) = await console.logs(stage.project)
    assert fields(shown) == {"goods": "茶", "price": 12.5}


async def test_test_of_the_page(stage: Stage) -> None:
    """The test that the page shows passes, on a server of its own."""
    stage.write("shop.py", (EXAMPLES / "flask_service.py").read_text("utf-8"))
    test = stage.write("test_shop.py", blocks(PAGES[0], "Tests of your own service")[0])
    pytest_ = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", test)
    assert "1 passed" in await stage.finish(pytest_, stage.folder)
