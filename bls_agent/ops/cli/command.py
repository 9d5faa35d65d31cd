"""How a command file registers its command.

A file ``bls_agent/ops/cli/NAME.py`` has an ``app`` with one command, or with a callback and
subcommands. The functions take an :class:`Invocation` first and then what typer parses;
``--redis``, ``--json`` and ``--lang`` are added here. Every ``help`` is a key of the
catalogue ``cli``; a command's own is ``help_NAME``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Final, TypeAlias, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from bls_agent.ops.cli.exits import Exit
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.options import JsonOption, LangOption, RedisOption
from bls_agent.ops.cli.page import help_page
from bls_agent.ops.texts import Texts

__all__ = ["Command", "Group", "command", "localise", "new_app", "subcommands"]

_Handler: TypeAlias = Callable[..., "Exit | Coroutine[Any, Any, Exit | None] | None"]
F = TypeVar("F", bound=_Handler)

COMMON: Final[dict[str, tuple[object, object]]] = {
    "redis": (RedisOption, ""),
    "json": (JsonOption, False),
    "lang": (LangOption, None),
}


class Command(TyperCommand):
    """A command with a help page of ours."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page in the reader's language."""
        _write_page(self, ctx, formatter)


class Group(TyperGroup):
    """A command with subcommands, and a help page of ours."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page in the reader's language."""
        _write_page(self, ctx, formatter)


def _write_page(command: Any, context: Any, formatter: Any) -> None:
    """Give the parser a page that the output can encode: else it takes UTF-8."""
    invocation: Invocation = context.obj
    page = help_page(command, context, invocation.texts)
    formatter.write(invocation.out.encodable(page))


def localise(command: Any, texts: Texts, key: str) -> None:
    """Put the texts of one language in the place of their keys, all the way down."""
    command.help = texts[key]
    command.short_help = texts[key].partition("\n")[0]
    for one in command.params:
        one.help = texts.get(one.help or "") or texts[f"opt_{one.name}"]
    for name, inner in getattr(command, "commands", {}).items():
        localise(inner, texts, f"{key}_{name}")


def new_app() -> typer.Typer:
    """Make the ``app`` of a command file."""
    return typer.Typer(cls=Group, add_completion=False, rich_markup_mode=None)


def command(app: typer.Typer, name: str) -> Callable[[F], F]:
    """Register a function, or a coroutine function, as a command; it stays as it is."""

    def register(function: F) -> F:
        app.command(name, cls=Command)(_parsed(function))
        return function

    return register


def subcommands(app: typer.Typer) -> Callable[[F], F]:
    """Register what a command with subcommands does when none of them is named."""

    def register(function: F) -> F:
        app.callback(invoke_without_command=True)(_parsed(function, outer=True))
        return function

    return register


def _parsed(function: _Handler, *, outer: bool = False) -> Callable[..., int]:
    """Give the function the signature that typer reads."""
    signature = inspect.signature(function, eval_str=True)
    _, *own = signature.parameters.values()  # the first is the invocation
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter("context", keyword, annotation=typer.Context)]
    for name, (annotation, default) in COMMON.items():
        added.append(
            inspect.Parameter(name, keyword, annotation=annotation, default=default)
        )
    parameters = [*(one.replace(kind=keyword) for one in own), *added]

    @wraps(function)
    def parsed(**values: Any) -> int:
        context: typer.Context = values.pop("context")
        given = {name: values.pop(name) for name in COMMON}
        invocation = _combine(cast("Invocation", context.obj), given)
        if outer and context.invoked_subcommand is not None:
            context.obj = invocation
            return Exit.DONE
        if inspect.iscoroutinefunction(function):
            return _run(partial(function, invocation, **values))
        return cast("Exit | None", function(invocation, **values)) or Exit.DONE

    parsed.__dict__.pop("__wrapped__")
    shown = signature.replace(parameters=parameters, return_annotation=int)
    parsed.__dict__["__signature__"] = shown
    parsed.__annotations__ = {one.name: one.annotation for one in parameters}
    return parsed


def _combine(outer: Invocation, given: dict[str, Any]) -> Invocation:
    """Let what stands behind the command beat what stands before it."""
    return replace(
        outer,
        redis=given["redis"] or outer.redis,
        json=given["json"] or outer.json,
    )


def _run(function: Callable[[], Coroutine[Any, Any, Exit | None]]) -> int:
    import anyio

    return anyio.run(function) or Exit.DONE
