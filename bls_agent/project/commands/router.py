"""Finds the handler of a command, converts its arguments, and calls the middleware.

A handler here is always a coroutine function, because ``ProjectAgent`` wraps plain
functions before it registers them. This module does no I/O, and uses no threads and no
clock.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar

from bls_agent.core.checks import check_seconds
from bls_agent.core.codec import JSONObject
from bls_agent.core.errors import (
    ArgumentError,
    ConfigurationError,
    DuplicateHandlerError,
    UnknownCommandError,
)
from bls_agent.core.keys import check_name
from bls_agent.project.commands.arguments import (
    NOT_KNOWN,
    Fields,
    compile_check,
    gather_definitions,
    resolve_hints,
)
from bls_agent.project.log.log import Log


@dataclass(frozen=True, kw_only=True)
class CommandContext:
    """The command that is being run.

    If a parameter of a handler is annotated with this class, the agent passes the
    context of the command to this parameter.

    Attributes:
        id: The id of the command. If the sender has set none, the agent makes one.
        command: The name of the command.
        timestamp: The time when the command was sent, as text from the sender, or
            ``""``.
        source: The name of the sender, or ``""``.
        args: The arguments from the sender, before they are checked and converted.
        delivery: How often agents have taken this command from Redis, including this
            time. The number is above 1 only in mode ``reliable``.
        deadline: The time when the agent cancels the handler, in seconds on the clock
            of ``anyio.current_time()``. ``None`` if the handler has no timeout.
        log: The agent's log. Each record that is written with it contains the id of
            this command.
    """

    id: str
    command: str
    timestamp: str = ""
    source: str = ""
    args: JSONObject = field(default_factory=dict[str, Any], repr=False)  # secrets
    delivery: int = 1
    deadline: float | None = None
    log: Log


CallNext: TypeAlias = Callable[[CommandContext], Awaitable[Any]]
"""The function that a middleware calls to run the next middleware or the handler.

``await call_next(context)`` returns the result of the handler, or raises its error. If
a middleware does not call ``call_next``, the handler does not run, and the return value
of the middleware is the result of the command. A middleware may pass a changed copy of
the context to ``call_next``, such as ``dataclasses.replace(context, args=…)``.
"""

P = ParamSpec("P")
R = TypeVar("R")
Middleware: TypeAlias = Callable[[CommandContext, CallNext], Awaitable[Any]]


class CommandDecorator(Protocol):
    """The type of the decorator ``agent.command(...)``.

    The decorator returns the function unchanged, so its type stays the same.
    """

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


class Unset(Enum):
    """The type of :data:`UNSET`, the default of options that may be ``None``."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
_GENERATORS: Final = (types.GeneratorType, types.AsyncGeneratorType)
_NO_GENERATOR: Final = "a handler returns its result; it is no generator"


@dataclass(frozen=True, eq=False)
class Handler:
    """A function that was registered for a command, with checks of its arguments."""

    name: str
    call: Callable[..., Awaitable[Any]]  # a coroutine function
    fields: Fields  # its parameters; ``fields.extra`` is the check of ``**kwargs``
    context_name: str | None  # the parameter that gets the CommandContext
    timeout: float | Unset | None  # seconds; UNSET for the agent's default
    description: str  # the first paragraph of the function's docstring

    def bind(self, context: CommandContext) -> dict[str, Any]:
        bound, faults = self.fields.bind(context.args)
        if self.context_name is not None:
            if self.context_name in context.args:
                faults[self.context_name] = NOT_KNOWN
            bound[self.context_name] = context
        if faults:
            raise ArgumentError(context.command, faults)
        return bound

    def describe(self) -> JSONObject:
        """Return the name and description, and a JSON Schema of the parameters."""
        definitions: JSONObject = {}
        parameters = gather_definitions(self.fields.describe(), definitions)
        if definitions:
            parameters["$defs"] = definitions
        return {
            "name": self.name,
            "description": self.description,
            "parameters": parameters,
        }


class Router:
    """The handlers of an agent and the middleware around them."""

    def __init__(self, *, pydantic: bool = False) -> None:
        self._pydantic = pydantic
        self._handlers: dict[str, Handler] = {}
        self._builtins: dict[str, Handler] = {}
        self._fallback: CallNext | None = None
        self._middleware: list[Middleware] = []

    def add(
        self,
        name: str,
        function: Callable[..., Any],
        call: Callable[..., Awaitable[Any]],
        *,
        timeout: float | Unset | None = UNSET,
        builtin: bool = False,
    ) -> None:
        _refuse_unbound(function, name)
        table = self._builtins if builtin else self._handlers
        check_name("command", name)
        if name in table:
            raise DuplicateHandlerError(name)
        if timeout is not UNSET and timeout is not None:
            check_seconds("timeout", timeout, "more than 0 seconds, or None")
        handler = _handler_of(name, function, call, timeout, pydantic=self._pydantic)
        table[name] = handler

    def set_fallback(self, call: CallNext) -> None:
        if self._fallback is not None:
            raise DuplicateHandlerError("fallback")
        self._fallback = call

    def add_middleware(self, middleware: Middleware) -> None:
        """Add a middleware. The middleware that was added first is called first."""
        self._middleware.append(middleware)

    def find(self, name: str) -> Handler | None:
        return self._handlers.get(name) or self._builtins.get(name)

    def is_builtin(self, name: str) -> bool:
        return name in self._builtins and name not in self._handlers

    def list_handlers(self) -> list[Handler]:
        """Return all handlers, built-in commands first.

        A handler of the program replaces a built-in handler of the same name.
        """
        return list({**self._builtins, **self._handlers}.values())

    async def dispatch(
        self, context: CommandContext, handler: Handler | None = None
    ) -> Any:
        """Run the middleware and the handler of a command and return the result.

        ``handler`` saves a second search if the caller has already called :meth:`find`.
        If there is a middleware, ``handler`` is ignored, because a middleware may
        change the name of the command.
        """
        if self._middleware:
            call: CallNext = self._run_handler
            for middleware in reversed(self._middleware):
                call = _around(middleware, call)
            result = await call(context)
        else:
            result = await self._run_handler(context, handler)
        if isinstance(result, _GENERATORS):
            raise TypeError(_NO_GENERATOR)
        return result

    async def _run_handler(
        self, context: CommandContext, handler: Handler | None = None
    ) -> Any:
        handler = handler or self.find(context.command)
        if handler is not None:
            result = await handler.call(**handler.bind(context))
        elif self._fallback is not None:
            result = await self._fallback(context)
        else:
            known = [handler.name for handler in self.list_handlers()]
            raise UnknownCommandError(context.command, known)
        return await result if _is_awaitable(result) else result


def _is_awaitable(result: object) -> bool:
    """Return whether a result can be awaited.

    The type is checked, because an object such as a mock may have any attribute.
    """
    return hasattr(type(result), "__await__")


def _around(middleware: Middleware, inner: CallNext) -> CallNext:
    async def call(context: CommandContext) -> Any:
        result = await middleware(context, inner)
        return await result if _is_awaitable(result) else result

    return call


def _refuse_unbound(function: Callable[..., Any], name: str) -> None:
    """Refuse a method that is not bound, because the agent cannot pass ``self``."""
    place = getattr(function, "__qualname__", "").rpartition(".")[0]
    if not inspect.isfunction(function) or place.endswith("<locals>") or not place:
        return
    if next(iter(inspect.signature(function).parameters), "") in ("self", "cls"):
        rule = "in the body of a class there is no object yet whose method it could be"
        remedy = f"Register it in __init__: agent.command({name!r})(self.{function.__name__})."
        raise ConfigurationError("command", function.__qualname__, rule, remedy)


def _handler_of(
    name: str,
    function: Callable[..., Any],
    call: Callable[..., Awaitable[Any]],
    timeout: float | Unset | None,
    *,
    pydantic: bool,
) -> Handler:
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigurationError(name, "generator function", _NO_GENERATOR)
    fields = Fields()
    context_name: str | None = None
    hints = _hints(name, function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(name, repr(function), str(error)) from None
    for parameter in signature.parameters.values():
        annotation = hints.get(parameter.name, parameter.annotation)
        where = f"{name}({parameter.name})"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            rule = "arguments are bound by name: no *args, no positional-only ones"
            raise ConfigurationError(where, parameter.name, rule)
        if parameter.kind is parameter.VAR_KEYWORD:
            fields.extra = compile_check(annotation, where, pydantic=pydantic)
        elif annotation is CommandContext:
            if context_name is not None:
                raise ConfigurationError(where, parameter.name, "one context is enough")
            context_name = parameter.name
        else:
            fields.add(parameter, compile_check(annotation, where, pydantic=pydantic))
    doc = (inspect.getdoc(function) or "").split("\n\n", 1)[0]
    return Handler(name, call, fields, context_name, timeout, doc)


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    target: Any = function
    while isinstance(target, partial):
        target = target.func
    target = inspect.unwrap(target)
    if not inspect.isroutine(target):
        target = type(target).__call__
    written = dict(getattr(target, "__annotations__", {}))
    written.pop("return", None)  # the result of a handler is not checked
    parameters = types.SimpleNamespace(__annotations__=written)
    return resolve_hints(name, parameters, getattr(target, "__globals__", {}))


def refuse_argument(kind: str, argument: object) -> None:
    """Refuse an argument of a decorator that is neither a function nor a name."""
    if argument is not None and not isinstance(argument, str):
        rule = "a function or a name"
        remedy = "Write options by name, and the decorator below @classmethod."
        raise ConfigurationError(kind, repr(argument), rule, remedy)


def choose_name(kind: str, name: object, function: Callable[..., Any]) -> str:
    """Return the given name of a handler, by default the name of its function."""
    if not isinstance(name, str):
        name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        rule = "a function without a name is registered with one"
        remedy = f'Write agent.{kind}("name")(function).'
        raise ConfigurationError(kind, repr(function), rule, remedy)
    return name
