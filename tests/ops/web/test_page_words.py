"""What stands on the pages: names in addresses, cards, words, languages, manuals."""

from __future__ import annotations

import importlib.resources
import re
import string
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import bls_agent.ops.web
from bls_agent.ops.fleet import ProjectView
from bls_agent.ops.terminal import visible_lines
from bls_agent.ops.texts import load_texts
from bls_agent.ops.web.feeds.assets import COLUMNS, STATES as ASSETS, SYNC_STATES
from bls_agent.ops.web.feeds.crawl import FIGURES, STATES as QUEUES, TOTALS
from bls_agent.ops.web.feeds.fleet import KINDS, make_card
from bls_agent.ops.web.feeds.workers import STATES
from bls_agent.ops.web.forms import KEPT, Entry, HelpCache, read_manual
from bls_agent.ops.web.pages.rendering import (
    choose_page_language,
    say_age,
)
from bls_agent.ops.web.requests import (
    project_in_path,
    project_in_query,
    project_path,
    quote_name,
)
from bls_agent.project.messages import Level, LogEntry, OutcomeKind
from bls_agent.runs import EventCategory, GapReason, RunState
from bls_agent.workers import TaskState
from bls_agent.workers.worker import HEARTBEATS
from tests.corpus.hostile_texts import HOSTILE_TEXTS

WEB = Path(bls_agent.ops.web.__file__).parent
NAMES = [
    "订单系统", "a/b", "a/../b", "../x", "a//b", "..", ".", "a?b#c", "a%2Fb", "a b", "{x}", "*",
    "\udcb6\udca9\udcb5\udca5", "/", "//evil.example", *HOSTILE_TEXTS.values(),
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_every_name_has_an_address(name: str) -> None:
    """The address of a page gives back the name, whatever bytes it is made of."""
    parts = urlsplit(project_path(name))
    assert parts.netloc == ""
    assert parts.path.isascii()
    assert parts.path.startswith("/projects/")
    assert not {".", ".."} & set(parts.path.split("/"))
    scope = {
        "raw_path": parts.path.encode(),
        "path": "/projects/x",
        "query_string": parts.query.encode(),
    }
    assert project_in_path(scope) == name
    scope["query_string"] = f"limit=1&projectName={quote_name(name)}".encode()
    assert project_in_query(scope) == name


def test_a_query_without_a_name() -> None:
    """A missing name is an empty one, as is one among a thousand fields."""
    assert project_in_query({"query_string": b""}) == ""
    flood = b"&".join([b"a=1"] * 1_000) + b"&projectName=x"
    assert project_in_query({"query_string": flood}) == ""


def view(name: str = "订单系统", **fields: Any) -> ProjectView:
    """Give a project as the fleet sees it."""
    return ProjectView(project=name, **fields)


def record(message: str, level: Level = Level.ERROR, **metadata: Any) -> LogEntry:
    """Give a record."""
    stamp = "2026-01-12T12:34:56.789Z"
    return LogEntry(timestamp=stamp, level=level, message=message, metadata=metadata)


def test_ages_go_on() -> None:
    """Who comes later is told ages of now."""
    seen = view(age=3.0, last_record_age=1.0, last_error_age=295.0)
    card = make_card(seen, elapsed=10.0)
    assert (card["age"], card["last"]) == (13.0, 11.0)
    assert card["error_age"] == 305.0
    assert make_card(view())["error_age"] is None


def test_long_errors_are_cut() -> None:
    """A card holds the beginning of an error."""
    card = make_card(view(last_error=record("x" * 70_000)))
    assert len(card["error"]) == 201


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "刚刚"),
        (1, "1 秒前"),
        (59.9, "59 秒前"),
        (60, "1 分钟前"),
        (3_599, "59 分钟前"),
        (7_200, "2 小时前"),
        (86_400 * 3, "3 天前"),
    ],
)
def test_ages(seconds: float, said: str) -> None:
    """Ages are said in the largest unit that fits."""
    assert say_age(load_texts("web", "zh"), seconds) == said


@pytest.mark.parametrize(
    ("query", "cookies", "accepted", "language"),
    [
        ({}, {}, "", "zh"),
        ({}, {}, "en-GB,en;q=0.9", "en"),
        ({}, {}, "de, zh-TW;q=0.8, en;q=0.5", "zh"),
        ({}, {"lang": "en"}, "zh-CN", "en"),
        ({"lang": "zh"}, {"lang": "en"}, "en", "zh"),
        ({"lang": "<x>"}, {"lang": "../"}, "fr", "zh"),
    ],
    ids=str,
)
def test_language(
    query: dict[str, str], cookies: dict[str, str], accepted: str, language: str
) -> None:
    """What was chosen counts, then the browser's wish, then the console's."""
    assert choose_page_language(query, cookies, accepted, "zh") == language


def test_catalogue_has_both_languages() -> None:
    """Both languages say the same things, with the same fields."""
    file = importlib.resources.files("bls_agent.ops") / "locale" / "web.toml"
    tables = tomllib.loads(file.read_text("utf-8"))
    parse = string.Formatter().parse
    fields = {
        language: {
            name: {field for _, field, _, _ in parse(text) if field}
            for name, text in texts.items()
        }
        for language, texts in tables.items()
    }
    assert set(tables) == {"en", "zh"}
    assert fields["en"] == fields["zh"]
    assert all(tables["zh"].values())
    assert {f"kind_{kind}" for kind in KINDS} <= fields["zh"].keys()
    outcomes = {f"js_outcome_{kind.value}" for kind in OutcomeKind}
    assert outcomes <= fields["zh"].keys()
    states = {f"worker_{state}" for state in STATES}
    meanings = {f"worker_means_{state}" for state in STATES}
    groups = {f"group_{kind}" for kind in HEARTBEATS}
    tasks = {f"js_task_{state}" for state in TaskState}
    assert states | meanings | groups | tasks <= fields["zh"].keys()
    assets = {f"asset_{state}" for state in ASSETS}
    assets |= {f"asset_means_{state}" for state in ASSETS}
    assets |= {f"sync_{state}" for state in SYNC_STATES}
    assets |= {f"config_{column}" for column in COLUMNS}
    assert assets <= fields["zh"].keys()
    queues = {f"queue_{state}" for state in QUEUES}
    queues |= {f"queue_means_{state}" for state in QUEUES}
    queues |= {f"figure_{name}" for name in (*FIGURES, *TOTALS)}
    assert queues <= fields["zh"].keys()
    runs = {f"run_{state}" for state in RunState}
    runs |= {f"run_means_{state}" for state in RunState}
    runs |= {f"category_{one}" for one in (*EventCategory, "other")}
    runs |= {f"js_run_gap_{reason}" for reason in GapReason}
    assert runs <= fields["zh"].keys()


def test_every_text_is_used() -> None:
    """No text is left of what is gone."""
    sources = [
        *WEB.rglob("*.py"),
        *WEB.glob("pages/templates/*"),
        *WEB.glob("static/*.js"),
    ]
    code = "\n".join(path.read_text("utf-8") for path in sources)
    made_up = (
        "kind_", "meaning_", "level_", "field_", "error_", "js_outcome_",
        "worker_", "group_", "js_problem_", "js_figure_", "run_", "category_",
        "js_run_gap_", "js_run_end_", "js_span_", "asset_", "sync_", "config_",
        "queue_", "figure_", "js_intake_", "js_task_",
    )  # fmt: skip
    unused = [
        name
        for name in load_texts("web", "en")
        if not name.startswith(made_up)
        and not re.search(
            rf"\b{name.removeprefix('js_').removesuffix('_sure')}\b", code
        )
    ]
    assert unused == []


def test_nothing_inline_and_nothing_foreign() -> None:
    """Templates hold no script, style or handler of their own, and no other host."""
    for path in WEB.glob("pages/templates/*"):
        text = path.read_text("utf-8")
        assert not re.search(r"<style|\bstyle=|\son\w+=|hx-on|javascript:", text), path
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), path
        assert "|safe" not in text.replace(" ", "")
        assert not re.search(r"https?://(?!www\.w3\.org)", text), path
    for path in [*WEB.glob("static/*.js"), *WEB.glob("static/*.css")]:
        if path.name != "htmx.min.js":
            text = path.read_text("utf-8")
            assert not re.search(r"innerHTML|insertAdjacentHTML|\beval\b", text), path
            assert "://" not in text, path


def test_lines_stay_lines() -> None:
    """A text of several lines keeps them, and nothing else that is obeyed."""
    assert visible_lines("a\r\nb\tc\u202e\nd") == "a\nb\\tc\\u202e\nd"


def test_manual() -> None:
    """What an agent tells of itself is read as far as it makes sense."""
    told: Any = [
        {"name": "reload", "description": "Again.", "parameters": {"type": "object"}},
        {"name": "odd", "description": 7, "parameters": "?"},
        {"name": "reload"},
        {"name": ""},
        {"name": "x" * 1_000},
        None,
        "ping",
    ]
    entries = read_manual(told)
    assert [entry.name for entry in entries] == ["odd", "reload"]
    assert entries[0].fields is None
    assert entries[1].description == "Again."
    odd: list[Any] = [None, {}, "help", 7]
    for nonsense in odd:
        assert read_manual(nonsense) == ()


def test_known_commands_outlive_a_question_without_an_answer() -> None:
    """They are replaced by an answer that has commands, or by their end."""
    manuals, known = HelpCache(), (Entry(name="reload"),)
    manuals.put("p", known, 0.0)
    assert manuals.put("p", (), 1.0).entries == known
    assert manuals.get("p", KEPT) is not None
    assert manuals.put("p", (Entry(name="stop"),), 2.0).entries[0].name == "stop"
    assert manuals.put("p", (), 3.0 + KEPT).entries == ()


def test_manuals_are_few_and_short_lived() -> None:
    """HelpCache are forgotten after a while, and the oldest beyond a number."""
    manuals = HelpCache()
    for number in range(600):
        manuals.put(f"p{number}", (), float(number) / 1_000)
    assert manuals.get("p0", 1.0) is None
    assert manuals.get("p599", 1.0) is not None
    assert manuals.get("p599", 2.0 + KEPT) is None
