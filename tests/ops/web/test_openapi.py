"""The document of the interface and the interface say the same."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import httpx2 as httpx
import orjson
import pytest
from redis.asyncio import Redis
from starlette.exceptions import HTTPException
from starlette.routing import Route

from bls_agent import ProjectAgent
from bls_agent.ops.fleet import Condition
from bls_agent.ops.web import api, streams
from bls_agent.ops.web.app import create_app
from bls_agent.ops.web.config import Limits, WebConfig
from bls_agent.ops.web.requests import OPENAPI
from bls_agent.project.messages import OutcomeKind, Status
from bls_agent.runs import RunState
from bls_agent.workers import WorkerStatus
from tests.ops.web.serving import OWN, PASSWORD, USERS, asking

DOCUMENT: dict[str, Any] = orjson.loads(OPENAPI.read_bytes())
OPERATIONS = [
    (method.upper(), path)
    for path, item in DOCUMENT["paths"].items()
    for method in item
]


LISTS = {
    "/api/commands": "{}_控制",
    "/api/in-hand": "bls_agent:{{{}_控制}}:inflight",
    "/api/dead-letters": "bls_agent:{{{}_控制}}:dead",
    "/api/dead-letters/requeue": "bls_agent:{{{}_控制}}:dead",
}


def statuses(method: str, path: str) -> set[int]:
    return set(map(int, DOCUMENT["paths"][path][method.lower()]["responses"]))


def test_every_route_is_described_and_every_description_has_a_route() -> None:
    """Paths and methods, both ways."""
    routes = {
        (method, re.sub(r":\w+", "", route.path))
        for route in (*api.api_routes, *streams.stream_routes)
        if isinstance(route, Route)
        if route.path.startswith("/api/")
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert routes == set(OPERATIONS)


def test_every_reference_leads_somewhere() -> None:
    """And everything that is defined is used; enums are those of the code."""
    text = orjson.dumps(DOCUMENT).decode()
    used = set(re.findall(r'"\$ref":"#/components/([\w/-]+)"', text))
    components = DOCUMENT["components"]
    defined = {
        f"{kind}/{name}"
        for kind in ("headers", "responses", "schemas")
        for name in components[kind]
    }
    assert used == defined
    schemas = components["schemas"]
    kinds = schemas["Outcome"]["properties"]["outcome"]["enum"]
    assert kinds == [kind.value for kind in OutcomeKind]
    turned = schemas["StatusChange"]["properties"]
    assert turned["to"]["enum"] == [*Condition, None]
    assert turned["from"]["enum"] == [*Condition, None]
    said = schemas["Project"]["properties"]["status"]["enum"]
    assert said == [*[status.value for status in Status], None]
    assert schemas["Run"]["properties"]["state"]["enum"] == [*RunState]
    worker = schemas["Worker"]["properties"]
    assert worker["status"]["enum"] == [*WorkerStatus, None]
    assert worker["kind"]["type"] == "string"


def run_of(project: str) -> int:
    """Give a fresh run for a fresh project."""
    return int(project.rpartition("_")[2], 16)


async def ask(
    client: httpx.AsyncClient, op: tuple[str, str], project: str, **more: Any
) -> int:
    """Ask what is right, changed by what a test wants wrong."""
    method, path = op
    options: dict[str, Any] = {"headers": more.pop("headers", {})}
    if method == "DELETE" or path == "/api/dead-letters/requeue":
        options["headers"] = {"content-type": "application/json", **options["headers"]}
    named = more.pop("name", project)
    url = path.replace("{project}", quote(named, safe=""))
    url = url.replace("{run}", "x" if named == "nobody" else str(run_of(project)))
    url = url.replace("{asset}", named)
    name = more.pop("query", project)
    asks = (method, path) != ("POST", "/api/commands") and path in LISTS
    if asks or path in {"/api/logs", "/api/logs/stream"}:
        url += f"?projectName={quote(name)}"
    rest = more.pop("rest", "")
    number = more.pop("id", "&id=x")
    rest += number if asks and method != "GET" else ""
    bare = "/runs" in path or method == "DELETE" or path == "/api/changes"
    url += rest if "?" in url else rest.replace("&", "?", 1) * bare
    if method == "POST" and not asks:
        options["json"] = {"targetProjectName": name, "command": "x"}
    options |= more
    if path == "/api/logs/stream":
        method = "HEAD" if not more.pop("get", False) else "GET"
    return (await client.request(method, url, **options)).status_code


@pytest.mark.parametrize("op", OPERATIONS, ids=" ".join)
async def test_every_status_happens(  # noqa: PLR0915 - one story
    op: tuple[str, str],
    redis_url: str,
    redis: Redis,
    project: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each status that the document names is provoked, and no other one comes."""
    seen: set[int] = set()

    async def look(url: str = redis_url, headers: Any = None, **more: Any) -> None:
        options = {"users": {}, "limits": Limits()} | more.pop("config", {})
        app = create_app(WebConfig(redis=url, **options))
        more.pop("prepare", lambda _: None)(app)
        async with asking(app) as client:
            for _ in range(more.pop("times", 1)):
                seen.add(await ask(client, op, project, headers=headers or {}, **more))

    await redis.set(f"{project}_项目状态", "在线")
    asset = {"id": project, "version": "1.0.0", "category": "tool", "name": "x"}
    await redis.hset(f"asset:metadata:{project}", mapping=asset)  # type: ignore[arg-type]
    run = f"run:{run_of(project)}:events"
    await redis.xadd(run, {"event_category": "a"})
    await look()
    await look(config={"users": USERS})
    await look(headers={"sec-fetch-site": "cross-site"})
    await look(headers={"host": "evil.example"})
    await look(headers={"content-length": "999999"}, content=b"")
    if op[0] != "GET":
        await look(headers={"transfer-encoding": "chunked"})
    await look(config={"limits": Limits(request_burst=1, requests=0.01)}, times=2)

    with monkeypatch.context() as patch:
        await look(prepare=lambda app: break_routes(app, patch))
    await look("redis://127.0.0.1:1")
    basic = httpx.BasicAuth("operator", PASSWORD)
    await look(config={"users": USERS}, prepare=be_busy, auth=basic)
    if op == ("POST", "/api/commands"):
        await look(json={})
        await look(content=b"x", headers={"content-type": "text/plain", "origin": OWN})
        async with ProjectAgent(project, redis=redis_url) as agent:
            await agent.ready(10)
            body = {"targetProjectName": project, "command": "ping", "wait": 10}
            await look(json=body)
    else:
        await look(query="nobody", name="nobody")
    await look(rest="&limit=0&force=x", name="", id="")
    if op[0] != "GET" and op[1] in LISTS:
        for key in (f"{project}_控制", f"bls_agent:{{{project}_控制}}:dead"):
            await redis.rpush(key, '{"id": "x", "command": "x"}')
    await look()
    await redis.delete(f"{project}_项目控制台")
    await redis.set(f"{project}_项目控制台", "no list")
    for key in LISTS.values():
        await redis.delete(key.format(project))
        await redis.set(key.format(project), "no list")
    await redis.set(run, "no stream")
    await look()
    await redis.delete(run, f"asset:metadata:{project}")
    assert seen == statuses(*op)


def break_routes(app: Any, patch: pytest.MonkeyPatch) -> None:
    """Let a fault of our own happen in every route."""

    async def broken(*_: object) -> None:
        raise RuntimeError

    for route in app.routes:
        if getattr(route, "path", "").startswith("/api/"):
            patch.setattr(route, "app", broken)


def be_busy(app: Any) -> None:
    """Let too many passwords wait."""

    async def busy(*_: object) -> bool:
        raise HTTPException(503)

    app.web.verifier.check = busy
