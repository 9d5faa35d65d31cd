"""Project names in addresses: of any bytes, because foreign keys hold any bytes. Pure.

A name may hold ``/`` and be ``..``, and where a key is no UTF-8 its bytes stand in the
name as surrogates. Addresses carry the bytes, so that each name comes back as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote

__all__ = ["FIELD", "project_in_path", "project_in_query", "project_path", "quote_name"]

PROJECTS: Final = "/projects/"
FIELD: Final = "projectName"
UNSPEAKABLE: Final = frozenset({"", ".", ".."})  # a browser takes them out of a path
MOST_FIELDS: Final = 50


def quote_name(name: str) -> str:
    """Write a name for a part of an address."""
    return quote(name.encode("utf-8", "surrogateescape"), safe="")


def project_path(name: str) -> str:
    """Give the address of a project's page."""
    quoted = quote_name(name)
    if name in UNSPEAKABLE:
        return f"{PROJECTS}?{FIELD}={quoted}"
    return f"{PROJECTS}{quoted}"


def project_in_path(scope: Mapping[str, Any]) -> str:
    """Read the name from the address of a project's page.

    Args:
        scope: Of the ASGI connection.
    """
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    path = raw.partition(b"?")[0].decode("ascii", "replace")
    path = path.removeprefix(scope.get("root_path", ""))
    _, found, quoted = path.partition(PROJECTS)
    if not found or not quoted:
        return project_in_query(scope)
    return unquote(quoted, errors="surrogateescape")


def project_in_query(scope: Mapping[str, Any]) -> str:
    """Read ``projectName`` of a query, ``""`` if there is none."""
    query: bytes = scope.get("query_string", b"")
    try:
        fields = parse_qsl(
            query.decode("ascii", "replace"),
            keep_blank_values=True,
            errors="surrogateescape",
            max_num_fields=MOST_FIELDS,
        )
    except ValueError:
        return ""
    return next((value for name, value in fields if name == FIELD), "")
