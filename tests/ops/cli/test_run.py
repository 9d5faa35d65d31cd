"""An agent as the application: found, served, and ended with the right code."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ProjectAgent
from bls_agent.ops.cli.commands.run import Target, parse_target
from bls_agent.ops.cli.errors import Failure, unwrap
from bls_agent.project.session import AgentSession
from tests.harness import eventually, status_of
from tests.ops.cli.conftest import Bls
from tests.ops.cli.terminal import run_piped, start_piped

SERVICE = """
import logging, os
import anyio
from bls_agent import ProjectAgent

agent = ProjectAgent({project!r}, shutdown_timeout=20)
logging.getLogger("service").warning("loaded with %s", os.environ["BLS_REDIS_URL"][:8])

@agent.command
async def ping_me() -> str:
    return "好"

@agent.command
async def end() -> None:
    await agent.aclose()

@agent.command
async def hang() -> None:
    await anyio.sleep(15)

def make() -> ProjectAgent:
    return agent

async def make_slowly() -> ProjectAgent:
    return agent

class Holder:
    inner = agent

def fail() -> ProjectAgent:
    raise ValueError("密码 password=hunter2")

number = 3
"""


@pytest.fixture
def service(tmp_path: Path, project: str) -> Path:
    (tmp_path / "service.py").write_text(SERVICE.format(project=project), "utf-8")
    (tmp_path / "broken.py").write_text("import os\n\nvalue = 1 / 0\n")
    (tmp_path / "wrong.py").write_text("def f(:\n")
    (tmp_path / "needs.py").write_text("import no_such_thing\n")
    (tmp_path / "explains.py").write_text("import sys\nsys.exit('没有 DSN')", "utf-8")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(7)\n")
    return tmp_path


@pytest.fixture
def _here(service: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The service's directory is the current one; its modules are forgotten at the end."""
    monkeypatch.chdir(service)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", None)).startswith(str(service)):
            del sys.modules[name]


def start(service: Path, url: str, *words: str) -> subprocess.Popen[bytes]:
    return start_piped("run", *words, "--redis", url, directory=service)


@pytest.mark.parametrize(
    ("target", "number", "code"),
    [
        ("service:agent", signal.SIGTERM, 143),
        ("service:make()", signal.SIGINT, 130),
        ("service:make_slowly()", signal.SIGINT, 130),
    ],
)
async def test_a_signal_ends_it(
    service: Path,
    redis_url: str,
    redis: Redis,
    project: str,
    target: str,
    number: int,
    code: int,
) -> None:
    """It serves, drains, writes 离线 and gives the signal's exit code."""
    process = start(service, redis_url, target)
    await eventually(lambda: process_shows(redis, project, "在线"))
    process.send_signal(number)
    out, err = await anyio.to_thread.run_sync(process.communicate)
    assert process.returncode == code
    assert await status_of(redis, project) == "离线"
    assert out == b""
    assert "loaded with redis://" in err.decode()
    assert f"{project} is online" in err.decode()


async def process_shows(redis: Redis, project: str, status: str) -> bool:
    return await status_of(redis, project) == status


async def test_it_ends_by_itself(
    service: Path, redis_url: str, redis: Redis, project: str
) -> None:
    """Exit code 0; as JSON, who it was and which signal."""
    process = start(service, redis_url, "service:agent", "--json")
    await eventually(lambda: process_shows(redis, project, "在线"))
    await redis.rpush(f"{project}_控制", '{"command":"end"}')
    out, _ = await anyio.to_thread.run_sync(process.communicate)
    assert process.returncode == 0
    assert out.decode() == f'{{"projectName":"{project}","signal":null}}\n'


def has_arrived(process: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    """Tell whether a signal does not wait for a process any more, as Linux shows it."""
    told = Path(f"/proc/{process.pid}/status").read_text()
    waiting = re.findall(r"^S(?:ig|hd)Pnd:\s*(\w+)", told, re.MULTILINE)
    return not any(int(mask, 16) >> number - 1 & 1 for mask in waiting)


async def test_a_second_signal_hurries(
    service: Path, redis_url: str, redis: Redis, project: str
) -> None:
    """A hanging handler is not waited for; the code is that of the first signal."""
    process = start(service, redis_url, "service:agent")
    await eventually(lambda: process_shows(redis, project, "在线"))
    await redis.rpush(f"{project}_控制", '{"command":"hang"}')

    async def taken() -> bool:
        return await redis.llen(f"{project}_控制") == 0

    await eventually(taken)
    process.send_signal(signal.SIGTERM)
    await eventually(lambda: has_arrived(process, signal.SIGTERM))
    process.send_signal(signal.SIGINT)
    with anyio.fail_after(10):
        await anyio.to_thread.run_sync(process.communicate)
    assert process.returncode == 143


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("servce:agent", 2, "There is no module servce"),
        ("nowhere.at.all:agent", 2, "There is no module nowhere.at.all"),
        ("service:agnet", 2, "There is no agnet in service"),
        ("service:Holder.x", 2, "There is no Holder.x in service"),
        ("service:make", 2, "write service:make()"),
        ("service:number", 2, "no ProjectAgent but a int"),
        ("service:number()", 2, "no ProjectAgent but a int"),
        ("service:Holder()", 2, "no ProjectAgent but a Holder"),
        ("service.py:agent", 2, "MODULE:AGENT"),
        ("a/b:agent", 2, "MODULE:AGENT"),
        (":agent", 2, "MODULE:AGENT"),
        ("service:fail()", 1, "ValueError: "),
        ("broken", 1, "ZeroDivisionError"),
        ("wrong", 1, "SyntaxError"),
        ("needs", 1, "no_such_thing"),
        ("leaves", 7, ""),
        ("explains", 1, "没有 DSN"),
    ],
)
@pytest.mark.usefixtures("_here")
async def test_what_cannot_be_run(bls: Bls, target: str, code: int, said: str) -> None:
    """2 and the remedy where it cannot be found; the user's own traceback where it fails."""
    ran = await bls("run", target, url="redis://127.0.0.1:1")
    assert ran.code == code
    assert said in ran.said
    assert "hunter2" not in ran.said
    assert ("Traceback" in ran.said) is (
        code == 1 and target not in ("wrong", "explains")
    )
    assert "bls_agent/" not in ran.said
    assert "importlib" not in ran.said


def test_a_wrong_setting(service: Path) -> None:
    """Found when the agent is opened: 2, named."""
    ran = run_piped(
        "run", "service", directory=service, BLS_MODE="fast", BLS_REDIS_URL="redis://h"
    )
    assert ran.code == 2
    assert "BLS_MODE" in ran.said


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("service", Target("service", "agent", call=False)),
        ("a.b:c", Target("a.b", "c", call=False)),
        ("a.b:c.d()", Target("a.b", "c.d", call=True)),
        ("服务:代理", Target("服务", "代理", call=False)),
        ("", None), (":", None), ("a:", None), ("a:b:c", None), ("a:b(1)", None), ("a.py", None),
    ],
)  # fmt: skip
def test_targets(text: str, target: Target | None) -> None:
    """module, module:attribute, module:attribute(); nothing else."""
    if target is None:
        with pytest.raises(Failure):
            parse_target(text)
    else:
        assert parse_target(text) == target


async def test_a_fault_of_the_agent_itself(
    redis_url: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the application it does not end as if all were well."""

    async def fail(_: AgentSession) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(AgentSession, "_end", fail)
    agent = ProjectAgent(project, redis=redis_url)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close_soon, agent)
        with pytest.raises(ExceptionGroup) as raised:
            await agent.run(handle_signals=False)
    assert isinstance(unwrap(raised.value), ZeroDivisionError)


async def close_soon(agent: ProjectAgent) -> None:
    await eventually(lambda: agent.stats().open)
    await agent.aclose()
