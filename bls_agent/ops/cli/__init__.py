"""The command line: ``bls-agent``, or ``python -m bls_agent``.

Only :func:`main` loads typer. A missing extra therefore prints just one line on
standard error, and ``--version`` is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bls_agent.ops.cli.interrupts import INTERRUPTED, interrupts_end_the_process


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are printed, not raised.

    Args:
        arguments: The arguments without the program's name. Default: ``sys.argv[1:]``.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    if arguments == ["--version"]:
        import bls_agent

        print(f"bls-agent {bls_agent.__version__}")
        return 0
    try:
        with interrupts_end_the_process():
            from bls_agent.ops.cli.app import run_program
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("bls_agent"):
            raise
        from bls_agent.core.errors import MissingExtraError

        print(MissingExtraError("cli", "the command line"), file=sys.stderr)
        return 2
    return run_program(arguments)
