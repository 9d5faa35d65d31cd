"""Finds the project that a key of no contract was meant for. No I/O.

A peer that writes GBK, full-width letters or a trailing newline puts its status under a
key that no console reads.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, PROJECT_STATUS, check_name
from bls_agent.ops.doctor.rule import show

__all__ = ["find_meant", "name_fault", "quote_name", "tidy_name"]

_ROWS = (PROJECT_STATUS, PROJECT_CONSOLE, CONTROL)


def find_meant(key: str) -> str | None:
    """Find the key of a project that a foreign key was meant to be, or ``None``.

    ``key`` has surrogates for bytes that are not UTF-8.
    """
    if key.isascii():  # also UTF-16 has bytes that are not
        return None
    for meant in _other_readings(key):
        tidied = tidy_name(meant)
        if tidied != key and any(row.match(tidied) for row in _ROWS):
            return tidied
    return None


def _other_readings(key: str) -> Iterator[str]:
    """Decode and tidy the bytes in other ways, the likeliest first."""
    yield key
    raw = key.encode("utf-8", "surrogateescape")
    for encoding in ("gb18030", "big5", "utf-16-le", "utf-16"):
        yield from _decoded(raw, encoding)
    for encoding in ("gb18030", "cp1252", "latin-1"):  # UTF-8, read as that, written
        try:
            once = key.encode(encoding)
        except UnicodeEncodeError:
            continue
        yield from _decoded(once, "utf-8")


def _decoded(raw: bytes, encoding: str) -> Iterator[str]:
    try:
        yield raw.decode(encoding)
    except UnicodeDecodeError:
        return


def tidy_name(text: str) -> str:
    """Write a name as people type it: NFKC, nothing invisible, no outer blanks."""
    if text.isprintable() and unicodedata.is_normalized("NFKC", text):
        return text.strip()
    plain = unicodedata.normalize("NFKC", text)
    kept = (
        letter for letter in plain if unicodedata.category(letter) not in _INVISIBLE
    )
    return "".join(kept).strip()


_INVISIBLE = frozenset({"Cc", "Cf"})


def name_fault(project: str) -> str:
    """Give the rule that a project's name breaks, ``""`` if none.

    Agents of this package refuse such a name: typed elsewhere it would be another key.
    """
    try:
        check_name("project", project)
    except ConfigurationError as error:
        return error.rule
    return ""


def quote_name(project: str) -> str:
    """Quote a project's name, with what it says in GBK if its bytes are not UTF-8."""
    raw = project.encode("utf-8", "surrogateescape")
    try:
        raw.decode()
    except UnicodeDecodeError:
        read = next(_decoded(raw, "gb18030"), "")
        return f"{show(raw)} (GBK: {show(read)})" if read else show(raw)
    return show(repr(project))
