"""What the commands do, against keys of our agents and of bare redis-cli."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import unicodedata
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

import anyio
import orjson
import pytest
from pydantic import Field
from redis.asyncio import Redis

from bls_agent import ProjectAgent
from bls_agent.devserver import DevServer
from bls_agent.ops.cli.commands.send import signature
from bls_agent.ops.fields import show_number
from tests.harness import eventually, execute, records
from tests.ops.cli.conftest import Bls
from tests.ops.cli.terminal import environment, show


@dataclass
class Line:
    sku: str
    price: Decimal
    count: Annotated[int, Field(ge=1)] = 1


@dataclass
class Order:
    lines: list[Line]
    due: date | None = None


def make_agent(project: str, url: str, **options: object) -> ProjectAgent:
    agent = ProjectAgent(project, redis=url, **options)  # type: ignore[arg-type]

    @agent.command
    async def reload(force: bool = False, n: int = 0) -> dict[str, object]:
        return {"force": force, "n": n, "说": "好"}

    @agent.command
    async def fail() -> None:
        raise ValueError("坏了")

    @agent.command
    async def place(order: Order, mode: Literal["快", "慢"] = "慢") -> None:
        """Place an order."""

    @agent.command("list")
    async def list_all() -> list[int]:
        return [*range(20_000)]

    return agent


async def first_command(redis: Redis, project: str) -> Any:
    """What waits first in a control list, as its bytes."""
    return await execute(redis, "LINDEX", f"{project}_控制", 0)


async def add(redis: Redis, project: str, *values: str | bytes) -> None:
    await redis.rpush(f"{project}_项目控制台", *values)


async def test_projects(bls: Bls, redis: Redis, project: str) -> None:
    """Each project with the contract's word; as JSON, too; nothing but data in a pipe."""
    await redis.set(f"{project}_项目状态", "在线", ex=60)
    ran = await bls("projects")
    assert f"{project}\t在线" in ran.text.splitlines()
    assert ran.err == b""
    rows = [
        orjson.loads(line)
        for line in (await bls("projects", "--json")).out.splitlines()
    ]
    row = {"projectName": project, "status": "在线", "statusName": "online"}
    assert row | {"intake": []} in rows


@pytest.mark.parametrize(
    ("value", "ttl", "code"),
    [
        ("在线", 60, 0),
        ("离线", None, 0),
        ("故障", 60, 3),
        ("报错", 60, 3),
        ("坏", 60, 3),
    ],
)
async def test_status_by_exit_code(
    bls: Bls, redis: Redis, project: str, value: str, ttl: int | None, code: int
) -> None:
    """0 for 在线 and for 离线 as a last word, 3 for everything that is not well."""
    await redis.set(f"{project}_项目状态", value, ex=ttl)
    ran = await bls("status", project)
    assert ran.code == code
    told = orjson.loads((await bls("status", project, "--json")).out)
    assert told["healthy"] is (code == 0)
    assert told["presence"] == ("fresh" if ttl else "untimed")
    assert (told["status"] or told["statusText"]) == value


async def test_status_that_has_gone(bls: Bls, redis: Redis, project: str) -> None:
    """A log without a status: stale, 3. Only commands that wait: never seen, 3."""
    await redis.rpush(f"{project}_控制", "{}", "{}")
    told = orjson.loads((await bls("status", project, "--json")).out)
    assert (told["presence"], told["queue"]) == ("never", 2)
    await add(redis, project, '{"message":"x","level":"error"}')
    ran = await bls("status", project)
    assert ran.code == 3
    assert "no status: it was not refreshed" in ran.text
    assert "error x" in ran.text


async def test_status_tells_replicas(bls: Bls, redis_url: str, project: str) -> None:
    """Each instance with what it says of itself."""
    async with make_agent(project, redis_url, replicas=True, instance="一号") as agent:
        await agent.ready(5)
        assert "一号 在线" in (await bls("status", project)).text
        told = orjson.loads((await bls("status", project, "--json")).out)
        assert told["instances"] == {"一号": "在线"}


async def test_a_paused_project(
    bls: Bls, redis_url: str, redis: Redis, project: str
) -> None:
    """Which process is paused, since when and why, in list, status and top; and dead letters."""
    await redis.rpush(f"bls_agent:{{{project}_控制}}:dead", "{}", "{}")
    async with make_agent(project, redis_url, instance="一号") as agent:
        await agent.ready(5)
        await agent.pause("发布")

        async def is_shown() -> bool:
            return f"{project}\t在线\tpaused" in (await bls("projects")).text

        await eventually(is_shown)
        ran = await bls("status", project)
        assert "intake\t一号: paused for " in ran.text
        assert ran.text.count("s, 0 in hand: 发布\n") == 1
        assert "dead letters\t2\n" in ran.text
        top = (await bls("top")).text.splitlines()
        (row,) = [line.split("\t") for line in top if line.startswith(project)]
        assert (row[2], row[5]) == ("paused", "2")
        told = orjson.loads((await bls("status", project, "--json")).out)
        assert told["deadLetters"] == 2
        (one,) = told["intake"]
        assert (one["instance"], one["state"], one["reason"]) == (
            "一号",
            "paused",
            "发布",
        )


async def test_a_project_that_is_not_there(
    bls: Bls, redis: Redis, project: str
) -> None:
    """Close names are suggested; nothing is created; exit code 1."""
    await redis.set(f"{project}_项目状态", "在线")
    missing = project.replace("测试", "测式")
    for words in (
        ["status", missing],
        ["logs", missing],
        ["withdraw", missing, "1"],
        ["requeue", missing, "1"],
        ["discard", missing, "--all"],
        ["wait", missing, "1", "--timeout", "0.1"],
    ):
        ran = await bls(*words)
        assert ran.code == 1, words
        assert missing in ran.said, words
        assert f"Did you mean {project}" in ran.said, words
        assert ran.out == b""
        there = [project if word == missing else word for word in words]
        assert "Did you mean" not in (await bls(*there)).said, there
        ran = await bls(words[0], "完全不同的名称", *words[2:])
        assert ran.code == 1, words
        assert "Did you mean" not in ran.said, words
        assert "bls-agent projects" in ran.said, words
    assert await redis.exists(f"{missing}_项目控制台", f"{missing}_控制") == 0


async def test_a_name_in_another_form(bls: Bls, redis: Redis, project: str) -> None:
    """NFD is normalised, with a hint; agents write NFC."""
    name = f"café{project}"
    await redis.set(f"{name}_项目状态", "在线", ex=60)
    ran = await bls("status", unicodedata.normalize("NFD", name), "--json")
    assert ran.code == 0
    assert orjson.loads(ran.out)["projectName"] == name
    assert "NFC" in ran.said
    await redis.delete(f"{name}_项目状态")


async def test_logs(bls: Bls, redis: Redis, project: str) -> None:
    """The newest, newest last; one line each; tabs between the fields; nothing cut."""
    long = "长" * 3_000
    await add(
        redis, project, '{"level":"info","message":"old"}',
        '{"timestamp":"2026-01-12T12:34:56.789Z","level":"WARNING","message":"a\\nb\\tc",'
        f'"metadata":{{"文":"{long}"}}}}',
        "rubbish", b"\xb6\xa9",
    )  # fmt: skip
    lines = (await bls("logs", project, "-n", "3")).text.splitlines()
    assert lines == [
        f'2026-01-12T12:34:56.789Z\twarn\ta\\nb\\tc\t{{"文":"{long}"}}',
        '-\tinfo\trubbish\t{"invalid":"not_json"}',
        '-\tinfo\t\\\\xb6\\\\xa9\t{"invalid":"not_utf8"}'.replace("\\\\", "\\"),
    ]
    told = [
        orjson.loads(x) for x in (await bls("logs", project, "--json")).out.splitlines()
    ]
    assert told[1] == {
        "timestamp": "2026-01-12T12:34:56.789Z", "level": "warn", "message": "a\nb\tc",
        "metadata": {"文": long},
    }  # fmt: skip
    assert (await bls("logs", project, "-n", "0")).out == b""


async def test_logs_that_are_wanted(bls: Bls, redis: Redis, project: str) -> None:
    """-n counts records that fit, however far back they are."""
    await add(redis, project, '{"level":"error","message":"first 故障"}')
    noise = ['{"level":"debug","message":"noise","metadata":{"k":"V(a+)+$"}}'] * 1_500
    await add(redis, project, *noise)
    await add(redis, project, '{"level":"warn","message":"last"}')
    ran = await bls("logs", project, "-n", "2", "--level", "warn")
    assert [line.split("\t")[2] for line in ran.text.splitlines()] == [
        "first 故障",
        "last",
    ]
    assert len((await bls("logs", project, "--level", "WARN")).text.splitlines()) == 2
    ran = await bls("logs", project, "--grep", "故障")
    assert "first 故障" in ran.text
    found = await bls("logs", project, "-n", "5", "--grep", "v(A+)+$")
    assert len(found.text.splitlines()) == 5
    ran = await bls("logs", project, "--grep", "nowhere")
    assert (ran.code, ran.out, "none matches" in ran.said) == (0, b"", True)
    assert "Searched 1,502 records" in ran.said
    record = {"timestamp": "2026-01-12T12:00:00Z", "message": "paid"}
    metadata = {"agent": "web-1#1", "logger": "pay.card"}
    await add(redis, project, orjson.dumps({**record, "metadata": metadata}).decode())
    for option, right, wrong in (
        ("--replica", "web-1", "web-2"),
        ("--logger", "pay", "p"),
        ("--until", "2026-01-12T12:00:00Z", "2026-01-12T11:59:59Z"),
    ):
        assert "paid" in (await bls("logs", project, option, right)).text
        assert (await bls("logs", project, option, wrong)).out == b""
    refused = await bls("logs", project, "--until", "morgen")
    assert (refused.code, "--until" in refused.said) == (2, True)


async def test_send(bls: Bls, redis: Redis, project: str) -> None:
    """The example of the manual, to the byte; a record names the sender, or is left out."""
    await redis.set(f"{project}_项目状态", "在线")
    ran = await bls(
        "send", project, "reload", "--arg", "force=true", "--arg", "名=李", "--arg", 'n="3"',
        "--args", '{"force": false, "x": 12345678901234567890123}',
    )  # fmt: skip
    assert (ran.code, ran.said) == (0, "")
    payload = await first_command(redis, project)
    sent = orjson.loads(payload.replace(b"12345678901234567890123", b'"huge"'))
    assert sent["command"] == "reload"
    assert sent["args"] == {"force": True, "x": "huge", "名": "李", "n": "3"}
    assert sent["id"] == ran.text.strip()
    [record] = await records(redis, project)
    assert "@" in record["metadata"]["sentBy"]
    assert record["metadata"]["commandId"] == ran.text.strip()
    assert (await bls("send", project, "reload", "--no-record")).code == 0
    assert len(await records(redis, project)) == 1


async def test_send_with_its_options(bls: Bls, redis: Redis, project: str) -> None:
    """An id of one's own, a broadcast; JSON output tells what was sent."""
    await redis.set(f"{project}_项目状态", "在线")
    ran = await bls(
        "send", project, "reload", "--json", "--args", "{}", "--id", "mine", "--broadcast",
    )  # fmt: skip
    told = orjson.loads(ran.out)
    assert told == {
        "projectName": project,
        "id": "mine",
        "command": "reload",
        "args": {},
    }
    sent = orjson.loads(await first_command(redis, project))
    assert (sent["id"], sent["broadcast"]) == ("mine", True)


async def test_send_to_nobody(bls: Bls, redis: Redis, project: str) -> None:
    """A name that is probably misspelt gets nothing, unless somebody insists."""
    for name in ("send", "call"):
        ran = await bls(name, project, "reload")
        assert ran.code == 1
        assert "There is no project" in ran.said
        assert "--force" in ran.said
    assert not await redis.exists(f"{project}_控制", f"{project}_项目控制台")
    ran = await bls("send", project, "reload", "--force")
    assert (ran.code, "offline: the command waits" in ran.said) == (0, True)
    assert await redis.llen(f"{project}_控制") == 1


async def test_what_waits(
    bls: Bls, redis: Redis, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listed without secrets, taken back once, and everything of the project deleted."""
    monkeypatch.setenv("BLS_REDACT_KEYS", "员工号")
    await redis.set(f"{project}_项目状态", "在线")
    for number in ("a", "b"):
        words = ("--arg", "员工号=geheim", "--arg", "n=1", "--id", number)
        await bls("send", project, "reload", *words)
    ran = await bls("queue", project)
    lines = [line.split("\t") for line in ran.text.splitlines()]
    assert [line[1:] for line in lines] == [
        [n, "reload", '{"员工号":"[redacted]","n":1}', "bls-agent cli"]
        for n in ("a", "b")
    ]
    ran = await bls("withdraw", project, "a", "--json")
    told = orjson.loads(ran.out)
    assert (told["projectName"], told["id"]) == (project, "a")
    assert told["args"]["员工号"] == "[redacted]"
    ran = await bls("withdraw", project, "a")
    assert (ran.code, "it was taken or withdrawn, or" in ran.said) == (1, True)
    for status in ("在线", "故障"):  # without an expiry: nobody may be there any more
        await redis.set(f"{project}_项目状态", status)
        ran = await bls("forget", project)
        assert (ran.code, f"{project} seems to run" in ran.said) == (1, True)
        assert "If it has ended already, add --force" in ran.said
    ran = await bls("forget", project, "--force")
    assert ran.text.splitlines() == sorted(
        f"{project}_{suffix}" for suffix in ("控制", "项目控制台", "项目状态")
    )
    ran = await bls("forget", project)
    assert (ran.code, "no project" in ran.said) == (1, True)
    ran = await bls("queue", project)
    assert (ran.code, "no waiting commands" in ran.said) == (0, True)


async def test_dead_letters_and_what_is_in_hand(
    bls: Bls, redis: Redis, project: str
) -> None:
    """Listed without secrets; one or all run again or are deleted, and are listed."""
    place = f"bls_agent:{{{project}_控制}}"
    letters = [{"id": n, "command": "导入", "args": {"token": "geheim"}} for n in "123"]
    await redis.rpush(f"{place}:dead", *map(orjson.dumps, letters))
    await redis.rpush(f"{place}:inflight:甲", b'{"id":"4","command":"x"}')
    await redis.hset(f"{place}:inflight", f"{place}:inflight:甲", "1")
    ran = await bls("queue", project, "--dead")
    assert "geheim" not in ran.text
    assert [line.split("\t")[1] for line in ran.text.splitlines()] == ["3", "2", "1"]
    ran = await bls("queue", project, "--in-hand")
    assert ran.text.split("\t")[:4] == ["甲", "false", "", "4"]
    for words in ([], ["1", "--all"]):
        ran = await bls("discard", project, *words)
        assert (ran.code, "or --all" in ran.said) == (2, True)
    ran = await bls("requeue", project, "1", "--json")
    assert orjson.loads(ran.out)["id"] == "1"
    ran = await bls("requeue", project, "1")
    assert (ran.code, "is no dead letter" in ran.said) == (1, True)
    assert await redis.lrange(f"{project}_控制", 0, -1) == [orjson.dumps(letters[0])]
    assert await redis.llen(f"{project}_项目控制台") == 1  # by "requeue"
    ran = await bls("discard", project, "--all", "--no-record")
    assert (ran.code, "Deleted: 2" in ran.said) == (0, True)
    assert [line.split("\t")[1] for line in ran.text.splitlines()] == ["2", "3"]
    ran = await bls("queue", project, "--dead")
    assert (ran.code, "no dead letters" in ran.said) == (0, True)
    assert (await bls("discard", project, "--all")).code == 1
    (record,) = await records(redis, project)
    assert record["message"].startswith("dead letter '导入' requeued by ")


async def test_send_to_a_name_like_another(
    bls: Bls, redis: Redis, project: str
) -> None:
    """The one that was meant is named."""
    await redis.set(f"{project}_项目状态", "在线")
    ran = await bls("send", f"{project}统", "reload")
    assert ran.code == 1
    assert f"Did you mean {project}" in ran.said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--arg", "x"], "x is no argument"),
        (["--arg", "=3"], "=3 is no argument"),
        (["--arg", "a=1", "--arg", "a=2"], "given twice"),
        (["--args", "[1]"], "no JSON object"),
        (["--args", "{'a': 1}"], "no JSON object"),
        (["--args", ""], "no JSON object"),
        (["--args", '{"a":NaN}'], "no JSON object"),
        (["surplus"], "surplus"),
    ],
)
@pytest.mark.parametrize("name", ["send", "call"])
async def test_arguments_that_are_none(
    bls: Bls, redis: Redis, project: str, name: str, words: list[str], said: str
) -> None:
    """Exit code 2, what is wrong, and nothing sent."""
    ran = await bls(name, project, "reload", *words)
    assert ran.code == 2
    assert said in ran.said
    assert "Traceback" not in ran.said
    assert await redis.exists(f"{project}_控制", f"{project}_项目控制台") == 0


async def test_call(bls: Bls, redis_url: str, redis: Redis, project: str) -> None:
    """The outcome, its result and the exit code."""
    async with make_agent(project, redis_url) as agent:
        await agent.ready(5)
        ran = await bls(
            "call", project, "reload", "--args", '{"n":3}', "--arg", "force=true"
        )
        kind, took, result = ran.text.rstrip("\n").split("\t")
        assert (ran.code, kind) == (0, "succeeded")
        assert float(took) >= 0
        assert orjson.loads(result) == {"force": True, "n": 3, "说": "好"}
        told = orjson.loads((await bls("call", project, "fail", "--json")).out)
        assert (told["outcome"], told["error"]["message"]) == ("failed", "坏了")
        ran = await bls("call", project, "list")
        assert (ran.code, ran.text.split("\t")[0]) == (0, "succeeded")
        assert "its record had 109," in ran.said
        ran = await bls("call", project, "list", "--json")
        assert orjson.loads(ran.out)["truncated"] > 108_000
        assert "its record had 109," in ran.said
        ran = await bls("logs", project, "-n", "1")
        assert '"truncated":109' in ran.text
        for words, kind in (
            (["fail"], "failed"),
            (["nosuch"], "unknown"),
            (["reload", "-a", "n=x"], "rejected"),
        ):
            ran = await bls("call", project, *words)
            assert (ran.code, ran.text.split("\t")[0]) == (1, kind)
        await agent.flush(5)


async def test_call_without_an_outcome(bls: Bls, redis: Redis, project: str) -> None:
    """Exit code 1, and where the command is."""
    await redis.set(f"{project}_项目状态", "在线")
    ran = await bls("call", project, "reload", "--timeout", "0.1")
    assert ran.code == 1
    assert "is still in its queue" in ran.said
    assert ran.out == b""
    await redis.set(f"{project}_项目状态", "离线")
    ran = await bls("call", project, "reload", "--timeout", "0.1")
    assert ran.code == 1
    assert "is offline since" not in ran.said
    await add(redis, project, orjson.dumps({"timestamp": "2026-01-12T12:35:00.000Z"}))
    ran = await bls("call", project, "reload", "--timeout", "0.1")
    assert ran.code == 1
    assert "is offline since 2026-01-12" in ran.said
    assert "run at the next start" in ran.said


async def test_call_of_all_replicas(bls: Bls, redis_url: str, project: str) -> None:
    """One line for each; who is missing is named, and makes it a failure."""
    one = make_agent(project, redis_url, replicas=True, instance="一")
    two = make_agent(project, redis_url, replicas=True, instance="二")
    async with one, two:
        await one.ready(5)
        await two.ready(5)
        ran = await bls("call", project, "reload", "--broadcast")
        assert ran.code == 0
        assert [line.split("\t")[:2] for line in ran.text.splitlines()] == [
            ["一", "succeeded"], ["二", "succeeded"],
        ]  # fmt: skip


async def test_top_in_a_pipe(bls: Bls, redis: Redis, project: str) -> None:
    """One look, the worst first."""
    await redis.set(f"{project}好_项目状态", "在线", ex=60)
    await redis.set(f"{project}坏_项目状态", "故障", ex=60)
    lines = [line.split("\t") for line in (await bls("top")).text.splitlines()]
    mine = [line[:2] for line in lines if line[0].startswith(project)]
    assert mine == [[f"{project}坏", "故障"], [f"{project}好", "在线"]]
    assert all(len(line) == 9 for line in lines)
    told = [
        orjson.loads(line) for line in (await bls("top", "--json")).out.splitlines()
    ]
    assert f"{project}坏" in {
        view["projectName"] for view in told if not view["healthy"]
    }
    await redis.delete(f"{project}好_项目状态", f"{project}坏_项目状态")


async def test_watching_a_status(own_server: DevServer, project: str) -> None:
    """Each change is a line; an outage is told on standard error and waited out."""
    async with Redis.from_url(own_server.url, protocol=2) as redis:
        await redis.set(f"{project}_项目状态", "在线", ex=60)
        command = [sys.executable, "-m", "bls_agent", "status", project, "--watch"]
        env = environment(BLS_REDIS_URL=own_server.url)
        with anyio.fail_after(30):
            async with await anyio.open_process(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process:
                assert process.stdout is not None
                assert process.stderr is not None
                assert "\t在线\t" in (await process.stdout.receive()).decode()
                own_server.kill()
                assert "does not answer" in (await process.stderr.receive()).decode()
                own_server.restart()
                assert "answers again" in (await process.stderr.receive()).decode()
                await redis.set(f"{project}_项目状态", "故障", ex=60)
                assert "\t故障\t" in (await process.stdout.receive()).decode()
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 130


async def test_following_a_log(own_server: DevServer, project: str) -> None:
    """What comes is printed; an outage is told; Ctrl-C ends it with 130."""
    async with Redis.from_url(own_server.url, protocol=2) as redis:
        await add(redis, project, '{"message":"one"}', '{"message":"two"}')
        words = ["logs", project, "-f", "-n", "1", "--json"]
        env = environment(BLS_REDIS_URL=own_server.url)
        with anyio.fail_after(30):
            async with await anyio.open_process(
            [sys.executable, "-m", "bls_agent", *words],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            ) as process:  # fmt: skip
                assert process.stdout is not None
                assert process.stderr is not None
                assert orjson.loads(await process.stdout.receive())["message"] == "two"
                await add(redis, project, '{"message":"three"}')
                assert (
                    orjson.loads(await process.stdout.receive())["message"] == "three"
                )
                own_server.kill()
                assert "does not answer" in (await process.stderr.receive()).decode()
                own_server.restart()
                assert "answers again" in (await process.stderr.receive()).decode()
                await add(redis, project, '{"message":"four"}')
                assert orjson.loads(await process.stdout.receive())["message"] == "four"
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 130


async def test_texts_that_look_like_numbers(
    bls: Bls, redis_url: str, project: str
) -> None:
    """-s is text whatever it looks like."""
    async with make_agent(project, redis_url) as agent:

        @agent.command
        async def say(text: str) -> str:
            return text

        ran = await bls("call", project, "say", "-s", "text=123", "--json")
        assert orjson.loads(ran.out)["result"] == "123"
        assert (await bls("call", project, "say", "--arg", "text=123")).code == 1


async def test_wait_for_a_command_that_was_sent(
    bls: Bls, redis_url: str, redis: Redis, project: str
) -> None:
    """Its outcome is found before and after it has come; in vain says how to go on."""
    sent = await bls("send", project, "relod", "--force")
    identity = sent.text.strip()
    waiting = await first_command(redis, project)
    assert orjson.loads(waiting)["source"] == "bls-agent cli"
    await redis.set(f"{project}_项目状态", "running")  # not a status of the protocol
    ran = await bls("wait", project, identity, "-t", "0.1")
    assert (ran.code, f"wait '{project}' {identity}" in ran.said) == (1, True)
    async with make_agent(project, redis_url):
        told: dict[str, Any] = {}
        for _ in range(2):
            ran = await bls("wait", project, identity, "-t", "10", "--json")
            told = orjson.loads(ran.out)
            assert (ran.code, told["commandId"]) == (1, identity)
        assert "did you mean 'reload'?" in told["error"]["message"]
        ran = await bls("call", project, "reload", "--json")
        identity = orjson.loads(ran.out)["commandId"]
        assert (await bls("wait", project, identity)).code == 0
    ran = await bls("wait", project, "")
    assert (ran.code, "The id of the command is empty" in ran.said) == (2, True)


def test_numbers_keep_their_digits() -> None:
    numbers = [12, 12.0, 0.176, 1_234_567.891, 9_999_999, 1e30, math.inf]
    shown = " ".join(map(show_number, numbers))
    assert shown == "12 12 0.176 1234567.891 9999999 1e+30 inf"


async def test_a_failure_at_a_terminal(redis_url: str, project: str) -> None:
    """Message and traceback in lines, without the frames of this package."""
    async with make_agent(project, redis_url):
        words = ["call", project, "fail", "--redis", redis_url, "--lang", "en"]
        ran = await anyio.to_thread.run_sync(lambda: show(*words))
        lines = ran.text.splitlines()
        assert ran.code == 1
        assert lines[1].endswith("ValueError: 坏了")
        assert '"traceback"' not in ran.text
        assert any("frames of bls-agent" in line for line in lines)
        assert sum("File " in line for line in lines) == 1
        assert "runner.py" not in ran.text
        piped = await anyio.to_thread.run_sync(lambda: show(*words, "--json"))
        assert "runner.py" in orjson.loads(piped.out)["error"]["traceback"]


@pytest.mark.parametrize("words", [[], ["call"], ["runs", "follow"], ["console"]])
async def test_a_short_word_for_help(bls: Bls, words: list[str]) -> None:
    """-h is --help, everywhere."""
    short, long = await bls.bare(*words, "-h"), await bls.bare(*words, "--help")
    assert (short.code, short.out) == (0, long.out)
    assert b"--help, -h" in short.out


async def test_what_a_project_can_do(bls: Bls, redis_url: str, project: str) -> None:
    """Signatures, one command in full, JSON as the agent tells it, and a misspelt name."""
    async with make_agent(project, redis_url):
        ran = await bls("commands", project)
        rows = dict(line.split("\t") for line in ran.text.splitlines())
        assert "reload(force: boolean = false, n: integer = 0)" in rows
        assert rows["ping()"].startswith("Answer")
        ran = await bls("commands", project, "reload")
        assert ran.text.splitlines() == ["force\tboolean\tfalse\t", "n\tinteger\t0\t"]
        ran = await bls("commands", project, "reload", "--json")
        assert orjson.loads(ran.out)["parameters"]["type"] == "object"
        assert (
            rows['place(order: Order, mode: "快" | "慢" = "慢")'] == "Place an order."
        )
        ran = await bls("commands", project, "place")
        assert ran.text.splitlines() == [
            "order\tOrder\t(required)\t",
            "order.lines\tlist of Line\t(required)\t",
            "order.lines[].sku\tstring\t(required)\t",
            "order.lines[].price\tdecimal\t(required)\t",
            "order.lines[].count\tinteger, 1 ≤ n\t1\t",
            "order.due\tdate | null\tnull\t",
            'mode\t"快" | "慢"\t"慢"\t',
        ]
        ran = await bls("commands", project, "relod")
        assert (ran.code, "reload" in ran.said, ran.out) == (1, True, b"")


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({}, "f()"),
        ({"properties": {"a": {}}}, "f(a?: any)"),
        ({"properties": {f"a{n}": {} for n in range(99)}}, "f(…)"),
        ([], "f(…)"),
        ({"properties": {"a": 3}, "required": 5}, "f(a?: any)"),
        (
            {"properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/Order"}}}},
            "f(a?: list of Order)",
        ),
        (
            {"properties": {"a": {"oneOf": [{"enum": [1, "b"]}, {"type": "null"}]}},
             "required": ["a"]},
            'f(a: 1 | "b" | null)',
        ),
    ],
)  # fmt: skip
def test_a_signature(schema: dict[str, Any], shown: str) -> None:
    """Whatever an agent tells of a command is shown."""
    assert signature({"name": "f", "parameters": schema}) == shown


async def test_logs_since(bls: Bls, redis: Redis, project: str) -> None:
    """Records from then on; one without a time counts as new."""
    now = datetime.now(UTC)
    for ago in (7_200, 90, 5):
        moment = (now - timedelta(seconds=ago)).isoformat()
        record = {"timestamp": moment, "level": "info", "message": f"before {ago} s"}
        await add(redis, project, orjson.dumps(record))
    shown = {
        "2m": ["before 90 s", "before 5 s"],
        "1h59m": ["before 90 s", "before 5 s"],
        "1d": ["before 7200 s", "before 90 s", "before 5 s"],
        (now - timedelta(seconds=60)).isoformat(): ["before 5 s"],
    }
    for since, messages in shown.items():
        ran = await bls("logs", project, "--since", since, "--json")
        rows = [orjson.loads(line) for line in ran.out.splitlines()]
        assert [row["message"] for row in rows] == messages, since
    ran = await bls("logs", project, "--since", "1d", "-n", "1")
    assert ran.text.count("\n") == 1
    ran = await bls("logs", project, "--since", "soon")
    assert (ran.code, "10m" in ran.said) == (2, True)


async def test_a_call_names_its_sender(bls: Bls, redis: Redis, project: str) -> None:
    """The log says who called, and the outcome which program it was; or it does not."""
    agent = ProjectAgent(project, redis=bls.url)
    async with agent:
        await agent.ready(10)
        assert (await bls("call", project, "ping")).code == 0
        sent, ended = (record["metadata"] for record in await records(redis, project))
        assert "@" in sent["sentBy"]
        assert (ended["commandId"], ended["source"]) == (
            sent["commandId"],
            "bls-agent cli",
        )
        assert (await bls("call", project, "ping", "--no-record")).code == 0
        assert len(await records(redis, project)) == 3
        assert (await bls("commands", project)).code == 0
        assert (await bls("commands", project, "--no-record")).code == 0
        asked, _, silent = (await records(redis, project))[3:]
        assert asked["message"].startswith("command 'help' sent by ")
        assert silent["metadata"]["outcome"] == "succeeded"
