"""Texts for people, in Chinese or English: catalogues and the reader's language.

``locale/`` has one file for each program, with one table for each language. The code
refers to a text by its key, and contains no Chinese text for people.
"""

from __future__ import annotations

import argparse
import importlib.resources
import tomllib
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, cast

Texts: TypeAlias = Mapping[str, str]

LANGUAGES: Final = ("zh", "en")


def find_language(arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    """Decide the language by ``--lang``, ``BLS_LANG`` and the locale."""
    if wanted := find_wanted_language(arguments, environ):
        return wanted
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    locale = next((environ[name] for name in names if environ.get(name)), "")
    return "zh" if locale.lower().startswith("zh") else "en"


def find_wanted_language(arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the language that ``--lang`` or ``BLS_LANG`` names, ``""`` without one.

    The arguments are not parsed yet. This function ignores an invalid ``--lang``, and the
    parser refuses it later.
    """
    words = find_value("--lang", arguments), environ.get("BLS_LANG", "").strip().lower()
    return next((word for word in words if word in LANGUAGES), "")


def find_value(option: str, arguments: Sequence[str]) -> str:
    """Return the value of an option in unparsed arguments, ``""`` if it is missing."""
    value = ""  # the last occurrence counts
    for index, word in enumerate(arguments):
        if word == "--":
            break
        if word == option:
            value = next(iter(arguments[index + 1 :]), value)
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
    return value


def load_texts(catalogue: str, language: str) -> Texts:
    """Read a catalogue (``demo``, ``doctor``, ``cli``, ``web``) in ``zh`` or ``en``."""
    file = importlib.resources.files("bls_agent.ops") / "locale" / f"{catalogue}.toml"
    tables = tomllib.loads(file.read_text("utf-8"))
    return cast("Texts", tables[language])


def make_parser(
    program: str, description: str, texts: Texts
) -> argparse.ArgumentParser:
    """Make the parser of a program that is started with ``python -m``.

    ``texts`` is the catalogue ``demo`` in the reader's language.
    """
    parser = argparse.ArgumentParser(program, description=description, add_help=False)
    parser.add_argument("-h", "--help", action="help", help=texts["opt_help"])
    parser.add_argument("--lang", choices=LANGUAGES, help=texts["opt_lang"])
    return parser
