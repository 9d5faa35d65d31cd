"""Text for a terminal or a pipe: lines, tables and JSON, in any encoding.

A terminal shows colours and lines that fit its width. A pipe receives one line for each
record, with tabs between the fields, and no text is shortened. All text goes through
:func:`visible`: control characters from Redis become escapes, and markup has no effect.
"""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import zip_longest
from typing import Any, Final, TextIO, TypeAlias

from bls_agent.core.codec import cut_text, encode, parse_timestamp
from bls_agent.project.messages import Level, LogEntry, Status

Cell: TypeAlias = "str | tuple[str, str]"  # a text, or a text and its style

CLOCK: Final = "%m-%d %H:%M:%S"
LEAST_COLUMNS: Final = 20
LONGEST_METADATA: Final = 400  # bytes of a record's metadata
LONGEST_MESSAGE: Final = 4_000
UNTOLD: Final = frozenset({"agent", "commandId", "statusReason"})  # for programs only
GAP: Final = 2  # blanks between two columns of a table
LEAST: Final = 10  # the narrowest readable column of a table, in characters
LEVEL_STYLES: Final = {
    Level.DEBUG: "dim",
    Level.INFO: "cyan",
    Level.WARN: "yellow",
    Level.ERROR: "bold red",
}
STATUS_STYLES: Final = {
    Status.ONLINE: "green",
    Status.OFFLINE: "dim",
    Status.FAULT: "bold red",
    Status.ERROR: "bold yellow",
}
_CODES: Final = {
    "bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34,
    "magenta": 35, "cyan": 36,
}  # fmt: skip
_UNUSUAL: Final = re.compile(r"[^\x20-\x7e]")
_BARE: Final = re.compile(r"[\w.:/+-]{1,200}")


def visible(text: str) -> str:
    r"""Return a text with printable escapes, such as ``\n``, for control characters.

    A terminal then shows these characters, and does not act on them. Other characters
    that cannot be printed, such as bidi marks, become escapes, too.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def count_columns(text: str) -> int:
    return sum(map(_width, text))


def _width(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1


def wrap(text: str, columns: int) -> list[str]:
    """Split a text into lines of at most ``columns``.

    A line ends at a blank, or before a wide (Chinese) letter.
    """
    lines: list[str] = []
    while (end := _fitting(text, columns)) < len(text):
        blank = text.rfind(" ", end // 2, end + 1)
        cut = end if blank < 0 or _width(text[end]) > 1 else blank
        if cut > 1 and _is_wide_punctuation(text[cut]):  # no line may begin with it
            cut -= 1
        lines.append(text[:cut].rstrip(" "))
        text = text[cut:].lstrip(" ")
    return [*lines, text]


def _is_wide_punctuation(letter: str) -> bool:
    return _width(letter) > 1 and unicodedata.category(letter) in ("Pe", "Po")


def _fitting(text: str, columns: int) -> int:
    """Count the characters that fit into ``columns``.

    The count is at least 1, because with 0 the loop of wrap() would never end.
    """
    used = 0
    for index, letter in enumerate(text):
        used += _width(letter)
        if used > columns:
            return max(index, 1)
    return len(text)


def visible_lines(text: str) -> str:
    return "\n".join(map(visible, text.replace("\r\n", "\n").split("\n")))


def clock_of(timestamp: str, form: str = CLOCK, columns: int = 14) -> str:
    """Return the local time of a record, or dashes if its timestamp cannot be read."""
    moment = parse_timestamp(timestamp)
    try:
        local = moment.astimezone() if moment else None
    except (OverflowError, OSError, ValueError):  # possible in the years 1 and 9999
        local = None
    return local.strftime(form)[:columns] if local else f"{'--:--:--':>{columns}}"


def metadata_text(items: Iterable[tuple[str, object]]) -> str:
    """Return metadata as one line of ``name=value``, with quotes where necessary."""
    return " ".join(f"{name}={_bare(json_text(value))}" for name, value in items)


def _bare(text: str) -> str:
    return text[1:-1] if text[:1] == '"' and _BARE.fullmatch(text[1:-1]) else text


def describe_record(entry: LogEntry) -> tuple[str, str, bool]:
    """Return a record's message and metadata, and whether one of them is shortened."""
    pairs = metadata_text(_told_metadata(entry))
    message = cut_text(entry.message, LONGEST_MESSAGE)
    shown = cut_text(pairs, LONGEST_METADATA)
    return message, shown, message != entry.message or shown != pairs


def _told_metadata(entry: LogEntry) -> list[tuple[str, Any]]:
    """Return the metadata to show; for an outcome, only the result or the error."""
    outcome = entry.outcome
    if outcome is None:
        return [item for item in entry.metadata.items() if item[0] not in UNTOLD]
    fields = [("truncated", outcome.truncated)] if outcome.truncated else []
    if outcome.succeeded:
        return (
            fields if outcome.result is None else [*fields, ("result", outcome.result)]
        )
    return fields + [item for item in outcome.error.items() if item[0] != "message"]


class ReaderGone(Exception):  # noqa: N818 - no error, because `| head` reads only some lines
    """The process that reads our output has closed the pipe."""


class Screen:
    """One stream: standard output for results, standard error for everything else.

    Characters that the stream cannot encode are written as escapes.
    """

    def __init__(
        self,
        stream: TextIO | None,
        environ: Mapping[str, str],
        *,
        needed: bool = True,
    ) -> None:
        # A process may have been started without this stream.
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        self._needed = needed  # whether a failed write is an error
        if reconfigure := getattr(self._stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
        dumb = environ.get("TERM") == "dumb"
        self.terminal: bool = self._stream.isatty()
        wanted = bool(environ.get("FORCE_COLOR")) or (self.terminal and not dumb)
        self.colours: bool = wanted and not environ.get("NO_COLOR")
        self.columns: int = max(shutil.get_terminal_size().columns, LEAST_COLUMNS)
        # Surrounds each line; a progress hides its text there.
        self.around_line: Callable[[], AbstractContextManager[None]] = nullcontext

    def line(self, *pieces: Cell, between: str = "") -> None:
        """Write one line without shortening the pieces.

        Each piece is a text, or a text and its style.
        """
        self.write(between.join(map(self._shown, pieces)))

    def _shown(self, piece: Cell) -> str:
        text, style = visible(_plain(piece)), _style(piece)
        if not (self.colours and text and style):
            return text
        codes = ";".join(str(_CODES[word]) for word in style.split())
        return f"\x1b[{codes}m{text}\x1b[0m"

    def fields(self, *cells: Cell) -> None:
        """Write one record on one line; a pipe receives tabs between the cells."""
        self.line(*cells, between="  " if self.terminal else "\t")

    def paragraph(self, text: str, style: str = "") -> None:
        """Write sentences, wrapped for a terminal, and as one line for a pipe."""
        for line in wrap(visible(text), self.columns) if self.terminal else [text]:
            self.line((line, style))

    def table(self, rows: Iterable[Sequence[Cell]], titles: Sequence[str] = ()) -> None:
        """Write a table; a pipe receives only the rows, with tabs between the cells.

        Without titles, the first cell of each row is the label of the second cell.
        """
        if not self.terminal:
            for row in rows:
                self.fields(*row)
            return
        cells = [*rows]
        shown = _with_titles(cells, titles)
        needed, widths = _measure(shown, self.columns)
        pairs = zip(needed, widths, strict=True)
        if any(width < min(need, LEAST) for need, width in pairs):
            self._stack(cells, titles)
            return
        for row in shown:
            self.row(row, widths)

    def frame(
        self, rows: Sequence[Sequence[Cell]], titles: Sequence[str], columns: int
    ) -> list[str]:
        """Return the lines of a table, one for each row; long cells are shortened."""
        shown = _with_titles(rows, titles)
        _, widths = _measure(shown, columns)
        return [self.cut_line(row, widths) for row in shown]

    def cut_line(self, cells: Sequence[Cell], widths: Sequence[int]) -> str:
        """Return cells side by side; a cell that is too long ends with an ellipsis."""
        line = ""
        for cell, width in zip(cells, widths, strict=True):
            text, *more = wrap(visible(_plain(cell)), width)
            if more:
                text = wrap(visible(_plain(cell)), width - 1)[0] + "…"
            blanks = " " * (width - count_columns(text) + GAP)
            line += self._shown((text, _style(cell))) + blanks
        return line.rstrip(" ")

    def row(self, cells: Sequence[Cell], widths: Sequence[int]) -> None:
        """Write cells side by side; a long cell is wrapped within its own column."""
        folded = map(wrap, (visible(_plain(cell)) for cell in cells), widths)
        styles = [_style(cell) for cell in cells]
        for texts in zip_longest(*folded, fillvalue=""):
            pieces = [*zip(texts, styles, strict=True)]
            self.write(self.cut_line(pieces, widths))

    def _stack(self, rows: Sequence[Sequence[Cell]], titles: Sequence[str]) -> None:
        """Write each cell on its own line, because the terminal is too narrow."""
        for number, row in enumerate(rows):
            if not titles:
                self.line((f"{_plain(row[0])}: ", "dim"), *row[1:])
                continue
            if number:
                self.write("")
            for title, cell in zip(titles, row, strict=True):
                if _plain(cell):
                    self.line((f"{title}: ", "dim"), cell)

    def json(self, value: object) -> None:
        """Write a value as JSON on one line; a pipe always receives UTF-8."""
        text = json_text(value)
        encoding = self._stream.encoding or "utf-8"
        self._write_utf8(text, escape_json(text, encoding))

    def file(self, text: str) -> None:
        """Write the content of a file; a pipe always receives UTF-8.

        The caller must have escaped any text from Redis.
        """
        self._write_utf8(text, self.encodable(text))

    def _write_utf8(self, text: str, shown: str) -> None:
        """Write ``text`` as UTF-8 to a pipe, and ``shown`` to a terminal."""
        raw = getattr(self._stream, "buffer", None)
        if self.terminal or raw is None:
            self.write(shown)
            return
        with self._writing():
            self._stream.flush()
            raw.write(text.encode() + b"\n")
            raw.flush()

    def write(self, line: str) -> None:
        """Write a line unchanged; the caller must have escaped any text from Redis."""
        with self.around_line():
            self.draw(f"{line}\n")

    def encodable(self, text: str) -> str:
        encoding = self._stream.encoding or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)

    def draw(self, text: str) -> None:
        """Write without ending the line.

        Raises ``ReaderGone`` for a closed pipe, and ``OSError`` if the disk is full.
        """
        with self._writing():
            self._stream.write(text)
            self._stream.flush()

    def finish(self) -> None:
        """Flush now, because no code can handle an error of a flush at exit."""
        with self._writing():
            self._stream.flush()

    @contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            with suppress(OSError, ValueError):  # discard all further output
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if self._needed and isinstance(error, BrokenPipeError):
                raise ReaderGone from error  # because typer exits with 1 for BrokenPipeError
            if self._needed:
                raise


def _plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _style(cell: Cell) -> str:
    return "" if isinstance(cell, str) else cell[1]


def _with_titles(
    rows: Sequence[Sequence[Cell]], titles: Sequence[str]
) -> list[Sequence[Cell]]:
    head = [(title, "bold") for title in titles]
    return [head, *rows] if head else [*rows]


def _measure(
    rows: Sequence[Sequence[Cell]], columns: int
) -> tuple[list[int], list[int]]:
    """Return the widths that the columns need, and the widths that they get.

    If the columns do not fit, the widest ones become narrower.
    """
    needed = [
        max(count_columns(visible(_plain(cell))) for cell in column)
        for column in zip(*rows, strict=True)
    ]
    room = columns - GAP * (len(needed) - 1)
    widths = [min(width, room) for width in needed]
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= 1
    return needed, widths


def escape_json(text: str, encoding: str = "utf-8") -> str:
    r"""Write characters that cannot be printed or encoded as JSON's ``\uXXXX``.

    The value stays the same, because JSON is printable ASCII outside its strings.
    """

    def escape(found: re.Match[str]) -> str:
        letter = found[0]
        known = letter.encode(encoding, "ignore")
        if letter.isprintable() and known:
            return letter
        units = letter.encode("utf-16-be", "surrogatepass")
        pairs = zip(units[::2], units[1::2], strict=True)
        return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs)

    return _UNUSUAL.sub(escape, text)


def json_text(value: object) -> str:
    """Write a value as JSON on one line, with printable characters only."""
    return escape_json(encode(value).decode())
