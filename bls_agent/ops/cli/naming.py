"""Names of projects as people type them: made whole, and found again if misspelt."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from bls_agent.ops.cli.completion import complete_project
from bls_agent.ops.cli.exits import Exit, Failure
from bls_agent.ops.cli.invocation import Invocation

if TYPE_CHECKING:
    from bls_agent.console import Console

__all__ = [
    "ProjectArgument",
    "find_likely",
    "hint_likely",
    "likely_names",
    "normalise",
    "unknown_project",
]

ProjectArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PROJECT", help="arg_project", autocompletion=complete_project
    ),
]

MOST: Final = 3  # names that are suggested
LIKENESS: Final = 0.5  # of difflib: 1 for equal names


def normalise(invocation: Invocation, name: str) -> str:
    """Give a name in the form NFC, in which agents write it, and say so if it was not.

    Input methods and file names of some systems give another form that looks the same.

    Raises:
        Failure: The name is empty, as of a shell's variable that is not set.
    """
    if not name:
        raise Failure("empty_name", Exit.USAGE)
    whole = unicodedata.normalize("NFC", name)
    if whole != name:
        invocation.hint("name_normalised", project=whole)
    return whole


async def unknown_project(console: Console, name: str) -> Failure:
    """Make the end of a command about a project of which there is no key at all."""
    likely = find_likely(name, await _known(console))
    return Failure(
        "no_such_project",
        Exit.FAILED,
        hint="did_you_mean" if likely else "hint_projects",
        project=name,
        names=", ".join(likely),
    )


async def likely_names(console: Console, name: str) -> list[str]:
    """Find the projects that somebody may have meant, where this one is not there."""
    known = await _known(console)
    return [] if name in known else find_likely(name, known)


async def hint_likely(invocation: Invocation, console: Console, name: str) -> None:
    """Name the projects that somebody may have meant, where this one is not there."""
    known = await _known(console)
    if name in known:
        return
    names = find_likely(name, known)
    text = "did_you_mean" if names else "hint_projects"
    invocation.hint(text, names=", ".join(names))


async def _known(console: Console) -> list[str]:
    from bls_agent.core.errors import RedisRefusedError

    with suppress(RedisRefusedError):  # a user without the right to SCAN
        return [*await console.projects()]
    return []


def find_likely(name: str, known: Iterable[str]) -> list[str]:
    """Find the names that somebody may have meant, the most likely first."""
    by_fold = {_fold(one): one for one in known}
    wanted = _fold(name)
    found = get_close_matches(wanted, by_fold, n=MOST, cutoff=LIKENESS)
    holding = (fold for fold in sorted(by_fold) if wanted and wanted in fold)
    return [by_fold[fold] for fold in [*dict.fromkeys([*found, *holding])][:MOST]]


def _fold(name: str) -> str:
    """Make names alike that people take for the same: width, case, blanks."""
    return unicodedata.normalize("NFKC", name).casefold().strip()
