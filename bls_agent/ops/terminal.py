"""Text from Redis for any terminal: control characters are shown, never sent."""

from __future__ import annotations

import unicodedata
from typing import Final

from bls_agent.core.codec import parse_timestamp

__all__ = ["CLOCK", "clock_of", "count_columns", "visible", "visible_lines", "wrap"]

CLOCK: Final = "%m-%d %H:%M:%S"


def visible(text: str) -> str:
    r"""Write what a terminal would obey (``\x1b``, ``\n``, bidi marks) as escapes."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def count_columns(text: str) -> int:
    """Count the columns of a terminal that a text fills."""
    return sum(map(_width, text))


def _width(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1


def wrap(text: str, columns: int) -> list[str]:
    """Cut a text into lines: between words, and anywhere between Chinese letters."""
    lines: list[str] = []
    while count_columns(text) > columns:
        end = _fitting(text, columns)
        blank = text.rfind(" ", end // 2, end + 1)
        cut = end if blank < 0 or _width(text[end]) > 1 else blank
        if cut > 1 and _is_wide_punctuation(text[cut]):  # it begins no line
            cut -= 1
        lines.append(text[:cut].rstrip(" "))
        text = text[cut:].lstrip(" ")
    return [*lines, text]


def _is_wide_punctuation(letter: str) -> bool:
    return _width(letter) > 1 and unicodedata.category(letter) in ("Pe", "Po")


def _fitting(text: str, columns: int) -> int:
    """Count the characters that fit; at least one, so that the loop ends."""
    used = 0
    for index, letter in enumerate(text):
        used += _width(letter)
        if used > columns:
            return max(index, 1)
    return len(text)


def visible_lines(text: str) -> str:
    """Escape a text of several lines and keep its lines."""
    return "\n".join(map(visible, text.replace("\r\n", "\n").split("\n")))


def clock_of(timestamp: str, form: str = CLOCK, columns: int = 14) -> str:
    """Give the local time of a record, whatever form its timestamp has."""
    moment = parse_timestamp(timestamp)
    try:
        local = moment.astimezone() if moment else None
    except (OverflowError, OSError, ValueError):  # the year 1, the year 9999
        local = None
    return local.strftime(form)[:columns] if local else f"{'--:--:--':>{columns}}"
