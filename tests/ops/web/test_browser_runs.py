"""The pages of runs in a real Chromium: live, long, hostile, and through restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import orjson
import pytest
from redis import Redis

from bls_agent.devserver import DevServer
from bls_agent.ops.terminal import visible
from bls_agent.ops.texts import load_texts
from bls_agent.ops.web import streams
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.feeds import runs as run_feed
from bls_agent.runs import gaps
from tests.corpus.hostile_texts import HOSTILE_TEXTS
from tests.ops.web.browsers import Watched, looking
from tests.ops.web.serving import Served, served
from tests.ops.web.test_browser_hostile import SCRIPTS

TEXTS = [text for text in HOSTILE_TEXTS.values() if len(text) < 4_000]
LISTEN = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
}).observe({ type: "longtask", buffered: true });
"""
LAST = "(n) => document.querySelector('#events').lastElementChild?.querySelector('.number')?.textContent === n"
NUMBERS = "(all) => all.map((one) => one.textContent)"


class Writer:
    """Writes runs with bare commands, as somebody who knows the contract only."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.counts: dict[int, int] = {}

    def add(self, run: int, *names: str, source: str = "分析师", **data: Any) -> None:
        pipe = self.redis.pipeline(transaction=False)
        for name in names:
            category, _, action = name.partition(".")
            number = self.counts[run] = self.counts.get(run, 0) + 1
            fields = {
                "timestamp": "2026-01-01T12:00:00.123Z",
                "sequence": str(number),
                "source_agent_id": "",
                "source_agent_type": "",
                "source_agent_name": source,
                "source_team_name": "",
                "event_category": category,
                "event_action": action,
                "data": orjson.dumps(data),
            }
            pipe.xadd(f"run:{run}:events", fields)  # type: ignore[arg-type]
        pipe.execute()

    def say(self, run: int, *words: str, source: str = "分析师") -> None:
        for word in words:
            self.add(run, "llm.stream", source=source, content=word)


@pytest.fixture
def base(server: DevServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A console that listens, and looks often."""
    monkeypatch.setattr(run_feed, "INTERVAL", 0.1)
    monkeypatch.setattr(streams, "HEAD", 0.1)
    monkeypatch.setattr(streams, "QUIET_HEAD", 0.5)
    monkeypatch.setattr(gaps, "LOOK", 0.5)
    monkeypatch.setattr(gaps, "UNSEEN", 0.2)
    monkeypatch.setattr(gaps, "UNOWNED", 0.5)
    with served(WebConfig(redis=server.url, port=0)) as console:
        yield console.url


@pytest.fixture
def writer(server: DevServer) -> Iterator[Writer]:
    with Redis.from_url(server.url, protocol=2) as client:
        yield Writer(client)


def last_is(looked: Watched, number: str) -> None:
    """Wait until the newest row has this number."""
    looked.wait(LAST, number)


def test_a_run_is_followed(browser: Any, base: str, writer: Writer) -> None:
    """It is awaited, begins, speaks, is filtered, unfolds, and ends."""
    with looking(browser, base) as looked:
        page = looked.page
        looked.open("/runs/42")
        looked.wait("document.querySelector('#link').dataset.state === 'live'")
        assert page.locator("#absent").is_visible()
        writer.add(42, "lifecycle.started", task="早报")
        last_is(looked, "1")
        looked.wait("document.querySelector('#absent').hidden")
        looked.wait("document.querySelector('.task')?.textContent === '早报'")
        writer.say(42, "市场", "安静", "。\n", source="甲")
        writer.say(42, "volume ", "is low", source="乙")
        writer.say(42, "完", source="甲")
        looked.wait("document.querySelectorAll('.speech').length === 2")
        looked.wait(
            "document.querySelector('.speech .text').textContent === '市场安静。\\n完'"
        )
        assert looked.texts(".speech .number") == ["2\u20137", "5\u20136"]
        assert page.locator(".writing").count() == 2
        writer.add(42, "agent.tool_call", tool="quotes", n=12345678901234567890)
        last_is(looked, "8")
        looked.wait("document.querySelectorAll('.writing').length === 0")
        writer.say(42, "next")
        last_is(looked, "9")
        assert looked.texts(".speech .text")[-1] == "next"
        page.locator(".row .more").last.click()
        assert "12345678901234567890" in looked.texts(".row pre")[0]
        assert page.locator("#follow").get_attribute("aria-pressed") == "false"
        page.click("[data-chip=llm]")
        assert page.locator(".row.event:visible").count() == 3
        page.fill("#search", "volume")
        found = "显示 1 行；已搜索页面上的 5 行，直到 "
        assert looked.texts("#found-text")[0].startswith(found)
        page.fill("#search", "")
        page.click("[data-chip='']")
        assert page.locator("[data-chip=dispatch]").is_hidden()
        page.click("#follow")
        writer.add(42, "lifecycle.completed", "system.close")
        looked.wait(
            "document.querySelector('#cards .card').dataset.state === 'completed'"
        )
        looked.wait("document.querySelector('#link').dataset.state === 'over'")
        assert looked.texts("#log-end") == ["运行已结束。"]


def test_streamed_text_is_found(browser: Any, base: str, writer: Writer) -> None:
    """As soon as the text of a row matches, and not when the search is typed again."""
    with looking(browser, base) as looked:
        looked.open("/runs/42")
        writer.say(42, "now")
        last_is(looked, "1")
        looked.page.fill("#search", "later")
        looked.wait("document.querySelector('.speech').hidden")
        writer.say(42, " and later")
        looked.wait("!document.querySelector('.speech').hidden")


def test_the_list_follows(browser: Any, base: str, writer: Writer) -> None:
    """Runs come, change and go; filters; an id opens its run."""
    with looking(browser, base, language="en") as looked:
        page = looked.page
        looked.open("/runs")
        looked.wait("!document.querySelector('#nothing').hidden")
        for run in range(1, 6):
            writer.add(run, "lifecycle.started", task=f"task {run}")
        looked.wait("document.querySelectorAll('.card').length === 5")
        writer.add(3, "lifecycle.failed", error={"message": "坏" * 300})
        writer.add(3, "system.close")
        looked.wait(
            "document.querySelector('.card[data-state=failed] .last')?.textContent === '坏'.repeat(200) + '…'"
        )
        assert page.locator(".card .head a").first.text_content() == "#3"
        page.click(".chip[data-chip=failed]")
        assert page.locator(".card:visible").count() == 1
        page.click(".chip[data-chip='']")
        page.keyboard.press("/")
        page.keyboard.type("task 4")
        assert page.locator(".card:visible").count() == 1
        writer.redis.delete("run:5:events")
        looked.wait("document.querySelectorAll('.card').length === 4")
        page.fill("#search", "#2")
        page.keyboard.press("Enter")
        page.wait_for_url("**/runs/2")
        last_is(looked, "1")
        assert looked.page.locator("h1").text_content() == "Run 2"
        looked.open("/runs/3")
        assert page.locator(".last bdi").text_content() == "坏" * 300
        looked.wait("document.querySelector('.took dd')?.textContent?.endsWith('s')")
        looked.wait("document.title.startsWith('⚠ Run 3')")


def test_ten_thousand_events(
    browser: Any, base: str, writer: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest are there at once, older ones are read on the way up; live ones too."""
    writer.add(1, *["agent.tool_call"] * 10_000, tool="quotes", rows=[1, 2, 3])
    with looking(browser, base, is_kept=False) as looked:
        page = looked.page
        page.add_init_script(LISTEN)
        looked.open("/runs/1")
        took = looked.wait(LAST, "10000")
        told = [f"opened in {took:.2f} s"]
        assert rows_of(looked) <= 2_000
        top = "document.querySelector('#log').scrollTop"
        for _ in range(3):
            before = first_number(looked)
            page.evaluate(f"{top} = 300")
            page.evaluate(f"{top} = 0")
            looked.wait(
                "(n) => Number(document.querySelector('#events .number').textContent) < n",
                before,
            )
        numbers = [int(one) for one in looked.texts("#events .number")]
        assert all(one + 1 == other for one, other in pairwise(numbers))
        assert len(numbers) <= 2_000
        assert page.locator("#newer").is_visible()
        page.click("#newer")
        last_is(looked, "10000")
        writer.add(1, *["agent.tool_call"] * 1_000, tool="quotes")
        last_is(looked, "11000")
        assert rows_of(looked) <= 2_000
        for _ in range(4):
            writer.add(1, *["agent.tool_call"] * 1_000, tool="quotes", rows=[1, 2, 3])
        told.append(f"4,000 live ones after {looked.wait(LAST, '15000'):.2f} s")
        assert rows_of(looked) <= 2_000
        numbers = [int(one) for one in looked.texts("#events .number")]
        assert numbers == [*range(15_001 - len(numbers), 15_001)]
        assert page.locator("#events .gap").count() == 0
        told.append(f"longest task {page.evaluate('window.longest'):.0f} ms")
    with capsys.disabled():
        print(f"\n  10,000 events: {', '.join(told)}")  # noqa: T201 - a figure is shown


def rows_of(looked: Watched) -> int:
    found: int = looked.page.locator("#events > li").count()
    return found


def first_number(looked: Watched) -> int:
    return int(looked.page.locator("#events .number").first.text_content())


def test_a_lost_writer_is_a_row(browser: Any, base: str, writer: Writer) -> None:
    """It may come back; and the end of the run is told."""
    with looking(browser, base, language="en") as looked:
        writer.add(1, "a.b")
        looked.open("/runs/1")
        last_is(looked, "1")
        writer.redis.hset("bls_agent:{run:1:events}:books", "owner", "dead")
        looked.wait("document.querySelector('[data-note=lost]') !== null")
        looked.wait("document.querySelector('#cards .card').dataset.state === 'lost'")
        told = looked.texts("#events .gap")
        assert told[-1] == "The writer has stopped without ending the run."
        writer.add(1, "a.b")
        last_is(looked, "2")
        writer.redis.delete("run:1:events", "bls_agent:{run:1:events}:books")
        looked.wait("document.querySelector('#link').dataset.state === 'over'")
        assert looked.texts("#log-end")[0].startswith("The run no longer exists")


@contextmanager
def restarting(server: DevServer) -> Iterator[Any]:
    """Give a function that starts a console at one port, and starts it anew."""
    running: list[Any] = []
    port = 0

    def restart() -> Served:
        nonlocal port
        if running:
            running.pop().__exit__(None, None, None)
        one = served(WebConfig(redis=server.url, port=port))
        console = one.__enter__()
        port = console.port
        running.append(one)
        return console

    try:
        yield restart
    finally:
        for one in running:
            one.__exit__(None, None, None)


def test_a_restarted_console_goes_on_at_the_place(
    browser: Any, server: DevServer, writer: Writer
) -> None:
    """What was written meanwhile comes, each event once; text goes on where it was."""
    with restarting(server) as restart:
        base = restart().url
        with looking(browser, base, expected=("ERR_",)) as looked:
            writer.add(1, "lifecycle.started")
            writer.say(1, "one ")
            looked.open("/runs/1")
            last_is(looked, "2")
            for number, word in enumerate(("two ", "three ")):
                restart()
                writer.say(1, word)
                last_is(looked, f"2\u2013{3 + number}")
            assert looked.texts(".speech .text") == ["one two three "]
            writer.add(1, "a.b", "system.close")
            looked.wait("document.querySelector('#link').dataset.state === 'over'")
            last_is(looked, "6")  # rows are drawn after that
            assert looked.texts("#events .number") == ["1", "2\u20134", "5", "6"]
            came = looked.page.evaluate("document.documentElement.dataset.events")
            assert came == "6"  # each was sent once


def test_what_was_trimmed_meanwhile_is_a_row(
    browser: Any, server: DevServer, writer: Writer
) -> None:
    """Said where it is missing, and once."""
    with restarting(server) as restart:
        base = restart().url
        with looking(browser, base, language="en", expected=("ERR_",)) as looked:
            writer.add(1, *["a.b"] * 3)
            looked.open("/runs/1")
            last_is(looked, "3")
            for number in (13, 14):
                restart()
                writer.add(1, *["a.b"] * (13 - writer.counts[1]))
                writer.redis.xtrim("run:1:events", maxlen=1, approximate=False)
                writer.add(1, *["a.b"] * (number - 13))
                last_is(looked, str(number))
            assert looked.texts("#events .number")[3:] == ["13", "14"]
            (gap,) = looked.texts("#events .gap")
            assert "are missing here: they were trimmed away" in gap


@pytest.mark.parametrize(
    ("language", "scheme"), [("zh", "dark"), ("en", "light")], ids=["zh", "en"]
)
def test_the_corpus(
    browser: Any, base: str, writer: Writer, language: str, scheme: str
) -> None:
    """Everything that somebody may write is there as text, and nothing runs."""
    for number, text in enumerate(TEXTS, 100):
        raw = text.encode("utf-8", "surrogatepass")
        names = ("timestamp", "sequence", "source_agent_name", "event_category", "event_action")  # fmt: skip
        fields: dict[Any, Any] = dict.fromkeys(names, raw)
        data = orjson.dumps({"task": text, text: [text, {text: text}], "error": text})
        for run in (1, number):
            writer.redis.xadd(f"run:{run}:events", fields | {"data": data})
        writer.add(1, "lifecycle.failed", source=text, error=text, **{text: text})
        writer.say(1, text, source=f"{number}")
    writer.redis.xadd("run:1:events", {b"\xff": b"\xfe"})
    writer.redis.xadd("run:1:events", {"data": '{"toString":1,"__proto__":{"a":1}}'})
    with looking(browser, base, language=language, scheme=scheme) as looked:
        looked.open("/runs/1")
        looked.wait("(n) => document.querySelectorAll('#events > li').length === n", 3 * len(TEXTS) + 2)  # fmt: skip
        shown = set(looked.texts("#events .from"))
        assert {visible(text) for text in TEXTS} <= shown
        looked.page.evaluate(
            "document.querySelectorAll('.row .more').forEach((one) => one.click())"
        )
        unfolded = "\n".join(looked.texts("#events pre"))
        assert "<script>alert(1)</script>" in unfolded
        assert "\u202e" not in unfolded
        spoken = "\n".join(looked.texts(".speech .text"))
        assert "\u202e" not in spoken
        assert "<script>alert(1)</script>" in spoken
        assert own_elements(looked) == []
        looked.open("/runs")
        looked.wait("document.querySelector('#main').dataset.changes > 0")
        tasks = set(looked.texts(".card .task"))
        assert {visible(text) for text in TEXTS if 0 < len(text) <= 100} <= tasks
        assert own_elements(looked) == []
        assert load_texts("web", language)["runs"] in looked.texts(".places a")


def own_elements(looked: Watched) -> list[str]:
    """Give what of the page could do something: each is of the console's own."""
    found: list[str] = looked.page.evaluate(SCRIPTS)
    return [html for html in found if "/static/" not in html]


def test_narrow_and_wide(browser: Any, base: str, writer: Writer) -> None:
    """Nothing stands beyond the edge of a telephone."""
    writer.add(1, "lifecycle.started", task="很长的任务" * 30)
    writer.add(1, "agent.tool_call", source="x" * 80, text="y" * 300)
    writer.say(1, "words " * 100)
    for size in ((360, 700), (1600, 900)):
        with looking(browser, base, size=size) as looked:
            for path in ("/runs", "/runs/1"):
                looked.open(path)
                looked.wait("document.querySelector('#link').dataset.state === 'live'")
                assert looked.width() <= size[0]


def test_how_long_a_run_is_kept(browser: Any, base: str, writer: Writer) -> None:
    """It is counted down where nobody writes; a writer extends it without an event."""
    writer.redis.set("bls_agent:{run:1:events}:owner", "writer")
    for run in (1, 2):
        writer.add(run, "lifecycle.started")
        writer.redis.expire(f"run:{run}:events", 59)
    with looking(browser, base) as looked:
        looked.open("/runs")
        looked.wait("document.querySelector('#link').dataset.state === 'live'")
        kept = looked.texts(".card .kept dd")
        looked.wait(
            """([, kept]) => {
                 const texts = [...document.querySelectorAll(".card .kept dd")];
                 return parseInt(texts[1].textContent) < parseInt(kept) - 1;
               }""",
            kept,
        )
        assert looked.texts(".card .kept dd")[0] == kept[0]
