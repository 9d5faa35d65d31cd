"""What every command takes, and what must be known before the command line is parsed.

Pure: the arguments are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import typer

__all__ = [
    "JsonOption",
    "LangOption",
    "Language",
    "RedisOption",
    "arrange",
]


class Language(StrEnum):
    """The languages of the catalogues."""

    ZH = "zh"
    EN = "en"


RedisOption: TypeAlias = Annotated[
    str, typer.Option("--redis", metavar="URL", help="opt_redis", show_default=False)
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="opt_json")]
LangOption: TypeAlias = Annotated[
    Language | None, typer.Option("--lang", metavar="zh|en", help="opt_lang")
]

_VALUES: Final = frozenset({"--redis", "--lang"})  # common options with a value
_WITH_ARGUMENTS: Final = frozenset({"send", "call"})  # of a command, as JSON
_BEGINS_JSON: Final = ("{", "[", '"')


def arrange(arguments: Sequence[str]) -> list[str]:
    """Tell apart the two meanings that ``--json`` has for ``send`` and ``call``.

    With a value that begins like JSON it gives the command's arguments, without one it
    asks for output as JSON. No parser knows an option like that.

    Returns:
        The arguments, with ``--json-args`` for the first meaning.
    """
    if _command_of(arguments) not in _WITH_ARGUMENTS:
        return list(arguments)
    arranged: list[str] = []
    plain = False  # behind "--" nothing is an option
    for index, word in enumerate(arguments):
        plain = plain or word == "--"
        following = arguments[index + 1 : index + 2]
        if not plain and word == "--json" and following and _is_json(following[0]):
            arranged.append("--json-args")
        elif not plain and word.startswith("--json="):
            arranged.append(f"--json-args={word.partition('=')[2]}")
        else:
            arranged.append(word)
    return arranged


def _is_json(word: str) -> bool:
    """Tell an object, also a wrong one: what is wrong with it is said later."""
    return not word.strip() or word.lstrip().startswith(_BEGINS_JSON)


def _command_of(arguments: Sequence[str]) -> str:
    """Find the command: the first word that is no option and no option's value."""
    words = iter(arguments)
    for word in words:
        if word in _VALUES:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return ""
