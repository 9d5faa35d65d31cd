"""What a host registers with its agent: handlers, fallback, middleware, health checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast, overload

from bls_agent.core.errors import ConfigurationError
from bls_agent.project.commands.router import (
    UNSET,
    CommandDecorator,
    Middleware,
    Router,
    Unset,
    name_of,
)
from bls_agent.project.status.health import (
    FAILURES,
    INTERVAL,
    TIMEOUT,
    Check,
    HealthCheck,
    HealthCheckDecorator,
    HealthChecks,
    name_of_check,
)
from bls_agent.runtime.threads import HandlerThreads, is_coroutine_function

__all__ = ["Registration"]

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Middleware)
C = TypeVar("C", bound=Check)


class Registration:
    """The decorators of an agent; each gives the function back unchanged.

    Everything may be registered before the agent is opened and while it is open.
    """

    def __init__(
        self, router: Router, threads: HandlerThreads, checks: HealthChecks
    ) -> None:
        """Remember where all of it is kept, and where plain handlers run."""
        self._router = router
        self._threads = threads
        self._checks = checks

    @overload
    def command(self, function: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def command(
        self, name: str | None = None, /, *, timeout: float | None = ...
    ) -> CommandDecorator: ...

    def command(
        self,
        function: Callable[P, R] | str | None = None,
        /,
        *,
        timeout: float | Unset | None = UNSET,
    ) -> Callable[P, R] | CommandDecorator:
        """Register a handler: ``@agent.command`` or ``@agent.command("name", …)``.

        The function is given back unchanged. It may be a coroutine function or a plain
        one, which runs in a thread. Arguments are bound by name and checked against
        the annotations before it runs; a parameter annotated
        :class:`~bls_agent.CommandContext` gets the context.

        Args:
            function: The handler, or the command's name (default: the function's).
            timeout: Seconds for this command; ``None`` for no limit.

        Raises:
            DuplicateHandlerError: The name has a handler already.
            ConfigurationError: The signature cannot be served.
        """
        if callable(function):
            return self._register(function, name_of(function), timeout)
        name = function

        def register(handler: Callable[P, R], /) -> Callable[P, R]:
            own = name_of(handler) if name is None else name
            return self._register(handler, own, timeout)

        return cast("CommandDecorator", register)

    def _register(
        self, function: Callable[P, R], name: str, timeout: float | Unset | None
    ) -> Callable[P, R]:
        _refuse_unbound(function, name)
        self._router.add(name, function, self._as_coroutine(function), timeout=timeout)
        return function

    def _as_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if is_coroutine_function(function):
            return function
        return self._threads.wrap(function)

    def fallback(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Register what runs for commands that nobody registered.

        It is called with the :class:`~bls_agent.CommandContext` alone.
        """
        self._router.set_fallback(self._as_coroutine(function))
        return function

    def middleware(self, function: M, /) -> M:
        """Put ``async (context, call_next) -> result`` around every command.

        The first one registered is the outermost.
        """
        if not is_coroutine_function(function):
            raise ConfigurationError(
                "middleware",
                repr(function),
                "a coroutine function (context, call_next)",
            )
        self._router.add_middleware(function)
        return function

    @overload
    def health_check(self, function: C, /) -> C: ...

    @overload
    def health_check(
        self,
        name: str | None = None,
        /,
        *,
        interval: float = ...,
        timeout: float = ...,
        failures: int = ...,
    ) -> HealthCheckDecorator: ...

    def health_check(
        self,
        function: C | str | None = None,
        /,
        *,
        interval: float = INTERVAL,
        timeout: float = TIMEOUT,
        failures: int = FAILURES,
    ) -> C | HealthCheckDecorator:
        """Let something be tried again and again; failing turns the status to 故障.

        ``@agent.health_check`` or ``@agent.health_check("name", …)``; from any thread.
        The function takes no arguments and is given back unchanged: a coroutine
        function, or a plain one, which runs in a thread. It fails if it raises,
        returns exactly ``False`` or takes longer than its timeout. The first call is
        made when the agent opens; a success after the alarm takes the 故障 back.

        Args:
            function: The check, or its name (default: the function's).
            interval: Seconds from the end of one call to the beginning of the next,
                less up to a fifth.
            timeout: Seconds a call may take.
            failures: Failures in a row that are an alarm.

        Raises:
            ConfigurationError: The name is taken, a number is out of range, or the
                function needs arguments or is a generator.
        """

        def register(check: C, /) -> C:
            name = function if isinstance(function, str) else name_of_check(check)
            self._checks.add(
                HealthCheck(
                    name=name,
                    function=check,
                    interval=interval,
                    timeout=timeout,
                    failures=failures,
                )
            )
            return check

        if callable(function):
            return register(function)
        return cast("HealthCheckDecorator", register)


def _refuse_unbound(function: Callable[..., Any], name: str) -> None:
    """Refuse a method without its object: nothing would give it ``self``."""
    place = getattr(function, "__qualname__", "").rpartition(".")[0]
    if not inspect.isfunction(function) or place.endswith("<locals>") or not place:
        return
    if next(iter(inspect.signature(function).parameters), "") in ("self", "cls"):
        rule = "in the body of a class there is no object yet whose method it could be"
        remedy = f"Register it in __init__: agent.command({name!r})(self.{function.__name__})."
        raise ConfigurationError("command", function.__qualname__, rule, remedy)
