"""What a host registers with its agent: handlers, fallback, middleware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast, overload

from bls_agent.errors import ConfigurationError
from bls_agent.project.router import (
    UNSET,
    CommandDecorator,
    Middleware,
    Router,
    Unset,
    name_of,
)
from bls_agent.project.threads import HandlerThreads, is_coroutine_function

__all__ = ["Registration"]

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Middleware)


class Registration:
    """The decorators of an agent; each gives the function back unchanged.

    Everything may be registered before the agent is opened and while it is open.
    """

    def __init__(self, router: Router, threads: HandlerThreads) -> None:
        """Remember where handlers are kept, and where plain ones run."""
        self._router = router
        self._threads = threads

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
