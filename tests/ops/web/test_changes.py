"""Changes of statuses: the journal of the console, and the webhook."""

from __future__ import annotations

import base64
import logging
import re
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import anyio
import httpx2 as httpx
import orjson
import pytest
import trustme
from redis.asyncio import Redis

from bls_agent import ConfigurationError, ProjectAgent, Status
from bls_agent.core.codec import format_timestamp
from bls_agent.devserver import DevServer
from bls_agent.ops.cli import main
from bls_agent.ops.fleet import Condition, ProjectView
from bls_agent.ops.web.app import ConsoleApp, create_app
from bls_agent.ops.web.config import WEBHOOK_SECRET, WebConfig, WebhookTarget
from bls_agent.ops.web.feeds import changes
from bls_agent.ops.web.feeds.changes import Journal, StatusChange, Webhook
from bls_agent.ops.web.feeds.watch import Currency
from tests.harness import eventually
from tests.http_server import HTTPServer, QuietHandler
from tests.ops.web.serving import asking, console_of

ROOT = Path(__file__).parents[3]
KEY = b"0123456789abcdef0123456789abcdef"
SECRET = "whsec_" + base64.b64encode(KEY).decode()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of a real console are tenths here."""
    monkeypatch.setattr(changes, "TICK", 0.05)
    monkeypatch.setattr(changes, "MISSING_FOR", 0.2)
    monkeypatch.setattr(changes, "EXPLAINED_IN", 0.1)
    monkeypatch.setattr(changes, "SETTLE", 2.0)
    monkeypatch.setattr(changes, "LONGEST_PAUSE", 0.05)


# ── The journal ─────────────────────────────────────────────────────────────────────


def turns(app: ConsoleApp) -> list[tuple[str, str | None, str | None]]:
    """What was noted of projects: project, from, to."""
    found = app.web.journal.changes("", 0, 1_000)
    return [(one.project, one.before, one.after) for one in found if one.project]


async def test_changes_are_kept_and_told(
    redis_url: str, redis: Redis, project: str
) -> None:
    """What was there is no change; a new project, another status and none are."""
    key, other = f"{project}_项目状态", f"{project}/新_项目状态"
    await redis.set(key, "在线")
    async with console_of(redis_url) as client:

        async def ask(rest: str = "") -> Any:
            url = f"/api/changes?projectName={quote(project)}{rest}"
            answer = await client.get(url)
            assert answer.status_code == 200
            return answer.json()

        async def known(number: int) -> bool:
            return len((await ask())["changes"]) >= number

        await eventually(lambda: _card_is(client, project, "online"))
        assert (await ask())["changes"] == []
        await redis.set(other, "在线")
        await redis.set(key, "故障")
        await eventually(lambda: known(1))
        await redis.rpush(f"{project}_项目控制台", '{"message": "x"}')
        await redis.delete(key)
        await eventually(lambda: known(2))
        told = await ask()
        assert told["unavailable"] is None
        first, second = told["changes"]
        assert (first["from"], first["to"]) == ("online", "fault")
        assert (second["from"], second["to"]) == ("fault", "stale")
        assert first["path"] == f"/projects/{quote(project)}"
        assert told["since"] <= first["timestamp"] <= second["timestamp"]
        assert (await ask(f"&after={first['id']}"))["changes"] == [second]
        assert (await ask("&limit=1"))["changes"] == [second]
        new = f"/api/changes?projectName={quote(f'{project}/新', safe='')}"
        while not (found := (await client.get(new)).json()["changes"]):
            await anyio.sleep(0.05)
        assert [(one["from"], one["to"]) for one in found] == [(None, "online")]
        for wrong in ("after=x", "after=-1", "limit=0"):
            assert (await client.get(f"/api/changes?{wrong}")).status_code == 400


async def _card_is(client: httpx.AsyncClient, project: str, kind: str) -> bool:
    answer = await client.get("/fragments/card", params={"projectName": project})
    return [card["kind"] for card in answer.json()["cards"]] == [kind]


def test_the_journal_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest are kept, and how many are not is told."""
    monkeypatch.setattr(changes, "KEPT", 3)
    told: list[StatusChange] = []
    fleet: Any = None
    noted = Journal(fleet, [told.append])
    for number in range(5):
        view: Any = ProjectView(project=f"p{number}", status=Status.FAULT)
        noted._record(f"p{number}", None, view)
    assert [one.number for one in noted.changes("", 0, 10)] == [3, 4, 5]
    assert len(told) == 5


def test_changes_are_filtered_and_paged() -> None:
    """By project, new state, and a text in name or reason; older ones page by page."""
    fleet: Any = None
    noted = Journal(fleet, [])
    for number in range(6):
        status = Status.FAULT if number % 2 else Status.ONLINE
        reason = f"Database {number}" if number % 2 else ""
        view: Any = ProjectView(project=f"订单{number}", status=status, reason=reason)
        noted._record(f"订单{number}", None, view)

    def ids(
        project: str = "", after: int = 0, limit: int = 9, **more: Any
    ) -> list[int]:
        return [one.number for one in noted.changes(project, after, limit, **more)]

    assert ids() == [1, 2, 3, 4, 5, 6]
    assert ids("订单2") == [3]
    assert ids(kind="fault") == [2, 4, 6]
    assert ids(text="database") == [2, 4, 6]
    assert ids(text="订单4", kind="fault") == []
    assert ids(limit=2) == [5, 6]
    assert ids(limit=2, before=5) == [3, 4]
    assert ids(before=5, kind="online") == [1, 3]
    assert ids(after=4, text="DATABASE 5") == [6]


def test_kept_changes_of_several_consoles() -> None:
    """Each change once, whoever wrote it; what is no change is left out."""
    first, second = (
        StatusChange(
            number=9, project="订单\udcff", before=before, after=after, reason="为何", at=1.5
        )
        for before, after in (
            (None, Condition.ONLINE),
            (Condition.ONLINE, Condition.FAULT),
        )
    )  # fmt: skip
    outage = StatusChange(
        number=9, project="", before=None, after=None, since=1.0, at=2.0
    )
    entries = [first, first, second, outage, outage, second, first]
    written = [orjson.dumps(one.to_dict()) for one in entries]
    written[1:1] = [
        b"{}",
        b"no JSON",
        orjson.dumps(first.to_dict() | {"to": "nonsense"}),
        orjson.dumps(first.to_dict() | {"path": 7}),
        orjson.dumps(second.to_dict() | {"reason": None}),
    ]
    found = changes.read_kept(written)
    assert [one.number for one in found] == [1, 2, 3, 4, 5]
    assert found[0] == replace(first, number=1)
    assert found[2] == replace(outage, number=3)
    after = [one.after for one in found]
    assert after == ["online", "fault", None, None, "online"]


async def test_changes_survive_a_restart_of_the_console(
    own_server: DevServer, project: str
) -> None:
    """If they are kept; what happened in between is the first change of the new one."""
    key, stream = f"{project}_项目状态", "bls_agent:console:changes"
    async with Redis.from_url(own_server.url) as redis:
        await redis.set(key, "在线")

        async def turned(client: httpx.AsyncClient, number: int) -> list[Any]:
            found: list[Any] = []

            async def enough() -> bool:
                found[:] = (await client.get("/api/changes")).json()["changes"]
                return len(found) >= number

            await eventually(enough)
            return [(one["id"], one["from"], one["to"]) for one in found]

        async with console_of(own_server.url, keep_changes=True) as client:
            await eventually(lambda: _card_is(client, project, "online"))
            for number, status in enumerate(("故障", "报错", "离线"), 1):
                await redis.set(key, status)
                await turned(client, number)
            await eventually(lambda: _length_is(redis, stream, 3))
        await redis.set(key, "在线")
        async with console_of(own_server.url, keep_changes=True) as client:
            assert await turned(client, 4) == [
                (1, "online", "fault"), (2, "fault", "error"),
                (3, "error", "offline"), (4, "offline", "online"),
            ]  # fmt: skip
            page = (await client.get("/api/changes?limit=2")).json()
            assert [one["id"] for one in page["changes"]] == [3, 4]
            assert page["before"] == 3
            page = (await client.get("/api/changes?limit=2&before=3")).json()
            assert [one["id"] for one in page["changes"]] == [1, 2]
            assert page["before"] is None
            for wrong in ("kind=x", "before=x"):
                assert (await client.get(f"/api/changes?{wrong}")).status_code == 400
            await eventually(lambda: _length_is(redis, stream, 4))
        before = await redis.keys("*")
        async with console_of(own_server.url) as client:
            await eventually(lambda: _card_is(client, project, "online"))
            await redis.set(key, "故障")
            assert await turned(client, 1) == [(1, "online", "fault")]
        assert sorted(await redis.keys("*")) == sorted(before)
        assert await redis.xlen(stream) == 4


async def _length_is(redis: Redis, stream: str, length: int) -> bool:
    return bool(await redis.xlen(stream) == length)


async def test_changes_that_cannot_be_kept(
    own_server: DevServer, project: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A key of another type is said once, and the console goes on without it."""
    async with Redis.from_url(own_server.url) as redis:
        await redis.set("bls_agent:console:changes", "x")
        await redis.set(f"{project}_项目状态", "在线")
        async with console_of(own_server.url, keep_changes=True) as client:
            await eventually(lambda: _card_is(client, project, "online"))
            await redis.set(f"{project}_项目状态", "故障")
            await eventually(lambda: "are not kept in" in caplog.text)
            (change,) = (await client.get("/api/changes")).json()["changes"]
            assert change["to"] == "fault"
            assert "cannot be read from bls_agent:console:changes" in caplog.text
            await redis.delete("bls_agent:console:changes")
            await eventually(lambda: _length_is(redis, "bls_agent:console:changes", 1))


async def a_fleet(server: DevServer) -> list[str]:
    """Five projects with a status and a log."""
    names = [f"系统{place}" for place in range(5)]
    await say(server, names)
    return names


async def say(server: DevServer, names: list[str], status: str = "在线") -> None:
    async with Redis.from_url(server.url, protocol=2) as redis:
        for name in names:
            await redis.set(f"{name}_项目状态", status, ex=60)
            await redis.rpush(f"{name}_项目控制台", '{"message": "x"}')


async def test_an_outage_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis dies, forgets everything, and is refreshed by and by: what differs is told."""
    with DevServer() as server:
        names = await a_fleet(server)
        app = create_app(WebConfig(redis=server.url))
        async with asking(app):
            web = app.web
            before = time.time() - 1  # a second for the server's clock
            await eventually(lambda: len(web.fleet.found) == 5)
            server.kill()
            killed = time.time()
            await eventually(lambda: web.fleet.unavailable is not None)
            server.restart()
            await eventually(lambda: web.fleet.unavailable is None)
            gone = {view.condition for view in web.fleet.found.values()}
            assert gone == {Condition.STALE}
            await eventually(lambda: bool(web.journal.changes(names[0], 0, 9)))
            (outage,) = web.journal.changes(names[0], 0, 9)
            assert outage.since
            assert before <= outage.since < killed < outage.at <= time.time() + 1
            told = outage.to_dict()
            assert (told["projectName"], told["from"], told["to"]) == ("", None, None)
            assert told["since"] == format_timestamp(outage.since)
            await say(server, names[:3])
            await say(server, names[3:4], "故障")
            await eventually(lambda: bool(turns(app)))
            assert turns(app) == [(names[3], "online", "fault")]
            await eventually(lambda: len(turns(app)) > 1)
            assert turns(app)[1:] == [(names[4], "online", "stale")]


async def test_a_console_that_begins_in_an_outage_takes_what_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the services that come back with Redis are changes, nor those before."""
    monkeypatch.setattr(changes, "SETTLE", 45.0)
    with DevServer() as server:
        server.kill()
        app = create_app(WebConfig(redis=server.url))
        async with asking(app):
            await eventually(lambda: app.web.fleet.unavailable is not None)
            server.restart()
            await say(server, ["旧"], "离线")
            await eventually(lambda: app.web.fleet.unavailable is None)
            await say(server, ["甲", "乙", "丙", "丁"])
            await eventually(lambda: len(app.web.fleet.found) == 5)
            await eventually(lambda: len(app.web.journal._known) == 5)
            assert turns(app) == []
            await say(server, ["甲"], "故障")
            await eventually(lambda: bool(turns(app)))
            assert turns(app) == [("甲", "online", "fault")]


async def test_a_status_missing_at_the_start_is_no_change_to_a_kept_one(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis may have restarted, too: its services refresh the statuses in half a minute."""
    monkeypatch.setattr(changes, "MISSING_FOR", 0.0)
    monkeypatch.setattr(changes, "SETTLE", 45.0)
    async with Redis.from_url(own_server.url) as redis:
        for name in ("甲", "乙"):
            kept = StatusChange(
                number=1, project=name, before=None, after=Condition.ONLINE, at=1.5
            )
            written = orjson.dumps(kept.to_dict())
            await redis.xadd("bls_agent:console:changes", {"change": written})
            await redis.rpush(f"{name}_项目控制台", '{"message": "x"}')
        await redis.set("乙_项目状态", "离线")
    app = create_app(WebConfig(redis=own_server.url, keep_changes=True))
    async with asking(app):
        await eventually(lambda: len(turns(app)) > 2)
        assert turns(app)[2:] == [("乙", "online", "offline")]


# ── The webhook ─────────────────────────────────────────────────────────────────────


class Receiver(HTTPServer):
    """A receiver on this machine that answers as it is told: the last answer for good."""

    def __init__(self, *answers: int | str | Mapping[str, Any], port: int = 0) -> None:
        super().__init__(_Handler, port)
        self.url += "/hook?k=1"
        self.answers = list(answers) or [200]
        self.posts: list[tuple[str, dict[str, str], bytes]] = []
        self.over = threading.Event()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        super().__exit__()

    def data(self, place: int = -1) -> Any:
        return orjson.loads(self.posts[place][2])["data"]


class _Handler(QuietHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        length = int(self.headers["content-length"])
        headers = {name.lower(): value for name, value in self.headers.items()}
        server.posts.append((self.path, headers, self.rfile.read(length)))
        answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        if answer == "hang":
            server.over.wait(20)
        elif answer == "babble":
            self.wfile.write(b"HELLO\r\n\r\n")
        elif answer == "drip":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while not server.over.wait(0.02):
                self.wfile.write(b"x")
        elif isinstance(answer, dict):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(orjson.dumps(answer))
        elif answer != "vanish":
            self.send_response(int(answer))
            self.send_header("location", "/elsewhere")
            self.end_headers()
            self.wfile.write(b"x" * 100_000)


def verify(headers: dict[str, str], body: bytes) -> bool:
    """As both documents say."""
    found: list[bool] = []
    for page in ("console.md", "console.zh-CN.md"):
        text = (ROOT / "docs" / page).read_text("utf-8")
        (code,) = re.findall(r"```python\n(import base64.*?)```", text, re.DOTALL)
        names: dict[str, Any] = {}
        exec(code, names)
        found.append(names["verify"](headers, body, SECRET))
    assert found[0] == found[1]
    return found[0]


def change(number: int) -> StatusChange:
    return StatusChange(
        number=number, project="订单系统", before=Condition.ONLINE,
        after=Condition.FAULT, at=1_700_000_000.5,
    )  # fmt: skip


@asynccontextmanager
async def posting(url: str, counts: Counter[str]) -> AsyncIterator[Webhook]:
    """Give a webhook that runs."""
    hook = Webhook(WebhookTarget(url, SECRET), {"redis": "redis://h:1/2"}, counts)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hook.run)
        yield hook
        tasks.cancel_scope.cancel()


async def test_a_change_is_posted(redis_url: str, redis: Redis, project: str) -> None:
    """By the console: which project, from, to, when, and at which Redis; signed."""
    key = f"{project}_项目状态"
    await redis.set(key, "在线")
    with Receiver() as receiver:
        target = WebhookTarget(receiver.url, SECRET)
        app = create_app(WebConfig(redis=redis_url, webhook=target, title="生产"))
        async with asking(app):
            await eventually(lambda: project in app.web.journal._known)
            await redis.set(key, "故障")

            def found() -> list[Any]:
                every = [receiver.data(n) for n in range(len(receiver.posts))]
                return [
                    (data["redis"], one)
                    for data in every
                    for one in data["changes"]
                    if one["projectName"] == project
                ]

            await eventually(lambda: bool(found()))
            ((address, told),) = found()
            assert receiver.data()["title"] == "生产"
            assert (told["from"], told["to"]) == ("online", "fault")
            assert address == redis_url.partition("?")[0]
        path, headers, body = receiver.posts[0]
        assert path == "/hook?k=1"
        assert orjson.loads(body)["type"] == "status.changed"
        assert headers["content-type"] == "application/json"
        assert verify(headers, body)
        assert not verify(headers, body + b" ")
        later = {**headers, "webhook-timestamp": "1700000000"}
        assert not verify(later, body)


async def test_the_reason_of_a_fault_is_everywhere(
    redis_url: str, redis: Redis, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why a health check fails is on the card, in the journal, the webhook and the API."""
    monkeypatch.setattr(changes, "EXPLAINED_IN", 30.0)
    reason = "health check 'database': ConnectionError: no database"
    down = threading.Event()
    agent = ProjectAgent(project, redis=redis_url)

    @agent.health_check("database", interval=0.05, failures=1)
    async def check() -> None:
        if down.is_set():
            raise ConnectionError("no database")

    with Receiver() as receiver:
        webhook = WebhookTarget(receiver.url, SECRET)
        async with (
            agent,
            console_of(redis_url, webhook=webhook) as client,
        ):
            await agent.ready(10)
            await eventually(lambda: _card_is(client, project, "online"))
            await agent.drain("发布")
            down.set()

            async def changes_of() -> list[Any]:
                url = f"/api/changes?projectName={quote(project)}"
                found: list[Any] = (await client.get(url)).json()["changes"]
                return found

            async def is_noted() -> bool:
                return "fault" in [one["to"] for one in await changes_of()]

            await eventually(is_noted)
            (noted,) = [one for one in await changes_of() if one["to"] == "fault"]
            assert noted["reason"] == reason
            query = {"projectName": project}
            (card,) = (await client.get("/fragments/card", params=query)).json()[
                "cards"
            ]
            assert card["reason"] == reason
            told = (await client.get(f"/api/projects/{quote(project)}")).json()
            assert told["reason"] == reason
            for shown in (card["intake"], told["intake"]):
                assert [(o["state"], o["reason"]) for o in shown] == [
                    ("drained", "发布")
                ]
            await eventually(
                lambda: (
                    noted
                    in [
                        c
                        for n in range(len(receiver.posts))
                        for c in receiver.data(n)["changes"]
                    ]
                )
            )


async def test_a_fault_without_a_reason_is_noted_a_little_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reason may still come; one that is known, and any other status, waits for nothing."""
    monkeypatch.setattr(changes, "EXPLAINED_IN", 1.5)
    told: list[StatusChange] = []
    fleet: Any = SimpleNamespace(currency=Currency.CURRENT, found={})
    noted = Journal(fleet, [told.append])

    def look(now: float, status: Status, reason: str = "") -> list[tuple[Any, str]]:
        view = ProjectView(project="a", status=status, reason=reason)
        fleet.found = {"a": view}
        noted.check(now)
        return [(change.after, change.reason) for change in told]

    assert look(0.0, Status.ONLINE) == []
    assert look(1.0, Status.FAULT) == []
    assert look(2.4, Status.FAULT) == []
    assert look(2.6, Status.FAULT) == [("fault", "")]
    assert look(3.0, Status.ONLINE)[1:] == [("online", "")]
    assert look(4.0, Status.FAULT)[2:] == []
    assert look(4.1, Status.FAULT, "why")[2:] == [("fault", "why")]
    assert look(5.0, Status.ERROR, "why")[3:] == [("error", "why")]
    assert look(6.0, Status.OFFLINE)[4:] == [("offline", "")]
    assert look(7.0, Status.ERROR)[5:] == []
    assert look(8.5, Status.ERROR)[5:] == [("error", "")]


@pytest.mark.parametrize("wrong", [500, 302, 410, "hang", "drip", "babble", "vanish"])
async def test_a_post_is_repeated_until_it_is_accepted(
    wrong: int | str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The same one, signed anew; nobody is followed elsewhere, nothing waits for ever."""
    caplog.set_level(logging.INFO, "bls_agent")
    monkeypatch.setattr(changes, "DEADLINE", 0.3)
    counts = Counter[str]()
    with Receiver(wrong, wrong, 204) as receiver:
        async with posting(receiver.url, counts) as hook:
            hook.put(change(1))
            await eventually(lambda: counts["webhook_changes_posted"] == 1, 10)
        paths = [path for path, _, _ in receiver.posts]
        assert paths == ["/hook?k=1"] * 3
        assert len({body for _, _, body in receiver.posts}) == 1
        assert len({headers["webhook-id"] for _, headers, _ in receiver.posts}) == 1
        assert all(verify(headers, body) for _, headers, body in receiver.posts)
    assert counts["webhook_posts_failed"] == 2
    assert len([one for one in caplog.messages if "tried again" in one]) == 1
    assert "takes posts again" in caplog.messages[-1]
    assert "k=1" not in caplog.text


async def test_a_receiver_that_disappears_misses_nothing_in_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is too much is dropped, the oldest first, and said when it is back."""
    monkeypatch.setattr(changes, "MOST", 5)
    counts = Counter[str]()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with posting(f"http://127.0.0.1:{port}/", counts) as hook:
        hook.put(change(0))
        await eventually(lambda: counts["webhook_posts_failed"] > 0)
        for number in range(1, 13):
            hook.put(change(number))
        with Receiver(port=port) as receiver:
            await eventually(lambda: counts["webhook_changes_posted"] == 6)
            ids = [[one["id"] for one in receiver.data(n)["changes"]] for n in (0, 1)]
            assert ids == [[0], [8, 9, 10, 11, 12]]
            assert [receiver.data(n)["dropped"] for n in (0, 1)] == [0, 7]
            hook.put(change(13))
            await eventually(lambda: len(receiver.posts) == 3)
            assert receiver.data()["dropped"] == 0
    assert counts["webhook_changes_dropped"] == 7


async def test_a_post_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After an hour; at the end of the console what waits is counted in its log."""
    counts = Counter[str]()
    with Receiver(500) as receiver:
        async with posting(receiver.url, counts) as hook:
            monkeypatch.setattr(changes, "GIVE_UP", 0.1)
            hook.put(change(1))
            await eventually(lambda: counts["webhook_changes_dropped"] == 1)
            monkeypatch.setattr(changes, "GIVE_UP", 60.0)
            hook.put(change(2))
            hook.put(change(3))
            posts = len(receiver.posts)
            await eventually(lambda: len(receiver.posts) > posts)
            assert receiver.data()["dropped"] == 1
    assert "2 changes were not posted" in caplog.messages[-1]


@contextmanager
def over_tls(receiver: Receiver, folder: Path) -> Iterator[Path]:
    """Let a receiver speak TLS; gives the file of its authority."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    receiver.socket = context.wrap_socket(receiver.socket, server_side=True)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    yield folder / "ca.pem"


async def test_a_certificate_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only an authority that this machine trusts will do."""
    receiver, counts = Receiver(), Counter[str]()
    with over_tls(receiver, tmp_path) as trusted, receiver:
        url = receiver.url.replace("http:", "https:")
        async with posting(url, counts) as hook:
            hook.put(change(1))
            await eventually(lambda: counts["webhook_posts_failed"] > 0)
        assert receiver.posts == []
        assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        async with posting(url, counts) as hook:
            hook.put(change(1))
            await eventually(lambda: counts["webhook_changes_posted"] == 1)


@pytest.mark.parametrize(
    ("url", "secret", "said"),
    [
        ("https://a.example/hidden", "", WEBHOOK_SECRET),
        ("https://a.example/hidden", "hidden", "openssl rand"),
        ("https://a.example/hidden", "whsec_aGlkZGVu", "24 bytes"),
        ("https://hidden:hidden@a.example/", SECRET, "https://a.example"),
        ("ftp://hidden.example/", SECRET, "http://"),
        ("https://[hidden/", SECRET, "http://"),
        ("https://hidden.example:99999/", SECRET, "http://"),
        ("hidden", SECRET, "http://"),
        ("https://hidden.example/ü", SECRET, "http://"),
    ],
)
def test_wrong_targets_are_refused(url: str, secret: str, said: str) -> None:
    """With the remedy, and without what nobody else may read."""
    with pytest.raises(ConfigurationError) as found:
        WebhookTarget(url, secret)
    assert said in str(found.value)
    assert "hidden" not in str(found.value).replace("[hidden]", "")


def test_the_command_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the secret belongs, and how one is made."""
    monkeypatch.delenv(WEBHOOK_SECRET, raising=False)
    assert main(["console", "--port", "0", "--webhook", "https://a.example/t0ken"]) == 2
    told = capsys.readouterr().err
    assert WEBHOOK_SECRET in told
    assert "t0ken" not in told
    target = WebhookTarget("https://a.example/t0ken", SECRET)
    assert "t0ken" not in repr(WebConfig(webhook=target))
    assert SECRET not in repr(WebConfig(webhook=target))
