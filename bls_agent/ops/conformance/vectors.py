"""Reads the vectors, which are rules of a protocol as test cases with exact bytes.

A file contains vectors of one level. Fields of the file apply to all its vectors.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from bls_agent.core.codec import JSONObject, decode_object

PACKAGE: Final = Path(__file__).parents[2]
FOLDERS: Final = (PACKAGE / "docs", PACKAGE.parent / "docs")  # installed, or a checkout
LARGEST: Final = 4 * 1024 * 1024  # bytes of a file


class Level(StrEnum):
    """Whether a program must, should or may pass a vector."""

    MUST = "must"  # a program that fails violates the protocol
    SHOULD = "should"  # the protocol recommends it
    MAY = "may"  # this package does it beyond the protocol


class Side(StrEnum):
    """The kind of program that is judged."""

    AGENT = "agent"
    CONSOLE = "console"
    WRITER = "writer"  # a program that writes the keys of another protocol
    READER = "reader"  # a program that reads these keys


@dataclass(frozen=True, kw_only=True)
class Vector:
    """One rule that is judged. Its id never changes."""

    id: str
    level: Level
    side: Side
    page: str  # a page of docs
    heading: str  # anchor of the page
    check: str  # name of the check in ``CHECKS``
    name: str  # name of the message; empty if ``titles`` has texts
    titles: Mapping[str, str]  # title of a behaviour, by language
    message: bytes  # element of the control list, with ``$WORD`` for a word
    values: JSONObject  # the other fields, which the check reads

    def title(self, language: str) -> str:
        return self.titles.get(language) or self.name


def find_document(name: str) -> Path:
    """Return the path of a file or folder in ``docs``, installed or in a checkout."""
    folder = next(one for one in FOLDERS if one.is_dir())
    return folder / name


@cache
def load_vectors() -> tuple[Vector, ...]:
    """Return all vectors, in the order of levels, files and lines."""
    folder = find_document("vectors")
    files = [
        file for level in Level for file in sorted(folder.glob(f"*/{level}/*.json"))
    ]
    return tuple(vector for file in files for vector in _read(file))


def _read(file: Path) -> Iterator[Vector]:
    document = decode_object(file.read_bytes(), limit=LARGEST)
    for case in document["cases"]:
        values = {**document, **case}
        yield Vector(
            id=values.pop("id"),
            level=Level(values.pop("level")),
            side=Side(values.pop("side")),
            page=values.pop("page", "protocol.md"),
            heading=values.pop("heading"),
            check=values.pop("check"),
            name=values.pop("name", ""),
            titles=values.pop("title", {}),
            message=read_bytes(values.pop("message", "")),
            values=values,
        )


def read_bytes(written: str | Mapping[str, Any]) -> bytes:
    """Return the bytes that a vector describes as text, base64 or a repeated unit."""
    if isinstance(written, str):
        return written.encode()
    if "text" in written:
        return str(written["text"]).encode()
    if "base64" in written:
        return base64.b64decode(written["base64"])
    build = written["build"]
    text: str = build["prefix"] + build["unit"] * build["times"] + build["suffix"]
    return text.encode(build.get("encoding", "utf-8"))
