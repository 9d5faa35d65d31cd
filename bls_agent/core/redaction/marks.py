"""A quick look at a text: does anything in it need a closer one?

What the closer look does (``texts.py``, ``shapes.py``) is loaded when it
is first needed; this is all that most texts ever see. Pure.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

__all__ = [
    "MARKS",
    "REDACTED",
    "SHAPE_MARKS",
    "holds_mark",
    "holds_odd_url",
    "may_name",
]

REDACTED: Final = "[redacted]"

_Marks: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
# What a shape begins with, by a character of it that is seldom in a text.
SHAPE_MARKS: Final[_Marks] = (
    ("_", ("ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_", "k_live_", "k_test_",
           "npm_")),
    ("-", ("glpat-", "xox", "sk-", "-----BEGIN")),
    ("A", ("AKIA", "ASIA", "AKID", "LTAI", "AIza")),
    ("J", ("eyJ",)),
    (" ", ("earer ", "Basic ")),
)  # fmt: skip
MARKS: Final[_Marks] = (
    *SHAPE_MARKS,
    ("\\", ("\\x", "\\u", "\\/")),  # a name or a URL may be written with escapes
    ("%", ("%3A%2F%2F", "%3a%2f%2f", "%3D", "%3d")),  # of a URL within a URL
    ("_", ("input_value=",)),
    (",", ("Value error,", "Assertion failed,")),
)
_FAR_SIGN: Final = re.compile(r"[\uff1a\uff1d]")
_DASH: Final = re.compile(r"(?<![\w.\-])--?[A-Za-z]")
# The beginning of a URL that is not simply a host and a port.
_ODD_URL: Final = re.compile(
    r"://(?![^\s\"'</?#\\@:,\[\]]*+(?::[0-9]{1,5})?+(?:[\s\"'</?#\\]|\Z))",
    re.ASCII,  # a character is a byte here
)


def holds_mark(text: str, marks: _Marks) -> bool:
    """Tell whether one of the marks stands in a text."""
    for gate, beginnings in marks:
        if gate in text:
            for beginning in beginnings:
                if beginning in text:
                    return True
    return False


def holds_odd_url(text: str) -> bool:
    """Tell whether a URL may hold credentials.

    Args:
        text: UTF-8 bytes, a character for each.
    """
    return "://" in text and ("@" in text or _ODD_URL.search(text) is not None)


def may_name(text: str) -> bool:
    """Tell whether a text may hold a name and its value at all."""
    return (
        ":" in text
        or "=" in text
        or "<" in text
        or "'," in text  # ('password', …)
        or '",' in text
        or not (text.isascii() or _FAR_SIGN.search(text) is None)
        or ("-" in text and _DASH.search(text) is not None)
    )
