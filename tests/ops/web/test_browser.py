"""The pages of the console in a real Chromium, over agents of ours and foreign keys."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest
from redis import Redis

from bls_agent import ProjectAgent
from bls_agent.devserver import DevServer
from bls_agent.ops.fleet import project_state
from bls_agent.ops.terminal import visible
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.feeds import (
    assets as asset_feed,
    changes,
    crawl as crawl_feed,
    watch,
    workers as worker_feed,
)
from bls_agent.ops.web.requests import project_path
from tests.ops.web.browsers import Foreign, Tabs, Watched, looking, record, until
from tests.ops.web.serving import PASSWORD, USERS, served

AGO = "document.querySelector('#main').dataset.changes > 0"


@pytest.fixture
def base(server: DevServer) -> Iterator[str]:
    """A console that listens."""
    with served(WebConfig(redis=server.url, port=0)) as console:
        yield console.url


@pytest.fixture
def redis(server: DevServer) -> Iterator[Redis]:
    """A bare client."""
    with Redis.from_url(server.url, protocol=2) as client:
        yield client


@pytest.fixture
def foreign(redis: Redis, project: str) -> Foreign:
    """A project in another language."""
    return Foreign(redis, project)


AWAY_AND_BACK = """dispatchEvent(new PageTransitionEvent("pagehide"));
  dispatchEvent(new PageTransitionEvent("pageshow", { persisted: true }));"""
CHAINS = "getComputedStyle(document.querySelector('#log')).overscrollBehaviorY"
SMALL = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, .tick")]
  .filter((one) => !one.closest(".skip, .tick *") && one.checkVisibility())
  .map((one) => [one, one.getBoundingClientRect()])
  .filter(([one, { width, height }]) => Math.min(width, height) < 24)
  .map(([one]) => one.outerHTML)"""


def kind_is(looked: Watched, name: str, kind: str) -> float:
    """Wait until the card of a project is of a kind; give the seconds it took."""
    return looked.wait(
        """([name, kind]) => [...document.querySelectorAll(".card")].some(
             (card) => card.querySelector("a").textContent === name && card.dataset.kind === kind)""",
        [name, kind],
    )


def test_the_wallboard_follows(
    browser: Any, base: str, foreign: Foreign, capsys: pytest.CaptureFixture[str]
) -> None:
    """A status that changes is on the wallboard at once, the worst stand first."""
    others = [Foreign(foreign.redis, f"其他系统_{number}") for number in range(5)]
    for other in (*others, foreign):
        other.status("在线")
    with looking(browser, base) as looked:
        looked.open("/")
        kind_is(looked, foreign.name, "online")
        began = time.perf_counter()
        foreign.status("故障")
        kind_is(looked, foreign.name, "fault")
        icon = "document.querySelector('link[rel=icon]').href.includes('fault')"
        looked.wait(f"document.title.startsWith('⚠ ') && {icon}")
        took = time.perf_counter() - began
        with capsys.disabled():
            print(f"\n  a status was on the wallboard after {took * 1000:.0f} ms")  # noqa: T201 - a figure is shown
        assert took < 10
        assert looked.texts(".card a")[0] == foreign.name
        foreign.log(record("银行通道超时", "error"), b"no json at all")
        looked.wait(
            "document.querySelector('.card .last bdi')?.textContent === '银行通道超时'"
        )
        assert looked.page.locator(".card .ago").first.text_content()
        assert looked.page.locator(".card .last[data-old]").count() == 0
        foreign.status("在线")
        looked.wait(f"!document.title.startsWith('⚠') && !{icon}")
        foreign.redis.rpush(f"{foreign.name}_控制", b"{}")
        looked.wait(
            "document.querySelector('.card[data-waits] .queue dd')?.textContent === '1'"
        )
        foreign.remove()
        looked.wait(
            """(name) => ![...document.querySelectorAll(".card a")].some(
                 (link) => link.textContent === name)
               || document.querySelector('[data-kind=stale] a')?.textContent === name""",
            foreign.name,
        )


def test_filter_and_keyboard(browser: Any, base: str, redis: Redis) -> None:
    """Without a mouse: filter, move, open, come back."""
    for number in range(12):
        Foreign(redis, f"边缘节点_{number:02}").status(
            "故障" if number == 7 else "在线"
        )
    with looking(browser, base, language="en") as looked:
        page = looked.page
        looked.open("/")
        looked.wait("document.querySelectorAll('.card').length === 12")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("/")
        page.keyboard.type("节点_0")
        shown = page.locator(".card:visible .head a")
        assert shown.count() == 10
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.textContent") == "边缘节点_07"
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.textContent") == "边缘节点_00"
        page.keyboard.press("k")
        page.keyboard.press("Enter")
        page.wait_for_url("**/projects/**")
        looked.wait("document.title.startsWith('⚠ 边缘节点_07')")
        page.go_back()
        looked.wait(AGO)
        page.keyboard.press("/")
        page.keyboard.type("no such thing")
        assert page.locator("#unmatched").is_visible()
        page.keyboard.press("Escape")
        assert page.locator(".card:visible").count() == 12
        page.click(".chip[data-chip=fault]")
        assert page.locator(".card:visible").count() == 1
        assert page.locator(".chip[data-chip=online] b").text_content() == "11"
        page.click(".chip[data-chip=fault]")
        page.keyboard.press("/")
        page.keyboard.type("节点_1")
        page.keyboard.press("Enter")
        page.wait_for_url("**/projects/**")
        looked.wait("document.title.startsWith('边缘节点_10')")


def test_a_command_shows_its_outcome(  # noqa: PLR0915 - one story
    browser: Any, base: str, redis: Redis, project: str, server: DevServer
) -> None:
    """A form from the agent's help, a question before it is sent, the outcome."""
    agent = ProjectAgent(project, redis=server.url)

    @agent.command("导入订单")
    def load(
        path: str,
        limit: int = 100,
        mode: Literal["fast", "safe"] = "fast",
        numbers: list[int] | None = None,
        note: str = "无",
    ) -> Any:
        """从文件导入订单。"""
        if path == "bad":
            raise ValueError("文件损坏")
        return {"imported": limit, "mode": mode}

    with agent.in_thread(), looking(browser, base) as looked:
        page = looked.page
        agent.log.info("started")
        until(lambda: redis.exists(f"{project}_项目控制台") > 0)
        looked.open("/")
        kind_is(looked, project, "online")
        looked.open_project(project)
        page.locator("form.command").wait_for()
        assert not redis.exists(f"{project}_控制")
        assert not page.locator("[name=command]").is_visible()
        page.locator("#command button.main").focus()
        page.keyboard.press("Enter")
        looked.wait("document.activeElement.id === 'chosen'")
        known = page.locator(".known")
        assert known.text_content().startswith("命令列表更新于")
        assert known.locator("button:not(.quiet)").text_content() == "刷新"
        page.select_option("select[name=chosen]", label="导入订单")
        assert "从文件导入订单" in page.locator("p.about").text_content()
        assert page.get_attribute("[name='arg.limit']", "placeholder") == "默认值：100"
        page.fill("[name='arg.limit']", "12x")
        page.fill("[name='arg.numbers']", "[1, 2")
        page.locator("[name='arg.note']").focus()
        page.keyboard.type("急")
        page.keyboard.press("Enter")
        looked.wait("document.activeElement.name === 'arg.path'")
        assert looked.texts(".complaint") == [
            "必填",
            "请填写整数",
            "不是合法的 JSON",
        ]
        top = page.evaluate(
            "document.querySelector('.complaint').getBoundingClientRect().top"
        )
        assert 0 < top < 800
        assert page.locator("[name='arg.note']").input_value() == "急"
        page.keyboard.type("orders.csv")
        assert looked.texts(".complaint") == ["请填写整数", "不是合法的 JSON"]
        page.fill("[name='arg.limit']", "\uff11\uff12")
        page.fill("[name='arg.numbers']", "[1, 2]")
        assert page.locator(".complaint, [aria-invalid]").count() == 0
        page.select_option("[name='arg.mode']", label="safe")
        page.locator("[name='arg.numbers']").press("Control+Enter")
        shown = orjson.loads(page.locator(".review .code").text_content())
        args = {"path": "orders.csv", "limit": 12, "mode": "safe", "numbers": [1, 2]}
        args["note"] = "急"
        assert shown == {"command": "导入订单", "args": args}
        assert project in page.locator(".review p").first.text_content()
        looked.wait("document.activeElement.closest('.review') !== null")
        page.keyboard.press("Enter")
        page.locator(".sent [data-good]").wait_for()
        assert "成功" in page.locator(".sent .end").text_content()
        assert (
            page.locator(".sent .answer").text_content()
            == '{"imported":12,"mode":"safe"}'
        )
        looked.wait("document.activeElement.className === 'told'")
        page.fill("[name='arg.path']", "bad")
        page.keyboard.press("Enter")
        page.click(".review button.main")
        page.locator(".sent [data-bad]").wait_for()
        assert "文件损坏" in page.locator(".sent .answer").first.text_content()
        page.click("#command button.main")
        page.locator(".review").wait_for()
        page.keyboard.press("Escape")
        assert page.locator(".review").count() == 0
        assert any("→ 导入订单" in text for text in looked.texts(".row .end"))


@dataclass
class Item:
    """A row of the form."""

    sku: str
    price: Decimal = Decimal("1.50")
    day: date | None = None


@dataclass
class Order:
    """A group of the form."""

    items: list[Item]
    due: datetime


def test_a_form_with_rows(
    browser: Any, base: str, redis: Redis, project: str, server: DevServer
) -> None:
    """Rows come and go without losing what was typed; times have the browser's zone."""
    agent = ProjectAgent(project, redis=server.url)
    orders: list[Order] = []

    @agent.command("下单")
    def place(order: Order, gift: Item | None = None) -> Decimal:
        orders.append(order)
        return sum((item.price for item in order.items), Decimal(0))

    with (
        agent.in_thread(),
        looking(browser, base, size=(390, 844), is_kept=False) as looked,
    ):
        page = looked.page
        zone = {"timezoneId": "Asia/Shanghai"}
        page.context.new_cdp_session(page).send("Emulation.setTimezoneOverride", zone)
        until(lambda: redis.exists(f"{project}_项目状态") > 0)
        looked.open_project(project)
        page.click("#command button.main")
        page.select_option("select[name=chosen]", label="下单")
        for row, text in enumerate(("茶", "旧", "米")):
            page.click("[hx-post*='add=order.items']")
            looked.wait(f"document.activeElement.name === 'arg.order.items.{row}.sku'")
            page.keyboard.type(text)
        page.fill("[name='arg.order.items.2.price']", "2,5")
        page.fill("[name='arg.order.items.2.day']", "2026-01-31")
        page.click("[hx-post*='remove=order.items.1']")
        page.locator("[name='arg.order.items.1.sku']").wait_for(state="detached")
        page.fill("[name='arg.order.due']", "2026-01-31T08:30")
        assert page.input_value("[name='zone.order.due']") == "+08:00"
        page.click("#command button.check")
        looked.wait("document.activeElement.name === 'arg.order.items.2.price'")
        assert looked.texts(".complaint") == ["请填写数字"]
        page.keyboard.press("Control+a")
        page.keyboard.type("2.50")
        page.keyboard.press("Enter")
        page.locator(".review").wait_for()
        assert looked.width() <= 390
        assert page.evaluate(SMALL) == []
        page.keyboard.press("Enter")
        page.locator(".sent [data-good]").wait_for()
        assert page.locator(".sent .answer").text_content() == "4.00"
    due = datetime.fromisoformat("2026-01-31T08:30:00+08:00")
    items = [Item("茶"), Item("米", Decimal("2.50"), date(2026, 1, 31))]
    assert orders == [Order(items, due)]


def test_a_command_to_a_foreign_agent(
    browser: Any, base: str, foreign: Foreign
) -> None:
    """Who does not know help is not asked; what was sent stands there as waiting."""
    foreign.status("在线", None)
    foreign.log(record("started"))
    with looking(browser, base, language="en") as looked:
        page = looked.page
        looked.open("/")
        kind_is(looked, foreign.name, "online")
        assert "no expiry" in looked.texts(".fresh")[0]
        looked.open_project(foreign.name)
        page.click("#command summary")
        page.fill("[name=command]", "reload")
        page.fill("[name=args]", "{force}")
        page.click("#command button.check")
        page.locator(".complaint").wait_for()
        assert page.locator("[name=command]").input_value() == "reload"
        told = '{"force": true, "n": 9007199254740993, "password": "geheim"}'
        page.fill("[name=args]", told)
        page.click("#command button.main")
        page.click(".review button.main")
        page.locator(".sent [data-open]").wait_for()
        assert "waiting for its outcome" in page.locator(".sent .end").text_content()
        (sent,) = foreign.waiting()
        assert sent["command"] == "reload"
        assert sent["args"] == orjson.loads(told)
        assert "geheim" not in page.locator("#sent").text_content()
        looked.wait("document.querySelectorAll('.sent li').length === 1")
        outcome = {"commandId": sent["id"], "command": "reload", "durationMs": 1500}
        foreign.log(
            record(
                "done",
                outcome="rejected",
                error={"message": "no"},
                truncated=257_890,
                **outcome,
            )
        )
        page.locator(".sent [data-bad]").wait_for()
        assert (
            "shortened from 257,890 bytes"
            in page.locator(".sent .answer").text_content()
        )
        assert "shortened from 257,890 bytes" in looked.texts("#records .notes")[-1]
        assert "1.5 s" in page.locator(".sent .end").text_content()


def last_is(looked: Watched, text: str) -> float:
    """Wait until the newest row holds a text."""
    return looked.wait(
        "(text) => document.querySelector('#records > :last-child .text')?.textContent.startsWith(text)",
        text,
    )


def test_the_log_follows_pauses_and_filters(
    browser: Any, base: str, foreign: Foreign
) -> None:
    """New records come by themselves, until somebody reads; levels and texts filter."""
    foreign.status("在线")
    foreign.log(*(record(f"第 {number} 条", order=number) for number in range(300)))
    with looking(browser, base) as looked:
        page = looked.page
        looked.open_project(foreign.name)
        last_is(looked, "第 299 条")
        rows = page.locator("#records .row")
        assert rows.count() == 200
        foreign.log(record("新的", "warn", sku="A7"))
        last_is(looked, "新的")
        looked.wait(
            "document.querySelector('#log').scrollTop + document.querySelector('#log').clientHeight > document.querySelector('#log').scrollHeight - 5"
        )
        page.locator("form.command").wait_for()
        page.locator("#log").focus()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('#command') !== null")
        page.locator("#follow").focus()
        page.keyboard.press("p")
        foreign.log(*(record(f"停 {number}") for number in range(3)))
        looked.wait("document.querySelector('#newer').textContent.includes('3 条')")
        last_is(looked, "新的")
        page.click("#newer")
        last_is(looked, "停 2")
        page.select_option("#level", "warn")
        looked.wait("document.querySelectorAll('#records .row').length === 1")
        assert looked.texts("#records .text") == ["新的sku=A7"]
        page.select_option("#level", "")
        last_is(looked, "停 2")
        page.fill("#search", "没有这个")
        looked.wait(
            "document.querySelector('#log-top').textContent.includes('没有符合')"
        )


def test_a_search_reaches_the_whole_list(
    browser: Any, base: str, foreign: Foreign
) -> None:
    """What the page never loaded is found, linked to and downloaded; new records join."""
    foreign.status("在线")
    foreign.log(record("很早", "error", order=7, agent="web-1#1", logger="pay.card"))
    foreign.log(*(record(f"第 {number} 条") for number in range(1_200)))
    with looking(browser, base, expected=("400",)) as looked:
        page = looked.page
        looked.open_project(foreign.name)
        last_is(looked, "第 1199 条")
        page.fill("#search", "order=7")
        looked.wait("document.querySelectorAll('#records .row').length === 1")
        assert page.locator("#records mark").text_content() == "order=7"
        told = page.locator("#found-text").text_content()
        assert "找到 1 条" in told
        assert "1,201" in told
        foreign.log(record("别的", order=8), record("又一条", order=7))
        last_is(looked, "又一条")
        assert [text[:2] for text in looked.texts("#records .text")] == ["很早", "又一"]
        assert "q=order%3D7" in page.url
        with page.expect_download() as download:
            page.click("#save-found")
        lines = Path(download.value.path()).read_bytes().splitlines()
        assert [orjson.loads(line)["message"] for line in lines] == ["很早", "又一条"]
        page.reload()
        looked.wait("document.querySelectorAll('#records .row').length === 2")
        page.fill("#search", "id=my-1")
        looked.wait(
            "document.querySelector('#log-top').textContent.includes('没有符合')"
        )
        foreign.log(record("一", trace_id="my-1"), record("二", commandId="my-1"))
        last_is(looked, "二")
        assert page.locator("#records .row").count() == 2
        page.fill("#search", "")
        looked.wait("document.querySelectorAll('#records .row').length === 200")
        page.click("#narrow summary")
        page.fill("#logger", "pay")
        looked.wait("document.querySelectorAll('#records .row').length === 1")
        page.fill("#until", "gestern")
        looked.wait("document.querySelector('#log-top').textContent.includes('2026')")


@pytest.mark.parametrize(
    ("sought", "texts"),
    [("?since=10m", ["新"]), ("?q=新", ["新"]), ("", ["旧", "新"])],
)
def test_what_a_stream_begins_with(
    browser: Any, base: str, foreign: Foreign, sought: str, texts: list[str]
) -> None:
    """Nothing that the search leaves out is shown; a paused list stays as it is."""
    foreign.status("在线")
    foreign.log(record("旧", "info", 3_600.0), record("新"))
    with looking(browser, base, language="en") as looked:
        looked.open(project_path(foreign.name) + sought)
        last_is(looked, "新")
        foreign.log(record("新一"))
        last_is(looked, "新一")
        assert looked.texts("#records .text") == [*texts, "新一"]
        looked.page.click("#follow")
        looked.page.evaluate(AWAY_AND_BACK)
        looked.page.locator("#newer").wait_for()
        foreign.log(record("新二"))
        looked.wait("document.querySelector('#newer').textContent === '↓ 1 new'")
        assert looked.texts("#records .text") == [*texts, "新一"]
        looked.page.click("#newer")
        last_is(looked, "新二")
        assert looked.texts("#records .text") == [*texts, "新一", "新二"]


def test_details_of_a_record(browser: Any, base: str, foreign: Foreign) -> None:
    """All of a record unfolds: lines as lines, numbers as written, by keyboard too."""
    foreign.status("在线")
    foreign.log(record("新的", "warn", sku="A7"), record("一样"))
    with looking(browser, base) as looked:
        page = looked.page
        looked.open_project(foreign.name)
        last_is(looked, "一样")
        foreign.log(
            orjson.dumps(
                {
                    "level": "error",
                    "message": "一\n二",
                    "metadata": {"big": 0, "trace": "a\n  b"},
                }
            ).replace(b'"big":0', b'"big":9007199254740993')
        )
        last_is(looked, "一\\n二")
        row = page.locator("#records .row").last
        row.locator(".more").click()
        blocks = row.locator("pre").all_text_contents()
        assert blocks[:2] == ["message一\n二", "tracea\n  b"]
        assert '"big": 9007199254740993' in blocks[2]
        page.locator("#log").focus()
        page.keyboard.press("k")
        page.keyboard.press("k")
        page.keyboard.press("Enter")
        sku = page.locator(".row:focus-within pre").text_content()
        assert '"sku": "A7"' in sku


def test_a_live_record_is_found_as_it_was_written(
    browser: Any, base: str, foreign: Foreign
) -> None:
    """Integers of 64 bits are whole; an object that is no text hides no record."""
    foreign.status("在线")
    foreign.log(record("先"))
    with looking(browser, base) as looked:
        looked.open_project(foreign.name)
        last_is(looked, "先")
        looked.page.fill("#search", "order=1234567890123456789")
        looked.wait("document.querySelectorAll('#records .row').length === 0")
        foreign.log(
            record("乙", order=1234567890123456788),
            record("甲", order=1234567890123456789, x={"toString": 1}, logger={}),
        )
        looked.wait("document.querySelectorAll('#records .row').length === 1")
        assert looked.texts("#records .text") == ["甲order=1234567890123456789"]


@pytest.mark.parametrize(
    "quoted", ["https://trace.example/?a=\"'<b>&id={trace_id}", ""]
)
def test_a_record_links_to_its_trace(
    browser: Any, server: DevServer, foreign: Foreign, quoted: str
) -> None:
    """If the console knows where; a hostile id makes no link, and no address is obeyed."""
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    foreign.status("在线")
    foreign.log(
        record("伪造", trace_id="javascript:alert(1)"),
        record("伪造", trace_id=[trace_id]),
        record(
            "规则已重新加载", trace_id=trace_id, span_id="b7ad6b7169203331", sku="A7"
        ),
    )
    config = WebConfig(redis=server.url, port=0, trace_url=quoted)
    with served(config) as console, looking(browser, console.url) as looked:
        looked.open_project(foreign.name)
        last_is(looked, "规则已重新加载")
        shown = (
            looked.page.locator("#records .row").last.locator(".text").text_content()
        )
        assert "sku=A7" in shown
        assert "trace_id" not in shown
        links = looked.page.locator("#records a.trace")
        assert links.count() == (1 if quoted else 0)
        if quoted:
            assert links.get_attribute("href") == quoted.replace("{trace_id}", trace_id)
            assert links.get_attribute("rel") == "noopener noreferrer"


def test_the_newest_record_unfolds_in_sight(
    browser: Any, base: str, foreign: Foreign
) -> None:
    """What unfolds at the end of the list is scrolled to; our own frames are folded."""
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/srv/bls_agent/project/commands/runner.py", line 1, in run\n'
        "    await call()\n"
        '  File "/srv/bls_agent/runtime/threads.py", line 2, in work\n'
        "    function()\n"
        '  File "/srv/orders.py", line 3, in load\n'
        "    raise ValueError\n"
        "ValueError\n"
    )
    foreign.status("在线")
    foreign.log(*(record(f"第 {number}") for number in range(80)))
    foreign.log(record("坏了", "error", commandId="c-1", sku="A7", traceback=trace))
    with looking(browser, base, language="en") as looked:
        page = looked.page
        looked.open_project(foreign.name)
        looked.wait(
            "document.querySelector('#records .row:last-child .fields') !== null"
        )
        row = page.locator("#records .row").last
        shown = row.locator(".text").text_content()
        assert "sku=A7" in shown
        assert "commandId" not in shown
        row.locator(".more").click()
        looked.wait(
            """() => {
              const box = document.querySelector("#log").getBoundingClientRect();
              const row = document.querySelector("#records .row:last-child").getBoundingClientRect();
              return row.bottom <= box.bottom + 1 || row.top <= box.top + 1; }"""
        )
        folded = row.locator("pre").first.text_content()
        assert "frames of bls-agent: 2" in folded
        assert "runner.py" not in folded
        assert "orders.py" in folded
        assert '"commandId": "c-1"' in row.locator("pre").last.text_content()


def test_records_come_after_a_search_that_failed(
    browser: Any, base: str, foreign: Foreign
) -> None:
    """The filter stays, and new records that it wants are shown."""
    foreign.status("在线")
    foreign.log(record("很早"))
    with looking(browser, base, expected=("503",)) as looked:
        looked.open_project(foreign.name)
        last_is(looked, "很早")
        searches = "**/api/logs?*q=*"
        looked.page.route(searches, lambda route: route.fulfill(status=503, body="{}"))
        looked.page.fill("#search", "order=7")
        looked.wait("document.querySelector('#log-top').textContent.includes('503')")
        foreign.log(record("别的", order=8), record("又一条", order=7))
        last_is(looked, "又一条")
        assert looked.page.locator("#records .row").count() == 2
        assert not looked.page.locator("#found").is_visible()


def test_older_records_of_another_filter_are_dropped(
    browser: Any, base: str, foreign: Foreign
) -> None:
    """The filter changes while older records are read: they are not mixed in."""
    foreign.status("在线")
    foreign.log(*(record(f"第 {number} 条", order=number) for number in range(900)))
    with looking(browser, base) as looked:
        page = looked.page
        looked.open_project(foreign.name)
        last_is(looked, "第 899 条")
        held: list[Any] = []

        def hold(route: Any) -> None:
            held.append(route)

        page.route("**/api/logs?*before=*", hold)
        page.evaluate("document.querySelector('#log').scrollTop = 0")
        until(lambda: page.evaluate("true") and len(held) == 1)
        page.fill("#search", "第 7 条")
        looked.wait("document.querySelectorAll('#records .row').length === 1")
        with page.expect_response(lambda answer: "before=" in answer.url) as answer:
            held[0].continue_()
        answer.value.finished()
        foreign.log(record("第 7 条之二"))
        last_is(looked, "第 7 条之二")
        assert page.locator("#records .row").count() == 2
        assert "NaN" not in page.locator("#found-text").text_content()


def test_older_records_on_scrolling_up(
    browser: Any, base: str, foreign: Foreign
) -> None:
    """Page by page back to the beginning, while new ones come and none is shown twice."""
    foreign.status("在线")
    foreign.log(*(record(f"第 {number} 条") for number in range(900)))
    with looking(browser, base) as looked:
        looked.open_project(foreign.name)
        last_is(looked, "第 899 条")
        up = "document.querySelector('#log').scrollTop = 0"
        for count in (400, 600, 800, 900):
            looked.page.evaluate(up)
            looked.wait(
                "(n) => document.querySelectorAll('#records .row').length >= n", count
            )
            foreign.log(record("还在写"))
        looked.page.evaluate(up)
        looked.wait(
            "document.querySelector('#log-top').textContent.includes('从这里开始')"
        )
        expected = [f"第 {number} 条" for number in range(900)]
        assert looked.texts("#records .text")[:900] == expected
        looked.wait("document.querySelector('#newer').textContent.includes('4 条')")


def test_a_flood_of_records(
    browser: Any, base: str, foreign: Foreign, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thousands of records a second: rows stay bounded and the page stays alive."""
    foreign.status("在线")
    foreign.log(record("begin"))
    with looking(browser, base) as looked:
        looked.open_project(foreign.name)
        last_is(looked, "begin")
        looked.page.evaluate(
            """() => { window.longest = 0; let last = performance.now();
               const beat = () => { const now = performance.now();
                 window.longest = Math.max(window.longest, now - last); last = now;
                 requestAnimationFrame(beat); };
               requestAnimationFrame(beat); }"""
        )
        for batch in range(30):
            foreign.log(*(record(f"{batch}-{n}", order=n, sku="A") for n in range(100)))
            looked.page.wait_for_timeout(50)
        foreign.log(record("end"))
        last_is(looked, "end")
        longest = looked.page.evaluate("window.longest")
        with capsys.disabled():
            print(f"\n  3,000 records: the longest frame took {longest:.0f} ms")  # noqa: T201
        assert looked.page.locator("#records > li").count() <= 2_000
        for part in range(4):  # 12 MB: of long records there are fewer on the page
            foreign.log(
                *(record("x" * 60_000) for _ in range(50)), record(f"part {part}")
            )
            last_is(looked, f"part {part}")
        assert looked.page.locator("#records > li").count() < 200


def test_status_history_and_replicas(
    browser: Any,
    server: DevServer,
    foreign: Foreign,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page shows what the console has seen since it began."""
    monkeypatch.setattr(changes, "TICK", 0.05)
    monkeypatch.setattr(changes, "EXPLAINED_IN", 0.1)
    foreign.status("在线")
    with (
        served(WebConfig(redis=server.url, port=0)) as console,
        looking(browser, console.url, language="en") as looked,
    ):
        looked.open_project(foreign.name)
        kind_is(looked, foreign.name, "online")
        looked.wait("!document.querySelector('#unchanged').hidden")
        foreign.status("报错")
        looked.wait("document.querySelectorAll('#history li').length === 1")
        assert looked.texts("#history b") == ["在线 online", "报错 error"]
        foreign.status("故障")
        looked.wait("document.querySelectorAll('#history li').length === 2")
        looked.open("/changes")  # of all projects: nothing of it was forgotten
        looked.wait("document.querySelectorAll('#history li').length === 2")
        shown = ["报错 error", "故障 fault", "在线 online", "报错 error"]
        assert looked.texts("#history b") == shown
        looked.page.click("#history a")
        looked.page.wait_for_url(f"**{project_path(foreign.name)}")
        foreign.redis.set(f"{foreign.name}_项目状态", b"running")
        looked.wait("document.querySelector('#cards .odd')?.textContent === 'running'")


def test_keys_of_another_type(browser: Any, base: str, redis: Redis) -> None:
    """A log that is none is said to be so, and is no cut line."""
    for suffix in ("项目控制台", "控制"):
        redis.set(f"订单系统_{suffix}", "x")
    Foreign(redis, "订单系统").status("在线")
    with looking(browser, base, expected=("409",)) as looked:
        looked.open("/")
        kind_is(looked, "订单系统", "online")
        looked.wait("document.querySelector('.queue dd')?.textContent === '类型不符'")
        looked.open_project("订单系统")
        looked.wait(
            "document.querySelector('#log-top').textContent.includes('another type')"
        )
        assert looked.page.locator("#link").text_content() == "日志无法读取"
        assert not looked.page.locator("#cut").is_visible()
        looked.page.click("#command summary")
        looked.page.fill("[name=command]", "reload")
        looked.page.click("#command button.check")
        looked.page.click(".review button.main")
        looked.page.locator(".told .bad").wait_for()


def test_language_and_theme_stay(browser: Any, base: str, foreign: Foreign) -> None:
    """The switches keep the page, and are remembered."""
    foreign.status("离线", None)
    with looking(browser, base, scheme="dark") as looked:
        page = looked.page
        looked.open_project(foreign.name)
        ground = "getComputedStyle(document.documentElement).backgroundColor"
        dark = page.evaluate(ground)
        page.select_option("#theme", "light")
        assert page.evaluate(ground) != dark
        page.click("text=English")
        page.wait_for_url("**/projects/**lang=en")
        assert page.locator("html").get_attribute("lang") == "en"
        assert page.locator("html").get_attribute("data-theme") == "light"
        assert page.locator("h2").first.text_content() == "Log"
        looked.open("/")
        assert page.title().startswith("Projects · BLS console · 127.0.0.1:")
        page.select_option("#theme", "")
        assert page.evaluate(ground) == dark


@pytest.mark.parametrize("language", ["zh", "en"])
def test_narrow_pages(browser: Any, base: str, foreign: Foreign, language: str) -> None:
    """At 360 px nothing has to be scrolled sideways."""
    foreign.status("报错")
    foreign.log(record("x" * 300, "error", url="y" * 300))
    long = Foreign(foreign.redis, "一个名字非常非常长的项目" * 8)
    long.status("在线")
    with looking(
        browser, base, language=language, size=(360, 740), expected=("404",)
    ) as looked:
        looked.open("/")
        kind_is(looked, foreign.name, "error")
        assert looked.width() <= 360
        for name in (foreign.name, long.name):
            looked.open_project(name)
            looked.page.locator("form.command").wait_for()
            assert looked.width() <= 360
            assert looked.page.evaluate(SMALL) == []
            assert looked.page.locator(".log").bounding_box()["height"] == 0.4 * 740
            assert looked.page.evaluate(CHAINS) == "auto"
        for path in ("/login", "/projects/nobody"):
            looked.open(path)
            assert looked.width() <= 360


@pytest.mark.parametrize("language", ["zh", "en"])
def test_unknown_projects(
    browser: Any,
    base: str,
    foreign: Foreign,
    language: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who mistypes a name is told so, and finds the way back; or who looks too long."""
    monkeypatch.setattr(project_state, "KEPT", 0.0)
    with looking(browser, base, language=language, expected=("404",)) as looked:
        assert looked.open_project("<b>无</b>").status == 404
        assert looked.page.locator(".subject").text_content() == "<b>无</b>"
        looked.page.click("a.main")
        looked.page.locator("#nothing").wait_for()
        foreign.status("在线")
        looked.open_project(foreign.name)
        looked.page.locator("#cards .card").wait_for()
        foreign.remove()
        looked.page.locator(".subject").wait_for()


def test_login(browser: Any, server: DevServer, redis: Redis) -> None:
    """A wrong password is said, the right one opens the page that was wanted."""
    config = WebConfig(redis=server.url, users=USERS, port=0)
    with (
        served(config) as console,
        looking(browser, console.url, expected=("401",)) as looked,
    ):
        page = looked.page
        looked.open("/?lang=zh")
        page.fill("[name=user]", "值班")
        page.fill("[name=password]", "wrong")
        page.keyboard.press("Enter")
        page.locator("#complaint").wait_for()
        page.fill("[name=user]", "值班")
        page.fill("[name=password]", PASSWORD)
        page.keyboard.press("Enter")
        page.locator("#nothing").wait_for()
        looked.wait("document.querySelector('#link').dataset.state === 'live'")
        page.click("text=退出登录")
        page.locator("[name=password]").wait_for()
        page.fill("[name=user]", "值班")
        page.fill("[name=password]", PASSWORD)
        page.keyboard.press("Enter")
        looked.wait("document.querySelector('#link')?.dataset.state === 'live'")
        page.context.clear_cookies()
        console.app.close_streams()
        page.wait_for_url("**/login?next=%2F")


def test_redis_goes_and_comes_back(browser: Any, project: str) -> None:
    """An outage is a banner over what was known, not an empty page."""
    with (
        DevServer(append_only=True) as server,
        served(WebConfig(redis=server.url, port=0)) as console,
    ):
        with Redis.from_url(server.url, protocol=2) as redis:
            Foreign(redis, project).status("在线", None)
        with looking(browser, console.url, expected=("503",)) as looked:
            looked.open("/")
            kind_is(looked, project, "online")
            server.kill()
            looked.page.locator("#away").wait_for(state="visible")
            assert project in looked.texts(".card a")
            assert re.search(r"自 \d\d:\d\d:\d\d 起", looked.texts("#away")[0])
            colour = "getComputedStyle(document.querySelector('.cards')).filter"
            assert "grayscale(1)" in looked.page.evaluate(colour)
            assert looked.page.locator("#link").get_attribute("data-state") == "away"
            assert looked.page.title().startswith("⚠ ")
            assert looked.open_project("另一个项目").status == 503
            looked.open_project(project)
            looked.page.locator("form.command").wait_for()
            assert looked.texts("#nothing-sent") == ["未知：Redis 没有应答。"]
            looked.wait("document.querySelector('#link').dataset.state === 'away'")
            assert not looked.page.locator("#cut").is_visible()
            looked.open("/workers")
            assert (
                looked.page.locator("#looking").text_content()
                == "未知：Redis 没有应答。"
            )
            looked.open_project("另一个项目")
            looked.page.locator("[data-again]").wait_for()
            looked.open("/")
            assert looked.texts(".card .head a") == [project]
            server.restart()
            looked.page.locator("#away").wait_for(state="hidden", timeout=20_000)
            looked.wait("document.querySelector('#link').dataset.state === 'live'")
            assert looked.page.evaluate(colour) == "none"
            looked.open("/changes")
            looked.page.locator("#history .unknown").wait_for()
            assert "状态未知" in looked.texts("#history .unknown")[0]


def test_redis_is_slow_at_the_start_and_refuses_later(
    browser: Any, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both pages say that they are reading, or which rights are missing, and go on by themselves."""
    monkeypatch.setattr(watch, "READY", 0.05)
    with DevServer() as server:
        with Redis.from_url(server.url, protocol=2) as redis:
            Foreign(redis, project).status("在线")
        server.freeze()
        with (
            served(WebConfig(redis=server.url, port=0)) as console,
            looking(browser, console.url) as looked,
            looking(browser, console.url, expected=("503",)) as alone,
        ):
            looked.open("/")
            looked.wait("document.querySelector('#link').dataset.state === 'reading'")
            alone.open_project(project)
            alone.wait("document.querySelector('#link').dataset.state === 'reading'")
            for page in (looked.page, alone.page):
                page.locator("#looking").wait_for()
            assert not looked.page.locator("#nothing").is_visible()
            server.thaw()
            for page in (looked, alone):
                kind_is(page, project, "online")
                page.page.locator("#looking").wait_for(state="hidden")
                page.wait("document.querySelector('#link').dataset.state === 'live'")
            with Redis.from_url(server.url, protocol=2) as redis:
                assert not looked.page.locator("#forbidden").is_visible()
                redis.execute_command("ACL", "SETUSER", "default", "resetkeys")
            for one in (looked, alone):
                one.page.locator("#forbidden").wait_for()
                assert not one.page.locator("#away").is_visible()
                assert "bls-agent acl --console" in one.texts("#forbidden")[0]
                for place in ("#main", "#link"):
                    one.wait(
                        "(place) => document.querySelector(place).dataset.state === 'forbidden'",
                        place,
                    )
                colour = "getComputedStyle(document.querySelector('.cards')).filter"
                assert "grayscale(1)" in one.page.evaluate(colour)
            streams: list[str] = []

            def asks_again(request: Any) -> bool:
                streams.extend([request.url] * ("/api/logs/stream" in request.url))
                return len(streams) > 1

            with alone.page.expect_request(asks_again):  # the first one was refused
                alone.page.reload()
            link = alone.page.locator("#link")
            assert link.get_attribute("data-state") == "forbidden"
            assert alone.texts("#nothing-sent") == [""]


def test_the_console_goes_and_comes_back(
    browser: Any, server: DevServer, foreign: Foreign
) -> None:
    """A cut line is said, and mended by the page itself."""
    foreign.status("在线")
    gone = (
        "ERR_CONNECTION_REFUSED",
        "ERR_INCOMPLETE",
        "ERR_EMPTY",
        "ERR_CONNECTION_RESET",
    )
    with ExitStack() as first:
        console = first.enter_context(served(WebConfig(redis=server.url, port=0)))
        with looking(browser, console.url, expected=gone) as looked:
            looked.open("/")
            kind_is(looked, foreign.name, "online")
            first.close()
            looked.page.locator("#cut").wait_for(state="visible")
            assert looked.page.locator("#link").get_attribute("data-state") == "cut"
            assert foreign.name in looked.texts(".card a")
            foreign.status("报错")
            with served(WebConfig(redis=server.url, port=console.port)):
                kind_is(looked, foreign.name, "error")
                looked.page.locator("#cut").wait_for(state="hidden")


def refused(looked: Watched, code: str) -> bool:
    """Tell whether the page's policy stops a script from doing something."""
    told: bool = looked.page.evaluate(
        f"() => {{ try {{ {code}; return false; }} catch {{ return true; }} }}"
    )
    return told


def test_answers_run_nothing(browser: Any, base: str, foreign: Foreign) -> None:
    """Even if a template failed to escape: an answer that holds code runs none of it."""
    foreign.status("在线")
    bad = """<p id="seen">x</p><script>window.owned = 1</script>
        <img src="/static/favicon.svg" onload="window.owned = 2">
        <b hx-on:click="window.owned = 3" id="button">y</b>"""
    reports = ("Content Security Policy", "Trusted", "answers hold no code")
    with looking(browser, base, expected=reports) as looked:
        looked.page.route(
            "**/fragments/commands**",
            lambda route: route.fulfill(body=bad, content_type="text/html"),
        )
        looked.open_project(foreign.name)
        looked.page.locator("#seen").wait_for()
        looked.page.click("#button")
        looked.page.wait_for_timeout(200)
        assert looked.page.evaluate("window.owned") is None
        assert refused(looked, "document.body.innerHTML = '<b>x</b>'")
        assert refused(looked, "trustedTypes.createPolicy('other', {})")
        looked.page.evaluate("window.violations = []")
        looked.complaints = [one for one in looked.complaints if "no code" not in one]


def test_workers(
    browser: Any, base: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is alive, by kind; changes arrive by themselves, hostile ids are text."""
    monkeypatch.setattr(worker_feed, "INTERVAL", 0.1)
    silent, hostile = "回测-沉默", "</bdi><img src=x onerror=alert(1)>\u202e"

    def beat(key: str, status: str, ttl: int = 30, **fields: Any) -> None:
        redis.set(key, orjson.dumps({"status": status, **fields}), ex=ttl)

    def state_is(looked: Watched, name: str, state: str) -> None:
        looked.wait(
            """([name, state]) => [...document.querySelectorAll(".group .card")].some(
                 (card) => card.querySelector(".name").textContent === name && card.dataset.state === state)""",
            [name, state],
        )

    beat("backtest:worker:回测-1", "running", running_tasks=2, max_tasks=5)
    beat(f"backtest:worker:{silent}", "running", 12)
    redis.set(f"heartbeat:node:{hostile}", f"<b>{hostile}", ex=30)
    with looking(browser, base, language="en", size=(360, 740)) as looked:
        page = looked.page
        looked.open("/")
        page.click(".places a[href='/workers']")
        looked.wait("document.querySelector('#link').dataset.state === 'live'")
        assert looked.width() <= 360
        state_is(looked, silent, "stale")
        state_is(looked, visible(hostile), "broken")
        assert looked.texts(".group:not([hidden]) h2") == [
            "Backtest workers 2", "Execution nodes 1",
        ]  # fmt: skip
        assert {"2", "5"} <= set(looked.texts(".facts dd"))
        assert page.locator(".group img, .group b:not(.badge b)").count() == 0
        beat("heartbeat:scheduler:主调度", "error", pending_tasks=7)
        state_is(looked, "主调度", "error")
        assert page.locator("[data-chip=error]").is_visible()
        beat(f"backtest:worker:{silent}", "running")
        state_is(looked, silent, "running")
        redis.delete("backtest:worker:回测-1")
        looked.wait("document.querySelectorAll('.group .card').length === 3")
        page.keyboard.press("/")
        page.keyboard.type("调度")
        assert looked.texts(".group:not([hidden]) .card:visible .name") == ["主调度"]
        page.keyboard.press("Escape")
        assert page.locator(".card:visible").count() == 3


def test_tasks(browser: Any, base: str, redis: Redis) -> None:
    """Bars on the card of the worker, and the page that the card leads to."""
    hostile = "</bdi><img src=x onerror=alert(1)>\u202e"

    def write(task: str, status: str, **fields: Any) -> None:
        value = {"status": status, "worker": "回测-1", **fields}
        redis.set(f"ginkgo:task_status:{task}", orjson.dumps(value), ex=60)

    redis.set(
        "heartbeat:下载:回测-1", orjson.dumps({"status": "running", "页": 7}), ex=30
    )
    write("均线-7", "running", progress=40)
    write(hostile, "失败", message=hostile)
    with looking(browser, base, language="en", size=(360, 740)) as looked:
        page = looked.page
        looked.open("/workers")
        looked.wait("document.querySelector('.worker .bar') !== null")
        assert looked.texts(".group:not([hidden]) h2") == ["Workers of any kind 1"]
        assert looked.texts(".worker .name") == ["下载:回测-1"]
        assert looked.texts(".facts div") == ["页7"]
        assert looked.texts(".worker .counts") == ["Failed 1 · Running 1"]
        assert looked.texts(".worker .bar small") == ["40 %"]
        assert page.locator(".worker progress").evaluate("bar => bar.value") == 0.4
        assert looked.width() <= 360
        page.click(".worker .counts")
        looked.wait("document.querySelector('.crumbs bdi')?.textContent === '回测-1'")
        assert looked.texts(".lists h2") == ["Tasks", "Failed 1", "Running 1"]
        assert looked.width() <= 360
        write("均线-7", "done", progress=100)
        looked.wait("document.querySelector('#done progress')?.value === 1")
        assert page.locator(".lists img").count() == 0


def test_assets(
    browser: Any, base: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library lives: assets, the last synchronisation and one asset; hostile is text."""
    monkeypatch.setattr(asset_feed, "INTERVAL", 0.1)
    hostile = "</bdi><img src=x onerror=alert(1)>\u202e"

    def index(asset: str, **fields: str) -> None:
        told: Any = {"id": asset, "name": asset, "category": "tool", "version": "1"}
        told |= fields
        redis.hset("asset:index", asset, orjson.dumps(told))
        redis.hset(f"asset:metadata:{asset}", mapping=told)
        redis.rpush("asset:sync:changed", asset)

    index("google_search", name="谷歌", description="finds pages")
    index(hostile, category="prompt")
    with looking(browser, base, language="en", size=(390, 844)) as looked:
        page = looked.page
        looked.open("/assets")
        looked.wait("document.querySelector('#link').dataset.state === 'live'")
        assert looked.width() <= 390
        assert looked.texts(".cards .id") == [visible(hostile), "google_search"]
        redis.hset("asset:index", "x", b"{")
        index("summarizer", category="prompt")
        redis.hset("asset:sync:state", mapping={"sync_status": "failed"})
        looked.wait("document.querySelectorAll('.cards .card').length === 4")
        looked.wait(
            "document.querySelector('.sync .badge b')?.textContent === 'failed'"
        )
        assert looked.texts(".cards .id")[0] == "x"
        page.click(".chip[data-chip=prompt]")
        assert page.locator(".card:visible").count() == 2
        page.click(".chip[data-chip='']")
        for found in ("google", "谷", "PAGES"):
            page.fill("#search", found)
            assert looked.texts(".card:visible .id") == ["google_search"]
        page.fill("#search", "")
        page.click("text=谷歌")
        looked.wait("document.querySelector('.sheet h1')?.textContent === '谷歌'")
        index(
            "google_search",
            name=hostile,
            agent_specs=orjson.dumps({hostile: 1}).decode(),
        )
        looked.wait(
            "(n) => document.querySelector('.sheet h1')?.textContent === n",
            visible(hostile),
        )
        assert visible(hostile) in looked.texts("pre")[0]
        assert page.locator("main img, .sheets img:not(.brand img)").count() == 0
        redis.delete("asset:metadata:google_search")
        page.locator("#asset .notice").wait_for()


def test_queues(
    browser: Any, base: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues live on a phone: figures, order, search, what failed; hostile is text."""
    monkeypatch.setattr(crawl_feed, "INTERVAL", 0.1)
    monkeypatch.setattr(crawl_feed, "SEARCH", 0.1)
    hostile = "</bdi><img src=x onerror=alert(1)>"
    entry = {"request": {"url": f"https://a:b@x/{hostile}"}, "reason": hostile}
    redis.rpush("crawlo:news:daily:queue:failed", orjson.dumps(entry))
    redis.zadd(f"crawlo:{hostile}:queue:requests", {"1": 0})
    place = "bls_agent:{crawlo:news:daily:queue:requests}"
    with looking(browser, base, language="en", size=(390, 844)) as looked:
        page = looked.page
        looked.open("/crawl")
        looked.wait("document.querySelector('#link').dataset.state === 'live'")
        assert looked.width() <= 390
        assert looked.texts(".card .project") == [hostile, "news"]
        redis.hset(f"{place}:counters", "pushed", 12_345)
        redis.hset(f"{place}:leases", "1", "token 0")
        looked.wait("document.querySelectorAll('.card')[1].dataset.state === 'working'")
        redis.set("crawlo:odd:queue:requests", "x")
        looked.wait("document.querySelectorAll('.card')[0].dataset.state === 'broken'")
        assert looked.texts(".card .project") == ["odd", hostile, "news"]
        badges = [text.strip() for text in looked.texts(".card .badge")]
        assert badges == ["unreadable", "waiting", "failed 1"]
        page.fill("#search", "daily")
        assert looked.texts(".card:visible .project") == ["news"]
        page.click(".card:visible a")
        looked.wait("document.querySelector('#failed li') !== null")
        assert looked.width() <= 390
        assert looked.texts("#failed .name") == [f"GET https://***@x/{hostile}"]
        assert looked.texts("[data-figure=pushed] dd") == ["12,345"]
        assert looked.texts("#sheet .badge b") == ["failed 1"]
        assert page.locator("#failed-requeue").count() == 1
        assert page.locator("main img").count() == 0
        page.evaluate("window.confirm = () => true")
        page.click("#failed-requeue")
        looked.wait("document.querySelector('#failed .none') !== null")
        assert looked.texts("[data-notes]") == ["Queued again: 1"]
        assert redis.zcard("crawlo:news:daily:queue:requests") == 1
        looked.wait(
            "document.querySelector('#sheet .badge b').textContent !== 'failed 1'"
        )
        assert not page.locator("#failed-requeue").is_visible()


def test_dead_letters(browser: Any, base: str, redis: Redis) -> None:
    """On a phone: one runs again; one and all are deleted, if the operator is sure."""
    project, hostile = "订单系统", "</bdi><img src=x onerror=alert(1)>"
    Foreign(redis, project).status("在线")
    dead, control = f"bls_agent:{{{project}_控制}}:dead", f"{project}_控制"
    for number in ("1", "2", hostile):
        redis.rpush(dead, orjson.dumps({"id": number, "command": f"导入{number}"}))
    first, second, _ = redis.lrange(dead, 0, -1)
    with looking(browser, base, language="en", size=(390, 844)) as looked:
        page = looked.page
        looked.open_project(project)
        page.locator("#dead li").first.wait_for()
        assert looked.texts("#dead .name") == [f"导入{hostile}", "导入2", "导入1"]
        assert looked.width() <= 390
        rows = page.locator("#dead li")
        run_again = rows.nth(2).get_by_role("button", name="Run again")
        assert run_again.bounding_box()["height"] >= 40
        run_again.click()
        looked.wait("document.querySelector('#waiting .name')?.textContent === '导入1'")
        assert looked.texts("[data-notes=queue]") == ["Queued again: 1"]
        assert redis.lrange(control, 0, -1) == [first]
        page.evaluate("void (window.confirm = () => false)")
        discard = rows.nth(1).get_by_role("button", name="Discard")
        discard.click()
        page.evaluate("void (window.confirm = (text) => text.includes('订单系统'))")
        assert redis.llen(dead) == 2
        discard.click()
        looked.wait("document.querySelectorAll('#dead li').length === 1")
        assert second not in redis.lrange(dead, 0, -1)
        page.click("#dead-discard_all")
        looked.wait("document.querySelector('#dead') === null")
        assert not redis.exists(dead)
        assert page.locator("main img").count() == 0


def test_seven_tabs(server: DevServer, redis: Redis, tmp_path: Path) -> None:
    """A browser has six connections for all its tabs: hidden ones hold none of them."""
    names = [f"系统{number}" for number in range(5)]
    for name in names:
        Foreign(redis, name).status("在线")
        Foreign(redis, name).log(record(f"first of {name}"))
    paths = ["", "workers", *(project_path(name).lstrip("/") for name in names)]
    config = WebConfig(redis=server.url, port=0)
    live = "document.querySelector('#link')?.dataset.state === 'live'"
    with served(config) as console, closing(Tabs(tmp_path)) as tabs:

        def streams() -> int:
            return console.app.web.streams.open

        opened = [tabs.open(console.url + path) for path in paths]
        until(lambda: tabs.ask(opened[-1], live))
        rows = "document.querySelectorAll('#records li').length"
        until(lambda: tabs.ask(opened[-1], rows) == 1)
        until(lambda: streams() == 1)
        tabs.show(opened[2])
        until(lambda: tabs.ask(opened[2], live))
        Foreign(redis, names[0]).log(record("second"))
        said = "document.querySelector('#records').textContent.includes('second')"
        until(lambda: tabs.ask(opened[2], said))
        until(lambda: streams() == 1)
        behind = tabs.open(console.url, behind=True)  # has its look, and no more
        until(lambda: tabs.ask(behind, live))
        assert tabs.ask(behind, "document.hidden")
        assert tabs.ask(behind, "document.querySelectorAll('.card').length") == 5
        until(lambda: streams() == 1)
