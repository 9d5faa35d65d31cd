"""The catalogues of the programs, and text for any terminal."""

from __future__ import annotations

import importlib.resources
import string
import tomllib

import pytest

from bls_agent.ops.terminal import count_columns, visible, wrap


def fields_of(text: str) -> set[str]:
    return {field for _, field, _, _ in string.Formatter().parse(text) if field}


@pytest.mark.parametrize("catalogue", ["cli", "demo", "doctor", "interface"])
def test_both_languages_say_the_same(catalogue: str) -> None:
    """The same texts with the same fields, and none is forgotten."""
    file = importlib.resources.files("bls_agent.ops") / "locale" / f"{catalogue}.toml"
    tables = tomllib.loads(file.read_text("utf-8"))
    assert tables.keys() == {"zh", "en"}
    assert list(tables["zh"]) == list(tables["en"])
    for key, text in tables["en"].items():
        assert text.strip(), key
        assert tables["zh"][key].strip(), key
        if not key.startswith(("help_", "opt_", "arg_")):  # shown as they are
            assert fields_of(text) == fields_of(tables["zh"][key]), key


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
def test_wrapping(text: str) -> None:
    """Lines fit, nothing but blanks at their ends is lost, and there is an end."""
    for columns in (1, 2, 3, 10, 24, 80):
        lines = wrap(text, columns)
        assert all(count_columns(line) <= max(columns, 2) for line in lines), columns
        assert "".join(lines).replace(" ", "") == text.replace(" ", ""), columns


def test_words_stay_whole() -> None:
    """A line ends between two words, and no line begins with a full stop."""
    assert wrap("hello big world", 10) == ["hello big", "world"]
    assert wrap("一二三四，五", 8) == ["一二三", "四，五"]
