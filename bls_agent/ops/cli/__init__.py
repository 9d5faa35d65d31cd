"""The command line: ``bls-agent``, or ``python -m bls_agent``.

Only :func:`main` loads typer and rich, so a missing extra is one line on standard
error, and ``--version`` costs next to nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

__all__ = ["main"]

EXTRA: Final = ("typer", "rich", "shellingham", "annotated_doc", "pydantic")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code; never raises for a user's mistake.

    Args:
        arguments: Without the program's name; by default those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except KeyboardInterrupt:  # while modules were loaded
        return 130


def _run(given: list[str]) -> int:
    if given == ["--version"]:
        import bls_agent

        print(f"bls-agent {bls_agent.__version__}")
        return 0
    try:
        from bls_agent.ops.cli.app import run_program
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        from bls_agent.core.errors import MissingExtraError

        print(MissingExtraError("cli", "the command line"), file=sys.stderr)
        return 2
    return run_program(given)
