"""What a function was called with → a digest that names the result."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bls_agent.codec import JSONValue, encode_sorted
from bls_agent.errors import ConfigurationError
from bls_agent.workers.caching.canonical import NoCanonicalFormError, canonical_form

__all__ = ["DIGEST_LENGTH", "Arguments", "MisfitError"]

DIGEST_LENGTH: Final = 64  # hexadecimal digits of SHA-256

_PLAIN: Final = inspect.Parameter.POSITIONAL_OR_KEYWORD


class MisfitError(TypeError):
    """The function cannot be called like that; not what a ``key=…`` of the user raises."""


class Arguments:
    """Digests the arguments of one function.

    However they are passed, by place or by name, given or left at their default: what
    arrives in the function is what counts.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        ignore: Sequence[str] = (),
        key: Callable[..., object] | None = None,
    ) -> None:
        """Look at the signature once.

        Args:
            name: The function's, part of each digest.
            function: Whose arguments.
            ignore: Parameters that do not matter.
            key: Gives from the arguments what matters, instead of all of them.

        Raises:
            ConfigurationError: It has no signature, or ``ignore`` names no parameter
                of it, or a default can be no part of a key.
        """
        self._name = name
        self._key = key
        try:
            self._signature = inspect.signature(function)
        except (TypeError, ValueError):
            rule = "only a function with a signature can be cached"
            raise ConfigurationError("function", name, rule) from None
        parameters = self._signature.parameters
        if unknown := [each for each in ignore if each not in parameters]:
            rule = f"{name} has the parameters {', '.join(parameters) or '(none)'}"
            raise ConfigurationError("ignore", ", ".join(unknown), rule)
        self._ignored = frozenset(ignore)
        self._is_simple = all(each.kind is _PLAIN for each in parameters.values())
        self._names = tuple(parameters)
        self._defaults = {
            each.name: each.default
            for each in parameters.values()
            if each.default is not inspect.Parameter.empty
        }
        if key is None:
            for each, default in self._defaults.items():
                if each not in self._ignored:
                    self._form(each, default)

    def digest(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """Give 64 hexadecimal digits, the same wherever the function is called so.

        Raises:
            MisfitError: The function cannot be called like that.
            ConfigurationError: An argument has no canonical form.
        """
        if self._key is not None:
            self._bind_exactly(args, kwargs)
            found: JSONValue = [self._form("key", self._key(*args, **kwargs))]
        else:
            found = self._forms(args, kwargs)
        return hashlib.sha256(encode_sorted([self._name, found])).hexdigest()

    def _forms(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> dict[str, JSONValue]:
        bound = self._bind(args, kwargs)
        return {
            name: self._form(name, value)
            for name, value in bound.items()
            if name not in self._ignored
        }

    def _bind(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Mapping[str, object]:
        """Do what a call does; most calls need none of inspect's twenty times slower."""
        if self._is_simple and len(args) <= len(self._names):
            given = dict(zip(self._names, args, strict=False))
            bound = {**self._defaults, **kwargs, **given}
            is_whole = len(bound) == len(self._names)
            if is_whole and (not kwargs or self._fits(given, kwargs)):
                return bound
        exact = self._bind_exactly(args, kwargs)
        exact.apply_defaults()
        return exact.arguments

    def _bind_exactly(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise MisfitError(*error.args) from None

    def _fits(self, given: Mapping[str, object], kwargs: Mapping[str, object]) -> bool:
        return given.keys().isdisjoint(kwargs) and set(self._names).issuperset(kwargs)

    def _form(self, name: str, value: object) -> JSONValue:
        try:
            return canonical_form(value)
        except NoCanonicalFormError as error:
            where = f"{self._name}({name}=…)"
            raise ConfigurationError(
                where,
                type(value).__qualname__,
                f"what a result is cached under must be the same everywhere, and {error}",
                f'Leave it out with ignore=("{name}",), or say with key=… what matters.',
            ) from None
