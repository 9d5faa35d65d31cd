"""Names are made of words that the field knows."""

from __future__ import annotations

import ast

import pytest

from tests.structure import PRIVATE_WORDS, parse, private_words, read_exceptions

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
