"""A record of who sent a command, where it is asked for; never a condition of sending."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import (
    Command,
    ConfigurationError,
    Console,
    Level,
    LogEntry,
    ProjectAgent,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.devserver import DevServer
from bls_agent.project.console.audit import AuditRecord, local_user
from tests.harness import execute, records

RECORD: Any = {"record": True, "create": True}
NOW = 1_768_221_300.0  # 2026-01-12T12:35:00Z

PROTOCOL = Path(__file__).parents[1] / "docs" / "protocol.md"


def documented(heading: str = "### Who sent a command") -> str:
    """The record that the document shows below a heading."""
    text = PROTOCOL.read_text("utf-8").partition(heading)[2]
    return text.partition("```json\n")[2].partition("\n```")[0]


async def only_record(redis: Redis, project: str) -> bytes:
    """The bytes of the one record in the console list."""
    (record,) = await redis.lrange(f"{project}_项目控制台", 0, -1)
    assert isinstance(record, bytes)
    return record


async def test_the_record_is_as_documented(
    redis: Redis, console: Console, project: str
) -> None:
    """To the byte; the command itself holds what the record must not; nothing else is written."""
    console._clock = lambda: NOW
    args = {"force": True, "password": "geheim"}
    identity = "cmd-1700000000000-abc123"
    sent = await console.send(
        project, "reload", args, id=identity, sent_by="值班员", **RECORD
    )
    record = await only_record(redis, project)
    assert record.decode() == documented()
    (command,) = await redis.lrange(f"{project}_控制", 0, -1)
    assert orjson.loads(command)["args"] == args
    assert command == sent.encode()
    assert await redis.ttl(f"{project}_项目控制台") == -1
    entry = LogEntry.decode(record)
    assert entry.valid
    assert entry.outcome is None
    assert entry.number is None


async def test_no_record_without_a_name(
    redis: Redis, console: Console, project: str
) -> None:
    """Without sent_by the console list is not touched."""
    await console.send(project, "reload", create=True)
    with pytest.raises(ConfigurationError, match="record=True"):
        await console.send(project, "reload", sent_by="值班员")
    assert not await redis.exists(f"{project}_项目控制台")


@pytest.mark.parametrize(
    ("length", "left"), [(9_999, 10_000), (10_000, 10_000), (20_000, 20_000)]
)
async def test_the_list_is_capped(
    redis: Redis, console: Console, project: str, length: int, left: int
) -> None:
    """The record makes no list of 10,000 longer; a longer one loses no more than one."""
    key = f"{project}_项目控制台"
    await redis.rpush(key, *map(str, range(length)))
    await console.send(project, "reload", sent_by="值班员", **RECORD)
    assert await redis.llen(key) == left
    assert await redis.lindex(key, -2) == str(length - 1).encode()


async def test_who_it_is_by_default(
    redis: Redis, console: Console, project: str
) -> None:
    """User and host of the process."""
    await console.send(project, "reload", **RECORD)
    (record,) = await records(redis, project)
    assert record["metadata"]["sentBy"] == local_user()
    assert "@" in local_user()


async def test_a_call_says_it_too(
    redis: Redis, redis_url: str, console: Console, project: str
) -> None:
    """call and call_all: the record stands in front of the outcome."""
    agent = ProjectAgent(project, redis=redis_url, replicas=True, instance="一")
    async with agent:
        await agent.ready(5)
        assert (
            await console.call(project, "ping", sent_by="值班员", **RECORD)
        ).succeeded
        assert await console.call_all(project, "ping", sent_by="审计员", **RECORD)
    said = [record["metadata"] for record in await records(redis, project)]
    assert [fields.get("sentBy", fields.get("outcome")) for fields in said] == [
        "值班员",
        "succeeded",
        "审计员",
        "succeeded",
    ]
    assert said[0]["commandId"] == said[1]["commandId"]


@pytest.mark.parametrize("sent_by", [" ", "\n", 5, b"x"], ids=repr)
async def test_a_name_that_is_none(
    redis: Redis, console: Console, project: str, sent_by: Any
) -> None:
    """A blank name, or what is no text, is refused before anything is written."""
    with pytest.raises(ConfigurationError, match="sent_by"):
        await console.send(project, "reload", sent_by=sent_by, **RECORD)
    assert not await redis.exists(f"{project}_控制", f"{project}_项目控制台")


async def test_a_record_is_shortened_like_any(
    redis: Redis, console: Console, project: str
) -> None:
    """However long arguments, command and name are: a valid record under 64 KB."""
    args = {"text": "长" * 100_000, "list": ["\u202e\x1b[31m"] * 1_000}
    how = {"sent_by": "名\x00" * 50_000, "size_limit": 1_000_000, **RECORD}
    await console.send(project, "重" * 50_000, args, **how)
    record = await only_record(redis, project)
    assert len(record) < 65_536
    entry = LogEntry.decode(record)
    assert entry.metadata["commandId"]
    assert entry.metadata["sentBy"].startswith("名")
    (command,) = await redis.lrange(f"{project}_控制", 0, -1)
    assert orjson.loads(command)["args"] == args


async def test_secrets_by_the_names_of_the_environment(
    redis: Redis, console: Console, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BLS_REDACT_KEYS counts for the record as for an agent's."""
    monkeypatch.setenv("BLS_REDACT_KEYS", "员工号")
    await console.send(project, "x", {"员工号": "geheim"}, sent_by="值班员", **RECORD)
    (record,) = await records(redis, project)
    assert record["metadata"]["args"] == {"员工号": "[redacted]"}


async def test_a_record_that_cannot_be_written_stops_nothing(
    redis: Redis, console: Console, project: str
) -> None:
    """The command is sent; what stands in the way of the record is left alone."""
    await redis.set(f"{project}_项目控制台", "no list")
    await console.send(project, "reload", sent_by="值班员", **RECORD)
    assert await redis.llen(f"{project}_控制") == 1
    assert await redis.get(f"{project}_项目控制台") == b"no list"


async def test_a_command_that_was_not_sent(
    redis: Redis, console: Console, project: str
) -> None:
    """A second record says so, with the same id; the list grows no longer by both."""
    await redis.set(f"{project}_控制", "no list")
    await redis.rpush(f"{project}_项目控制台", *["{}"] * 10_000)
    with pytest.raises(WrongTypeError):
        await console.send(
            project, "reload", {"token": "geheim"}, sent_by="值班员", **RECORD
        )
    assert await redis.llen(f"{project}_项目控制台") == 10_000
    first, second = await console.logs(project, 2)
    assert second.level is Level.WARN
    assert second.message.startswith("command 'reload' was not sent: ")
    assert second.metadata["sent"] is False
    assert second.metadata["commandId"] == first.metadata["commandId"]
    assert second.metadata["error"]["type"] == "WrongTypeError"
    assert "geheim" not in str((first, second))


@pytest.mark.parametrize(
    ("pattern", "sent", "written"), [("*_控制", 1, 0), ("*_项目控制台", 0, 2)]
)
async def test_the_right_to_write_records(
    own_server: DevServer,
    admin: Redis,
    project: str,
    pattern: str,
    sent: int,
    written: int,
) -> None:
    """Without it the command is sent; without the right to command both is recorded."""
    rules = ["on", ">x", "-@all", "+rpush", "+select", "+client|setname", "+client|id"]
    await execute(admin, "ACL", "SETUSER", "u", *rules, f"~{pattern}")
    async with Console(own_server.url.replace("//", "//u:x@")) as console:
        with nullcontext() if sent else pytest.raises(RedisRefusedError):
            await console.send(project, "reload", sent_by="值班员", **RECORD)
    assert await admin.llen(f"{project}_控制") == sent
    assert await admin.llen(f"{project}_项目控制台") == written


async def test_who_settled_dead_letters(
    redis: Redis, console: Console, project: str
) -> None:
    """One record for a letter or for many, after they were moved; none unless asked for."""
    console._clock = lambda: NOW
    key, dead = f"{project}_项目控制台", f"bls_agent:{{{project}_控制}}:dead"
    letters = [Command.create("重载", id=f"cmd-{n}", now=NOW) for n in range(150)]
    await redis.rpush(dead, *(one.encode() for one in letters))
    await console.discard(project, "cmd-0")
    assert await console.requeue(project, "cmd-0", record=True) == []
    assert not await redis.exists(key)
    await console.requeue(project, "cmd-1", record=True, sent_by="值班员")
    record = await only_record(redis, project)
    assert record.decode() == documented("### Who settled dead letters")
    await redis.rpush(key, *["{}"] * 9_999)
    await console.discard(project, all=True, record=True)
    assert await redis.llen(key) == 10_000
    entry = (await console.logs(project))[-1]
    assert entry.message == f"148 dead letters discarded by {local_user()}"
    assert entry.metadata["count"] == 148
    assert entry.metadata["commandIds"] == [f"cmd-{n}" for n in range(2, 102)]
    with pytest.raises(ConfigurationError, match="record=True"):
        await console.discard(project, all=True, sent_by="值班员")
    await redis.rpush(dead, letters[0].encode())
    await redis.set(key, "no list")
    assert len(await console.discard(project, all=True, record=True)) == 1


async def test_redis_is_away(own_server: DevServer, project: str) -> None:
    """Frozen: command and record went in one write; within two deadlines it is said."""
    async with Console(own_server.url, timeout=0.3) as console:
        await console.status(project)
        own_server.freeze()
        began = anyio.current_time()
        with pytest.raises(RedisUnavailableError) as caught:
            await console.send(project, "reload", sent_by="值班员", **RECORD)
        assert anyio.current_time() - began < 2
        own_server.thaw()
        assert caught.value.ambiguous


@pytest.mark.parametrize("method", ["send", "call", "call_all", "withdraw", "requeue"])
async def test_redis_is_away_before_the_write(
    own_server: DevServer, admin: Redis, project: str, method: str
) -> None:
    """Only a read was sent, so that the change was surely not executed."""
    await admin.set(f"{project}_项目状态", "在线")
    async with Console(own_server.url, timeout=0.3) as console:
        await console.status(project)
        own_server.freeze()
        with pytest.raises(RedisUnavailableError) as caught:
            await getattr(console, method)(project, "reload")
        own_server.thaw()
    assert (caught.value.kind, caught.value.ambiguous) == ("timeout", False)


@pytest.mark.parametrize(
    ("ambiguous", "said", "sent"),
    [(False, "was not sent", False), (True, "may not have been sent", None)],
    ids=["surely not", "perhaps"],
)
def test_what_is_said_of_a_failure(
    ambiguous: bool, said: str, sent: bool | None
) -> None:
    """Whether the command may have reached Redis all the same is told apart."""
    command = Command.create("reload", {"a": 1}, now=NOW)
    error = RedisUnavailableError("timeout", "too late", ambiguous=ambiguous)
    entry = LogEntry.decode(AuditRecord(command, "值班员").after(error, NOW))
    assert entry.message == f"command 'reload' {said}: {error}"
    assert entry.level is Level.WARN
    assert entry.metadata == {
        "sentBy": "值班员",
        "commandId": command.id,
        "command": "reload",
        "sent": sent,
        "error": {"type": "RedisUnavailableError", "message": str(error)},
    }
