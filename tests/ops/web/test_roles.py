"""Who may do what: one table over all routes, tried on each of them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx2 as httpx
import orjson
import pytest
from redis.asyncio import Redis
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bls_agent import ConfigurationError
from bls_agent.assets import AssetLibrary
from bls_agent.devserver import DevServer
from bls_agent.ops import web
from bls_agent.ops.web.app import ConsoleApp, create_app
from bls_agent.ops.web.auth import User, parse_users
from bls_agent.ops.web.config import Limits, WebConfig
from bls_agent.ops.web.requests import OPENAPI
from bls_agent.ops.web.rights import (
    EVERY_ROLE,
    RIGHTS,
    About,
    Grants,
    Role,
    route_name,
)
from bls_agent.runs import EventStore
from tests.assets.test_library import prompt
from tests.harness import eventually
from tests.ops.cli.test_acl import leave_a_failure
from tests.ops.web.serving import HASH, OWN, PASSWORD, asking, log_in

OURS, FOREIGN = "订单系统", "机密系统"
PEOPLE = {
    "viewer": "viewer",
    "值班": f"viewer operator={OURS}",
    "外包": "admin=外包*",
    "admin": "admin",
}
USERS = {name: User(HASH, Grants.parse("x", text)) for name, text in PEOPLE.items()}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "SEND")
OVERRIDES = ("x-http-method-override", "x-http-method", "x-method-override")
MANY = Limits(requests=1e6, request_burst=10**6, commands=1e6, command_burst=10**6)
COMMAND = orjson.dumps({"targetProjectName": OURS, "command": "x"})
FORM = (b"id=w1&user=viewer&password=x&command=x&payload="
        + quote('{"command": "x"}').encode() + b"&_method=DELETE")  # fmt: skip


@pytest.fixture
async def seeded(own_server: DevServer) -> AsyncIterator[Redis]:
    """Two projects with all that routes show or change, and things of no project."""
    async with Redis.from_url(own_server.url, protocol=2) as redis:
        for name in (OURS, FOREIGN):
            await redis.set(f"{name}_项目状态", "离线")
            await redis.rpush(f"{name}_项目控制台", f'{{"message": "von {name}"}}')
            for key in (f"{name}_控制", f"bls_agent:{{{name}_控制}}:dead"):
                await redis.rpush(key, '{"id": "w1", "command": "reload"}')
            await redis.zadd(f"crawlo:{name}:queue:requests", {"x": 1})
        await redis.set("heartbeat:node:n1", "{}", ex=3_000)
        async with EventStore(own_server.url) as store:
            await store.add(7, "llm", "stream", {"text": "你好"})
        async with AssetLibrary(own_server.url) as library:
            await library.save(prompt("a"), path="a.yaml", sha="1")
        await leave_a_failure(own_server.url)
        yield redis


async def snapshot(redis: Redis) -> dict[bytes, bytes | None]:
    """Everything that the server holds, to the byte."""
    keys = sorted([key async for key in redis.scan_iter(count=1_000)])
    return {key: await redis.dump(key) for key in keys}


# A route for each row of the table of roles in docs/security.md, in its order.
DOCUMENTED = (
    "GET /projects/{project}", "GET /api/logs", "GET /api/dead-letters",
    "GET /crawl/{queue}", "GET /metrics", "GET /runs", "POST /fragments/help",
    "POST /api/commands", "DELETE /api/commands", "POST /fragments/requeue/{queue}",
    "DELETE /api/dead-letters", "POST /fragments/forget",
)  # fmt: skip


@pytest.mark.parametrize(
    ("page", "words"),
    [("security.md", ("no", "yes")), ("security.zh-CN.md", ("否", "是"))],
)
def test_the_document_has_the_table_of_roles(page: str, words: tuple[str, str]) -> None:
    """What each role may do there is what it may do here."""
    text = (Path(__file__).parents[3] / "docs" / page).read_text("utf-8")
    table = text.partition("| viewer | operator | admin |\n")[2].partition("\n\n")[0]
    rows = [line.split(" | ")[1:] for line in table.splitlines()[1:]]
    roles = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)
    for route, row in zip(DOCUMENTED, rows, strict=True):
        allowed = [words[role >= RIGHTS[route].role] for role in roles]
        assert [cell.removesuffix(" |") for cell in row] == allowed, route


@asynccontextmanager
async def console(url: str) -> AsyncIterator[ConsoleApp]:
    app = create_app(WebConfig(redis=url, users=USERS, limits=MANY))
    async with asking(app) as client:
        await client.get("/api/health")
        await eventually(lambda: app.web.fleet.read_at > 0)
        yield app


async def cookie_of(app: ConsoleApp, user: str) -> str:
    """The cookie of a new session, as the browser of this user has it."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url=OWN
    ) as client:
        assert (await log_in(client, user)).status_code == 303
        return f"bls_session={client.cookies['bls_session']}"


async def ask(
    app: ConsoleApp,
    method: str,
    target: str,
    body: bytes = b"",
    **headers: str,
) -> tuple[int, str]:
    """Ask as a browser or program does, and hang up a stream after its first events."""
    path, _, query = target.partition("?")
    raw = {"host": "127.0.0.1:8765", "content-length": str(len(body))} | headers
    if not body:
        del raw["content-length"]
    scope: dict[str, Any] = {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http",
        "path": httpx.URL(path).path, "raw_path": path.encode(), "root_path": "",
        "query_string": query.encode(), "client": ("127.0.0.1", 1),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in raw.items()],
        "server": ("127.0.0.1", 8765),
    }  # fmt: skip
    received: list[bytes] = []
    status = 0
    told = anyio.Event()
    request = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if request:
            return request.pop()
        await told.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        received.append(message.get("body", b""))
        if b"data:" in received[-1]:
            told.set()

    with anyio.move_on_after(5):
        await app(scope, receive, send)
    return status, b"".join(received).decode("utf-8", "replace")


def targets_of(path: str, project: str) -> str:
    """A target that reaches the handler of a route: each part is filled."""
    parts = {"project": project, "queue": project, "run": "7", "asset": "a"}
    filled = re.sub(
        r"{(\w+)(:\w+)?}", lambda part: quote(parts.get(part[1], "x"), safe=""), path
    )
    if path == "/static":
        filled += "/favicon.svg"
    return f"{filled}?projectName={quote(project)}&id=w1&force=true&_method=DELETE"


def routes_of(app: ConsoleApp) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Path of every route of the application, and its methods as the table names them."""
    names: dict[str, dict[str, str]] = {}
    for route in app.routes:
        path: str = route.path  # type: ignore[attr-defined]
        methods = route.methods or () if isinstance(route, Route) else ("GET", "HEAD")
        named = {method: route_name(method, path) for method in methods}
        names.setdefault(path, {}).update(named)
    yield from names.items()


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    """A new route without a row fails here; so does a path of the document."""
    routes = {name for _, named in routes_of(create_app()) for name in named.values()}
    assert routes == RIGHTS.keys()
    for path, methods in orjson.loads(OPENAPI.read_bytes())["paths"].items():
        assert {f"{method.upper()} {path}" for method in methods} <= RIGHTS.keys()


async def test_a_route_without_a_row_is_refused(redis_url: str) -> None:
    """For everybody, also where nobody logs in: its developer sees it at once."""

    async def act(_: Request) -> Response:
        return Response("done")

    app = create_app(WebConfig(redis=redis_url))
    app.router.routes.append(Route("/fragments/new", act, methods=["POST"]))
    async with asking(app) as client:
        answer = await client.post("/fragments/new", headers={"origin": OWN})
    assert answer.status_code == 403
    assert "POST /fragments/new has no row" in answer.text


async def test_a_viewer_changes_nothing(own_server: DevServer, seeded: Redis) -> None:
    """By no route, method, header, form of an operator's session, nor by HTTP Basic."""
    async with console(own_server.url) as app:
        cookie = await cookie_of(app, "viewer")
        basic = httpx.BasicAuth("viewer", PASSWORD)._auth_header
        before = await snapshot(seeded)
        refused: set[str] = set()
        for path, named in routes_of(app):
            for method in METHODS:
                if method == "POST" and path in ("/login", "/logout"):
                    continue
                safe = method in ("GET", "HEAD", "OPTIONS")
                for headers in (
                    {"cookie": cookie, "content_type": "application/json"},
                    {"cookie": cookie, "origin": OWN, "sec_fetch_site": "same-origin",
                     "content_type": "application/x-www-form-urlencoded"},
                    {"authorization": basic, "content_type": "application/json"},
                ):  # fmt: skip
                    override = dict.fromkeys(OVERRIDES, "DELETE" if safe else "POST")
                    form = "form" in headers["content_type"]
                    body = b"" if safe else FORM if form else COMMAND
                    status, text = await ask(
                        app, method, targets_of(path, OURS), body, **headers, **override
                    )
                    name = named.get(method)
                    needs = RIGHTS[name].role if name else Role.NOBODY
                    if needs > Role.VIEWER and "cookie" in headers:
                        assert status == 403, (method, path, text)
                        assert needs.word in text
                        refused.add(str(name))
                    elif name and "cookie" in headers:
                        assert status != 403, (method, path, text)
        assert await snapshot(seeded) == before
    assert refused == {
        name for name, right in RIGHTS.items() if right.role > Role.VIEWER
    }


@pytest.mark.parametrize("user", ["值班", "admin"])
async def test_who_has_the_role_may(
    own_server: DevServer, seeded: Redis, user: str
) -> None:
    """The same requests are not refused to others, so that the test above can fail."""
    async with console(own_server.url) as app:
        cookie = await cookie_of(app, user)
        before = await snapshot(seeded)
        for path, named in routes_of(app):
            for method, name in named.items():
                if method in ("GET", "HEAD") or "log" in path:
                    continue
                form = path.startswith("/fragments")
                kind = "x-www-form-urlencoded" if form else "json"
                status, text = await ask(
                    app, method, targets_of(path, OURS), FORM if form else COMMAND,
                    cookie=cookie, origin=OWN, content_type=f"application/{kind}",
                )  # fmt: skip
                may = USERS[user].grants.of(OURS) >= RIGHTS[name].role
                assert (status != 403) is may, (method, path, text)
        assert await snapshot(seeded) != before


def anonymous(text: str, project: str) -> str:
    return text.replace(project, "").replace(quote(project), "")


async def test_a_foreign_project_is_not_seen(
    own_server: DevServer, seeded: Redis
) -> None:
    """By no route, in no list, log, change or stream; whether it exists is not told."""
    async with console(own_server.url) as app:
        cookie = await cookie_of(app, "外包")
        await seeded.set("外包一_项目状态", "在线")
        await eventually(lambda: "外包一" in app.web.fleet.found)
        await seeded.set(f"{FOREIGN}_项目状态", "故障")
        await eventually(lambda: bool(app.web.journal.changes(FOREIGN, 0, 9)))
        seen = 0
        for path, named in routes_of(app):
            for name in (named[method] for method in named if method != "HEAD"):
                method, about = name.split()[0], RIGHTS[name].about
                target = targets_of(path, FOREIGN)
                if about is About.SEEN:
                    target = target.partition("?")[0]
                if about is About.NOTHING or path == "/logout":
                    continue
                form = method == "POST" and path.startswith("/fragments")
                kind = "x-www-form-urlencoded" if form else "json"
                body = FORM if form else orjson.dumps(
                    {"targetProjectName": FOREIGN, "command": "x"}
                )  # fmt: skip
                status, text = await ask(
                    app, method, target, b"" if method == "GET" else body,
                    cookie=cookie, origin=OWN, content_type=f"application/{kind}",
                )  # fmt: skip
                if about is not About.SEEN:
                    assert status == 403, (name, text)
                    _, nobody = await ask(
                        app, method, targets_of(path, "没有"), b"" if method == "GET"
                        else body.replace(FOREIGN.encode(), "没有".encode()),
                        cookie=cookie, origin=OWN, content_type=f"application/{kind}",
                    )  # fmt: skip
                    assert anonymous(text, FOREIGN) == anonymous(nobody, "没有")
                    continue
                assert status == 200, (name, text)
                assert FOREIGN not in text, name
                assert quote(FOREIGN) not in text, name
                seen += "外包一" in text
        assert seen >= 3  # the wallboard, its stream and the list of projects


async def test_a_lost_stream_may_be_asked_about_by_everybody(
    own_server: DevServer, seeded: Redis
) -> None:
    """Else the page of a user of some projects would wait as after a refusal."""
    script = (Path(web.__file__).parent / "static/stream.js").read_text("utf-8")
    (path,) = re.findall(r"\{ ask = `\$\{root\}([^`]*)`", script)
    async with console(own_server.url) as app:
        for user in USERS:
            cookie = await cookie_of(app, user)
            status, text = await ask(app, "GET", path, cookie=cookie)
            assert status == 200, (user, text)
        assert (await ask(app, "GET", path))[0] == 401


async def test_a_stream_of_changes_leaves_out_what_is_foreign(
    own_server: DevServer, seeded: Redis
) -> None:
    """Cards that change, and cards that leave."""
    async with console(own_server.url) as app:
        await eventually(lambda: FOREIGN in app.web.fleet.found)
        fleet, grants = app.web.fleet, Grants.parse("x", f"viewer={OURS}")
        place = fleet.ring.end
        for name in (OURS, FOREIGN):
            await seeded.delete(f"{name}_项目控制台", f"{name}_控制")
            await seeded.set(f"{name}_项目状态", "报错")
            await seeded.delete(f"{name}_项目状态")
            await fleet.forget(name)

        def gone(grants: Grants) -> set[str]:
            items, _ = fleet.ring.since(place)
            messages = [fleet.only(item.payload, grants) for item in items]
            return {path for one in messages for path in orjson.loads(one)["gone"]}

        paths = {f"/projects/{quote(name)}" for name in (OURS, FOREIGN)}
        await eventually(lambda: gone(EVERY_ROLE) >= paths)
        assert gone(grants) == {f"/projects/{quote(OURS)}"}


async def test_pages_have_only_the_buttons_that_work(
    own_server: DevServer, seeded: Redis
) -> None:
    """No form for who may not send, no link to what is refused."""
    fragment = f"/fragments/queue?projectName={quote(OURS)}"
    async with console(own_server.url) as app:

        async def pages(user: str) -> str:
            cookie = await cookie_of(app, user)
            shown = [f"/projects/{quote(OURS)}", fragment, "/crawl/news"]
            found = [await ask(app, "GET", path, cookie=cookie) for path in shown]
            assert {status for status, _ in found} == {200}
            return "".join(text for _, text in found)

        viewer, operator = await pages("viewer"), await pages("值班")
        admin = await pages("admin")
        _, home = await ask(app, "GET", "/", cookie=await cookie_of(app, "外包"))
    for button in ("/fragments/commands?", "/fragments/withdraw?"):
        assert button not in viewer, button
        assert button in operator, button
    for button in ("/fragments/forget?", "/fragments/requeue/"):
        assert button not in viewer + operator, button  # of queues, 值班 is a viewer
        assert button in admin, button
    assert 'href="/workers"' in viewer
    assert 'href="/workers"' not in home
    assert 'href="/crawl"' in home


async def test_the_refusal_names_role_and_project(
    own_server: DevServer, seeded: Redis
) -> None:
    """To programs in JSON; to people in their language."""
    async with console(own_server.url) as app:
        cookie = await cookie_of(app, "viewer")
        _, text = await ask(
            app, "DELETE", f"/api/commands?projectName={quote(OURS)}&id=w1",
            cookie=cookie, content_type="application/json",
        )  # fmt: skip
        told = orjson.loads(text)
        assert told["needs"] == "operator"
        assert told["error"] == f"this needs the role operator for the project {OURS}"
        cookie = await cookie_of(app, "外包")
        _, page = await ask(app, "GET", "/workers?lang=zh", cookie=cookie)
        assert "您的用户缺少角色 viewer（全部项目）。" in page


def test_roles_in_the_file() -> None:
    """Each for all projects or a glob; the highest that fits counts; none: every one."""
    users = parse_users(f"甲:{HASH}\n乙:{HASH}:viewer operator=订单* admin=订单?测试\n")
    assert users["甲"].grants == EVERY_ROLE
    assert EVERY_ROLE.of("任何") is EVERY_ROLE.everywhere is Role.ADMIN
    roles = users["乙"].grants
    assert (roles.of("支付"), roles.everywhere) == (Role.VIEWER, Role.VIEWER)
    assert (roles.of("订单系统"), roles.somewhere) == (Role.OPERATOR, Role.ADMIN)
    assert roles.of("订单 测试") is Role.ADMIN
    some = Grants.parse("x", "viewer=[a]b operator=测[试]*")
    assert [some.of(name) for name in ("ab", "[a]b", "测试一", "测一")] == [1, 0, 2, 0]
    assert some.everywhere is Role.NOBODY


@pytest.mark.parametrize("roles", ["", " ", "root", "nobody", "viewer,admin", "admin="])
def test_a_wrong_role_is_named(roles: str) -> None:
    """With its line, the rule, and an example; the hash stays hidden."""
    with pytest.raises(ConfigurationError, match=r"line 1.*viewer, operator, admin.*Try") as error:  # fmt: skip
        parse_users(f"甲:{HASH}:{roles}")
    assert HASH not in str(error.value)
