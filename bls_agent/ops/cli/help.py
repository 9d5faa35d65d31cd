"""The ``--help`` page of a command: plain text in the reader's language.

typer's own pages draw boxes, know English alone, and load ten times as much.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from bls_agent.ops.terminal import count_columns, wrap
from bls_agent.ops.texts import Texts

__all__ = ["help_page"]

_Row: TypeAlias = tuple[str, str]

WIDEST: Final = 100  # columns of a page: longer lines are hard to read
NARROW: Final = 60  # columns below which explanations stand on lines of their own
NAME_COLUMNS: Final = 26
COMMON: Final = ("redis", "json", "lang", "help")


def help_page(command: Any, context: Any, texts: Texts) -> str:
    """Format the page of typer's command or group; its texts are localised already."""
    columns = min(shutil.get_terminal_size().columns, WIDEST)
    parameters = command.get_params(context)
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = [one for one in parameters if one.param_type_name == "option"]
    own = [one for one in options if one.name not in COMMON]
    shared = [one for one in options if one.name in COMMON]
    parts = [
        wrap(f"{texts['usage']} {_usage(command, context, arguments)}", columns),
        _paragraphs(command.help or "", columns),
        _section(texts["arguments"], [_argument(one) for one in arguments], columns),
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


def _argument(one: Any) -> _Row:
    return one.metavar or one.name.upper(), one.help or ""


def _option(one: Any, texts: Texts) -> _Row:
    names = ", ".join([*one.opts, *one.secondary_opts])
    if one.name == "help":  # the parser has them in a set
        names = ", ".join(sorted(one.opts))
    flag = one.is_flag or one.count
    name = names if flag else f"{names} {one.metavar or one.name.upper()}"
    told = texts["opt_help"] if one.name == "help" else one.help or ""
    if one.show_default and not flag and one.default not in (None, "", (), []):
        told += " " + texts["default"].format(value=_plain_default(one.default))
    return name, told


def _plain_default(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


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
