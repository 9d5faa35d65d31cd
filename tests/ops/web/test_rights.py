"""The console with a Redis user of its own, and no more rights than ``acl`` prints."""

from __future__ import annotations

from urllib.parse import quote

from redis.asyncio import Redis

from bls_agent import EventStore
from bls_agent.assets import AssetLibrary
from bls_agent.core.acl import console_acl_rules
from bls_agent.devserver import DevServer
from tests.assets.test_library import prompt
from tests.harness import PASSWORD, eventually, execute, needs_selectors
from tests.ops.cli.test_acl import leave_a_failure
from tests.ops.web.serving import OWN, console_of


async def give(admin: Redis, rules: list[str]) -> None:
    await execute(
        admin, "ACL", "SETUSER", "console", "reset", "on", f">{PASSWORD}", *rules
    )
    await execute(admin, "ACL", "LOG", "RESET")


def url_of(server: DevServer) -> str:
    return server.url.replace("://", f"://console:{quote(PASSWORD)}@")


@needs_selectors
async def test_the_printed_rights_are_enough(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Every page, stream and question, and a command with its record; no refusal."""
    await admin.set(f"{project}_项目状态", "在线")
    await admin.rpush(f"{project}_项目控制台", b'{"message": "here"}')
    await admin.set("heartbeat:node:n1", "{}", ex=30)
    async with EventStore(own_server.url) as store:
        await store.add(7, "llm", "stream", {"text": "你好"})
    async with AssetLibrary(own_server.url) as library:
        await library.save(prompt("a"), path="a.yaml", sha="1")
    await leave_a_failure(own_server.url)
    place = f"bls_agent:{{{project}_控制}}"
    await admin.rpush(f"{place}:dead", '{"id": "1"}', '{"id": "2"}', '{"id": "3"}')
    await admin.hset(f"{place}:inflight", f"{place}:inflight:a", "1")
    await admin.set("ginkgo:task_status:均线-7", "running", ex=60)
    await give(admin, console_acl_rules())
    name = quote(project)
    async with console_of(url_of(own_server), keep_changes=True) as client:
        for path in (
            "/",
            f"/projects/{name}",
            "/api/projects",
            f"/api/projects/{name}",
            f"/api/logs?projectName={name}",
            f"/fragments/queue?projectName={name}",
            f"/api/in-hand?projectName={name}",
            f"/api/dead-letters?projectName={name}",
            "/api/health",
            "/workers",
            "/api/workers",
            "/tasks",
            "/api/tasks",
            "/runs",
            "/runs/7",
            "/api/runs",
            "/api/runs/7",
            "/api/runs/7/events",
            "/assets",
            "/assets/a",
            "/api/assets",
            "/api/assets/a",
            "/crawl",
            "/crawl/news",
            "/api/crawl",
        ):
            assert (await client.get(path)).status_code == 200, path
        body = {"targetProjectName": project, "command": "x", "wait": 0.3}
        assert (await client.post("/api/commands", json=body)).status_code == 202
        again = "/fragments/requeue/news?lang=en"
        sent = await client.post(again, headers={"origin": OWN})
        assert "Queued again: 1<" in sent.text
        for number, act in enumerate(("requeue", "discard"), 1):
            path = f"/fragments/dead/{act}?projectName={name}&lang=en"
            form = {"id": str(number)}
            sent = await client.post(path, data=form, headers={"origin": OWN})
            assert ": 1<" in sent.text
        await admin.set(f"{project}_项目状态", "故障")
        await eventually(lambda: _is_kept(admin))
    assert await execute(admin, "ACL", "LOG") == []


async def _is_kept(admin: Redis) -> bool:
    return bool(await admin.exists("bls_agent:console:changes"))


@needs_selectors
async def test_who_may_not_delete_a_project_reads_what_is_missing(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """The page names the command that prints the rights."""
    await admin.set(f"{project}_项目状态", "离线")
    await give(admin, console_acl_rules())
    path = f"/fragments/forget?projectName={quote(project)}&lang=en"
    async with console_of(url_of(own_server)) as client:
        answer = await client.post(path, headers={"origin": OWN}, data={})
    assert "bls-agent acl --console --forget" in answer.text


@needs_selectors
async def test_who_may_not_touch_dead_letters_reads_what_is_missing(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """As a user made for an older console: the rest is shown, nothing is changed."""
    dead = f"bls_agent:{{{project}_控制}}:dead"
    await admin.rpush(dead, '{"id": "1"}')
    await admin.rpush(f"{project}_控制", '{"id": "2", "command": "等待"}')
    rules = [rule for rule in console_acl_rules() if "bls_agent:*" not in rule]
    await give(admin, rules)
    query = f"?projectName={quote(project)}&lang=en"
    async with console_of(url_of(own_server)) as client:
        page = (await client.get(f"/fragments/queue{query}")).text
        assert "等待" in page
        assert "may not read dead letters. This command prints the rights" in page
        path = f"/fragments/dead/discard{query}&all=true"
        page = (await client.post(path, headers={"origin": OWN})).text
        assert "Not deleted: " in page
        assert "`bls-agent acl --console` prints the rights of an operator" in page
    assert await admin.llen(dead) == 1


@needs_selectors
async def test_who_may_only_look_sends_nothing(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """The refusal is said as one, and neither record nor command is there."""
    await admin.set(f"{project}_项目状态", "在线")
    await give(admin, console_acl_rules(send=False))
    async with console_of(url_of(own_server)) as client:
        assert (await client.get("/api/projects")).status_code == 200
        body = {"targetProjectName": project, "command": "x"}
        answer = await client.post("/api/commands", json=body)
        assert answer.status_code == 503
        assert "no_permission" in answer.json()["error"]
        assert PASSWORD not in answer.text
    assert await admin.keys("*") == [f"{project}_项目状态".encode()]


@needs_selectors
async def test_of_one_project_the_others_are_not_seen(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Its log and its commands work; of the others a refusal is told, and no outage."""
    await admin.set(f"{project}_项目状态", "在线")
    await admin.set("another_项目状态", "在线")
    await give(admin, console_acl_rules(project))
    name = quote(project)
    async with console_of(url_of(own_server)) as client:
        assert (await client.get("/api/health")).status_code == 200
        answer = await client.get(f"/api/logs?projectName={name}")
        assert answer.status_code == 200
        body = {"targetProjectName": project, "command": "x"}
        assert (await client.post("/api/commands", json=body)).status_code == 202
        answer = await client.get("/api/logs?projectName=another")
        assert answer.status_code == 503
        answer = await client.get("/projects/another?lang=en")
        assert answer.status_code == 503
        assert "Redis refuses the request" in answer.text
        assert "data-again" not in answer.text


@needs_selectors
async def test_tasks_that_may_not_be_read_are_no_empty_list(
    own_server: DevServer, admin: Redis
) -> None:
    """Workers are listed; the page and the interface tell that tasks are unknown."""
    await admin.set("backtest:worker:回测-1", '{"status": "running"}', ex=30)
    await admin.set("ginkgo:task_status:均线-7", "running", ex=60)
    await give(admin, ["+@all", "%R~backtest:worker:*"])
    async with console_of(url_of(own_server)) as client:
        assert len((await client.get("/api/workers")).json()["workers"]) == 1
        answer = await client.get("/api/tasks")
        page = (await client.get("/tasks?lang=en")).text
    assert answer.status_code == 503
    assert "no_permission" in answer.text
    assert 'class="complaint"' in page
