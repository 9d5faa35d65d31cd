"""Output of a command: lines, tables, JSON and progress, for terminals and for pipes.

A terminal gets colours, words and its own width; a pipe gets one line for each record,
with tabs between the fields and nothing cut. All text goes through
``terminal.visible``: no control character and no markup from Redis has an effect.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self, TextIO, TypeAlias, cast

from bls_agent.core.codec import encode
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.ops.terminal import count_columns, visible, wrap
from bls_agent.ops.texts import Texts

if TYPE_CHECKING:
    from rich.console import Console as Renderer, RenderableType
    from rich.table import Table
    from rich.text import Text

    from bls_agent.console import Console

__all__ = [
    "Cell",
    "Column",
    "Invocation",
    "Progress",
    "ReaderGone",
    "Screen",
    "escape_json",
    "json_text",
]

Cell: TypeAlias = "str | tuple[str, str]"  # a text, or a text and its rich style

LEAST_COLUMNS: Final = 20
GAP: Final = 2  # columns between two of a table
PATIENCE: Final = 1.0  # seconds before anything is shown
PERIOD: Final = 0.2  # seconds between two drawings
_UNUSUAL: Final = re.compile(r"[^\x20-\x7e]")


class ReaderGone(Exception):  # noqa: N818 - nothing is wrong: `| head` has enough
    """The process that read the output has closed it."""


@dataclass(frozen=True)
class Column:
    """One column of a table, with its heading at terminals."""

    title: str
    least: int = 8  # columns of the terminal below which it is no use to squeeze it


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
        self._stream = stream or _nowhere()
        self._needed = needed  # a command that cannot write results has failed
        if reconfigure := getattr(self._stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
        dumb = environ.get("TERM") == "dumb"
        self.terminal = self._stream.isatty()
        wanted = bool(environ.get("FORCE_COLOR")) or (self.terminal and not dumb)
        self.colours = wanted and not environ.get("NO_COLOR")
        self.columns = max(shutil.get_terminal_size().columns, LEAST_COLUMNS)

    def line(self, *pieces: Cell, between: str = "") -> None:
        """Write one line, uncut; pieces are texts, or texts with a style."""
        if self.colours:
            shown = [self._paint(piece) for piece in pieces]
        else:
            shown = [visible(_plain(piece)) for piece in pieces]
        self.write(between.join(shown))

    def _paint(self, piece: Cell) -> str:
        if isinstance(piece, str) or not piece[1]:
            return visible(_plain(piece))
        from rich.color import ColorSystem
        from rich.style import Style

        style = Style.parse(piece[1])
        return style.render(visible(piece[0]), color_system=ColorSystem.STANDARD)

    def fields(self, *cells: Cell) -> None:
        """Write one record on a line: with tabs in a pipe."""
        self.line(*cells, between="  " if self.terminal else "\t")

    def paragraph(self, text: str, style: str = "") -> None:
        """Write sentences: wrapped at a terminal, one line in a pipe."""
        for line in wrap(visible(text), self.columns) if self.terminal else [text]:
            self.line((line, style))

    def table(
        self,
        columns: Sequence[Column],
        rows: Iterable[Sequence[Cell]],
        *,
        header: bool = True,
    ) -> None:
        """Write a table; in a pipe its rows alone, with tabs between the cells."""
        cells = [[*row] for row in rows]
        if not self.terminal:
            for row in cells:
                self.line(*row, between="\t")
            return
        room = self.columns - GAP * (len(columns) - 1)
        if sum(map(min, _widths(columns, cells), (c.least for c in columns))) > room:
            self._stack(columns, cells, header=header)
        else:
            self._render(_make_table(columns, cells, header=header))

    def _stack(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[Cell]],
        *,
        header: bool,
    ) -> None:
        """Write a row's cells below each other: the terminal is too narrow."""
        for number, row in enumerate(rows):
            if number and header:
                self.write("")
            if not header:  # its first cell says what the second is
                self.line((f"{_plain(row[0])}: ", "dim"), *row[1:])
                continue
            for column, cell in zip(columns, row, strict=True):
                if _plain(cell):
                    self.line((f"{column.title}: ", "dim"), cell)

    def json(self, value: object) -> None:
        """Write a value as JSON on one line; UTF-8 unless people read it."""
        text = json_text(value)
        raw = getattr(self._stream, "buffer", None)
        if self.terminal or raw is None:
            encoding = self._stream.encoding or "utf-8"
            self.write(escape_json(text, encoding))
            return
        with self._writing():
            self._stream.flush()
            raw.write(text.encode() + b"\n")
            raw.flush()

    def write(self, line: str) -> None:
        """Write a line unchanged: our own text, or one that is escaped already."""
        self.draw(f"{line}\n")

    def encodable(self, text: str) -> str:
        """Escape the characters that this stream cannot encode."""
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
        """Flush, so that nothing can fail at the interpreter's exit."""
        with self._writing():
            self._stream.flush()

    def give_up(self) -> None:
        """Discard all further output: the stream is broken."""
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    @contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            self.give_up()
            if self._needed and isinstance(error, BrokenPipeError):
                raise ReaderGone from error  # the parser makes an exit code of its own
            if self._needed:
                raise

    def _render(self, what: RenderableType) -> None:
        """Let rich format something, and write the result."""
        page = cast("io.StringIO", self._renderer.file)
        self._renderer.print(what)
        text = page.getvalue()
        page.seek(0)
        page.truncate()
        for line in text.splitlines():
            self.write(line.rstrip(" "))

    @cached_property
    def _renderer(self) -> Renderer:
        from rich.console import Console as Renderer

        return Renderer(
            file=io.StringIO(),
            force_terminal=self.colours,
            color_system="standard" if self.colours else None,
            no_color=not self.colours,
            width=self.columns,
            height=25,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
            _environ={},
        )


def _nowhere() -> TextIO:
    """Give a stream for a process that was started without one."""
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - as long as we live


def _plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _text(cell: Cell) -> Text:
    from rich.text import Text

    style = "" if isinstance(cell, str) else cell[1]
    return Text(visible(_plain(cell)), style, overflow="fold")


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[int]:
    shown = [[column.title for column in columns], *([*map(_plain, r)] for r in rows)]
    return [
        max(count_columns(visible(cell)) for cell in column)
        for column in zip(*shown, strict=True)
    ]


def _make_table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, header: bool
) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    table.show_header = header
    for column, width in zip(columns, _widths(columns, rows), strict=True):
        least = min(width, column.least)
        table.add_column(_text(column.title), overflow="fold", min_width=least)
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def escape_json(text: str, encoding: str = "utf-8") -> str:
    r"""Write what is not printable, or not in an encoding, as JSON's ``\uXXXX``.

    The value stays the same: outside its strings JSON is printable ASCII.
    """

    def escape(found: re.Match[str]) -> str:
        letter = found[0]
        if letter.isprintable() and _can_encode(letter, encoding):
            return letter
        units = letter.encode("utf-16-be", "surrogatepass")
        pairs = zip(units[::2], units[1::2], strict=True)
        return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs)

    return _UNUSUAL.sub(escape, text)


def json_text(value: object) -> str:
    """Write a value as JSON in which everything is printable, as a part of a line."""
    return escape_json(encode(value).decode())


def _can_encode(letter: str, encoding: str) -> bool:
    try:
        letter.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class Progress:
    """Shows at a terminal what the command waits for, if it takes longer than a second.

    A thread draws it, because the event loop may be busy.
    """

    def __init__(self, screen: Screen, text: str) -> None:
        self._screen = screen
        self._text = text
        self._drawn = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def tell(self, text: str) -> None:
        """Set the text; returns at once, from any thread."""
        self._text = text

    def __enter__(self) -> Self:
        if self._screen.terminal:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
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
        with suppress(OSError, ValueError):  # the terminal is closed
            self._screen.draw(f"\r{fitting}{blanks}" + "\r" * (not text))
        self._drawn = fitting


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One run of one command: its options, and its output."""

    redis: str | None  # a URL; `None`: `BLS_REDIS_URL`, or the default
    json: bool  # whether results are wanted as JSON, one value on each line
    language: str  # `zh` or `en`
    texts: Texts  # the catalogue `cli` in that language
    out: Screen  # standard output: results, and nothing else
    err: Screen  # standard error: progress, hints, errors

    def say(self, text: str, /, **values: object) -> str:
        """Give a sentence of the catalogue."""
        return self.texts[text].format(**values)

    def hint(self, text: str, /, **values: object) -> None:
        """Write a remark for people on standard error."""
        self.err.paragraph(self.say(text, **values), "dim")

    def warn(self, text: str, /, **values: object) -> None:
        """Warn on standard error; the command goes on."""
        self.err.paragraph(self.say(text, **values), "yellow")

    def result(self, value: object, *pieces: Cell) -> None:
        """Write a result: the value as JSON, or a line for people."""
        if self.json:
            self.out.json(value)
        else:
            self.out.line(*pieces)

    def tell_outage(self, error: RedisUnavailableError | None) -> None:
        """Report that Redis went away, or with ``None`` that it answers again."""
        if error is None:
            self.hint("back")
        else:
            self.warn("away", kind=error.kind)

    def waiting(self, text: str, /, **values: object) -> Progress:
        """Show at a terminal what the command waits for, after a second."""
        return Progress(self.err, self.say(text, **values))

    def console(self) -> Console:
        """Make the client for commands about a project."""
        from bls_agent.console import Console

        return Console(self.redis)

    def export_redis(self) -> None:
        """Set ``--redis`` for code that reads the environment."""
        if self.redis is not None:
            os.environ["BLS_REDIS_URL"] = self.redis
