"""Which language a reader wants: what was chosen on the page, else the browser's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlencode

from bls_agent.texts import LANGUAGES

__all__ = ["LANGUAGE_TAGS", "choose_page_language", "in_other_language"]

LANGUAGE_TAGS: Final = {"zh": "zh-CN", "en": "en"}
MOST_RANGES: Final = 20  # of an Accept-Language header that are read
MOST_FIELDS: Final = 50


def choose_page_language(
    query: Mapping[str, str], cookies: Mapping[str, str], accepted: str, fallback: str
) -> str:
    """Choose ``zh`` or ``en``.

    Args:
        query: ``lang`` in the address is asked first.
        cookies: Then ``lang`` among the cookies.
        accepted: Then the header ``Accept-Language``.
        fallback: The language for everybody else.
    """
    for chosen in (query.get("lang"), cookies.get("lang")):
        if chosen in LANGUAGES:
            return chosen
    return _by_header(accepted) or fallback


def _by_header(accepted: str) -> str:
    """Give the first of ours by weight, ``""`` if there is none."""
    weighed: list[tuple[float, str]] = []
    for wanted in accepted.split(",")[:MOST_RANGES]:
        tag, _, parameter = wanted.partition(";")
        language = tag.strip().lower().partition("-")[0]
        if language in LANGUAGES:
            weighed.append((-_weight(parameter), language))
    return min(weighed, key=lambda pair: pair[0])[1] if weighed else ""


def _weight(parameter: str) -> float:
    name, _, value = parameter.strip().partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0


def in_other_language(query: str, language: str) -> str:
    """Give the address of the same page in another language, relative to it.

    Args:
        query: The page's query, quoted.
        language: ``zh`` or ``en``.
    """
    fields = [("lang", language)]
    for name, value in parse_qsl(
        query, keep_blank_values=True, errors="surrogateescape"
    )[:MOST_FIELDS]:
        if name != "lang":
            fields.append((name, value))
    return f"?{urlencode(fields, errors='surrogateescape')}"
