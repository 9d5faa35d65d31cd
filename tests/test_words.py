"""Names are made of words that the field knows."""

from __future__ import annotations

import ast

import pytest

from tests.structure import (
    PRIVATE_WORDS,
    find_exceptions,
    hiding_heads,
    hiding_names,
    parse,
    private_words,
    read_exceptions,
)

HINT = "strike it out with `python -m tests.structure`"


def test_names_are_made_of_known_words() -> None:
    """No new module, class or function has a private word in its name."""
    listed = read_exceptions()["private_words"]
    new = {
        (word, name)
        for word, names in private_words(parse()).items()
        for name in names
        if name not in listed.get(word, ())
    }
    assert new == set()


def test_the_list_of_exceptions_shrinks() -> None:
    """A name that is gone, or has become a plain one, leaves the list of exceptions."""
    found = private_words(parse())
    left = {
        (word, name)
        for word, names in read_exceptions()["private_words"].items()
        for name in names
        if name not in found.get(word, ())
    }
    assert left == set(), HINT


def test_a_name_says_what_it_holds() -> None:
    """No module gets more variables that hide what they hold; each count only shrinks."""
    listed, found = read_exceptions()["hiding_names"], find_exceptions()["hiding_names"]
    assert {m: n for m, n in found.items() if n > listed.get(m, 0)} == {}
    assert {m: n for m, n in listed.items() if n > found.get(m, 0)} == {}, HINT


def test_a_docstring_begins_with_a_plain_verb() -> None:
    """A function returns, yields, checks, logs or drops; it does not give, tell or say."""
    assert [head for tree in parse().values() for head in hiding_heads(tree)] == []


def test_hiding_words_are_found_where_a_name_is_bound() -> None:
    """Arguments, variables and attributes count; a word within a word does not."""
    tree = ast.parse("def f(told):\n    x.gone_at = said_so = told\n    latest = 1")
    assert sorted(hiding_names(tree)) == ["gone_at", "said_so", "told"]
    assert hiding_heads(ast.parse('def f():\n    """Give it."""')) == ["Give it."]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("StallVoice", "voice"),
        ("_read_parts", "parts"),
        ("AGENTHome", "home"),
        ("lifespan", None),
        ("Homepage", None),
    ],
)
def test_words_are_found_in_names(name: str, word: str | None) -> None:
    """Names are taken apart at underscores and capitals, and words are whole ones."""
    assert word is None or word in PRIVATE_WORDS
    tree = ast.parse(f"def {name}(): ...")
    assert private_words({"m": tree}) == ({word: [name]} if word else {})
