"""The command line: ``bls-agent``, or ``python -m bls_agent``.

Only :func:`main` loads typer, so a missing extra is one line on standard
error, and ``--version`` costs next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

__all__ = ["main"]

INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code; never raises for a user's mistake.

    Args:
        arguments: Without the program's name; by default those of the process.
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


@contextmanager
def interrupts_end_the_process() -> Generator[None]:
    """End the process at Ctrl-C, at once and with code 130, while modules load.

    Because a KeyboardInterrupt may come inside of a callback of the importer, where
    Python prints it, ignores it, and goes on.
    """
    usual = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if usual is not signal.default_int_handler or not in_main:
        yield
        return
    signal.signal(signal.SIGINT, _end_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _end_at_once(*_: object) -> None:
    os._exit(INTERRUPTED)
