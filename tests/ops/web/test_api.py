"""The HTTP interface of contract 002: what it answers, whoever wrote the keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import anyio
import anyio.lowlevel
import httpx2 as httpx
import orjson
import pytest
from redis.asyncio import Redis

import bls_agent
from bls_agent import ProjectAgent, RedisUnavailableError
from bls_agent.devserver import DevServer
from bls_agent.ops.fleet import ProjectView
from bls_agent.ops.texts import load_texts
from bls_agent.ops.web.app import create_app
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.pages.action_list import describe_failure
from tests.harness import eventually
from tests.ops.web.serving import USERS, asking, console_of, log_in

GBK = "订单".encode("gbk")


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A program at this machine."""
    async with console_of(redis_url) as asked:
        yield asked


def status_key(project: str) -> str:
    return f"{project}_项目状态"


def log_key(project: str) -> str:
    return f"{project}_项目控制台"


async def write_log(redis: Redis, project: str, *messages: str) -> None:
    records = [orjson.dumps({"level": "INFO", "message": text}) for text in messages]
    await redis.rpush(log_key(project), *records)


# ── Commands ────────────────────────────────────────────────────────────────────────


async def test_a_command_is_recorded_and_sent(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """Who, when and what, in the project's own list; and the command as it was sent."""
    await redis.set(status_key(project), "在线")
    body = {"targetProjectName": project, "command": "reload", "args": {"force": True}}
    answer = await client.post("/api/commands", json=body)
    assert answer.status_code == 202
    told = answer.json()
    (command,) = await redis.lrange(f"{project}_控制", 0, -1)
    connection = orjson.loads(command)
    about = {"targetProjectName": project, "known": True, "outcome": None}
    assert told == {**about, **connection}
    assert connection["source"] == "BLS Project Console"
    (record,) = [orjson.loads(x) for x in await redis.lrange(log_key(project), 0, -1)]
    assert record["metadata"]["sentBy"] == "local@127.0.0.1"
    assert record["metadata"]["commandId"] == connection["id"]
    assert record["metadata"]["command"] == "reload"
    assert record["timestamp"].endswith("Z")


async def test_the_record_names_the_user(
    redis_url: str, redis: Redis, project: str
) -> None:
    """And where he was."""
    await redis.set(status_key(project), "在线")
    body = {"projectName": project, "command": "reload", "id": "mine"}
    async with console_of(redis_url, users=USERS) as client:
        await log_in(client, "值班")
        body |= {"source": "somebody else"}
        answer = await client.post("/api/commands", json=body)
    assert answer.status_code == 202
    assert answer.json()["id"] == "mine"
    (command,) = await redis.lrange(f"{project}_控制", 0, -1)
    assert orjson.loads(command)["source"] == "值班"
    (record,) = [orjson.loads(x) for x in await redis.lrange(log_key(project), 0, -1)]
    assert record["metadata"]["sentBy"] == "值班@127.0.0.1"


async def test_the_record_is_no_condition(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """A console key of another type refuses the record, and not the command."""
    await redis.set(log_key(project), "no list")
    body = {"targetProjectName": project, "command": "reload"}
    assert (await client.post("/api/commands", json=body)).status_code == 202
    assert await redis.get(log_key(project)) == b"no list"
    await redis.delete(log_key(project))
    answer = await client.post("/api/commands", json={**body, "record": False})
    assert answer.status_code == 202
    assert await redis.llen(f"{project}_控制") == 2
    assert not await redis.exists(log_key(project))


async def test_the_fields_of_the_document(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """A project that is not there yet, with all that a console may send: it is written."""
    command = {
        "id": "cmd-1700000000000-abc123",
        "timestamp": "2026-01-12T12:35:00.000Z",
        "source": "BLS Project Console 2",
        "command": "reload",
        "args": {"force": True},
    }
    path = f"/api/logs?projectName={quote(project)}"
    assert (await client.get(path)).json()["logs"] == []
    body = {"targetProjectName": project, **command, "record": False}
    for known in (False, True):
        answer = await client.post("/api/commands", json=body)
        assert answer.status_code == 202
        assert answer.json()["known"] is known
    assert not await redis.exists(log_key(project))
    for payload in await redis.lrange(f"{project}_控制", 0, -1):
        assert orjson.loads(payload) == command
    wrong = {"source": 5, "timestamp": "yesterday", "record": "no"}
    answer = await client.post("/api/commands", json={**body, **wrong})
    assert answer.status_code == 400
    assert set(answer.json()["fields"]) == set(wrong)


async def test_a_search_through_the_log(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """The whole list is searched, by each field; as JSON, or as a file of lines."""
    first = {
        "timestamp": "2026-01-12T12:00:00.000Z",
        "level": "error",
        "message": "很早",
        "metadata": {"order": 7, "agent": "web-1#1", "logger": "pay.card"},
    }
    later = {"timestamp": "2026-01-12T13:00:00.000Z", "level": "info", "message": "x"}
    await redis.rpush(log_key(project), orjson.dumps(first))
    await redis.rpush(log_key(project), *[orjson.dumps(later)] * 1_200)
    path = f"/api/logs?projectName={quote(project)}"
    for query in (
        *("q=%E5%BE%88", "q=order%3D7", "level=error", "replica=web-1"),
        *("logger=pay", "until=2026-01-12T12:30:00Z"),
        "since=2026-01-12T11:00:00Z&until=2026-01-12T12:00:00Z&q=7",
    ):
        found = (await client.get(f"{path}&{query}")).json()
        assert [record["message"] for record in found["logs"]] == ["很早"], query
        assert (found["searched"], found["backTo"]) == (1_201, first["timestamp"])
        assert found["before"] is None
    none = (await client.get(f"{path}&since=1m")).json()
    assert (none["logs"], none["before"], none["searched"] <= 500) == ([], None, True)
    some = (await client.get(f"{path}&q=x&limit=9")).json()
    assert (len(some["logs"]), some["trimmed"], some["searched"]) == (9, False, 9)
    answer = await client.get(f"{path}&q=x&limit=1000&format=ndjson")
    assert len(answer.content.splitlines()) == 1_000
    answer = await client.get(f"{path}&q=order%3D7&format=ndjson")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [orjson.loads(line)["message"] for line in answer.content.splitlines()] == [
        "很早"
    ]
    for _ in range(5):  # more than one search reads
        await redis.rpush(log_key(project), *[orjson.dumps(later)] * 2_000)
    await redis.rpush(log_key(project), orjson.dumps(first | {"message": "很晚"}))
    for limit, messages in ((1_000, ["很早", "很晚"]), (1, ["很晚"])):
        answer = await client.get(f"{path}&level=error&limit={limit}&format=ndjson")
        lines = answer.content.splitlines()
        assert [orjson.loads(line)["message"] for line in lines] == messages
    found = (await client.get(f"{path}&level=error")).json()
    assert len(found["logs"]) == 1  # the answer in JSON is one search
    assert found["before"]
    await redis.ltrim(log_key(project), -5, -1)
    gone = (await client.get(f"{path}&q=x&before={some['before']}")).json()
    assert (gone["logs"], gone["trimmed"]) == ([], True)
    wrong = {"level": "loud", "since": "gestern", "q": "x" * 513}
    answer = await client.get(path, params={"projectName": project, **wrong})
    assert (answer.status_code, set(answer.json()["fields"])) == (400, set(wrong))
    assert (await client.get(f"{path}&format=xml")).status_code == 400


async def test_a_command_over_64_kb(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """413, and nothing is written."""
    args = {"a": "x" * 65_500}
    body = {"targetProjectName": project, "command": "reload", "args": args}
    answer = await client.post("/api/commands", json=body)
    assert answer.status_code == 413
    assert "65,535 bytes" in answer.json()["error"]
    assert not await redis.exists(f"{project}_控制", log_key(project))


async def test_what_waits_is_listed_and_withdrawn(
    client: httpx.AsyncClient,
    redis: Redis,
    project: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same as of the console in Python, without the secrets, also of one's own."""
    monkeypatch.setenv("BLS_REDACT_KEYS", "员工号")
    path = f"/api/commands?projectName={quote(project)}"
    assert (await client.get(path)).json()["commands"] == []
    body = {"targetProjectName": project, "command": "reload", "id": "命令 1"}
    secrets = {"password": "geheim", "员工号": "geheim"}
    await client.post("/api/commands", json={**body, "args": secrets})
    told = (await client.get(path)).json()
    (waiting,) = told["commands"]
    assert (waiting["id"], waiting["command"]) == ("命令 1", "reload")
    assert waiting["args"] == dict.fromkeys(secrets, "[redacted]")
    program = {"content-type": "application/json"}
    one = f"{path}&id={quote('命令 1')}"
    answer = await client.delete(one, headers=program)
    assert answer.json() == {"projectName": project, "commands": [waiting]}
    assert (await client.delete(one, headers=program)).status_code == 404
    for number in "34":
        await client.post("/api/commands", json={**body, "id": number})
    answer = await client.delete(f"{path}&all=true", headers=program)
    assert [one["id"] for one in answer.json()["commands"]] == ["3", "4"]
    assert (await client.delete(f"{path}&all=true", headers=program)).status_code == 200
    assert not await redis.exists(f"{project}_控制")


async def eventually_counted(
    client: httpx.AsyncClient, project: str, count: int
) -> None:
    """Wait until the fleet has read the number of waiting commands."""
    with anyio.fail_after(10):
        path = f"/api/projects/{quote(project)}"
        while (await client.get(path)).json().get("queue") != count:
            await anyio.sleep(0.1)


async def test_a_page_withdraws_and_forgets(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """What waits, what became of withdrawing it, and away from a page of nothing."""
    query = f"projectName={quote(project)}"
    own = {"origin": "http://127.0.0.1:8765", "accept-language": "en"}
    assert (await client.get(f"/fragments/queue?{query}")).text.strip() != ""
    for number in ("<1>", "2"):
        payload = orjson.dumps({"id": number, "command": "<b>", "args": {}})
        await redis.rpush(f"{project}_控制", payload)
    shown = (await client.get(f"/fragments/queue?{query}", headers=own)).text
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    path = f"/fragments/withdraw?{query}"
    answer = await client.post(path, data={"id": "<1>"}, headers=own)
    assert "Withdrawn: 1" in answer.text
    answer = await client.post(path, data={"id": "<1>"}, headers=own)
    gone = "The command &lt;1&gt; is no longer in the queue: it was taken or withdrawn."
    assert gone in answer.text
    assert await redis.llen(f"{project}_控制") == 1
    await redis.rpush(f"{project}_控制", *[f'{{"id":"{n}"}}' for n in range(30)])
    await eventually_counted(client, project, 31)
    shown = (await client.get(f"/fragments/queue?{query}", headers=own)).text
    assert "<small>31</small>" in shown
    answer = await client.post(f"{path}&all=true", headers=own, data={})
    assert "Withdrawn: 31" in answer.text
    assert await redis.llen(f"{project}_控制") == 0
    await redis.set(status_key(project), "在线")
    path = f"/fragments/forget?{query}"
    assert "seems to run" in (await client.post(path, headers=own, data={})).text
    await redis.set(status_key(project), "离线")
    answer = await client.post(path, headers=own, data={})
    assert answer.headers["hx-redirect"] == "/"
    assert not await redis.exists(status_key(project), f"{project}_控制")
    await redis.set(f"{project}_控制", "no list")
    answer = await client.post(f"/fragments/withdraw?{query}&all=true", headers=own)
    assert "Not withdrawn: " in answer.text
    lost = RedisUnavailableError("timeout", "no reply", ambiguous=True)
    note = describe_failure(load_texts("web", "en"), "not_withdrawn", lost)
    assert "may have been done" in note


@pytest.mark.parametrize(
    ("status", "may_forget"), [(None, True), ("running", False), ("在线", False)]
)
async def test_what_waits_is_shown_whatever_the_status(
    client: httpx.AsyncClient,
    redis: Redis,
    project: str,
    status: str | None,
    may_forget: bool,
) -> None:
    """Also if it is no valid one; only who is offline may be deleted."""
    await redis.rpush(f"{project}_控制", '{"id":"1","command":"等待"}')
    dead = f"bls_agent:{{{project}_控制}}:dead"
    await redis.rpush(dead, '{"id":"2","command":"导入"}')
    if status:
        await redis.set(status_key(project), status)
    path = f"/fragments/queue?projectName={quote(project)}&lang=en"
    answer = await client.get(path)
    await redis.delete(dead)
    assert answer.status_code == 200
    assert "等待" in answer.text
    assert "导入" in answer.text
    assert ("Delete project" in answer.text) is may_forget


async def test_dead_letters_and_what_is_in_hand(
    client: httpx.AsyncClient,
    redis: Redis,
    project: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One or all are queued again or deleted; who did so stands in the log; no secret."""
    caplog.set_level("INFO")
    place = f"bls_agent:{{{project}_控制}}"
    letters = [
        {"id": n, "command": "导入", "args": {"password": "geheim"}} for n in "1234"
    ]
    await redis.rpush(f"{place}:dead", *map(orjson.dumps, letters), b"\xff")
    await redis.rpush(f"{place}:inflight:甲", orjson.dumps(letters[0]))
    await redis.hset(f"{place}:inflight", f"{place}:inflight:甲", "1")
    query = f"?projectName={quote(project)}"
    program = {"content-type": "application/json"}

    def ids(answer: httpx.Response) -> list[str]:
        assert answer.status_code == 200
        assert "geheim" not in answer.text
        return [one["id"] for one in answer.json()["commands"]]

    path = f"/api/dead-letters{query}"
    assert ids(await client.get(f"{path}&limit=4")) == ["", "4", "3", "2"]
    again = f"/api/dead-letters/requeue{query}"
    for wrong in ("", "&id=1&all=true", "&all=x"):
        assert (await client.post(again + wrong, headers=program)).status_code == 400
        assert (await client.delete(path + wrong, headers=program)).status_code == 400
    assert ids(await client.post(f"{again}&id=1", headers=program)) == ["1"]
    assert (await client.post(f"{again}&id=1", headers=program)).status_code == 404
    assert ids(await client.delete(f"{path}&id=2", headers=program)) == ["2"]
    assert ids(await client.get(f"/api/commands{query}")) == ["1"]
    found = (await client.get(f"/api/in-hand{query}")).json()["processes"]
    assert [(one["instance"], one["alive"]) for one in found] == [("甲", False)]
    assert found[0]["commands"][0]["args"] == {"password": "[redacted]"}

    own = {"origin": "http://127.0.0.1:8765", "accept-language": "en"}
    page = (await client.get(f"/fragments/queue{query}", headers=own)).text
    for shown in ("Waiting commands", "Commands in hand", "甲 had it", "not a command"):
        assert shown in page
    assert "commands in hand and dead letters of" in page  # asked before they go
    assert "geheim" not in page
    act = f"/fragments/dead/requeue{query}"
    for note in ("Queued again: 1<", "The command 3 is no longer a dead letter"):
        assert note in (await client.post(act, data={"id": "3"}, headers=own)).text
    act = f"/fragments/dead/discard{query}"
    page = (await client.post(act, data={"no": "id"}, headers=own)).text
    assert "Not deleted: id" in page
    page = (await client.post(f"{act}&all=true", headers=own)).text
    assert "Deleted: 2<" in page
    assert "Dead letters" not in page
    assert ids(await client.delete(f"{path}&all=true", headers=program)) == []
    told = [one.message for one in caplog.records if "dead letters" in one.message]
    assert told == [
        f"local@127.0.0.1 {did} of {project!r}: {ids}"
        for did, ids in (
            ("queued dead letters again", "'1'"),
            ("discarded dead letters", "'2'"),
            ("queued dead letters again", "'3'"),
            ("discarded dead letters", "'4', ''"),
        )
    ]


async def test_a_command_may_wait_for_its_outcome(
    redis_url: str, client: httpx.AsyncClient, project: str
) -> None:
    """200 with the outcome, 202 when nothing is known of it in time."""
    over = anyio.Event()
    async with ProjectAgent(project, redis=redis_url) as agent:

        @agent.command
        async def add(a: int, b: int) -> int:
            return a + b

        @agent.command
        async def list_all() -> list[int]:
            return [*range(20_000)]

        @agent.command
        async def full() -> str:
            return "x" * 65_200

        @agent.command
        async def sleep() -> None:
            await over.wait()

        await agent.ready(10)
        body = {"targetProjectName": project, "command": "add", "wait": 20}
        answer = await client.post(
            "/api/commands", json={**body, "args": {"a": 2, "b": 3}, "id": "x-1"}
        )
        assert answer.status_code == 200
        outcome = answer.json()["outcome"]
        assert (outcome["outcome"], outcome["result"]) == ("succeeded", 5)
        assert "truncated" not in outcome
        answer = await client.post(
            "/api/commands", json={**body, "command": "list_all"}
        )
        assert answer.json()["outcome"]["truncated"] > 108_000
        answer = await client.post("/api/commands", json={**body, "command": "full"})
        assert answer.json()["outcome"]["result"] == "x" * 65_200
        answer = await client.get(f"/api/logs?projectName={quote(project)}")
        *_, cut, whole = [
            r for r in answer.json()["logs"] if "outcome" in r["metadata"]
        ]
        assert cut["metadata"]["truncated"] > 108_000
        assert "cut" not in whole
        answer = await client.post(
            "/api/commands", json={**body, "args": {"a": 4, "b": 5}, "id": "x-1"}
        )
        assert answer.json()["id"] == "x-1"
        assert answer.json()["outcome"] not in (None, outcome)
        answer = await client.post("/api/commands", json={**body, "args": {"a": "x"}})
        assert answer.status_code == 200
        assert answer.json()["outcome"]["outcome"] == "rejected"
        assert answer.json()["outcome"]["error"]["type"] == "ArgumentError"
        slow = {**body, "command": "sleep", "wait": 0.2}
        answer = await client.post("/api/commands", json=slow)
        assert (answer.status_code, answer.json()["outcome"]) == (202, None)
        over.set()


async def test_what_cannot_be_sent_names_its_fields(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """400 with the fields, also for what only the sender finds."""
    await redis.set(status_key(project), "在线")
    answer = await client.post("/api/commands", json={"wait": -1})
    assert answer.status_code == 400
    assert set(answer.json()["fields"]) == {"targetProjectName", "command", "wait"}
    answer = await client.post(
        "/api/commands", content=b"{", headers={"content-type": "application/json"}
    )
    assert set(answer.json()["fields"]) == {"body"}
    body = {"targetProjectName": f" {project}", "command": "x"}
    answer = await client.post("/api/commands", json=body)
    assert answer.status_code == 400
    assert set(answer.json()["fields"]) == {"targetProjectName"}
    assert not await redis.exists(f" {project}_控制")


# ── Logs ────────────────────────────────────────────────────────────────────────────


async def test_logs_are_read_newest_last_and_page_by_page(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """Each record once, while more are written."""
    await write_log(redis, project, *map(str, range(250)))
    path = f"/api/logs?projectName={quote(project)}"
    told = (await client.get(path)).json()
    assert [one["message"] for one in told["logs"]] == [str(n) for n in range(50, 250)]
    assert told["projectName"] == project
    assert told["logs"][0] == {
        "timestamp": "",
        "level": "info",
        "message": "50",
        "metadata": {},
        "valid": True,
    }
    await write_log(redis, project, "later")
    older = (await client.get(f"{path}&limit=30&before={told['before']}")).json()
    assert [one["message"] for one in older["logs"]] == [str(n) for n in range(20, 50)]
    oldest = (await client.get(f"{path}&before={older['before']}")).json()
    assert [one["message"] for one in oldest["logs"]] == [str(n) for n in range(20)]
    assert oldest["before"] is None
    await redis.ltrim(log_key(project), -10, -1)
    trimmed = (await client.get(f"{path}&before={older['before']}")).json()
    assert trimmed["trimmed"]


async def test_wrong_questions_are_named(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """400 with the field, 404 for nobody, 409 for what is no list."""
    await redis.set(status_key(project), "在线")
    path = f"/api/logs?projectName={quote(project)}"
    assert (await client.get(path)).json()["logs"] == []
    for query, name in (
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("before=x", "before"),
    ):
        answer = await client.get(f"{path}&{query}")
        assert answer.status_code == 400
        assert set(answer.json()["fields"]) == {name}
    await redis.set(log_key(project), "no list")
    assert (await client.get(path)).status_code == 409


async def test_foreign_records_are_shown_as_they_are(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """No JSON, no UTF-8, huge ones: data, and never longer than 64 KiB each."""
    await redis.rpush(
        log_key(project),
        b"plain text",
        b"\xd6\xd0\xce\xc4",
        b'{"message": "</script><script>alert(1)</script>", "level": "FATAL"}',
        b'{"message": "%s"}' % (b"x" * 300_000),
        b'{"message": "\\ud800", "metadata": {"n": 1e400}}',
        b"\x00\x1b[31m",
    )
    answer = await client.get(f"/api/logs?projectName={quote(project)}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    logs = answer.json()["logs"]
    assert len(logs) == 6
    assert not logs[0]["valid"]
    assert logs[2]["level"] == "error"
    assert logs[3]["cut"]
    assert len(orjson.dumps(logs[3])) <= 65_536
    assert logs[5]["message"] == "\x00\x1b[31m"


async def test_hostile_names_are_names(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """In a query and in a path, they come back as they are, and nowhere else."""
    odd = ("..", "a/b", "a%2Fb", "a\r\nset-cookie: x=y", "{}*?[", "a\x00b", "<script>")
    names = [f"{one}{project}" for one in odd]
    for name in names:
        await redis.set(status_key(name), "故障")
        await write_log(redis, name, "mine")
    try:
        for name in names:
            quoted = quote(name, safe="")
            answer = await client.get(f"/api/logs?projectName={quoted}")
            assert [one["message"] for one in answer.json()["logs"]] == ["mine"]
            assert answer.json()["projectName"] == name
            assert "set-cookie" not in answer.headers

            async def listed(path: str = f"/api/projects/{quoted}") -> bool:
                return (await client.get(path)).status_code == 200

            await eventually(listed, 10)
            answer = await client.get(f"/api/projects/{quoted}")
            assert answer.json()["projectName"] == name
    finally:
        for name in names:
            await redis.delete(status_key(name), log_key(name))


async def test_names_that_are_no_utf8_are_read(
    client: httpx.AsyncClient, redis: Redis
) -> None:
    """The GBK twin of a project is found by its bytes."""
    suffix = "_项目控制台".encode()
    await redis.rpush(GBK + suffix, b'{"message": "gbk"}')
    try:
        answer = await client.get(f"/api/logs?projectName={quote(GBK)}")
        assert answer.status_code == 200
        assert answer.json()["logs"][0]["message"] == "gbk"
        assert answer.json()["projectName"] == "\\xb6\\xa9\\xb5\\xa5"
    finally:
        await redis.delete(GBK + suffix)


# ── Projects and health ─────────────────────────────────────────────────────────────


async def met(client: httpx.AsyncClient, project: str) -> None:
    """Wait until the console has found a project: it searches every two seconds."""

    async def found() -> bool:
        answer = await client.get(f"/api/projects/{quote(project)}")
        return answer.status_code == 200

    await eventually(found, 10)


async def test_projects_are_listed(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """With status, freshness, queue and log."""
    await redis.set(status_key(project), "在线", ex=60)
    await redis.rpush(f"{project}_控制", b"{}", b"{}")
    await write_log(redis, project, "a", "b")

    async def is_counted() -> bool:
        """Whether the console has seen all three keys: it may look between two writes."""
        (mine,) = await find_listed()
        return (mine["queue"], mine["records"]) == (2, 2)

    async def find_listed() -> list[dict[str, Any]]:
        projects = (await client.get("/api/projects")).json()["projects"]
        return [one for one in projects if one["projectName"] == project]

    await met(client, project)
    await eventually(is_counted, 10)
    (mine,) = await find_listed()
    assert (mine["status"], mine["presence"]) == ("在线", "fresh")
    assert 50 < mine["ttl"] <= 60
    alone = (await client.get(f"/api/projects/{quote(project)}")).json()
    assert alone["projectName"] == project
    assert (await client.get("/api/projects/nobody")).status_code == 404


async def test_ages_grow(client: httpx.AsyncClient, redis: Redis, project: str) -> None:
    """Also of a project of which nothing changes, so that the watch tells nothing."""
    await redis.set(status_key(project), "在线", ex=60)
    path = f"/api/projects/{quote(project)}"
    await met(client, project)
    first = (await client.get(path)).json()

    async def older() -> bool:
        alone = (await client.get(path)).json()
        (listed,) = [
            one
            for one in (await client.get("/api/projects")).json()["projects"]
            if one["projectName"] == project
        ]
        return all(
            one["age"] > first["age"] and one["ttl"] < first["ttl"]
            for one in (alone, listed)
        )

    await eventually(older, 2)  # it is told anew after five seconds at the earliest


async def test_large_answers_let_others_run(redis_url: str, project: str) -> None:
    """A thousand projects are written in slices."""
    app = create_app(WebConfig(redis=redis_url))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with asking(app) as client, anyio.create_task_group() as tasks:
        await app.web.fleet.ready()
        names = [f"{project}-{number}" for number in range(1_000)]
        app.web.fleet.found.update({name: ProjectView(project=name) for name in names})
        tasks.start_soon(count)
        answer = await client.get("/api/projects")
        assert answer.text.count(project) >= 1_000
        assert turns > 25
        tasks.cancel_scope.cancel()


async def test_health_tells_more_to_users(redis_url: str) -> None:
    """A load balancer learns whether, a user learns what."""
    async with console_of(redis_url, users=USERS) as client:
        answer = await client.get("/api/health")
        assert (answer.status_code, answer.json()) == (200, {"status": "up"})
        await log_in(client, password="wrong")
        await log_in(client)
        told = (await client.get("/api/health")).json()
    assert told["version"] == bls_agent.__version__
    assert told["redis"] == {"reachable": True, "kind": None}
    assert told["counts"]["logins_failed"] == 1


async def test_an_outage_is_known_to_everybody(
    own_server: DevServer, project: str
) -> None:
    """What the watch knows is said at once: nobody waits for a deadline of his own."""
    redis = Redis.from_url(own_server.url, protocol=2)
    await redis.set(status_key(project), "在线")
    app = create_app(WebConfig(redis=own_server.url))
    path = f"/api/logs?projectName={quote(project)}"
    async with asking(app) as client:
        assert (await client.get("/api/projects")).status_code == 200
        own_server.freeze()

        async def known() -> bool:
            return app.web.fleet.unavailable is not None

        await eventually(known, 10)
        with anyio.fail_after(4):  # a request of its own would take five seconds
            for _ in range(20):
                assert (await client.get(path)).status_code == 503
                assert (await client.get("/api/projects")).status_code == 503
    await redis.aclose()


async def test_away_is_not_empty(own_server: DevServer, project: str) -> None:
    """503 everywhere while Redis is away, from the start or in between; then again 200."""
    redis = Redis.from_url(own_server.url, protocol=2)
    await redis.set(status_key(project), "在线")
    own_server.kill()
    quoted = quote(project)
    body = {"targetProjectName": project, "command": "reload"}
    paths = (
        "/api/projects",
        f"/api/projects/{quoted}",
        f"/api/logs?projectName={quoted}",
        f"/api/logs/stream?projectName={quoted}",
        "/api/health",
    )
    async with console_of(own_server.url) as client:
        for _ in range(2):
            for path in paths:
                answer = await client.get(path)
                assert answer.status_code == 503, path
                assert int(answer.headers["retry-after"]) > 0
            answer = await client.post("/api/commands", json=body)
            assert answer.status_code == 503
            assert (await client.get("/")).status_code in {200, 503}
            own_server.restart()
            await redis.set(status_key(project), "在线")

            async def back() -> bool:
                codes = [(await client.get(path)).status_code for path in paths[:3]]
                return codes == [200] * 3

            await eventually(back, 20)
            assert (await client.post("/api/commands", json=body)).status_code == 202
            own_server.kill()

            async def gone() -> bool:  # what was found a moment ago counts as found
                codes = [(await client.get(path)).status_code for path in paths]
                return codes == [503] * len(paths)

            await eventually(gone, 20)
    await redis.aclose()
