"""Says on standard error what is waited for, where somebody looks on.

Nothing is shown for what takes less than a second, and nothing in a pipe.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

from bls_agent.ops.cli.screen import Screen
from bls_agent.ops.terminal import count_columns, visible

__all__ = ["Progress", "waiting"]

PATIENCE: Final = 1.0  # seconds before anything is shown
PERIOD: Final = 0.2  # seconds between two drawings


class Progress:
    """What is waited for, drawn by a thread, because the event loop may be busy.

    Args:
        screen: Standard error.
        text: What is waited for.
    """

    def __init__(self, screen: Screen, text: str) -> None:
        self._screen = screen
        self._text = text
        self._drawn = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def tell(self, text: str) -> None:
        """Say how far it has come; returns at once, from any thread."""
        self._text = text

    def begin(self) -> None:
        """Start to count the second."""
        if self._screen.terminal:
            self._thread.start()

    def end(self) -> None:
        """Take away what was drawn."""
        self._ended.set()
        if self._screen.terminal:
            self._thread.join()
            if self._drawn:
                self._draw("")

    def _run(self) -> None:
        pause = PATIENCE
        while not self._ended.wait(pause):
            pause = PERIOD
            if self._text != self._drawn:
                self._draw(self._text)

    def _draw(self, text: str) -> None:
        """Overwrite the line; without escapes, so that every terminal understands."""
        fitting = visible(text)
        while count_columns(fitting) >= self._screen.columns:
            fitting = fitting[:-1]
        blanks = " " * max(0, count_columns(self._drawn) - count_columns(fitting))
        with suppress(OSError, ValueError):  # nobody looks on any more
            self._screen.draw(f"\r{fitting}{blanks}" + "\r" * (not text))
        self._drawn = fitting


@contextmanager
def waiting(screen: Screen, text: str) -> Generator[Progress]:
    """Show a text on standard error while the block takes longer than a second."""
    progress = Progress(screen, text)
    progress.begin()
    try:
        yield progress
    finally:
        progress.end()
