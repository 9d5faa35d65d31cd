"""The names of the key schema, all of them derived from the rows of ``keys.py``.

``RedisKeyPrefix``, ``RedisKeyPattern``, ``RedisKeyBuilder`` and ``RedisTTL`` are the four
lists of the schema. Nothing is listed here: a row called ``task_status`` is
``RedisKeyPrefix.TASK_STATUS``, ``RedisKeyPattern.TASK_STATUS_ALL``,
``RedisKeyBuilder.task_status(…)`` and ``RedisTTL.TASK_STATUS``. ``dir()`` tells all.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType
from typing import Any, Final, cast

from bls_agent.core.keys import KEYS, Contract, KeyTemplate

ROWS: Final[Mapping[str, KeyTemplate]] = MappingProxyType(
    {name: row for name, row in KEYS.items() if row.contract is Contract.WORKERS}
)


@cache
def _list_prefixes() -> dict[str, str]:
    heads = {name: row.template.partition("{")[0] for name, row in ROWS.items()}
    return {name.upper(): head.rstrip(":_") for name, head in heads.items()}


_FIELDS_AT_END: Final = re.compile(r"\*([:_]\*)+$")


def _pattern(row: KeyTemplate) -> str:
    """Write fields with nothing but separators between them as one ``*``."""
    return _FIELDS_AT_END.sub("*", row.pattern())


@cache
def _list_patterns() -> dict[str, str]:
    """Return one pattern for each kind of key that has fields, and two for namespaces."""
    found = {f"{n.upper()}_ALL": _pattern(row) for n, row in ROWS.items() if row.fields}
    return {"ALL_HEARTBEATS": "heartbeat:*", "ALL_GINKGO_KEYS": "ginkgo:*", **found}


@cache
def _list_ttls() -> dict[str, int]:
    found = {n.upper(): row.ttl for n, row in ROWS.items() if row.ttl is not None}
    return {**found, "FUNC_CACHE_DEFAULT": found["FUNC_CACHE"]}  # as in the schema


@cache
def _list_builders() -> dict[str, Callable[..., str]]:
    return {name: _make_builder(name, row) for name, row in ROWS.items()}


def _make_builder(name: str, row: KeyTemplate) -> Callable[..., str]:
    """Make the function that builds one kind of key, its fields as parameters."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(field, kind, annotation="str | int | UUID")
        for field in row.fields
    ]
    signature = inspect.Signature(parameters, return_annotation="str")

    def build(*values: object, **named: object) -> str:
        return row.build(**signature.bind(*values, **named).arguments)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"Make a key of the form ``{row.template}``."
    build.__signature__ = signature  # type: ignore[attr-defined] # for help() and editors
    return build


class _Derived(type):
    """A class whose attributes are derived from the rows of the table of keys."""

    _derive: Callable[[], Mapping[str, Any]]

    def _find(cls, name: str) -> Any:
        """Return what a row implies, or suggest the nearest name."""
        names = cls._derive()
        if name in names:
            return names[name]
        near = get_close_matches(name, names, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        message = f"{cls.__name__} has no {name!r}{hint}"
        raise AttributeError(message)

    def __dir__(cls) -> list[str]:
        return sorted({*super().__dir__(), *cls._derive()})


class _Texts(_Derived):
    def __getattr__(cls, name: str) -> str:
        return cast("str", cls._find(name))


class _Seconds(_Derived):
    def __getattr__(cls, name: str) -> int:
        return cast("int", cls._find(name))


class _Builders(_Derived):
    def __getattr__(cls, name: str) -> Callable[..., str]:
        return cast("Callable[..., str]", cls._find(name))


class RedisKeyPrefix(metaclass=_Texts):
    """What each kind of key begins with, without the separator."""

    _derive = staticmethod(_list_prefixes)


class RedisKeyPattern(metaclass=_Texts):
    """A glob pattern for each kind of key; for SCAN, never for KEYS.

    ``SYNC_PROGRESS_ALL`` and ``FUNC_CACHE_ALL`` match foreign keys as well: look at what
    you find.
    """

    _derive = staticmethod(_list_patterns)


class RedisKeyBuilder(metaclass=_Builders):
    """A function for each kind of key that makes it of its fields.

    A field is text, an integer or a UUID. Each raises
    :class:`~bls_agent.ConfigurationError` for a field that is empty or holds control
    characters, and ``TypeError`` for the wrong number of fields.
    """

    _derive = staticmethod(_list_builders)


class RedisTTL(metaclass=_Seconds):
    """Seconds that each kind of key lives after a write."""

    _derive = staticmethod(_list_ttls)


def extract_id_from_key(key: str | bytes, prefix: str) -> str:
    """Return the id that a key names.

    Args:
        key: The key, as text or as Redis gave it.
        prefix: What it begins with, with or without the ``:`` behind it.

    Returns:
        What follows the prefix; of a key that does not begin so, its last part.
    """
    text = key if isinstance(key, str) else key.decode("utf-8", "surrogateescape")
    if not text.startswith(prefix):
        return text.rpartition(":")[2]
    return text.removeprefix(prefix).removeprefix(":")
