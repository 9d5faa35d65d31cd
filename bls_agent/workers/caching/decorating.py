"""What a decorated function is: declared, checked, marked, and found again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast

from bls_agent.errors import ConfigurationError
from bls_agent.workers.caching.arguments import Arguments
from bls_agent.workers.caching.cached_function import CachedFunction
from bls_agent.workers.caching.canonical import qualified_name
from bls_agent.workers.caching.counts import Counts
from bls_agent.workers.caching.policy import Policy

__all__ = [
    "CacheDecorator",
    "declare",
    "mark",
    "unwrap",
]

P = ParamSpec("P")
R = TypeVar("R")
MARK: Final = "__bls_agent_cached__"


class CacheDecorator(Protocol):
    """Keeps the results of a function; its type stays."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Give the function that looks into the cache first."""
        ...


def declare(
    function: Callable[..., Any],
    name: str | None,
    policy: Policy,
    counts: Counts,
    clock: Callable[[], float],
    *,
    ignore: Sequence[str],
    key: Callable[..., object] | None,
    dump: Callable[[Any], object] | None,
    load: Callable[[Any], Any] | None,
) -> CachedFunction:
    """Put together what is known of a function.

    Raises:
        ConfigurationError: It cannot be cached, or has no name of its own.
    """
    _check_kind(function)
    shown = name if name is not None else _name_of(function)
    arguments = Arguments(shown, function, ignore=ignore, key=key)
    return CachedFunction(shown, function, policy, arguments, dump, load, counts, clock)


def _check_kind(function: object) -> None:
    shown = type(function).__qualname__
    if isinstance(function, classmethod | staticmethod | property):
        rule = "what is cached is a function"
        remedy = f"Write @cached below @{shown}."
        raise ConfigurationError("function", shown, rule, remedy)
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError("function", shown, "what is cached is a function")
    called: tuple[Any, ...] = (function, getattr(type(function), "__call__", None))  # noqa: B004 - to look at
    if any(map(inspect.isgeneratorfunction, called)) or any(
        map(inspect.isasyncgenfunction, called)
    ):
        shown = str(getattr(cast("object", function), "__qualname__", shown))
        rule = "a generator has no result to keep"
        raise ConfigurationError("function", shown, rule, "Return a list.")


def _name_of(function: Callable[..., Any]) -> str:
    """Name a function as every process does.

    Raises:
        ConfigurationError: It has no name, or one that others have, too.
    """
    shown = getattr(function, "__qualname__", "")
    if not shown or shown.rpartition(".")[2] == "<lambda>":
        rule = "results stand under the function's name, and this one has none"
        raise ConfigurationError(
            "function", shown or type(function).__qualname__, rule, "Give it name=…"
        )
    return qualified_name(function)


def mark(
    wrapper: Callable[..., Any], cache: object, declared: CachedFunction
) -> Callable[..., Any]:
    """Write on a function what is known of it."""
    wrapper.__dict__[MARK] = (cache, declared)
    return wrapper


def unwrap(
    cache: object, function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[CachedFunction, tuple[Any, ...]]:
    """Find what is known of a function, and the arguments with a method's object.

    Raises:
        ConfigurationError: It is not a function of this cache.
    """
    plain = getattr(function, "__func__", function)
    owner, declared = getattr(plain, MARK, (None, None))
    if owner is not cache or declared is None:
        rule = "a function that this cache has decorated"
        shown = getattr(function, "__qualname__", type(function).__qualname__)
        raise ConfigurationError("function", shown, rule)
    if plain is not function and args:
        args = (getattr(function, "__self__", None), *args)
    return declared, args
