"""The pages of crawl queues: their cards, their interface, queueing again."""

from __future__ import annotations

import re

import orjson
import pytest
from redis.asyncio import Redis

from bls_agent.crawl import CrawlRequest, FailedRequest, QueueStats, RequestQueue
from bls_agent.crawl.overview import Namespace, QueueView
from bls_agent.devserver import DevServer
from bls_agent.ops.web.feeds import crawl as crawl_feed, watch
from bls_agent.ops.web.feeds.crawl import (
    STATES,
    make_failure,
    make_queue_card,
    rates_between,
)
from bls_agent.ops.web.requests import quote_name
from tests.corpus.hostile_texts import HOSTILE_TEXTS
from tests.harness import execute, needs_selectors
from tests.ops.web.serving import OWN, USERS, console_of, log_in, told_in
from tests.ops.web.test_assets import texts_of

PAGE = "https://news.example/1"
SECRET = "https://user:geheim@news.example/2"


def counted(**figures: float) -> QueueStats:
    names = QueueStats.__dataclass_fields__
    return QueueStats(**{name: figures.get(name, 0) for name in names})  # type: ignore[arg-type]


# --- decided without I/O


@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
def test_nothing_on_the_pages_is_obeyed(text: str) -> None:
    """Cards and failed requests hold only what can be shown."""
    view = QueueView(Namespace(text, text), None, text)
    request = CrawlRequest("https://a.example")
    object.__setattr__(request, "url", text)
    card = make_queue_card(view)
    failed = make_failure(FailedRequest(request, text, 1, 0.0, 0.0, b""))
    for shown in texts_of([card, failed]):
        assert shown.isprintable()
    assert card["key"] == quote_name(view.name.shown)


@pytest.mark.parametrize(
    ("figures", "taken", "state"),
    [
        ({}, 0, "empty"),
        ({"failed": 3}, 0, "empty"),
        ({"waiting": 1}, 0, "waiting"),
        ({"delayed": 1}, 0, "waiting"),
        ({"waiting": 1, "in_flight": 1}, 0, "working"),
        ({"waiting": 1}, 4, "working"),
    ],
)
def test_how_a_queue_stands(figures: dict[str, int], taken: int, state: str) -> None:
    """One word for each; what is taken between two looks is work, too."""
    before = counted(seen_at=10.0)
    now = counted(seen_at=12.0, taken=taken, pushed=1, **figures)
    rates = rates_between(before, now)
    assert rates == (0.5, taken / 2)
    card = make_queue_card(QueueView(Namespace("a", None), now), rates)
    assert (card["state"], card["kind"]) == (state, STATES[state])
    assert card["failing"] is bool(figures.get("failed"))
    assert card["figures"]["push_rate"] == "0.5"


def test_rates_that_nobody_knows() -> None:
    """At the first look, of counters that began anew, of a queue that cannot be read."""
    now = counted(seen_at=12.0, pushed=5)
    for before in (None, counted(seen_at=12.0), counted(seen_at=10.0, pushed=9)):
        assert rates_between(before, now) is None
    assert rates_between(now, None) is None
    broken = make_queue_card(QueueView(Namespace("a", None), None, "wrong_type"))
    assert broken["state"] == "broken"
    assert set(broken["figures"].values()) == {"—"}


def test_whatever_stands_in_the_failed_list_is_shown() -> None:
    """Times that are none, texts without end, credentials that belong to nobody else."""
    entry = {"request": {"url": SECRET}, "reason": "x" * 10**6, "failed_at": 1e300}
    row = make_failure(FailedRequest.read(orjson.dumps(entry)))
    assert row["request"] == "GET https://***@news.example/2"
    assert len(row["reason"]) == 2_001
    assert row["time"] == "—"
    assert not make_failure(FailedRequest.read(b"\x80\x04}."))["readable"]


# --- on a server


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawl_feed, "INTERVAL", 0.05)
    monkeypatch.setattr(crawl_feed, "SEARCH", 0.05)
    monkeypatch.setattr(watch, "REST", 0.0)


async def fail_one(url: str, queue: RequestQueue) -> None:
    """Let one request fail for good."""
    await queue.push(CrawlRequest(url))
    async with queue.take(5) as taken:
        assert taken is not None
        await taken.fail("HTTP 503 <b>")


async def test_the_pages_and_the_interface(own_server: DevServer, admin: Redis) -> None:
    """All queues, one that cannot be read, and one with what failed in it."""
    await admin.set("crawlo:old<b>:queue:requests", "x")
    async with (
        RequestQueue(own_server.url, "新闻", "daily", max_retries=0) as queue,
        console_of(own_server.url) as client,
    ):
        await fail_one(SECRET, queue)
        await queue.push(CrawlRequest(PAGE))
        await admin.rpush("crawlo:新闻:daily:queue:failed", b"\x80\x04}.")
        page = (await client.get("/crawl?lang=en")).text
        cards = told_in(page)["queues"]
        assert [(card["state"], card["key"]) for card in cards] == [
            ("broken", "old%3Cb%3E"),
            ("waiting", quote_name("新闻:daily")),
        ]
        assert "old<b>" not in page
        answer = (await client.get("/api/crawl")).json()["queues"]
        assert [(one["project"], one["spider"]) for one in answer] == [
            ("old<b>", None),
            ("新闻", "daily"),
        ]
        assert (answer[0]["problem"], answer[0]["stats"]) == ("wrong_type", None)
        assert answer[1]["stats"] | {"seen_at": 0} == {
            "waiting": 1, "delayed": 0, "in_flight": 0, "failed": 2, "pushed": 2,
            "taken": 1, "acknowledged": 0, "retried": 0, "expired": 0, "seen_at": 0,
        }  # fmt: skip
        path = f"/crawl/{quote_name('新闻:daily')}"
        page = (await client.get(f"{path}?lang=en")).text
        for told in (
            "HTTP 503 &lt;b&gt;",
            "***@news.example/2",
            "unreadable",
            "Queue again",
        ):
            assert told in page
        assert "geheim" not in page
        part = f"/fragments/failed/{quote_name('新闻:daily')}"
        seen = re.findall(r'value="(\w{16})"', (await client.get(part)).text)[-1]
        assert (await client.get(f"{part}?seen={seen}")).status_code == 204
        broken = await client.get("/crawl/old%3Cb%3E?lang=zh")
        assert "键类型不对" in broken.text
        await admin.set("crawlo:odd:queue:failed", "x")
        odd = await client.get("/crawl/odd?lang=en")
        assert odd.status_code in (200, 404)  # as soon as the search has found it
        assert "crawlo:odd:queue:failed" in odd.text
        for nobody in ("nobody", "a:b:c", "x%0A"):
            answered = await client.get(f"/crawl/{nobody}?lang=en")
            assert answered.status_code == 404
            assert "There is no queue" in answered.text


async def test_failed_requests_are_queued_again(
    own_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    """By a user who has logged in, from the console's own page; and that is recorded."""
    caplog.set_level("INFO")
    path = "/fragments/requeue/news"
    async with RequestQueue(own_server.url, "news", max_retries=0) as queue:
        await fail_one(PAGE, queue)
        async with console_of(own_server.url, users=USERS) as client:
            assert (await client.post(path, headers={"origin": OWN})).status_code == 401
            await log_in(client)
            evil = {"origin": "https://evil.example"}
            assert (await client.post(path, headers=evil)).status_code == 403
            assert (await queue.stats()).failed == 1
            answer = await client.post(f"{path}?lang=en", headers={"origin": OWN})
            assert "Queued again: 1<" in answer.text
            assert "No failed request" in answer.text
        stats = await queue.stats()
        assert (stats.failed, stats.waiting) == (0, 1)
    assert "operator@" in caplog.text
    assert " queued 1 failed requests of 'news' again" in caplog.text


@needs_selectors
@pytest.mark.parametrize(
    ("keys", "banner", "state", "failed"),
    [
        ("~bls-none*", True, "", "may not read the failed list"),
        ("%R~crawlo:* %R~bls_agent:*", False, "waiting", "HTTP 503"),
        (
            "%R~crawlo:other:* %R~bls_agent:*",
            False,
            "broken",
            "may not read the failed",
        ),
    ],
    ids=["nothing", "reading", "another"],
)
async def test_a_user_who_lacks_rights(
    own_server: DevServer,
    admin: Redis,
    keys: str,
    banner: bool,
    state: str,
    failed: str,
) -> None:
    """Neither an empty page nor an outage: it says which rights are missing."""
    async with (
        RequestQueue(own_server.url, "news", max_retries=0) as queue,
        RequestQueue(own_server.url, "other") as other,
    ):
        await fail_one(PAGE, queue)
        await queue.push(CrawlRequest(PAGE))
        await other.push(CrawlRequest(PAGE))
    await execute(
        admin, "ACL", "SETUSER", "op", "on", ">geheim", "+@all", *keys.split()
    )
    async with console_of(own_server.url.replace("://", "://op:geheim@")) as client:
        page = (await client.get("/crawl?lang=en")).text
        assert ('<div id="forbidden" class="banner" role="alert">' in page) is banner
        cards = told_in(page)["queues"]
        states = [card["state"] for card in cards if card["key"] == "news"]
        assert states == [state] * bool(state)
        one = (await client.get("/crawl/news?lang=en")).text
        assert failed in one
        assert ("may not read crawl queues" in one) is banner
        again = "/fragments/requeue/news?lang=en"
        sent = (await client.post(again, headers={"origin": OWN})).text
        assert "may not write crawl queues" in sent
    assert "geheim" not in page + one + sent
