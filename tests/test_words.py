"""Names are made of words that the field knows."""

from __future__ import annotations

import ast

import pytest

from tests.structure import (
    PRIVATE_WORDS,
    Trees,
    hiding_heads,
    hiding_names,
    parse,
    private_words,
    read_exceptions,
)


@pytest.fixture(scope="module")
def trees() -> Trees:
    """Parse every module, once for this file."""
    return parse()


def test_names_are_made_of_known_words(trees: Trees) -> None:
    """No name has a private word; a name that is plain now leaves the exceptions."""
    assert private_words(trees) == read_exceptions()["private_words"]


def test_a_name_says_what_it_holds(trees: Trees) -> None:
    """No variable hides what it holds; the exceptions count those that are left."""
    found = {module: len(hiding_names(tree)) for module, tree in trees.items()}
    left = {module: count for module, count in found.items() if count}
    assert left == read_exceptions()["hiding_names"]


def test_a_docstring_begins_with_a_plain_verb(trees: Trees) -> None:
    """A function returns, yields, checks, logs or drops; it does not give, tell or say."""
    assert [head for tree in trees.values() for head in hiding_heads(tree)] == []


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
