"""The door: what must not come in does not, and every answer carries the headers."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import httpx2 as httpx
import pytest
from redis.asyncio import Redis

from bls_agent.ops.web.app import create_app
from bls_agent.ops.web.config import Limits, WebConfig
from bls_agent.ops.web.security import HEADERS
from tests.ops.web.serving import OWN, PASSWORD, USERS, asking, console_of, log_in

ROOT = Path(__file__).parents[3]
FORM = "application/x-www-form-urlencoded"


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody at this machine, of a console without users."""
    async with console_of(redis_url) as asked:
        yield asked


@pytest.fixture
async def locked(redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who is not logged in yet, of a console with users."""
    async with console_of(redis_url, users=USERS) as asked:
        yield asked


async def seed(redis: Redis, project: str) -> None:
    await redis.set(f"{project}_项目状态", "在线")


async def sent(redis: Redis, project: str) -> int:
    return int(await redis.llen(f"{project}_控制"))


# ── Every answer ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("HEAD", "/", 200),
        ("GET", "/login", None),
        ("GET", "/nothing", 404),
        ("GET", "/projects/nobody", 404),
        ("GET", "/static/nothing.js", 404),
        ("GET", "/static/favicon.svg", 200),
        ("POST", "/", 403),
        ("POST", "/login", 403),
        ("GET", "/api", 404),
        ("GET", "/api/nothing", 404),
        ("GET", "/api/health", 200),
        ("GET", "/api/projects", 200),
        ("GET", "/api/projects/", 400),
        ("GET", "/api/projects/nobody", 404),
        ("GET", "/api/logs", 400),
        ("GET", "/api/logs?projectName=nobody", 200),
        ("GET", "/api/logs/stream?projectName=nobody", 404),
        ("GET", "/api/logs/stream", 400),
        ("GET", "/api/openapi.json", 200),
        ("GET", "/api/workers", 200),
        ("GET", "/workers", 200),
        ("HEAD", "/events/workers", 200),
        ("HEAD", "/api/health", 200),
        ("HEAD", "/events/fleet", 200),
        ("GET", "/api/commands", 400),
        ("DELETE", "/api/logs", 403),
        ("OPTIONS", "/api/commands", 204),
        ("OPTIONS", "/api/logs", 204),
        ("TRACE", "/", 403),
    ],
)
async def test_every_answer_carries_the_headers(
    client: httpx.AsyncClient, method: str, path: str, status: int | None
) -> None:
    """Pages, data, files and errors; none of them allows another site anything."""
    answer = await client.request(method, path)
    assert status in {None, answer.status_code}
    for name, value in HEADERS.items():
        assert answer.headers.get_list(name) == [value]
    assert "no-store" in answer.headers["cache-control"] or path.startswith("/static/")
    assert "access-control-allow-origin" not in answer.headers
    assert "server" not in answer.headers
    if path.startswith("/api") and answer.content:
        assert answer.headers["content-type"] == "application/json"


async def test_a_page_that_is_not_there_says_so_once(
    client: httpx.AsyncClient,
) -> None:
    """In the reader's language, without the phrase of HTTP below."""
    answer = await client.get("/nothing", headers={"accept-language": "zh"})
    assert "找不到" in answer.text
    assert "Not Found" not in answer.text


def test_the_policy_allows_nothing_unsafe() -> None:
    """Only files of our own, no inline, no eval, no frame."""
    policy = HEADERS["content-security-policy"]
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives.pop("require-trusted-types-for") == "'script'"
    assert directives.pop("trusted-types") == "console"
    assert directives["default-src"] == "'none'"
    assert set(directives.values()) == {"'none'", "'self'"}
    for name in ("object-src", "base-uri", "frame-ancestors"):
        assert directives[name] == "'none'"
    assert "unsafe" not in policy


@pytest.mark.parametrize("page", ["security.md", "security.zh-CN.md"])
def test_the_documents_name_the_policy(page: str) -> None:
    """What is written there is what is sent, and the bounds are those of the code."""
    text = " ".join((ROOT / "docs" / page).read_text("utf-8").split())
    assert f"Content-Security-Policy: {HEADERS['content-security-policy']}`" in text
    limits = Limits()
    for bound in (
        f"{limits.body // 1024} KiB",
        f"{limits.head // 1024} KiB",
        f"{limits.user_streams} · {limits.streams}",
        f"{limits.connections:,}",
        f"{limits.sessions:,} · 4,096",
    ):
        assert f"| {bound} |" in text


async def test_a_fault_of_ours_is_told_with_headers_and_without_details(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traceback stands in the log, not in the answer."""
    app = create_app(WebConfig(redis=redis_url))

    async def broken() -> None:
        message = "geheim"
        raise RuntimeError(message)

    monkeypatch.setattr(app.web.fleet, "ready", broken)
    async with asking(app) as client:
        answer = await client.get("/api/health")
        assert answer.status_code == 500
        assert "geheim" not in answer.text
        assert set(answer.json()) == {"error"}
        assert answer.headers["content-security-policy"]


# ── Names: DNS rebinding ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host",
    ["rebound.example", "rebound.example:8765", "", "127.0.0.1.x.example", "a b"],
)
@pytest.mark.parametrize("path", ["/", "/api/health", "/api/projects", "/static/x.js"])
async def test_a_foreign_name_is_not_ours(
    client: httpx.AsyncClient, host: str, path: str
) -> None:
    """A page of the attacker's whose name points here reads nothing."""
    answer = await client.get(path, headers={"host": host})
    assert answer.status_code == 421


async def test_two_names_are_none(client: httpx.AsyncClient) -> None:
    """Proxies and we might each believe another one."""
    twice = [("host", "127.0.0.1:8765"), ("host", "rebound.example")]
    assert (await client.get("/api/health", headers=twice)).status_code == 421
    assert (await client.get("/", headers=twice[::-1])).status_code == 421


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "via"])
async def test_without_users_there_is_no_proxy(
    client: httpx.AsyncClient, locked: httpx.AsyncClient, header: str
) -> None:
    """A proxy that passes on our own Host would show the fleet to the world."""
    headers = {header: "10.0.0.5"}
    assert (await client.get("/api/projects", headers=headers)).status_code == 403
    assert (await locked.get("/login", headers=headers)).status_code == 200


# ── Origins: foreign pages ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:3000"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": OWN, "sec-fetch-site": "cross-site"},
    ],
)
async def test_another_site_commands_nothing(
    client: httpx.AsyncClient, redis: Redis, project: str, headers: dict[str, str]
) -> None:
    """Neither over the interface nor through a form of the pages."""
    await seed(redis, project)
    command = {"targetProjectName": project, "command": "reload"}
    answer = await client.post("/api/commands", json=command, headers=headers)
    assert answer.status_code == 403
    for path in ("send", "forget"):
        answer = await client.post(
            f"/fragments/{path}",
            params={"projectName": project},
            data={"payload": '{"command": "reload"}'},
            headers=headers,
        )
        assert answer.status_code == 403
    assert await redis.exists(f"{project}_项目状态")
    assert await sent(redis, project) == 0


@pytest.mark.parametrize("kind", [FORM, "text/plain", "multipart/form-data", ""])
async def test_a_form_cannot_be_mistaken_for_a_program(
    client: httpx.AsyncClient, redis: Redis, project: str, kind: str
) -> None:
    """What any page can send without asking needs an Origin, and is no JSON."""
    await seed(redis, project)
    body = f'{{"targetProjectName": "{project}", "command": "reload"}}'.encode()
    headers = {"content-type": kind} if kind else {}
    answer = await client.post("/api/commands", content=body, headers=headers)
    assert answer.status_code == 415
    headers["origin"] = "https://evil.example"
    answer = await client.post("/api/commands", content=body, headers=headers)
    assert answer.status_code == 403
    headers["origin"] = OWN
    answer = await client.post("/api/commands", content=body, headers=headers)
    assert answer.status_code == 415
    assert await sent(redis, project) == 0


async def test_our_pages_and_programs_send(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """A program says nothing of an origin, a browser says ours."""
    await seed(redis, project)
    command = {"targetProjectName": project, "command": "reload"}
    for headers in ({}, {"origin": OWN, "sec-fetch-site": "same-origin"}):
        answer = await client.post("/api/commands", json=command, headers=headers)
        assert answer.status_code == 202
    assert await sent(redis, project) == 2


async def test_foreign_pages_get_no_data(client: httpx.AsyncClient) -> None:
    """Not as an image, not as a script, not as a stream that would fill the table."""
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    for path in ("/api/projects", "/events/fleet", "/static/favicon.svg", "/"):
        assert (await client.get(path, headers=foreign)).status_code == 403
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert (await client.get("/", headers=link)).status_code == 200
    assert (await client.get("/api/projects", headers=link)).status_code == 403


# ── Who it is ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path",
    ["/api/projects", "/api/logs?projectName=a", "/api/openapi.json", "/events/fleet",
     "/api/workers", "/events/workers", "/api/runs", "/api/runs/1", "/api/runs/1/events",
     "/events/runs", "/events/runs/1"],
)  # fmt: skip
async def test_data_is_for_users(locked: httpx.AsyncClient, path: str) -> None:
    """A program is asked for Basic, a browser is not: it would ask by itself."""
    answer = await locked.get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic ")
    answer = await locked.get(path, headers={"sec-fetch-mode": "cors"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Session"


async def test_pages_are_for_users(locked: httpx.AsyncClient) -> None:
    """People are led to the login and back; what is not theirs is not told."""
    answer = await locked.get("/projects/%E8%AE%A2?x=1")
    assert answer.status_code == 303
    target = quote("/projects/%E8%AE%A2?x=1", safe="")
    assert answer.headers["location"] == f"/login?next={target}"
    answer = await locked.get("/", headers={"hx-request": "true"})
    assert (answer.status_code, answer.headers["hx-redirect"]) == (401, "/login")
    answer = await locked.post("/fragments/commands", data={}, headers={"origin": OWN})
    assert answer.status_code == 401
    answer = await locked.get("/api/health")
    assert answer.json() == {"status": "up"}
    assert (await locked.get("/static/favicon.svg")).status_code == 200


async def test_every_page_says_which_redis(redis_url: str) -> None:
    """Address and title stand on every page, credentials on none; a stranger sees the title alone."""
    address = redis_url.removeprefix("redis://")
    url = f"redis://default:geheim@{address}"
    async with console_of(url, title="<生产>") as client:
        for path in ("/", "/workers", "/runs", "/nothing", "/login"):
            page = (await client.get(path)).text
            assert f"&lt;生产&gt; · {address}</title>" in page, path
            assert page.count(address) == 3
            assert "geheim" not in page
    async with console_of(url, title="生产", users=USERS) as client:
        page = (await client.get("/login")).text
        assert " · 生产</title>" in page
        assert address not in page


async def test_a_login_begins_a_session(locked: httpx.AsyncClient) -> None:
    """Its cookie is for this host, for HTTP alone, and never for another site."""
    answer = await log_in(locked, next="/projects/a")
    assert (answer.status_code, answer.headers["location"]) == (303, "/projects/a")
    name, _, rest = answer.headers["set-cookie"].partition("=")
    token, *attributes = [part.strip().lower() for part in rest.split(";")]
    assert name == "bls_session"
    assert len(token) >= 43
    assert {"httponly", "samesite=strict", "path=/"} <= set(attributes)
    assert not [one for one in attributes if one.startswith(("domain", "expires"))]
    assert (await locked.get("/api/projects")).status_code == 200
    assert (await locked.get("/api/health")).json()["redis"]["reachable"]


async def test_over_tls_the_cookie_is_secure(redis_url: str) -> None:
    """The proxy says that it was TLS; the name keeps others from setting it."""
    app = create_app(WebConfig(redis=redis_url, users=USERS, root_path="/console"))
    base = "https://127.0.0.1:8765"
    async with asking(app, base=base) as client:
        form = {"user": "operator", "password": PASSWORD}
        answer = await client.post("/login", data=form, headers={"origin": base})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-bls_session=")
        assert "; Secure" in cookie
        assert "Path=/;" in cookie
        plain = {"cookie": cookie.split(";")[0].removeprefix("__Host-")}
        client.cookies.clear()
        answer = await client.get("/api/projects", headers=plain)
        assert answer.status_code == 401  # a cookie that a plain page may have set


async def test_a_session_is_new_at_every_login(locked: httpx.AsyncClient) -> None:
    """What somebody planted before the login opens nothing after it (fixation)."""
    locked.cookies.set("bls_session", "planted" * 10, domain="127.0.0.1")
    await log_in(locked)
    first = locked.cookies["bls_session"]
    assert first != "planted" * 10
    await log_in(locked)
    assert locked.cookies["bls_session"] != first
    locked.cookies.set("bls_session", first, domain="127.0.0.1")
    assert (await locked.get("/api/projects")).status_code == 401


async def test_a_logout_ends_the_session(locked: httpx.AsyncClient) -> None:
    """At the server, too; and another site cannot log anybody out."""
    await log_in(locked)
    token = locked.cookies["bls_session"]
    answer = await locked.post("/logout", headers={"origin": "http://evil.example"})
    assert answer.status_code == 403
    answer = await locked.post("/logout", headers={"origin": OWN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert "bls_session" not in locked.cookies
    headers = {"cookie": f"bls_session={token}"}
    assert (await locked.get("/api/projects", headers=headers)).status_code == 401


async def test_a_login_leads_nowhere_else(locked: httpx.AsyncClient) -> None:
    """No open redirection, no header of somebody's own: only to plain paths of ours."""
    for target in (
        "https://evil.example", "//evil.example", "/\\evil.example", "/a\\b",
        "\\\\evil.example", "javascript:alert(1)", "/\t/evil.example",
        "/\n/evil.example", "/a\r\nset-cookie: x=y", " //evil.example", "", "login",
    ):  # fmt: skip
        answer = await log_in(locked, next=target)
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), target
        assert answer.headers.get_list("set-cookie")[0].startswith("bls_session=")


async def test_wrong_and_unknown_are_told_alike(locked: httpx.AsyncClient) -> None:
    """The answer does not say whether the name exists."""
    wrong = await log_in(locked, "operator", "wrong")
    unknown = await log_in(locked, "stranger", "wrong")
    assert wrong.status_code == unknown.status_code == 401
    assert wrong.text == unknown.text
    assert "set-cookie" not in wrong.headers


async def test_guessing_ends_soon(redis_url: str) -> None:
    """Ten wrong passwords of one address; others are not locked out by that."""
    app = create_app(WebConfig(redis=redis_url, users=USERS))
    async with asking(app) as client:
        codes = [
            (await log_in(client, "operator", f"wrong{n}")).status_code
            for n in range(12)
        ]
        assert codes == [401] * 10 + [429] * 2
        answer = await log_in(client)
        assert answer.status_code == 429  # the right one, too: nothing is verified
        assert 0 < int(answer.headers["retry-after"]) <= 30
        assert app.web.counts["logins_refused"] == 3
        basic = {"authorization": basic_of("operator", PASSWORD)}
        assert (await client.get("/api/projects", headers=basic)).status_code == 429
        elsewhere = httpx.ASGITransport(app=app, client=("127.0.0.2", 1))
        async with httpx.AsyncClient(transport=elsewhere, base_url=OWN) as other:
            assert (await log_in(other)).status_code == 303


async def test_guessing_from_everywhere_ends_too(redis_url: str) -> None:
    """All addresses together have a budget, and a right login takes none of it."""
    limits = Limits(all_logins=3)
    app = create_app(WebConfig(redis=redis_url, users=USERS, limits=limits))
    async with asking(app) as first:
        for _ in range(5):
            assert (await log_in(first)).status_code == 303
        codes: list[int] = []
        for n in range(4):
            transport = httpx.ASGITransport(app=app, client=(f"10.0.0.{n}", 1))
            async with httpx.AsyncClient(transport=transport, base_url=OWN) as client:
                codes.append((await log_in(client, "operator", "wrong")).status_code)
        assert codes == [401, 401, 401, 429]


def basic_of(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def test_a_program_logs_in_with_every_request(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP Basic for data alone; what was right is not verified anew each time."""
    app = create_app(WebConfig(redis=redis_url, users=USERS))
    verified = 0
    check = app.web.verifier.check  # type: ignore[union-attr]

    async def counted(user: str, password: str) -> bool:
        nonlocal verified
        verified += 1
        return await check(user, password)

    monkeypatch.setattr(app.web.verifier, "check", counted)
    async with asking(app) as client:
        good = {"authorization": basic_of("值班", PASSWORD)}
        for _ in range(5):
            assert (await client.get("/api/projects", headers=good)).status_code == 200
        assert verified == 1
        assert (await client.get("/", headers=good)).status_code == 303
        for wrong in (
            basic_of("值班", "wrong"),
            "Basic",
            "Basic ***",
            "Basic " + base64.b64encode(b"\xff:\xff").decode(),
            "Basic " + base64.b64encode(b"nocolon").decode(),
        ):
            answer = await client.get("/api/projects", headers={"authorization": wrong})
            assert answer.status_code == 401
        foreign = good | {"origin": "http://evil.example"}
        answer = await client.post("/api/commands", json={}, headers=foreign)
        assert answer.status_code == 403


# ── Sizes, rates, paths ─────────────────────────────────────────────────────────────


async def test_a_body_has_bounds(redis_url: str, redis: Redis, project: str) -> None:
    """By its length, which has to be there."""
    await seed(redis, project)
    limits = Limits(body=1_000)
    async with console_of(redis_url, limits=limits) as client:
        kind = {"content-type": "application/json"}
        body = b'{"targetProjectName": "%s", "command": "x", "args": {"a": "%s"}}'

        async def chunks(size: int) -> AsyncIterator[bytes]:
            whole = body % (project.encode(), b"x" * size)
            for at in range(0, len(whole), 100):
                yield whole[at : at + 100]

        for size, status in ((10, 202), (2_000, 413)):
            content = body % (project.encode(), b"x" * size)
            answer = await client.post("/api/commands", content=content, headers=kind)
            assert answer.status_code == status
        answer = await client.post("/api/commands", content=chunks(10), headers=kind)
        assert answer.status_code == 411
        headers = kind | {"content-length": "9" * 100}
        answer = await client.post("/api/commands", content=b"{}", headers=headers)
        assert answer.status_code == 413
        form = {"user": "a" * 2_000}
        answer = await client.post("/login", data=form, headers={"origin": OWN})
        assert answer.status_code == 413
    assert await sent(redis, project) == 1


async def test_requests_have_a_rate(redis_url: str) -> None:
    """One client slows down without slowing others down."""
    limits = Limits(request_burst=5, requests=0.01)
    app = create_app(WebConfig(redis=redis_url, limits=limits))
    async with asking(app) as client:
        codes = [(await client.get("/api/health")).status_code for _ in range(7)]
        assert codes == [200] * 5 + [429] * 2
        assert "retry-after" in (await client.get("/api/health")).headers
        transport = httpx.ASGITransport(app=app, client=("127.0.0.2", 1))
        async with httpx.AsyncClient(transport=transport, base_url=OWN) as other:
            assert (await other.get("/api/health")).status_code == 200


async def test_commands_have_a_rate(redis_url: str, redis: Redis, project: str) -> None:
    """Of one user, whatever the way."""
    await seed(redis, project)
    limits = Limits(command_burst=2, commands=0.01)
    command = {"targetProjectName": project, "command": "reload"}
    async with console_of(redis_url, limits=limits) as client:
        codes = [
            (await client.post("/api/commands", json=command)).status_code
            for _ in range(3)
        ]
    assert codes == [202, 202, 429]
    assert await sent(redis, project) == 2


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..%5capp.py",
        "/static/%00",
        "/static/",
        "/static",
        "/static/" + "a" * 300,
    ],
)
async def test_files_are_those_of_the_pages(
    client: httpx.AsyncClient, path: str
) -> None:
    """No way leads out of their folder, and none lists it."""
    answer = await client.get(path)
    assert answer.status_code in {404, 307}
    assert b"import" not in answer.content


async def test_files_are_kept_by_browsers(client: httpx.AsyncClient) -> None:
    """With an ETag to ask for."""
    answer = await client.get("/static/favicon.svg")
    assert answer.headers["cache-control"] == "no-cache"
    etag = {"if-none-match": answer.headers["etag"]}
    again = await client.get("/static/favicon.svg", headers=etag)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"]
