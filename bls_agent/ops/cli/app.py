"""The program: registers, parses and runs commands, and reports why a command failed.

A command is a function that takes an :class:`Invocation` and the values that typer has
parsed. This module adds ``--redis``, ``--json`` and ``--lang``; a parameter of type
``bool`` becomes a flag. All texts are in the catalogue ``cli``: ``help_COMMAND`` for a
command, ``opt_COMMAND_NAME`` or ``opt_NAME`` for an option, and ``arg_…`` for an
argument. The module of a command is loaded when the command is used.
"""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, Final, TypeAlias, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import bls_agent
from bls_agent.ops.cli.errors import Exit, misspelt, report_failure
from bls_agent.ops.cli.interrupts import interrupts_end_the_process
from bls_agent.ops.cli.options import JsonOption, LangOption, RedisOption
from bls_agent.ops.cli.output import Invocation
from bls_agent.ops.terminal import Screen, count_columns, wrap
from bls_agent.ops.texts import (
    Texts,
    find_language,
    find_value,
    find_wanted_language,
    load_texts,
)

_Handler: TypeAlias = Callable[..., "Exit | Coroutine[Any, Any, Exit | None] | None"]
_Row: TypeAlias = tuple[str, str]
F = TypeVar("F", bound=_Handler)

NAME: Final = "bls-agent"
COMPLETE: Final = "_BLS_AGENT_COMPLETE"  # set by the shell that asks for completions
# Each command, in the order of the help page, and its module.
COMMANDS: Final = {
    "run": "run",
    "projects": "projects",
    "status": "projects",
    "logs": "logs",
    "commands": "send",
    "send": "send",
    "call": "send",
    "queue": "queue",
    "withdraw": "queue",
    "requeue": "queue",
    "discard": "queue",
    "forget": "projects",
    "wait": "send",
    "top": "projects",
    "workers": "workers",
    "tasks": "workers",
    "runs": "runs",
    "assets": "assets",
    "crawl": "crawl",
    "keys": "keys",
    "doctor": "doctor",
    "acl": "keys",
    "conformance": "conformance",
    "brief": "conformance",
    "asyncapi": "interface",
    "stubs": "interface",
    "console": "console",
    "demo": "run",
}
WIDEST: Final = 100  # columns of a help page, because longer lines are hard to read
NARROW: Final = 60  # with fewer columns, explanations begin on a new line
NAME_COLUMNS: Final = 26
SECTIONS: Final = ("arguments", "options", "commands", "options_common")
SHARED: Final = ("redis", "json", "lang", "help")  # options of every command
_REGISTERED: Final[dict[str, typer.Typer]] = {}


def _write_page(self: Any, ctx: Any, formatter: Any) -> None:
    """Write the ``--help`` page of a command, whose texts are already localised.

    typer's own pages draw boxes, are only in English, and load ten times as much code.
    Characters that the output cannot encode are escaped, because typer assumes UTF-8.
    """
    texts: Texts = ctx.obj.texts
    about: str = self.help
    columns = min(shutil.get_terminal_size().columns, WIDEST)
    usage = [texts["usage"], ctx.command_path, "[OPTIONS]"]
    sections: dict[str, list[_Row]] = {name: [] for name in SECTIONS}
    for one in self.get_params(ctx):
        if one.param_type_name == "argument":
            usage.append(one.metavar if one.required else f"[{one.metavar}]")
            sections["arguments"].append((one.metavar, one.help))
        else:
            section = "options_common" if one.name in SHARED else "options"
            sections[section].append(_option(one, texts))
    if isinstance(self, _Group):
        usage.append("[COMMAND …]")
        path = ctx.command_path.split()[1:]
        for name in self.list_commands(ctx):  # loads no module
            key = "_".join(["help", *path, name])
            sections["commands"].append((name, texts[key].partition("\n")[0]))
    parts = [
        wrap(" ".join(usage), columns),
        [line for part in about.splitlines() for line in wrap(part, columns)],
        *(
            _section(texts[name], rows, columns)
            for name, rows in sections.items()
            if rows
        ),
    ]
    page = "\n\n".join("\n".join(part) for part in parts)
    formatter.write(ctx.obj.out.encodable(page))


class _Command(TyperCommand):
    format_help = _write_page


class _Group(TyperGroup):
    format_help = _write_page

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word, names = args[0], self.list_commands(ctx)
        if word in names or word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        likely = get_close_matches(word, names)
        path = ctx.command_path
        raise misspelt(
            "no_such_command", likely, "hint_help", Exit.USAGE, word=word, command=path
        )


def _option(one: Any, texts: Texts) -> _Row:
    """Return the names and the text of an option.

    The names are sorted, because typer keeps the names of ``help`` in a set.
    """
    name = ", ".join(sorted(one.opts))
    if one.is_flag:
        return name, texts["opt_help"] if one.name == "help" else one.help
    text, default = one.help, one.default
    if one.show_default and default not in (None, ""):
        shown = f"{default:g}" if isinstance(default, float) else default
        text += " " + texts["default"].format(value=shown)
    return f"{name} {one.metavar}", text


def _section(title: str, rows: Iterable[_Row], columns: int) -> list[str]:
    widest = max(count_columns(name) for name, _ in rows)
    indent = 4 if columns < NARROW else min(widest, NAME_COLUMNS) + 4
    lines = [title]
    for name, text in rows:
        explained = wrap(text, max(columns - indent, 10))
        head = f"  {name}"
        if count_columns(head) + 2 <= indent:
            head += " " * (indent - count_columns(head)) + explained.pop(0)
        lines += [head, *(" " * indent + line for line in explained)]
    return [line.rstrip() for line in lines]


def command(
    path: str, *, group: bool = False, default: bool = False
) -> Callable[[F], F]:
    """Register a function or coroutine function as a command; return it unchanged.

    ``"runs list"`` is the subcommand ``list`` of ``runs``. A function with ``group`` runs
    if the user names no subcommand. In this case a ``default`` subcommand runs, too, but
    without its own options.
    """
    name, _, inner = path.partition(" ")
    if name not in _REGISTERED:
        _REGISTERED[name] = typer.Typer(
            cls=_Group, add_completion=False, rich_markup_mode=None
        )
    app = _REGISTERED[name]

    def register(function: F) -> F:
        def without_options(invocation: Invocation) -> Any:
            return function(invocation)

        if group or default:
            alone = _parsed(without_options if default else function, outer=True)
            app.callback(invoke_without_command=True)(alone)
        if not group:
            app.command(inner or name, cls=_Command)(_parsed(function))
        return function

    return register


def _parsed(function: _Handler, *, outer: bool = False) -> Callable[..., int]:
    """Make the function that typer calls, with the context and the common options."""

    def parsed(**values: Any) -> int:
        context: typer.Context = values.pop("context")
        before = cast("Invocation", context.obj)
        # Options after the command override those before the command.
        redis = values.pop("redis") or before.redis
        json = values.pop("json") or before.json
        values.pop("lang")  # find_language has read the raw arguments
        invocation = replace(before, redis=redis, json=json)
        if outer and context.invoked_subcommand is not None:
            context.obj = invocation
            return Exit.DONE
        ended = function(invocation, **values)
        if inspect.iscoroutine(ended):
            ended = _run(ended)
        return cast("Exit | None", ended) or Exit.DONE

    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    common = inspect.signature(_common, eval_str=True).parameters.values()
    parameters = [*map(_own_parameter, own), *common]
    parsed.__dict__["__signature__"] = inspect.Signature(parameters)
    parsed.__annotations__ = {one.name: one.annotation for one in parameters}
    return parsed


def _common(
    *,
    context: typer.Context,
    redis: RedisOption = "",
    json: JsonOption = False,
    lang: LangOption = None,
) -> None:
    """Has the parameters of every command as its signature, and is never called."""


def _own_parameter(one: inspect.Parameter) -> inspect.Parameter:
    annotation: Any = one.annotation
    if annotation is bool:
        flag = typer.Option(f"--{one.name.replace('_', '-')}")
        annotation = Annotated[bool, flag]
    return one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=annotation)


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    import anyio

    async def finish() -> Any:
        return await work

    return anyio.run(finish)


def _localise(command: Any, texts: Texts, *path: str) -> None:
    """Set the texts of a command, its parameters and its subcommands."""
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
    """The outermost group, which loads a module when its command is used."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            with interrupts_end_the_process():
                import_module(f"bls_agent.ops.cli.commands.{COMMANDS[cmd_name]}")
            found = get_command(_REGISTERED[cmd_name])
            _localise(found, ctx.find_root().obj.texts, cmd_name)
            self.commands[cmd_name] = found
        return self.commands[cmd_name]


app: typer.Typer = typer.Typer(
    cls=_Program,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},  # for every command
)


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    redis: RedisOption = "",
    json: JsonOption = False,
    lang: LangOption = None,  # noqa: ARG001 - find_language has read it
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
    """Run one command and return its exit code; print failures as sentences."""
    # Print no log by default, because commands report faults themselves. Only `run` and
    # `console` configure logging.
    logging.getLogger("bls_agent").addHandler(logging.NullHandler())
    completing = bool(os.environ.get(COMPLETE))
    language = find_language(arguments, os.environ)
    invocation = Invocation(
        redis=None,
        json=False,
        language=language,
        wanted_language=find_wanted_language(arguments, os.environ),
        texts=load_texts("cli", language),
        out=Screen(sys.stdout, os.environ),
        err=Screen(sys.stderr, os.environ, needed=False),
    )
    program: Any = get_command(app)
    _localise(program, invocation.texts, "program")
    try:
        code = program.main(
            args=list(arguments),
            prog_name=NAME,
            standalone_mode=False,
            obj=invocation,
        )
        invocation.out.finish()
    except SystemExit as end:  # raised by typer's own options, or by the user's module
        if end.code is None or isinstance(end.code, int):
            return end.code or Exit.DONE
        for line in str(end.code).splitlines():
            invocation.err.line(line)
        return Exit.FAILED
    except BaseException as error:  # noqa: BLE001 - reported as a sentence
        if completing:  # a completion must show no error
            return Exit.FAILED
        redis = find_value("--redis", arguments) or None
        return report_failure(error, replace(invocation, redis=redis))
    return int(code or Exit.DONE)
