"""JSON in which everything is printable: no terminal obeys it, and the values stay. Pure."""

from __future__ import annotations

import re
from typing import Final

from bls_agent.core.codec import encode

__all__ = ["escape_json", "json_text"]


def escape_json(text: str, encoding: str = "utf-8") -> str:
    r"""Write what is not printable, or not in an encoding, as JSON's ``\uXXXX``.

    The value stays the same: beyond its strings JSON is printable ASCII.
    """

    def escape(found: re.Match[str]) -> str:
        letter = found[0]
        if letter.isprintable() and _can_encode(letter, encoding):
            return letter
        units = letter.encode("utf-16-be", "surrogatepass")
        pairs = zip(units[::2], units[1::2], strict=True)
        return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs)

    return _UNUSUAL.sub(escape, text)


def json_text(value: object) -> str:
    """Write a value as JSON in which everything is printable, as a part of a line."""
    return escape_json(encode(value).decode())


_UNUSUAL: Final = re.compile(r"[^\x20-\x7e]")


def _can_encode(letter: str, encoding: str) -> bool:
    try:
        letter.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
