"""What the console sees of the demo, and how it gets onto any terminal.

Standard library only, in English or Chinese. Narrow terminals, pipes, terminals that know no colours or no
Chinese: everything is readable everywhere, and what came out of Redis is shown, never
interpreted.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TextIO, TypeVar, cast

import anyio

from bls_agent.console import Console
from bls_agent.core.codec import JSONValue, cut_text, encode, parse_timestamp
from bls_agent.core.errors import ContractError, RedisUnavailableError
from bls_agent.ops.terminal import count_columns, visible, wrap
from bls_agent.ops.texts import Texts
from bls_agent.project.messages import (
    Command,
    Level,
    LogEntry,
    Outcome,
    OutcomeKind,
    Status,
)

__all__ = ["Screen", "Watch"]

T = TypeVar("T")

TIME_COLUMNS: Final = 8
LABEL_COLUMNS: Final = 6
LOOK_INTERVAL: Final = 0.05  # seconds between two looks of the console
HANGING: Final = TIME_COLUMNS + LABEL_COLUMNS + 2
NARROW: Final = 60  # columns below which lines go on at the left
LEAST_COLUMNS: Final = 20
LONGEST_METADATA: Final = 400  # bytes of a record's metadata that are shown
MARKS: Final = ("✓✗-", "√\N{MULTIPLICATION SIGN}-", "+x-")  # the first that it knows
LONGEST_MESSAGE: Final = 2_000
UNTOLD: Final = frozenset({"agent", "commandId"})

COLOURS: Final = {
    "heading": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
LEVEL_COLOURS: Final = {
    Level.DEBUG: "dim",
    Level.INFO: "cyan",
    Level.WARN: "yellow",
    Level.ERROR: "red",
}
STATUS_COLOURS: Final = {
    Status.ONLINE: "green",
    Status.OFFLINE: "dim",
    Status.FAULT: "red",
    Status.ERROR: "yellow",
}


class Screen:
    """Lines for people: time, label, text.

    Args:
        stream: Where to; its ``errors`` handler decides about what it cannot encode.
        texts: The catalogue.
        columns: Its width.
        colours: Whether ANSI colours are wanted and understood.
    """

    def __init__(
        self, stream: TextIO, texts: Texts, *, columns: int, colours: bool
    ) -> None:
        self._stream = stream
        self._columns = max(columns, LEAST_COLUMNS)
        self._colours = colours
        self._hanging = HANGING if columns >= NARROW else 2
        self._marks = _known_marks(stream.encoding or "ascii")
        self._begun = False
        self.texts = texts

    @classmethod
    def on_stdout(cls, environ: Mapping[str, str], texts: Texts) -> Screen:
        """Take standard output as it is: a terminal or a pipe, of any encoding."""
        stream = cast("TextIO", sys.stdout)
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
        plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
        colours = stream.isatty() and not plain
        columns = shutil.get_terminal_size().columns
        return cls(stream, texts, columns=columns, colours=colours)

    def heading(self, text: str) -> None:
        """Begin a part, after an empty line if it is not the first."""
        if self._begun:
            self.write("")
        for line in wrap(visible(text), self._columns):
            self.write(self._paint(line, "heading"))

    def text(self, text: str) -> None:
        """Write a paragraph."""
        for line in wrap(visible(text), self._columns):
            self.write(line)

    def event(self, label: str, text: str, colour: str) -> None:
        """Write what happens now: what kind, what."""
        clock = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
        self._labelled(clock, label, text, colour)

    def entry(self, entry: LogEntry) -> None:
        """Write a log record as the console has read it."""
        label, colour = entry.level.value, LEVEL_COLOURS[entry.level]
        self._labelled(_clock_of(entry), label, _text_of(entry), colour)

    def status(self, status: Status | None) -> None:
        """Write the status that the console has read."""
        label = self.texts["label_status"]
        if status is None:
            self.event(label, self.texts["no_status"], "dim")
            return
        meaning = self.texts[f"status_{status.name}"]
        shown = status.value if meaning == status else f"{status.value} ({meaning})"
        self.event(label, shown, STATUS_COLOURS[status])

    def sent(self, text: str) -> None:
        """Write what is sent to the control list."""
        self.event(self.texts["label_send"], text, "heading")

    def redis(self, text: str) -> None:
        """Write what happens to Redis itself."""
        self.event(self.texts["label_redis"], text, "yellow")

    def mark(self, index: int, title: str, detail: str) -> None:
        """Write a row of the table: done (0), failed (1) or skipped (2)."""
        mark = self._paint(self._marks[index], ("green", "red", "yellow")[index])
        first, *rest = wrap(title, self._columns - 2)
        self.write(f"{mark} {first}")
        details = wrap(visible(detail), self._columns - 4) if detail else []
        for line in [*rest, *(f"  {line}" for line in details)]:
            self.write(f"  {line}")

    def write(self, line: str) -> None:
        """Write a line as it is; nobody reading any more is no reason to fail."""
        self._begun = True
        try:
            print(line, file=self._stream, flush=True)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def _labelled(self, clock: str, label: str, text: str, colour: str) -> None:
        padded = label + " " * (LABEL_COLUMNS - count_columns(label))
        used = TIME_COLUMNS + LABEL_COLUMNS + 2
        words = f"{' ' * (used - self._hanging)}{visible(text)}"
        first, *rest = wrap(words, self._columns - self._hanging)
        first = first[used - self._hanging :]
        head = f"{self._paint(clock, 'dim')} {self._paint(padded, colour)}"
        self.write(f"{head} {first}".rstrip())
        for line in rest:
            self.write(" " * self._hanging + line)

    def _paint(self, text: str, colour: str) -> str:
        if not self._colours or not colour:
            return text
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


def _known_marks(encoding: str) -> str:
    for marks in MARKS:
        try:
            marks.encode(encoding)
        except (UnicodeEncodeError, LookupError):
            continue
        return marks
    return MARKS[-1]


def _clock_of(entry: LogEntry) -> str:
    """Give the local time of a record, whatever its writer takes for a time."""
    moment = parse_timestamp(entry.timestamp)
    try:
        return moment.astimezone().strftime("%H:%M:%S") if moment else "--:--:--"
    except (OverflowError, OSError, ValueError):  # the year 1, the year 9999
        return "--:--:--"


def _text_of(entry: LogEntry) -> str:
    """Give message and metadata in one line."""
    outcome = entry.outcome
    told: dict[str, JSONValue] = {}
    if outcome is None:
        told = {key: item for key, item in entry.metadata.items() if key not in UNTOLD}
    elif outcome.succeeded and outcome.result is not None:
        told = {"result": outcome.result}
    elif "firstBytes" in outcome.error:
        told = {"firstBytes": outcome.error["firstBytes"]}
    pairs = " ".join(f"{key}={_plain(value)}" for key, value in told.items())
    message = cut_text(entry.message, LONGEST_MESSAGE)
    return f"{message}  {cut_text(pairs, LONGEST_METADATA)}".rstrip()


def _plain(value: JSONValue) -> str:
    text = encode(value).decode()
    return text[1:-1] if re.fullmatch(r'"[\w.:/+-]+"', text) else text


class Watch:
    """What the console sees: put on the screen, and remembered for the verdicts.

    Attributes:
        entries: The log records that were seen.
        status: The status that was seen last.
        reachable: Whether Redis answered the last question.
        awaited: What a step waits for, in words.
    """

    def __init__(self, console: Console, project: str, screen: Screen) -> None:
        self._console = console
        self._project = project
        self._screen = screen
        self._changed = anyio.Event()
        self.entries: list[LogEntry] = []
        self.status: Status | None = None
        self.reachable = True
        self.awaited = ""

    async def follow_logs(self) -> None:
        """Show each log record as it is written."""
        records = self._console.follow_logs(
            self._project, last=1_000, interval=LOOK_INTERVAL
        )
        try:
            async for entry in records:
                self._screen.entry(entry)
                self.entries.append(entry)
                self._announce()
        except ContractError as error:  # another client has replaced the key
            self._screen.text(str(error))

    async def follow_status(self) -> None:
        """Show the status whenever it changes, and whether Redis answers at all."""
        while True:
            try:
                status = await self._console.status(self._project)
            except RedisUnavailableError as error:
                self._note_reachable(reachable=False, kind=error.kind)
            except ContractError:
                self._note_status(None)
            else:
                self._note_reachable(reachable=True)
                self._note_status(status)
            await anyio.sleep(LOOK_INTERVAL)

    def _note_reachable(self, *, reachable: bool, kind: str = "") -> None:
        if self.reachable is not reachable:
            self.reachable = reachable
            text = self._screen.texts["back" if reachable else "away"]
            self._screen.redis(text.format(kind=kind))
            self._announce()

    def _note_status(self, status: Status | None) -> None:
        if self.status is not status:
            self.status = status
            self._screen.status(status)
            self._announce()

    def _announce(self) -> None:
        event, self._changed = self._changed, anyio.Event()
        event.set()

    async def until(self, what: str, find: Callable[[], T]) -> T:
        """Wait until something true is found in what was seen, and give it."""
        self.awaited = what
        while not (found := find()):
            await self._changed.wait()
        return found

    def outcomes(self, command: Command) -> list[Outcome]:
        """Give what was reported of a command."""
        found = [entry.outcome for entry in self.entries]
        return [item for item in found if item and item.command_id == command.id]

    def said_in(self, command: Command) -> list[LogEntry]:
        """Give the records that a command's handler has written."""
        return [
            entry
            for entry in self.entries
            if entry.metadata.get("commandId") == command.id and not entry.outcome
        ]

    def discarded(self) -> list[str]:
        """Give the reasons for which messages were discarded."""
        found = [entry.outcome for entry in self.entries]
        return [
            str(item.error.get("reason"))
            for item in found
            if item and item.kind is OutcomeKind.DISCARDED
        ]
