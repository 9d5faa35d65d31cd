"""Every colour that is read stands out from what is behind it (WCAG 2.2, level AA)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bls_agent.ops.web

STYLE = (Path(bls_agent.ops.web.__file__).parent / "static/console.css").read_text(
    "utf-8"
)
KINDS = ("fault", "error", "odd", "stale", "offline", "online")
TEXT = 4.5  # least contrast of text, and 3 of what is no text (1.4.3, 1.4.11)
SHAPE = 3.0


def tokens() -> dict[str, tuple[str, str]]:
    """Give name → colour by day, colour by night."""
    found = re.findall(
        r"--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\)", STYLE.partition("}")[0]
    )
    return {name: (light, dark) for name, light, dark in found}


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


PAIRS = [
    *((name, ground, TEXT) for name in ("text", "soft", "accent", *KINDS) for ground in ("surface", "sunken", "ground", "hover")),
    *((kind, f"{kind}-ground", TEXT) for kind in KINDS),
    *(("text", f"{kind}-ground", TEXT) for kind in KINDS),
    ("accent", "accent-ground", TEXT),
    ("text", "accent-ground", TEXT),
    ("on-accent", "accent", TEXT),
    ("line-strong", "surface", SHAPE),
    ("line-strong", "ground", SHAPE),
]  # fmt: skip


@pytest.mark.parametrize("world", [0, 1], ids=["light", "dark"])
def test_contrast(world: int) -> None:
    """Texts have 4.5:1, edges of what can be typed into 3:1, by day and by night."""
    known = tokens()
    weak = {
        f"{name} on {ground}": round(found, 2)
        for name, ground, least in PAIRS
        if (found := contrast(known[name][world], known[ground][world])) < least
    }
    assert weak == {}
