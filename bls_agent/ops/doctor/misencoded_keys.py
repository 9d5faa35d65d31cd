"""Keys that were meant to be a project's and are not: other bytes for the same name.

A peer that writes GBK, full-width letters or a trailing newline puts its status under a
key that nobody reads. Pure: a key in, the key that was meant out.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, PROJECT_STATUS
from bls_agent.core.names import check_name
from bls_agent.ops.doctor.rule import show

__all__ = ["find_meant", "name_fault", "quote_name", "tidy_name"]

_ROWS = (PROJECT_STATUS, PROJECT_CONSOLE, CONTROL)


def find_meant(key: str) -> str | None:
    """Find the key of contract 002 that a key of no contract was meant to be.

    Args:
        key: The key; bytes that are not UTF-8 are kept as surrogates.

    Returns:
        The key that peers read, or ``None`` if it was not meant to be one.
    """
    if key.isascii():  # also UTF-16 has bytes that are not
        return None
    for meant in _other_readings(key):
        tidied = tidy_name(meant)
        if tidied != key and any(row.match(tidied) for row in _ROWS):
            return tidied
    return None


def _other_readings(key: str) -> Iterator[str]:
    """Give what the bytes may have meant, the likeliest first."""
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
    """Write a name as most people would type it: NFKC, nothing invisible, no blanks around."""
    if text.isprintable() and unicodedata.is_normalized("NFKC", text):
        return text.strip()
    plain = unicodedata.normalize("NFKC", text)
    kept = (
        letter for letter in plain if unicodedata.category(letter) not in _INVISIBLE
    )
    return "".join(kept).strip()


_INVISIBLE = frozenset({"Cc", "Cf"})


def name_fault(project: str) -> str:
    """Say which rule a project's name breaks, ``""`` if none.

    Agents of this package refuse such a name: the same one typed elsewhere is another
    key.
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
