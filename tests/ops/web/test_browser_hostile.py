"""Everything that comes out of Redis is displayed as text by a real Chromium, never obeyed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from redis import Redis

from bls_agent.devserver import DevServer
from bls_agent.ops.terminal import visible
from bls_agent.ops.texts import load_texts
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.forms import read_manual
from tests.corpus.hostile_texts import HOSTILE_TEXTS
from tests.corpus.loader import load_commands
from tests.ops.web.browsers import Foreign, Watched, looking, record
from tests.ops.web.serving import served

NAME = "订单系统"
ODD = "类型"
TEXTS = list(HOSTILE_TEXTS.values())
SHORT = {visible(text) for text in TEXTS if text == text.strip() and len(text) <= 20}
WORLDS = [("zh", "light"), ("en", "dark")]  # each language and each scheme once
UP = """(beginning) => { document.querySelector("#log").scrollTop = 0;
  return document.querySelector("#log-top").textContent === beginning; }"""
SCRIPTS = "[...document.querySelectorAll('script, iframe, object, embed, base, style, link, form, img')].map((one) => one.outerHTML)"


def outcome(text: str) -> bytes:
    """Write the outcome of a command in which everything is hostile."""
    return record(
        text, commandId=text, command=text, outcome="failed", durationMs=1,
        error={"type": text, "message": text, text: text},
    )  # fmt: skip


def odd_types() -> list[bytes]:
    """Write records of the right fields with wrong types, and one that is right."""
    trap: Any = {"toString": 1, "valueOf": 1}
    ended: Any = {"command": trap, "commandId": "c", "durationMs": 1}
    return [
        record("x", sentBy="x", commandId="c", command=trap, args={}),
        record("x", outcome="dreamt", **ended),
        record("x", outcome="failed", error={"type": trap, "message": trap}, **ended),
        record("x", exception={"type": trap, "message": trap}),
        record("the last one"),
    ]


def manual() -> list[Any]:
    """Write an answer to help in which everything is hostile."""
    schema = {
        f"p{number}": {
            "type": "string",
            "title": text,
            "description": text,
            "default": text,
        }
        for number, text in enumerate(TEXTS)
    } | {"choice": {"enum": TEXTS, "description": TEXTS[0]}}
    return [
        {
            "name": "all",
            "description": "\n".join(TEXTS),
            "parameters": {"properties": schema},
        },
        *(
            {
                "name": text,
                "description": text,
                "parameters": {"properties": {text: {}}},
            }
            for text in TEXTS
        ),
    ]


@pytest.fixture(scope="module")
def base(browser: Any) -> Iterator[str]:
    """A console over a Redis full of hostile texts."""
    with DevServer() as server, Redis.from_url(server.url, protocol=2) as redis:
        project = Foreign(redis, NAME)
        project.status("在线")
        for text in TEXTS:
            project.log(
                record(text, "error", **{text: text, "list": [text, {text: text}]})
            )
            project.log(outcome(text), text.encode())
            project.log(
                orjson.dumps({"message": text, "level": text, "timestamp": text})
            )
            named = Foreign(redis, f"n{text}")
            named.status(text)
            named.log(record(text, "error"))
        for item in load_commands():
            if not item.slow:
                project.log(item.payload[:100_000])
        Foreign(redis, ODD).log(*odd_types())
        redis.set("订单系统_项目状态".encode("gbk"), "在线")
        redis.rpush("订单系统_项目控制台".encode("gbk"), record("GBK"))
        redis.set("../..//a?b#c_项目状态", "在线")
        with served(WebConfig(redis=server.url, port=0)) as console:
            known = read_manual(manual())
            console.app.web.manuals.put(NAME, known, time.monotonic())
            yield console.url


def own_elements(looked: Watched) -> list[str]:
    """Give what of the page could do something: each is of the console's own."""
    found: list[str] = looked.page.evaluate(SCRIPTS)
    return [html for html in found if "/static/" not in html and "hx-post=" not in html]


@pytest.mark.parametrize(("language", "scheme"), WORLDS)
def test_the_corpus_on_the_wallboard(
    browser: Any, base: str, language: str, scheme: str
) -> None:
    """Names, statuses and errors: all are there as text, once served and once live."""
    with looking(browser, base, language=language, scheme=scheme) as looked:
        looked.open("/")
        names = {visible(f"n{text}") for text in TEXTS} | {NAME}
        for _ in ("as it was served", "as the stream told it"):
            looked.wait(
                "(n) => document.querySelectorAll('.card').length > n", len(TEXTS)
            )
            assert names <= set(looked.texts(".card a"))
            assert {visible(text) for text in TEXTS} <= set(
                looked.texts(".card .last bdi")
            )
            assert set(looked.texts(".odd")) >= SHORT
            assert own_elements(looked) == []
            looked.wait("document.querySelector('#main').dataset.changes > 0")


@pytest.mark.parametrize(("language", "scheme"), WORLDS)
def test_the_corpus_on_a_project_page(
    browser: Any, base: str, language: str, scheme: str
) -> None:
    """Records, metadata, outcomes and commands: all are there as text."""
    with looking(browser, base, language=language, scheme=scheme) as looked:
        page = looked.page
        looked.open_project(NAME)
        looked.wait("document.querySelectorAll('#records .row').length === 200")
        looked.wait(UP, load_texts("web", language)["js_beginning"])
        shown = looked.texts("#records .text")
        for text in TEXTS:
            assert any(row.startswith(visible(text)) for row in shown), text
        page.evaluate(
            "document.querySelectorAll('.row .more').forEach((one) => one.click())"
        )
        unfolded = "\n".join(looked.texts("#records pre"))
        assert "<script>alert(1)</script>" in unfolded
        assert "\u202e" not in unfolded
        options = page.locator("select[name=chosen] option").all_text_contents()
        assert {visible(text) for text in TEXTS} <= set(options)
        page.select_option("select[name=chosen]", label="all")
        page.locator("[name='arg.p0']").wait_for()
        assert own_elements(looked) == []
        page.select_option(
            "[name='arg.choice']", label=visible(HOSTILE_TEXTS["script"])
        )
        image = HOSTILE_TEXTS["image"]
        page.fill(f"[name='arg.p{TEXTS.index(image)}']", image)
        page.click("#command button.main")
        page.locator(".review .code").wait_for()
        told = page.locator(".review .code").text_content()
        assert visible(orjson.dumps(image).decode()) in told
        assert own_elements(looked) == []


def test_odd_types_hide_no_record(browser: Any, base: str) -> None:
    """A record that nobody could foresee must not keep the page from the others."""
    with looking(browser, base) as looked:
        looked.open_project(ODD)
        looked.wait("document.querySelectorAll('#records .row').length === 5")
        assert looked.texts("#records .text")[-1] == "the last one"
        assert len(looked.texts("#sent li")) == 1


def test_every_hostile_name_has_a_page(browser: Any, base: str) -> None:
    """A project may be called anything: its page opens, and speaks of it."""
    with looking(browser, base, expected=("404",)) as looked:
        looked.open("/")
        looked.wait("(n) => document.querySelectorAll('.card').length > n", len(TEXTS))
        links = looked.page.locator(".card .head a")
        found = links.evaluate_all(
            "(all) => all.map((one) => [one.getAttribute('href'), one.textContent])"
        )
        odd = [pair for pair in found if "%" in pair[0] and pair[1] != NAME]
        assert len(odd) >= len(TEXTS)
        for path, name in odd[::6] + [pair for pair in odd if "\\udc" in pair[1]]:
            assert looked.open(path).status == 200
            assert looked.page.locator("h1").text_content() == name
            looked.page.locator("form.command").wait_for()
            assert own_elements(looked) == []


def test_hostile_addresses(browser: Any, base: str) -> None:
    """What somebody puts into a link is displayed as text, too."""
    with looking(browser, base, expected=("404", "400")) as looked:
        for name in ("script", "attribute-double", "htmx-out-of-band", "base"):
            text = HOSTILE_TEXTS[name]
            looked.open_project(text)
            shown = looked.page.locator(".subject").text_content()
            assert shown == visible(text)
            assert own_elements(looked) == []
            looked.open(f"/login?next={text}&lang={text}")
            following = looked.page.locator("[name=next]")
            assert following.get_attribute("value") == "/"
