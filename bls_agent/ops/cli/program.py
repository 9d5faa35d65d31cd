"""The program: its commands, its language, and how whatever happens is told.

A command's file is loaded when the command is run or listed; see ``command.py``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.main import get_command

import bls_agent
from bls_agent.ops.cli.command import Group, localise
from bls_agent.ops.cli.exits import Exit, Failure
from bls_agent.ops.cli.failures import tell
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.options import (
    JsonOption,
    LangOption,
    RedisOption,
    arrange,
)
from bls_agent.ops.cli.screen import Screen
from bls_agent.ops.texts import find_language, find_value, load_texts

__all__ = ["COMMANDS", "run_program"]

NAME: Final = "bls-agent"
COMPLETE: Final = "_BLS_AGENT_COMPLETE"  # set by the shell that asks for completions
COMMANDS: Final = (
    "run",
    "projects",
    "status",
    "logs",
    "commands",
    "send",
    "call",
    "queue",
    "withdraw",
    "forget",
    "wait",
    "top",
    "workers",
    "runs",
    "assets",
    "crawl",
    "keys",
    "doctor",
    "acl",
    "console",
    "demo",
)


class _Program(Group):
    """The outermost group: loads the file of a command when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        if cmd_name not in self.commands:
            file = import_module(f"bls_agent.ops.cli.commands.{cmd_name}")
            found = get_command(file.app)
            localise(found, ctx.find_root().obj.texts, f"help_{cmd_name}")
            self.commands[cmd_name] = found
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        word = args[0]
        if word in known or word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        likely = get_close_matches(word, known)
        raise Failure(
            "no_such_command",
            Exit.USAGE,
            hint="did_you_mean" if likely else "hint_help",
            word=word,
            names=", ".join(likely),
            command=NAME,
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
    version: Annotated[bool, typer.Option("--version", help="opt_version")] = False,
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
    """Run one command and give its exit code; whatever happens is told in words."""
    # Its commands tell in their own words what is wrong; `run` and `console` configure it.
    logging.getLogger("bls_agent").addHandler(logging.NullHandler())
    completing = bool(os.environ.get(COMPLETE))
    invocation = _begin(arguments)
    program: Any = get_command(app)
    localise(program, invocation.texts, "help_program")
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
        return tell(error, replace(invocation, redis=redis))
    return int(code or Exit.DONE)


def _begin(arguments: Sequence[str]) -> Invocation:
    language = find_language(arguments, os.environ)
    return Invocation(
        redis=None,
        json=False,
        language=language,
        texts=load_texts("cli", language),
        out=Screen(sys.stdout, os.environ),
        err=Screen(sys.stderr, os.environ, needed=False),
    )
