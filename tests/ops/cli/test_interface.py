"""``asyncapi`` and ``stubs``: of an agent that is imported, and of a living project."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import Console, ProjectAgent
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, PROJECT_STATUS
from tests.ops.cli.conftest import Bls

MODULE = '''
from bls_agent import ProjectAgent

print("printed by the module")
agent = ProjectAgent("订单系统", redis="redis://u:geheim@127.0.0.1:1/2", status_ttl=30)

@agent.command
async def reload(force: bool = False) -> None:
    """Reload the rules."""

def make():
    return agent
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, under a name of its own."""
    name = f"service_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


async def read_document(bls: Bls, *words: str, **how: Any) -> dict[str, Any]:
    ran = await bls("asyncapi", *words, **how)
    assert ran.code == 0, ran.said
    document: dict[str, Any] = orjson.loads(ran.out)
    return document


@pytest.mark.parametrize("path", ["agent", "make()"])
async def test_an_imported_agent(bls: Bls, module: str, path: str) -> None:
    """Nothing is sent, the settings of the agent count, and no password is printed."""
    ran = await bls.bare("asyncapi", f"{module}:{path}", "--lang", "zh")
    assert ran.code == 0
    document = orjson.loads(ran.out)
    assert document["info"]["title"] == "订单系统"
    assert document["servers"]["redis"]["host"] == "127.0.0.1:1"
    assert document["channels"]["status"]["x-ttl-seconds"] == 30
    assert "reload" in document["channels"]["control"]["messages"]
    assert "控制台" in document["info"]["description"]
    assert "printed by the module" in ran.said
    assert "geheim" not in ran.text + ran.said
    assert ran.text.startswith("{\n  ")
    compact = await bls.bare("asyncapi", f"{module}:agent", "--json", "--lang", "zh")
    assert orjson.loads(compact.out) == document
    assert len(compact.out.splitlines()) == 1


@pytest.mark.parametrize("name", ["asyncapi", "stubs"])
@pytest.mark.parametrize("words", [(), ("a:b", "--project", "x")])
async def test_one_source_is_needed(
    bls: Bls, name: str, words: tuple[str, ...]
) -> None:
    ran = await bls(name, *words)
    assert ran.code == 2
    assert f"bls-agent {name} service:agent" in ran.said


async def test_a_living_project(
    bls: Bls,
    redis: Redis,
    project: str,
    console: Console,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """What is really in the three keys is what the document says."""
    async with ProjectAgent(project, redis=redis_url) as agent:

        @agent.command
        async def reload(force: bool = False) -> None:
            """Reload the rules."""
            agent.log.info("reloaded", force=force)

        await agent.ready(5)
        document = await read_document(bls, "--project", project, "--no-record")
        same = await read_document(bls, project, "--no-record")
        assert same == document
        await console.call(project, "reload", {"force": True})
        await console.call(project, "reload", {"force": 1})
        assert await agent.flush(5)
        status: Any = await redis.get(PROJECT_STATUS.build(project=project))
        ttl = await redis.ttl(PROJECT_STATUS.build(project=project))
        records = await redis.lrange(PROJECT_CONSOLE.build(project=project), 0, -1)
    sent = await console.send(project, "reload", {"force": False})
    [command] = await redis.lrange(CONTROL.build(project=project), 0, -1)
    channels = document["channels"]
    assert {one["address"] for one in channels.values()} == {
        template.build(project=project)
        for template in (CONTROL, PROJECT_CONSOLE, PROJECT_STATUS)
    }

    import jsonschema  # noqa: PLC0415 - it takes a second to import

    def kinds_of(channel: str, value: Any) -> list[str]:
        messages = channels[channel]["messages"]
        return [
            name
            for name, one in messages.items()
            if jsonschema.Draft7Validator(one["payload"]).is_valid(value)
        ]

    assert kinds_of("control", orjson.loads(command)) == ["reload"]
    assert orjson.loads(command)["id"] == sent.id
    assert kinds_of("status", bytes(status).decode()) == ["status"]
    assert 0 < ttl <= channels["status"]["x-ttl-seconds"]
    kinds = [kinds_of("log", orjson.loads(record)) for record in records]
    assert all(len(one) == 1 for one in kinds), records
    assert kinds.count(["outcome"]) == 4  # twice help, twice reload
    assert ["record"] in kinds


async def test_the_client_of_a_living_project(
    bls: Bls, project: str, console: Console, redis_url: str
) -> None:
    """What ``stubs`` prints is a module that calls the real agent."""
    async with ProjectAgent(project, redis=redis_url) as agent:

        @agent.command("重载-1")
        async def reload(force: bool = False, n: int = 3) -> list[object]:
            return [force, n]

        await agent.ready(5)
        ran = await bls("stubs", project, "--no-record")
        assert ran.code == 0, ran.said
        scope: dict[str, Any] = {"__name__": "orders"}
        exec(compile(ran.out, "orders.py", "exec"), scope)
        client = scope["Commands"](console)
        outcome = await client.重载_1(force=True)
        assert outcome.result == [True, 3]
        outcome = await client.重载_1(force="yes")
        assert outcome.kind == "rejected"
        written = await bls("stubs", project, "--no-record", "--json", lang="zh")
        code = orjson.loads(written.out)["code"]
    assert "默认值：3。" in code
    assert "Default: 3." in ran.text


ANSWERS: dict[str, tuple[Any, str]] = {
    "too long": ([{"name": f"c{n}", "description": "x" * 99} for n in range(999)], "commands are missing"),
    "another answer": ("help yourself", "names no command"),
    "no names": ([{"name": " "}, {}, 5], "names no command"),
    "a failure": (RuntimeError("\x1b[2Jboom"), "boom"),
    "an older agent": (None, "no handler is registered for 'help'"),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
async def test_answers_that_leave_out_commands(
    bls: Bls, redis: Redis, project: str, redis_url: str, case: str
) -> None:
    """Nothing on standard output, the reason, and the way without an answer."""
    answer, said = ANSWERS[case]
    agent = ProjectAgent(project, redis=redis_url, builtins=False)
    if answer is not None:

        @agent.command("help")
        async def answer_help() -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    async with agent:
        await agent.ready(5)
        ran = await bls("asyncapi", project)
    assert (ran.code, ran.out) == (1, b"")
    assert said in ran.said
    assert "service:agent" in ran.said
    assert "\x1b" not in ran.said


async def test_a_project_that_does_not_exist(bls: Bls, project: str) -> None:
    ran = await bls("asyncapi", project)
    assert (ran.code, ran.out) == (1, b"")
    assert project in ran.said
