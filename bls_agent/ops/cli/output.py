"""Options, output, progress and texts that all commands share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

from bls_agent.core.codec import format_timestamp
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.ops.terminal import (
    CLOCK,
    STATUS_STYLES,
    Cell,
    Screen,
    count_columns,
    visible,
    wrap,
)
from bls_agent.ops.texts import Texts
from bls_agent.project.messages import LogEntry, Status

if TYPE_CHECKING:
    from bls_agent.console import Console

PATIENCE: Final = 1.0  # seconds until the text is shown
PERIOD: Final = 0.2  # seconds between two drawings


class Progress:
    """Shows in a terminal what the command waits for, if the wait takes over a second.

    A thread draws the text, because the event loop may be busy. While a line is written
    to ``screen`` or ``others``, the text is hidden.
    """

    def __init__(self, screen: Screen, text: str, *others: Screen) -> None:
        self._screen = screen
        self._lined = screen, *others
        self._text = text
        self._drawn = ""
        self._drawing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def tell(self, text: str) -> None:
        """Set the text that the thread draws; any thread may call this."""
        self._text = text

    def __enter__(self) -> Self:
        if self._screen.terminal:
            self._thread.start()
            for screen in self._lined:
                screen.around_line = self._hidden
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._screen.terminal:
            self._thread.join()
            for screen in self._lined:
                screen.around_line = nullcontext
            with self._hidden():
                pass

    @contextmanager
    def _hidden(self) -> Generator[None]:
        with self._drawing:
            if self._drawn:
                self._draw("")
            yield

    def _run(self) -> None:
        pause = PATIENCE
        while not self._ended.wait(pause):
            pause = PERIOD
            with self._drawing:
                if self._text != self._drawn:
                    self._draw(self._text)

    def _draw(self, text: str) -> None:
        """Overwrite the line without escape codes, because some terminals print them."""
        fitting = wrap(visible(text), self._screen.columns - 1)[0]
        blanks = " " * max(0, count_columns(self._drawn) - count_columns(fitting))
        with suppress(OSError, ValueError):  # the terminal is closed
            self._screen.draw(f"\r{fitting}{blanks}" + "\r" * (not text))
        self._drawn = fitting


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One run of one command: its options, and its output."""

    redis: str | None  # a URL, or `None` for `BLS_REDIS_URL` or the default URL
    json: bool  # whether results are wanted as JSON, one value on each line
    language: str  # `zh` or `en`
    wanted_language: str  # named by `--lang` or `BLS_LANG`, or empty
    texts: Texts  # the catalogue `cli` in that language
    out: Screen  # standard output: results, and nothing else
    err: Screen  # standard error: progress, hints, errors

    def say(self, text: str, /, **values: object) -> str:
        return self.texts[text].format(**values)

    def hint(self, text: str, /, **values: object) -> None:
        self.err.paragraph(self.say(text, **values), "dim")

    def warn(self, text: str, /, **values: object) -> None:
        self.err.paragraph(self.say(text, **values), "yellow")

    def record(self, value: object, *cells: Cell) -> None:
        """Write a result, as JSON or as fields on one line."""
        if self.json:
            self.out.json(value)
        else:
            self.out.fields(*cells)

    def tell_outage(self, error: RedisUnavailableError | None) -> None:
        """Report that Redis is unavailable, or with ``None`` that it answers again."""
        if error is None:
            self.hint("back")
        else:
            self.warn("away", kind=error.kind)

    def waiting(self, text: str, /, **values: object) -> Progress:
        """Return a progress with a text about what the command waits for."""
        return Progress(self.err, self.say(text, **values), self.out)

    def console(self) -> Console:
        from bls_agent.console import Console

        return Console(self.redis)

    def export_redis(self) -> None:
        if self.redis is not None:
            os.environ["BLS_REDIS_URL"] = self.redis


def status_cell(
    status: Status | None, texts: Texts, *, meaning_too: bool = True
) -> Cell:
    """Return the value of a status in Redis, with its meaning for people."""
    if status is None:
        return texts["status_none"], "dim"
    meaning = texts[f"status_{status.name}"]
    if not meaning_too or meaning == status:
        return status.value, STATUS_STYLES[status]
    return f"{status.value} {meaning}", STATUS_STYLES[status]


def status_name(status: Status | None) -> str | None:
    return status.name.lower() if status is not None else None


def now_clock(*, iso: bool = False) -> str:
    """Return the current time: local for people, ISO 8601 in UTC for programs."""
    now = datetime.now(UTC)
    if iso:
        return format_timestamp(now.timestamp())
    return now.astimezone().strftime(CLOCK)


def unix_now() -> float:
    return time.time()  # noqa: TID251 - the commands' only clock


def span(seconds: float | None) -> str:
    """Return a duration in at most two units, such as ``3s``, ``2m05s`` or ``3h10m``."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def describe_entry(entry: LogEntry | None) -> dict[str, Any] | None:
    """Return a log record as a JSON object, with the fields of the console protocol."""
    if entry is None:
        return None
    record: dict[str, Any] = {
        "timestamp": entry.timestamp,
        "level": entry.level,
        "message": entry.message,
    }
    return record | {"metadata": entry.metadata} if entry.metadata else record
