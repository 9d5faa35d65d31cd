"""What a command prints: lines, tables and JSON, for terminals and for pipes.

A terminal gets colours, words and its own width; a pipe gets one line for each record, with
tabs between the fields and nothing cut. All text goes through ``terminal.visible``, so that
nothing is obeyed that came from Redis: no control character, no markup.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias, cast

from bls_agent.ops.cli.printable import escape_json, json_text
from bls_agent.ops.terminal import count_columns, visible, wrap

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = ["Cell", "Column", "ReaderGone", "Screen"]

Cell: TypeAlias = "str | tuple[str, str]"  # a text, or a text and its rich style

LEAST_COLUMNS: Final = 20
GAP: Final = 2  # columns between two of a table


class ReaderGone(Exception):  # noqa: N818 - nothing is wrong: `| head` has enough
    """Whoever read the output reads no more."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        title: Its heading, on terminals.
        least: Columns of the terminal below which it is no use to squeeze it.
    """

    title: str
    least: int = 8


class Screen:
    """One stream: standard output for results, standard error for everything else.

    Args:
        stream: Where to; ``None`` where the process has none.
        environ: ``NO_COLOR``, ``FORCE_COLOR``, ``TERM`` and ``COLUMNS``.
        needed: Whether a command has failed that cannot write here. Nobody is harmed if
            hints are not read.

    Attributes:
        terminal: Whether people read it.
        colours: Whether ANSI colours are wanted and understood.
        columns: Width of the terminal, at least 20.
    """

    def __init__(
        self,
        stream: TextIO | None,
        environ: Mapping[str, str],
        *,
        needed: bool = True,
    ) -> None:
        """Look at the stream; whatever it cannot encode is shown as an escape."""
        self._stream = stream or _nowhere()
        self._needed = needed
        if reconfigure := getattr(self._stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
        dumb = environ.get("TERM") == "dumb"
        self.terminal = self._stream.isatty()
        wanted = bool(environ.get("FORCE_COLOR")) or (self.terminal and not dumb)
        self.colours = wanted and not environ.get("NO_COLOR")
        self.columns = max(shutil.get_terminal_size().columns, LEAST_COLUMNS)

    def line(self, *pieces: Cell, between: str = "") -> None:
        """Write one line, as long as it is; pieces are texts, or texts with a style."""
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
        """Write each row below the other: too narrow for a table."""
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
        """Write a line as it is: our own text, or one made visible already.

        Raises:
            ReaderGone: Nobody reads any more.
            OSError: It could not be written: the disk is full.
        """
        self.draw(f"{line}\n")

    def encodable(self, text: str) -> str:
        """Give a text as this stream would show it: what it lacks as escapes."""
        encoding = self._stream.encoding or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)

    def draw(self, text: str) -> None:
        """Write without ending the line."""
        with self._writing():
            self._stream.write(text)
            self._stream.flush()

    def finish(self) -> None:
        """Write what is left, so that nothing can fail at the interpreter's exit."""
        with self._writing():
            self._stream.flush()

    def give_up(self) -> None:
        """Send whatever still comes nowhere: the stream is broken."""
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
        """Let rich lay something out, and write what came out of it."""
        console = self._console
        page = cast("io.StringIO", console.file)
        console.print(what)
        text = page.getvalue()
        page.seek(0)
        page.truncate()
        for line in text.splitlines():
            self.write(line.rstrip(" "))

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console(
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
