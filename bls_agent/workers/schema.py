"""The names of the key schema, all of them derived from the rows of ``core/keys.py``.

``RedisKeyPrefix``, ``RedisKeyPattern``, ``RedisKeyBuilder`` and ``RedisTTL`` are the four
lists of the schema. This module makes their attributes from the rows. For example, the
row ``task_status`` becomes ``RedisKeyPrefix.TASK_STATUS``,
``RedisKeyPattern.TASK_STATUS_ALL``, ``RedisKeyBuilder.task_status(…)`` and
``RedisTTL.TASK_STATUS``. ``dir()`` of a list returns all its names.
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
    """Return the pattern of a row, with one ``*`` for all fields at the end."""
    return _FIELDS_AT_END.sub("*", row.pattern())


@cache
def _list_patterns() -> dict[str, str]:
    """Return a pattern for each kind of key with fields, and for two namespaces."""
    found = {f"{n.upper()}_ALL": _pattern(row) for n, row in ROWS.items() if row.fields}
    return {
        "ALL_HEARTBEATS": found["GENERIC_HEARTBEAT_ALL"],
        "ALL_GINKGO_KEYS": "ginkgo:*",
        **found,
    }


@cache
def _list_ttls() -> dict[str, int]:
    found = {n.upper(): row.ttl for n, row in ROWS.items() if row.ttl is not None}
    return {**found, "FUNC_CACHE_DEFAULT": found["FUNC_CACHE"]}  # a second name


@cache
def _list_builders() -> dict[str, Callable[..., str]]:
    return {name: _make_builder(name, row) for name, row in ROWS.items()}


def _make_builder(name: str, row: KeyTemplate) -> Callable[..., str]:
    """Make the function that builds one kind of key from its fields."""
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
    """The metaclass of a list, whose attributes come from the table of keys."""

    _derive: Callable[[], Mapping[str, Any]]

    def _find(cls, name: str) -> Any:
        """Return an attribute. The error for an unknown name suggests a known name."""
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
    """The beginning of each kind of key, without the separator."""

    _derive = staticmethod(_list_prefixes)


class RedisKeyPattern(metaclass=_Texts):
    """A glob pattern for each kind of key. Use the patterns for SCAN, not for KEYS.

    ``SYNC_PROGRESS_ALL`` and ``FUNC_CACHE_ALL`` also match keys of other programs, so
    check each key that you find.
    """

    _derive = staticmethod(_list_patterns)


class RedisKeyBuilder(metaclass=_Builders):
    """For each kind of key, a function that builds the key from its fields.

    A field is text, an integer or a UUID. Each function raises
    :class:`~bls_agent.ConfigurationError` for a field that is empty or contains control
    characters, and ``TypeError`` for the wrong number of fields.
    """

    _derive = staticmethod(_list_builders)


class RedisTTL(metaclass=_Seconds):
    """The TTL of each kind of key after a write, in seconds."""

    _derive = staticmethod(_list_ttls)


def extract_id_from_key(key: str | bytes, prefix: str) -> str:
    """Return the id in a key.

    Args:
        key: The key, as text or bytes.
        prefix: The beginning of the key, with or without the ``:`` after the prefix.

    Returns:
        The text after the prefix. If the key does not begin with the prefix, the text
        after its last ``:``.
    """
    text = key if isinstance(key, str) else key.decode("utf-8", "surrogateescape")
    if not text.startswith(prefix):
        return text.rpartition(":")[2]
    return text.removeprefix(prefix).removeprefix(":")
