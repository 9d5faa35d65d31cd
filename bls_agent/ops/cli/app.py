"""The program: registers, parses and runs commands, and reports how they failed.

A command is a function of an :class:`Invocation` and of what typer parses; ``--redis``,
``--json`` and ``--lang`` are added here, and a parameter of type ``bool`` is a flag.
Texts stand in the catalogue ``cli``: ``help_COMMAND`` of a command, ``opt_COMMAND_NAME``
or ``opt_NAME`` of an option, ``arg_…`` of an argument. A command's module is loaded
when it is run or listed.
"""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial, wraps
from importlib import import_module
from typing import Annotated, Any, Final, TypeAlias, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import bls_agent
from bls_agent.ops.cli.errors import Exit, misspelt, report_failure
from bls_agent.ops.cli.options import JsonOption, LangOption, RedisOption, arrange
from bls_agent.ops.cli.output import Invocation
from bls_agent.ops.terminal import Screen, count_columns, wrap
from bls_agent.ops.texts import Texts, find_language, find_value, load_texts

__all__ = ["COMMANDS", "command", "run_program"]

_Handler: TypeAlias = Callable[..., "Exit | Coroutine[Any, Any, Exit | None] | None"]
_Row: TypeAlias = tuple[str, str]
F = TypeVar("F", bound=_Handler)

NAME: Final = "bls-agent"
COMPLETE: Final = "_BLS_AGENT_COMPLETE"  # set by the shell that asks for completions
# Each command, in the order of the page, and the module in which it is.
COMMANDS: Final = {
    "run": "run",
    "projects": "projects",
    "status": "projects",
    "logs": "logs",
    "commands": "send",
    "send": "send",
    "call": "send",
    "queue": "send",
    "withdraw": "send",
    "forget": "projects",
    "wait": "send",
    "top": "projects",
    "workers": "workers",
    "runs": "runs",
    "assets": "assets",
    "crawl": "crawl",
    "keys": "keys",
    "doctor": "doctor",
    "acl": "keys",
    "console": "console",
    "demo": "run",
}
COMMON: Final[dict[str, tuple[object, object]]] = {
    "redis": (RedisOption, ""),
    "json": (JsonOption, False),
    "lang": (LangOption, None),
}
WIDEST: Final = 100  # columns of a page: longer lines are hard to read
NARROW: Final = 60  # columns below which explanations stand on lines of their own
NAME_COLUMNS: Final = 26
SHARED: Final = (*COMMON, "help")
_REGISTERED: Final[dict[str, typer.Typer]] = {}


class _Command(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_page(self, ctx, formatter)


class _Group(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_page(self, ctx, formatter)


def _write_page(command: Any, context: Any, formatter: Any) -> None:
    """Escape what the output cannot encode: the parser assumes UTF-8."""
    invocation: Invocation = context.obj
    page = _help_page(command, context, invocation.texts)
    formatter.write(invocation.out.encodable(page))


def _help_page(command: Any, context: Any, texts: Texts) -> str:
    """Format the ``--help`` page of a command, whose texts are localised already.

    typer's own pages draw boxes, know English alone, and load ten times as much.
    """
    columns = min(shutil.get_terminal_size().columns, WIDEST)
    parameters = command.get_params(context)
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = [one for one in parameters if one.param_type_name == "option"]
    told = [(one.metavar or one.name.upper(), one.help or "") for one in arguments]
    own = [one for one in options if one.name not in SHARED]
    shared = [one for one in options if one.name in SHARED]
    parts = [
        wrap(f"{texts['usage']} {_usage(command, context, arguments)}", columns),
        _paragraphs(command.help or "", columns),
        _section(texts["arguments"], told, columns),
        _section(texts["options"], [_option(one, texts) for one in own], columns),
        _section(texts["commands"], [*_commands(command, context, texts)], columns),
        _section(texts["options_common"], [_option(o, texts) for o in shared], columns),
        _paragraphs(command.epilog or "", columns),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _usage(command: Any, context: Any, arguments: Sequence[Any]) -> str:
    words = [context.command_path, "[OPTIONS]"]
    for one in arguments:
        name = one.metavar or one.name.upper()
        words.append(name if one.required else f"[{name}]")
    if getattr(command, "commands", None) is not None:
        words.append(
            "COMMAND …" if not command.invoke_without_command else "[COMMAND …]"
        )
    return " ".join(words)


def _paragraphs(text: str, columns: int) -> list[str]:
    return [line for part in text.splitlines() for line in wrap(part, columns)]


def _option(one: Any, texts: Texts) -> _Row:
    names = ", ".join([*one.opts, *one.secondary_opts])
    if one.name == "help":  # the parser has them in a set
        names = ", ".join(sorted(one.opts))
    flag = one.is_flag or one.count
    name = names if flag else f"{names} {one.metavar or one.name.upper()}"
    told = texts["opt_help"] if one.name == "help" else one.help or ""
    if one.show_default and not flag and one.default not in (None, "", (), []):
        default = f"{one.default:g}" if isinstance(one.default, float) else one.default
        told += " " + texts["default"].format(value=default)
    return name, told


def _commands(command: Any, context: Any, texts: Texts) -> Iterator[_Row]:
    """List the subcommands without loading their modules."""
    if getattr(command, "commands", None) is None:
        return
    path = context.command_path.split()[1:]
    for name in command.list_commands(context):
        key = "_".join(["help", *path, name])
        yield name, texts[key].partition("\n")[0]


def _section(title: str, rows: Sequence[_Row], columns: int) -> list[str]:
    if not rows:
        return []
    widest = max(count_columns(name) for name, _ in rows)
    indent = 4 if columns < NARROW else min(widest, NAME_COLUMNS) + 4
    lines = [title]
    for name, told in rows:
        explained = wrap(told, max(columns - indent, 10))
        head = f"  {name}"
        if count_columns(head) + 2 > indent:
            lines.append(head)
        else:
            first, *explained = explained
            lines.append(head + " " * (indent - count_columns(head)) + first)
        lines.extend(" " * indent + line for line in explained)
    return [line.rstrip() for line in lines]


def command(path: str, *, group: bool = False) -> Callable[[F], F]:
    """Register a function, or a coroutine function, as a command; it stays as it is.

    ``"runs list"`` is a subcommand; with ``group`` the function runs when no subcommand
    is named.
    """
    name, _, inner = path.partition(" ")
    if name not in _REGISTERED:
        _REGISTERED[name] = typer.Typer(
            cls=_Group, add_completion=False, rich_markup_mode=None
        )
    app = _REGISTERED[name]

    def register(function: F) -> F:
        if group:
            app.callback(invoke_without_command=True)(_parsed(function, outer=True))
        else:
            app.command(inner or name, cls=_Command)(_parsed(function))
        return function

    return register


def _parsed(function: _Handler, *, outer: bool = False) -> Callable[..., int]:
    signature = inspect.signature(function, eval_str=True)
    _, *own = signature.parameters.values()  # the first is the invocation
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter("context", keyword, annotation=typer.Context)]
    for name, (annotation, default) in COMMON.items():
        added.append(
            inspect.Parameter(name, keyword, annotation=annotation, default=default)
        )
    parameters = [*map(_own_parameter, own), *added]

    @wraps(function)
    def parsed(**values: Any) -> int:
        context: typer.Context = values.pop("context")
        given = {name: values.pop(name) for name in COMMON}
        before = cast("Invocation", context.obj)
        # Options behind the command win over those before it.
        redis, json = given["redis"] or before.redis, given["json"] or before.json
        invocation = replace(before, redis=redis, json=json)
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


def _own_parameter(one: inspect.Parameter) -> inspect.Parameter:
    annotation: Any = one.annotation
    if annotation is bool:
        flag = typer.Option(f"--{one.name.replace('_', '-')}")
        annotation = Annotated[bool, flag]
    return one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=annotation)


def _run(function: Callable[[], Coroutine[Any, Any, Exit | None]]) -> int:
    import anyio

    return anyio.run(function) or Exit.DONE


def _localise(command: Any, texts: Texts, *path: str) -> None:
    """Give a command, its parameters and its subcommands their texts."""
    title = "_".join(["help", *path])
    command.help = texts[title]
    command.short_help = command.help.partition("\n")[0]
    for one in command.params:
        kind = "arg" if one.param_type_name == "argument" else "opt"
        scopes = [path[:end] for end in range(len(path), -1, -1)]
        keys = ["_".join([kind, *scope, one.name]) for scope in scopes]
        one.help = next(texts[key] for key in keys if key in texts)
    for name, inner in getattr(command, "commands", {}).items():
        _localise(inner, texts, *path, name)


class _Program(_Group):
    """The outermost group: loads the module of a command when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            import_module(f"bls_agent.ops.cli.commands.{COMMANDS[cmd_name]}")
            found = get_command(_REGISTERED[cmd_name])
            _localise(found, ctx.find_root().obj.texts, cmd_name)
            self.commands[cmd_name] = found
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        if word in COMMANDS or word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        likely = get_close_matches(word, COMMANDS)
        raise misspelt(
            "no_such_command", likely, "hint_help", Exit.USAGE, word=word, command=NAME
        )


app = typer.Typer(
    cls=_Program,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},  # of every command
)


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    redis: RedisOption = "",
    json: JsonOption = False,
    lang: LangOption = None,  # noqa: ARG001 - read before the parsing
    version: Annotated[bool, typer.Option("--version")] = False,
) -> int:
    invocation: Invocation = context.obj
    context.obj = replace(invocation, redis=redis or None, json=json)
    if version:
        invocation.out.line(f"{NAME} {bls_agent.__version__}")
        raise typer.Exit(Exit.DONE)
    if context.invoked_subcommand is None:
        invocation.err.write(context.get_help())
        return Exit.USAGE
    return Exit.DONE


def run_program(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code; failures are reported as sentences."""
    # Commands report faults themselves; `run` and `console` configure logging.
    logging.getLogger("bls_agent").addHandler(logging.NullHandler())
    completing = bool(os.environ.get(COMPLETE))
    language = find_language(arguments, os.environ)
    invocation = Invocation(
        redis=None,
        json=False,
        language=language,
        texts=load_texts("cli", language),
        out=Screen(sys.stdout, os.environ),
        err=Screen(sys.stderr, os.environ, needed=False),
    )
    program: Any = get_command(app)
    _localise(program, invocation.texts, "program")
    try:
        code = program.main(
            args=arrange(arguments),
            prog_name=NAME,
            standalone_mode=False,
            obj=invocation,
        )
        invocation.out.finish()
    except SystemExit as end:  # of typer's own options, or of the user's module
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 - the outermost place
        if completing:  # a shell that asks gets nothing, and no noise
            return Exit.FAILED
        redis = find_value("--redis", arguments) or None
        return report_failure(error, replace(invocation, redis=redis))
    return int(code or Exit.DONE)
