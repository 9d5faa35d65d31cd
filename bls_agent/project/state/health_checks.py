"""What a health check may be, and which are registered.

What their results mean is decided in ``health.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from bls_agent.errors import ConfigurationError
from bls_agent.forking import register
from bls_agent.names import check_name

__all__ = [
    "FAILURES",
    "INTERVAL",
    "TIMEOUT",
    "Check",
    "HealthCheck",
    "HealthCheckDecorator",
    "HealthChecks",
    "name_of_check",
]

INTERVAL: Final = 10.0  # seconds from the end of one call to the beginning of the next
TIMEOUT: Final = 5.0  # seconds a call may take
FAILURES: Final = 2  # in a row: a single hiccup alarms nobody
LONGEST: Final = 86_400.0  # seconds, as in the settings

Check: TypeAlias = Callable[[], object]
C = TypeVar("C", bound=Check)


class HealthCheckDecorator(Protocol):
    """Registers a check and gives it back unchanged."""

    def __call__(self, function: C, /) -> C:
        """Register the function."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class HealthCheck:
    """A declared health check.

    Attributes:
        name: What it looks after, as records and ``stats()`` call it.
        function: Called without arguments; a coroutine function or a plain one.
        interval: Seconds from the end of one call to the beginning of the next.
        timeout: Seconds a call may take.
        failures: Failures in a row that turn the status to 故障.

    Raises:
        ConfigurationError: One of them cannot be served.
    """

    name: str
    function: Check
    interval: float = INTERVAL
    timeout: float = TIMEOUT
    failures: int = FAILURES

    def __post_init__(self) -> None:
        """Check every value."""
        check_name("health check", self.name)
        _check_seconds("interval", self.interval, INTERVAL)
        _check_seconds("timeout", self.timeout, TIMEOUT)
        if type(self.failures) is not int or self.failures < 1:
            rule = "a whole number from 1 on"
            remedy = f"Leave it out for {FAILURES} failures in a row."
            raise ConfigurationError("failures", self.failures, rule, remedy)
        _check_function(self.name, self.function)

    @property
    def source(self) -> str:
        """What the status board calls it."""
        return f"health check {self.name}"


def _check_seconds(name: str, value: object, default: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < cast("float", value) <= LONGEST:
        rule = f"more than 0 and at most {LONGEST:g} seconds"
        remedy = f"Leave it out for {default:g} seconds."
        raise ConfigurationError(name, value, rule, remedy)


def _check_function(name: str, function: object) -> None:
    """Refuse what cannot be called without arguments, or would not run when called."""
    field_name = f"health check {name}"
    if not callable(function):
        rule = "a function that is called without arguments"
        raise ConfigurationError(field_name, function, rule, "Give it the function.")
    plain: Any = function
    while isinstance(plain, partial):
        plain = plain.func
    for candidate in (plain, getattr(plain, "__call__", None)):  # noqa: B004 - as above
        if inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(
            candidate
        ):
            rule = "calling a generator function runs nothing of it"
            remedy = "Return or raise instead of yielding."
            raise ConfigurationError(field_name, "generator function", rule, remedy)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        rule = f"it is called without arguments ({error})"
        remedy = "Bind them before: functools.partial(function, …)."
        raise ConfigurationError(field_name, repr(function), rule, remedy) from None
    except ValueError:
        pass  # a builtin that does not tell: the first call will


def name_of_check(function: Check) -> str:
    """Give a check's own name, by which it is registered if no other is given.

    Raises:
        ConfigurationError: It has none, as a partial or a callable object.
    """
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        rule = "a check without a name is registered with one"
        remedy = 'Write agent.health_check("name")(function).'
        raise ConfigurationError("health_check", repr(function), rule, remedy)
    return name


class HealthChecks:
    """What is registered, from one opening of the agent to the next.

    Attributes:
        on_added: Called when one was added, in whatever thread that was.
        going_on: Name → Unix seconds at which the plain call began that has not
            returned. It outlives a session as its thread does, so that opening again
            and again does not pile up threads.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._checks: dict[str, HealthCheck] = {}
        self.on_added: Callable[[], None] = _nothing
        self.going_on: dict[str, float] = {}

    def forget_parent(self) -> None:
        """In a forked child: whatever goes on does so in the parent."""
        self.on_added = _nothing
        self.going_on = {}

    def add(self, check: HealthCheck) -> None:
        """Register a check; from any thread.

        Raises:
            ConfigurationError: The name is taken.
        """
        register(self)
        if self._checks.setdefault(check.name, check) is not check:
            rule = "a health check of this name is registered already"
            remedy = 'Choose another one: agent.health_check("name")(function).'
            raise ConfigurationError("name", check.name, rule, remedy)
        self.on_added()

    def list_checks(self) -> list[HealthCheck]:
        """Give every check, in order of registration."""
        return list(self._checks.values())

    def call(self, check: HealthCheck, now: float) -> object:
        """Call a plain check, noting as long as it lasts that it goes on."""
        self.going_on[check.name] = now
        try:
            return check.function()
        finally:
            self.going_on.pop(check.name, None)


def _nothing() -> None:
    pass
