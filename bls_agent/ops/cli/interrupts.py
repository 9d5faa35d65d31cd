"""Handles Ctrl-C while the modules of a command load."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

INTERRUPTED: Final = 130  # the exit code


@contextmanager
def interrupts_end_the_process() -> Generator[None]:
    """End the process at Ctrl-C, at once and with code 130, while modules load.

    The usual handler is not enough, because Python prints and then ignores a
    KeyboardInterrupt that is raised inside a callback of the importer.
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
