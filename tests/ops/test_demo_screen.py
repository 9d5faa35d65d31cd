"""What the demo puts on a terminal: readable everywhere, obeyed nowhere."""

from __future__ import annotations

import importlib.resources
import io
import string
import tomllib

import pytest

from bls_agent.core.codec import JSONObject, JSONValue
from bls_agent.ops.demo_story import STEPS, Screen
from bls_agent.ops.terminal import count_columns, visible, wrap
from bls_agent.ops.texts import Texts, choose_language, load_texts
from bls_agent.project.log.reading import gap_entry
from bls_agent.project.messages import Level, LogEntry, Status


def _show(
    entry: LogEntry,
    *,
    columns: int = 80,
    encoding: str = "utf-8",
    colours: bool = False,
) -> str:
    """Give what a record looks like on a terminal."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding, errors="backslashreplace")
    screen = Screen(stream, load_texts("demo", "en"), columns=columns, colours=colours)
    screen.entry(entry)
    return raw.getvalue().decode(encoding)


def _entry(message: str, **metadata: JSONValue) -> LogEntry:
    stamp = "2026-01-12T12:34:56.789Z"
    level = Level.INFO
    return LogEntry(timestamp=stamp, level=level, message=message, metadata=metadata)


def _fields(texts: Texts) -> dict[str, set[str]]:
    """Give the name of each text and the fields in it."""
    parse = string.Formatter().parse
    return {
        name: {field for _, field, _, _ in parse(text) if field}
        for name, text in texts.items()
    }


def test_catalogue_has_both_languages() -> None:
    """Both languages say the same things, with the same fields, and nothing else is there."""
    file = importlib.resources.files("bls_agent.ops") / "locale" / "demo.toml"
    tables = tomllib.loads(file.read_text("utf-8"))
    assert set(tables) == {"en", "zh"}
    assert _fields(tables["en"]) == _fields(tables["zh"])
    assert all(tables["zh"].values())


def test_catalogue_names_each_step_and_status() -> None:
    """Every step and every status has a text, and no text is of a step that is gone."""
    texts = load_texts("demo", "zh")
    steps = {name.removeprefix("step_") for name in texts if name.startswith("step_")}
    assert steps == set(STEPS)
    assert [texts[f"status_{status.name}"] for status in Status] == list(Status)


@pytest.mark.parametrize(
    ("environ", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "en_GB.UTF-8", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "zh_CN.GBK", "LC_ALL": "", "LC_MESSAGES": ""}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
    ],
    ids=["none", "lang", "messages", "all-wins", "empty-is-absent", "other"],
)
def test_language_of_the_locale(environ: dict[str, str], language: str) -> None:
    """The first of LC_ALL, LC_MESSAGES and LANG that says anything decides."""
    assert choose_language(environ) == language


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("订单 ok", "订单 ok"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b31m", r"\x9b31m"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\u202eolleh", r"\u202eolleh"),
        ("\udcff", r"\udcff"),
        ("\x00\x07\x7f", r"\x00\x07\x7f"),
    ],
    ids=["plain", "escape", "c1", "lines", "bidi", "surrogate", "controls"],
)
def test_control_characters_are_shown(text: str, shown: str) -> None:
    """What a terminal would obey is made visible."""
    assert visible(text) == shown


@pytest.mark.parametrize("columns", [1, 2, 3, 10, 24, 80])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "the quick brown fox jumps over the lazy dog " * 3,
        "x" * 100,
        "一二三四五，六七八九十。" * 4,
        "reload 被拒绝，没有丢失：会一直重发，直到 Redis 收下",
        "e\u0301" * 50,
        "，，，，，，",
    ],
    ids=["empty", "words", "long", "chinese", "mixed", "combining", "punctuation"],
)
def test_wrapping(text: str, columns: int) -> None:
    """Lines fit, nothing but blanks at their ends is lost, and there is an end."""
    lines = wrap(text, columns)
    assert all(count_columns(line) <= max(columns, 2) for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_words_stay_whole() -> None:
    """A line ends between two words, and no line begins with a full stop."""
    assert wrap("hello big world", 10) == ["hello big", "world"]
    assert wrap("一二三四，五", 8) == ["一二三", "四，五"]


@pytest.mark.parametrize("columns", [40, 80])
def test_record_from_a_stranger(columns: int) -> None:
    """Nothing in a record reaches the terminal as a control character, at any width."""
    hostile = "\x1b]0;owned\x07\x1b[2J\r\n" * 5
    shown = _show(_entry(hostile, name=hostile), columns=columns)
    assert all(count_columns(line) <= columns for line in shown.splitlines())
    assert all(letter == "\n" or letter.isprintable() for letter in shown)
    assert r"\x1b]0;owned\x07" in shown.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize(
    "stamp", ["", "yesterday", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"]
)
def test_record_with_an_odd_time(stamp: str) -> None:
    """A record without a usable time is shown all the same."""
    entry = LogEntry(timestamp=stamp, level=Level.WARN, message="odd")
    line = _show(entry)
    assert line.rstrip().endswith("warn   odd")


def test_long_record_is_cut() -> None:
    """A record of half a megabyte does not flood the terminal."""
    shown = _show(_entry("x" * 500_000, note="y" * 500_000))
    assert len(shown) < 4_000
    assert "…" in shown


def test_outcome_tells_what_matters() -> None:
    """Of an outcome's metadata only the result or the first bytes are shown."""
    done: JSONObject = {"outcome": "succeeded", "command": "reload", "durationMs": 1}
    shown = _show(_entry("done", agent="a#1", **done, result=[1]))
    assert shown.rstrip().endswith("done  result=[1]")
    gone: JSONObject = {"outcome": "discarded", "command": "", "durationMs": 0}
    error: JSONObject = {"reason": "not_utf8", "firstBytes": "\\xff"}
    shown = _show(_entry("gone", **gone, error=error))
    assert shown.rstrip().endswith(r'gone  firstBytes="\\xff"')


def test_gap_is_shown() -> None:
    """Records that are missing are spoken of."""
    assert "3 records are missing here" in _show(gap_entry(3))


def test_colours_only_where_they_are_wanted() -> None:
    """Escape sequences are ours, and only if asked for."""
    assert "\x1b[36minfo" in _show(_entry("hello"), colours=True)
    assert "\x1b" not in _show(_entry("hello"))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)  # fmt: skip
def test_a_terminal_may_want_no_colours(
    environ: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the usual variables; an empty NO_COLOR counts as none."""
    monkeypatch.setattr("sys.stdout", _Terminal())
    screen = Screen.on_stdout(environ, load_texts("demo", "en"))
    assert screen._colours is wanted


@pytest.mark.parametrize(
    ("encoding", "done", "failed"),
    [("utf-8", "✓", "✗"), ("gbk", "√", "×"), ("ascii", "+", "x")],  # noqa: RUF001 - GBK's own
)
def test_marks_that_the_terminal_knows(encoding: str, done: str, failed: str) -> None:
    """The table uses marks that can be encoded, and escapes what cannot."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding, errors="backslashreplace")
    screen = Screen(stream, load_texts("demo", "en"), columns=80, colours=False)
    screen.mark(0, "good", "")
    screen.mark(1, "bad", "for a reason \x1b")
    screen.mark(2, "not here", "")
    screen.status(Status.ONLINE)
    screen.status(None)
    lines = raw.getvalue().decode(encoding).splitlines()
    assert lines[:4] == [
        f"{done} good",
        f"{failed} bad",
        r"    for a reason \x1b",
        "- not here",
    ]
    shown = "在线" if encoding != "ascii" else r"\u5728\u7ebf"
    assert f"{shown} (online)" in lines[4]
    assert lines[5].endswith("none")
