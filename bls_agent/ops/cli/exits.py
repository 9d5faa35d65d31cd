"""Exit codes, and the way in which a command ends with one of them."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Exit", "Failure"]


class Exit(IntEnum):
    """How a command ended; the codes are the same for every command."""

    DONE = 0
    FAILED = 1  # the command could not do what it was asked for
    USAGE = 2  # wrong arguments, names, URLs or variables
    UNHEALTHY = 3  # it looked, and what it saw is not well
    UNAVAILABLE = 4  # Redis does not answer, or lets nobody in
    INTERRUPTED = 130  # Ctrl-C
    BROKEN_PIPE = 141  # the reader of the output has gone
    TERMINATED = 143  # SIGTERM


class Failure(Exception):  # noqa: N818 - a way to end, not an error of the program
    """Ends a command with a sentence for people and an exit code.

    Attributes:
        text: Key of the sentence in the catalogue ``cli``.
        code: The exit code.
        values: What the sentence names; shown, never obeyed.
        details: Lines that stand before the sentence: the traceback of a user's code.
        hint: Key of a second sentence that says what to do, or ``""``.
    """

    def __init__(
        self,
        text: str,
        code: Exit = Exit.FAILED,
        /,
        *,
        hint: str = "",
        **values: object,
    ) -> None:
        """Keep the parts; the words are found when it is shown."""
        self.text = text
        self.code = code
        self.hint = hint
        self.values = values
        self.details = ""
        super().__init__(text)
