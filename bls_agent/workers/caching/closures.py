"""What functions made by the same lines see around them: twins must not share results.

What a function closes over is no argument and no part of its key. So two of one name that
see different variables would be given each other's results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import CodeType
from typing import Any, Final
from weakref import WeakKeyDictionary

from bls_agent.codec import encode_sorted
from bls_agent.errors import ConfigurationError
from bls_agent.workers.caching.cached_function import CachedFunction
from bls_agent.workers.caching.canonical import NoCanonicalFormError, canonical_form

__all__ = ["Closures"]

_EMPTY: Final = object()  # of a function that calls itself, while it is being decorated


class Closures:
    """Refuses a closure that would share its results with a twin.

    A living twin is compared by what it sees. One that is gone has left its results in
    Redis: of it the plain values are remembered, as digests.
    """

    def __init__(self) -> None:
        """Begin with nobody."""
        self._last: WeakKeyDictionary[CodeType, tuple[str, list[bytes | None]]]
        self._last = WeakKeyDictionary()

    def check(self, declared: CachedFunction, living: CachedFunction | None) -> None:
        """Look at a new function, and remember it.

        Args:
            declared: The new one.
            living: Who has had its name until now.

        Raises:
            ConfigurationError: Two functions made by the same lines see different
                variables, and have one name.
        """
        code = getattr(declared.function, "__code__", None)
        seen = _variables(declared.function)
        if code is None or not seen:
            return
        forms = [_digest(value) for value in seen]
        if self._differs(code, declared, seen, forms, living):
            rule = "two functions with different variables around them share no results"
            raise ConfigurationError(
                "name", declared.name, rule, "Give each its own name=…"
            )
        self._last[code] = declared.name, forms

    def _differs(
        self,
        code: CodeType,
        declared: CachedFunction,
        seen: list[object],
        forms: list[bytes | None],
        living: CachedFunction | None,
    ) -> bool:
        if living is not None and getattr(living.function, "__code__", None) is code:
            others = _variables(living.function)
            return any(
                mine is not its and mine is not _EMPTY
                for mine, its in zip(seen, others, strict=True)
            )
        name, last = self._last.get(code, ("", []))
        return name == declared.name and any(
            mine != its for mine, its in zip(forms, last, strict=True) if mine and its
        )


def _variables(function: Callable[..., Any]) -> list[object]:
    return [_content(cell) for cell in getattr(function, "__closure__", None) or ()]


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _digest(value: object) -> bytes | None:
    try:
        return hashlib.sha256(encode_sorted(canonical_form(value))).digest()
    except NoCanonicalFormError:
        return None  # an object: nobody can tell whether it is like another
