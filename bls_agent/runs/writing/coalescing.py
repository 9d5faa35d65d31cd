"""Pieces of a text that follow each other become one event; no I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bls_agent.runs.writing.emitted import Emitted

__all__ = ["LONGEST", "merge"]

LONGEST: Final = 65_535  # bytes of a merged text
_WIDEST: Final = 6  # bytes of a character in JSON at most: \u001b, a lone surrogate


def merge(events: Sequence[Emitted], limit: int) -> list[Emitted]:
    """Join neighbouring pieces of a text whose sources and other fields are equal.

    All texts together say the same before and after. A merged event has the time of its
    first piece; a merged text stays below 64 KiB, and nothing that is merged has to be
    cut.

    Args:
        events: In their order.
        limit: Longest data of an event in bytes.
    """
    merged: list[Emitted] = []
    texts: list[str] = []
    size = room = 0
    for event in events:
        width = _width(event.text)
        if texts and _continues(merged[-1], event):
            if len(texts) == 1:
                room = min(LONGEST, limit - _beside(merged[-1], limit))
            fits = size + width <= room
        else:
            fits = False
        if fits:
            texts.append(event.text)
            size += width
            continue
        _join(merged, texts)
        merged.append(event)
        texts, size = ([event.text], width) if event.shape is not None else ([], 0)
    _join(merged, texts)
    return merged


def _continues(first: Emitted, event: Emitted) -> bool:
    return first.shape == event.shape and first.source == event.source


def _join(merged: list[Emitted], texts: Sequence[str]) -> None:
    if len(texts) > 1:  # in a new event: a batch may be made once more
        merged[-1] = replace(merged[-1], text="".join(texts))


def _beside(event: Emitted, limit: int) -> int:
    """Count the bytes of its data but for the text."""
    payload, was_cut = replace(event, text="").encode(limit)
    return limit if was_cut else len(payload)


def _width(text: str) -> int:
    """Say how long a text becomes in JSON at most."""
    plain = text.isascii() and text.isprintable()
    if plain and '"' not in text and "\\" not in text:
        return len(text)
    return len(text) * _WIDEST
