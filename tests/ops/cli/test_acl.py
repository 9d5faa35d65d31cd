"""The rights that the command line prints are enough, and no more than that."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import anyio
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import EventStore, ProjectAgent
from bls_agent.assets import AssetLibrary, AssetManifest
from bls_agent.core.acl import (
    Mode,
    acl_line,
    asset_acl_rules,
    console_acl_rules,
    crawl_acl_rules,
    run_acl_rules,
    worker_acl_rules,
)
from bls_agent.crawl import CrawlRequest, RequestQueue
from bls_agent.devserver import DevServer
from bls_agent.workers import BacktestWorkerHeartbeat
from tests.harness import PASSWORD, execute, needs_selectors, url_with_rights
from tests.ops.cli.conftest import Bls

DOCUMENT = Path(__file__).parents[3] / "docs/rights.md"


async def log_in(admin: Redis, server: DevServer, words: list[str]) -> str:
    await execute(
        admin, "ACL", "SETUSER", "operator", "reset", "on", f">{PASSWORD}", *words
    )
    return f"redis://operator:{PASSWORD}@127.0.0.1:{server.port}/0"


async def refused(admin: Redis) -> list[bytes]:
    entries = await execute(admin, "ACL", "LOG")
    return [entry[entry.index(b"object") + 1] for entry in entries]


async def use_everything(
    bls: Bls, url: str, project: str, *, all_projects: bool
) -> None:
    """Every command that talks to Redis, the doctor aside."""
    commands = [
        ["status", project],
        ["send", project, "ping"],
        ["send", project, "ping", "--no-record"],
        ["queue", project, "--json"],
        ["logs", project],
        ["call", project, "ping"],
    ]
    commands += [["call", project, "ping", "--broadcast"]]
    runs = [["runs"], ["runs", "follow", "7"]]
    runs += [["assets"], ["assets", "get", "a1"], ["assets", "list", "--search", "a"]]
    queues = [["crawl"], ["crawl", "failed", "news"], ["crawl", "requeue", "news"]]
    commands += [["projects"], ["top"], ["workers"], *runs, *queues] * all_projects
    for words in commands:
        ran = await bls(*words, url=url)
        ended = "The run has ended.\n" if "follow" in words else ""
        assert (ran.code, ran.said) == (0, ended), words


async def leave_a_failure(url: str) -> None:
    """A request of a crawler that has failed for good."""
    async with RequestQueue(url, "news", max_retries=0) as queue:
        await queue.push(CrawlRequest("https://news.example/1"))
        async with queue.take(5) as taken:
            assert taken is not None
            await taken.fail("HTTP 503")


@needs_selectors
@pytest.mark.parametrize("one", [True, False], ids=["one", "all"])
async def test_an_operators_rights(
    bls: Bls, own_server: DevServer, admin: Redis, project: str, one: bool
) -> None:
    """With exactly the printed rules every command works and nothing is refused."""
    name = f"{project}*[a]{{b}}"
    printed = await bls("acl", *([name] if one else []), "--console", "--json")
    rules = orjson.loads(printed.out)["rules"]
    url = await log_in(admin, own_server, rules)
    beat = BacktestWorkerHeartbeat.create("回测-1")
    await admin.set(beat.key, beat.to_json(), ex=30)
    async with EventStore(own_server.url) as store:
        await store.add_many(7, [("llm", "stream"), ("system", "close")])
    async with AssetLibrary(own_server.url) as library:
        made = AssetManifest(id="a1", version="1.0.0", category="prompt", name="总结")
        await library.save(made, path="a1.yaml", sha="0" * 40)
    await leave_a_failure(own_server.url)
    async with ProjectAgent(name, redis=own_server.url, replicas=True) as agent:
        await agent.ready(5)
        await use_everything(bls, url, name, all_projects=not one)
    assert await refused(admin) == []
    for words in (
        ["SET", f"{name}_项目状态", "在线"],
        ["DEL", f"{name}_控制"],
        ["BLPOP", f"{name}_控制", "1"],
    ):
        assert await allows(admin, *words) is False
    assert await allows(admin, "LRANGE", f"{name}x_控制", "0", "1") is not one
    assert await allows(admin, "RPUSH", "别的_控制", "x") is not one


async def allows(admin: Redis, *words: str) -> bool:
    return await execute(admin, "ACL", "DRYRUN", "operator", *words) in (b"OK", "OK")


@needs_selectors
async def test_an_operator_who_only_looks_on(
    bls: Bls, own_server: DevServer, admin: Redis, project: str
) -> None:
    """--read-only: sending is refused, with the way out."""
    rules = orjson.loads((await bls("acl", "--console", "--read-only", "--json")).out)[
        "rules"
    ]
    url = await log_in(admin, own_server, rules)
    await admin.set(f"{project}_项目状态", "在线", ex=60)
    assert (await bls("status", project, url=url)).code == 0
    ran = await bls("send", project, "x", url=url)
    assert ran.code == 1
    assert "acl --console" in ran.said


async def test_rights_to_forget(bls: Bls) -> None:
    """Only where they are asked for, and only an operator's."""
    ran = await bls("acl", "--console", "--forget")
    assert ran.text.strip() == " ".join(console_acl_rules(forget=True))
    assert "+del" not in (await bls("acl", "--console")).text
    ran = await bls("acl", "订单系统", "--forget")
    assert (ran.code, "--console" in ran.said) == (2, True)


@needs_selectors
async def test_the_hint_of_forget_is_enough(
    bls: Bls, own_server: DevServer, admin: Redis, project: str
) -> None:
    """An operator without the right to delete is told the command that prints it."""
    await admin.set(f"{project}_项目状态", "离线")
    url = await url_with_rights(admin, own_server, *console_acl_rules())
    ran = await bls("forget", project, url=url)
    assert (ran.code, "--forget" in ran.said) == (1, True)
    printed = (await bls("acl", "--console", "--forget")).text.split()
    await url_with_rights(admin, own_server, *console_acl_rules(forget=True))
    assert " ".join(printed) == " ".join(console_acl_rules(forget=True))
    ran = await bls("forget", project, url=url)
    assert (ran.code, ran.text.split()) == (0, [f"{project}_项目状态"])


async def test_the_rights_of_one_worker(bls: Bls) -> None:
    """An id limits a worker's heartbeat; what has no effect is refused."""
    ran = await bls("acl", "--workers", "回测-1")
    assert ran.text.strip() == " ".join(worker_acl_rules("回测-1"))
    assert (await bls("acl", "回测-1", "--workers")).text == ran.text
    ran = await bls("acl", "--workers", "回测-1", "--read-only")
    assert ran.text.strip() == " ".join(worker_acl_rules(write=False))
    for words in (("a b",), ("回测-1", "--no-selectors"), ("回测-1", "--replicas")):
        ran = await bls("acl", "--workers", *words)
        assert (ran.code, ran.out) == (2, b"")


async def test_flat_rules(
    bls: Bls, own_server: DevServer, admin: Redis, project: str
) -> None:
    """What Redis 6 understands is enough, too."""
    words = ["acl", project, "--console", "--no-selectors", "--json"]
    rules = orjson.loads((await bls(*words)).out)["rules"]
    assert not [rule for rule in rules if "(" in rule or "%" in rule]
    url = await log_in(admin, own_server, rules)
    async with ProjectAgent(project, redis=own_server.url, replicas=True) as agent:
        await agent.ready(5)
        await use_everything(bls, url, project, all_projects=False)
    assert await refused(admin) == []


@needs_selectors
@pytest.mark.parametrize("mode", ["blocking", "compat", "reliable"])
async def test_an_agents_rights(
    bls: Bls, own_server: DevServer, admin: Redis, project: str, mode: Mode
) -> None:
    """The line is that of the table of rights; a shell hands it to the server as it is."""
    name = f"{project}*'"
    assert (await bls("acl", project, "--mode", mode)).text.rstrip("\n") == acl_line(
        project, mode
    )
    line = (
        await bls("acl", name, "--mode", mode, "--user", "order-agent", "--shell")
    ).text
    words = shlex.split(line)
    assert words[:4] == ["redis-cli", "ACL", "SETUSER", "order-agent"]
    await execute(admin, *words[1:])
    shown = await execute(admin, "ACL", "GETUSER", "order-agent")
    assert b"on" in shown[1]
    assert shown[shown.index(b"passwords") + 1] == []  # nobody can log in yet
    before = await execute(admin, "ACL", "LIST")
    await execute(admin, *words[1:])  # once more: the same
    assert await execute(admin, "ACL", "LIST") == before


@needs_selectors
async def test_a_line_of_users_acl(bls: Bls, tmp_path: Path, project: str) -> None:
    """A server starts with a file of these lines, and knows the users."""
    lines = [(await bls("acl", project, "--user", "agent-甲")).text]
    lines += [
        (await bls("acl", "--console", "--user", "operator")).text,
        "user default on nopass +@all ~* &*\n",
    ]
    file = tmp_path / "users.acl"
    file.write_text("".join(lines), "utf-8")
    with DevServer(options=("--aclfile", str(file))) as server:
        async with Redis.from_url(server.url, protocol=2) as admin:
            users = await execute(admin, "ACL", "USERS")
    assert {user.decode() for user in users} == {"agent-甲", "operator", "default"}


async def test_hints_are_no_part_of_the_line(bls: Bls) -> None:
    """What can be pasted is on standard output, alone."""
    ran = await bls("acl", "订单系统")
    assert len(ran.text.splitlines()) == 1
    assert "ACL SETUSER" in ran.said


def test_the_document_has_the_line_of_a_console() -> None:
    """docs/rights.md shows what is printed."""
    line = " ".join(console_acl_rules())
    assert line in DOCUMENT.read_text("utf-8")


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="redis-cli is not installed")
async def test_redis_cli_takes_the_line(own_server: DevServer, bls: Bls) -> None:
    """As somebody does it: pasted into a shell."""
    line = (await bls("acl", "订单系统", "--shell")).text.strip()
    command = line.replace("redis-cli", f"redis-cli -p {own_server.port}", 1)
    ran = await anyio.run_process(["bash", "-c", command])
    assert ran.stdout.decode().strip() == "OK"


ROOMS = {
    "--workers": worker_acl_rules,
    "--runs": run_acl_rules,
    "--assets": asset_acl_rules,
}


@pytest.mark.parametrize("option", ROOMS)
async def test_the_rights_of_a_room(bls: Bls, option: str) -> None:
    """As a line of its own; with a project or an operator's rights it is refused."""
    rules_of = ROOMS[option]
    for words, write in (((), True), (("--read-only",), False)):
        ran = await bls("acl", option, *words)
        assert ran.text.strip() == " ".join(rules_of(write=write))
    flat = await bls("acl", option, "--no-selectors", "--user", "one")
    rules = " ".join(rules_of(selectors=False))
    assert flat.text.strip() == f"user one on {rules}"
    other = "--runs" if option == "--workers" else "--workers"
    project = () if option == "--workers" else (("订单系统",),)  # there it is an id
    for words in (*project, ("--console",), ("--replicas",), (other,)):
        ran = await bls("acl", option, *words)
        assert (ran.code, ran.out) == (2, b"")
        assert option in ran.said or other in ran.said


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--workers", "backtest-worker"),
        ("--runs", "run-writer"),
        ("--assets", "asset-syncer"),
        ("--crawl", "crawler"),
        ("--console", "operator"),
    ],
)
async def test_the_hint_names_whose_rights_these_are(
    bls: Bls, option: str, name: str
) -> None:
    """A worker is no order-agent."""
    ran = await bls("acl", option, "--shell")
    assert f"SETUSER {name} on" in ran.text
    assert name in ran.said


async def test_the_rights_of_a_crawler(bls: Bls) -> None:
    """Of all projects, or of one; beside the rights of another program it is refused."""
    for words, names in (((), ()), (("news",), ("news",))):
        ran = await bls("acl", *words, "--crawl")
        assert ran.text.strip() == " ".join(crawl_acl_rules(*names))
        ran = await bls("acl", *words, "--crawl", "--read-only", "--no-selectors")
        rules = crawl_acl_rules(*names, write=False, selectors=False)
        assert ran.text.strip() == " ".join(rules)
    for word in ("--console", "--replicas", "--runs"):
        ran = await bls("acl", "--crawl", word)
        assert (ran.code, ran.out) == (2, b"")
    assert (await bls("acl", "a:b", "--crawl")).code == 2
