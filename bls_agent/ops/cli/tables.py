"""Tables of a command: as JSON, for a pipe, for a terminal, or live until the key q."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Hashable,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.ops.cli.output import Invocation
from bls_agent.ops.terminal import Cell, visible

T = TypeVar("T")
S = TypeVar("S")
_Follow: TypeAlias = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]

PERIOD: Final = 1.0  # seconds between two drawings, because shown ages grow
AROUND: Final = 3  # lines of the screen besides the rows: summary, heading, footer
INTERVAL: Final = 2.0  # least seconds between two reads
REST: Final = 4.0  # pause after a read, as a multiple of the read's duration


# Escape codes for the alternate screen without a cursor, which all terminals support.
ENTER: Final = "\x1b[?1049h\x1b[?25l"
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
CLEAR_LINE: Final = "\x1b[K"
CLEAR_BELOW: Final = "\x1b[J"


@dataclass(frozen=True)
class Layout:
    """The fields of a table, in order.

    The heading of a field is the text ``PREFIX_FIELD`` of the catalogue ``cli``.
    ``fields`` maps each field to the least width of a terminal that shows the field.
    """

    prefix: str
    fields: Mapping[str, int]

    def fitting(self, columns: int) -> list[str]:
        return [name for name, least in self.fields.items() if columns >= least]


def wants_live(invocation: Invocation) -> bool:
    """Return whether a live table is possible: a terminal, and no JSON wanted."""
    dumb = os.environ.get("TERM") == "dumb"
    return invocation.out.terminal and not dumb and not invocation.json


async def poll(
    look: Callable[[], Awaitable[T]],
    seen: Callable[[T], None],
    tell: Callable[[RedisUnavailableError | None], None],
    interval: float = INTERVAL,
) -> None:
    """Call ``look`` at intervals, and pass each result to ``seen``.

    At the beginning of an outage, pass the error to ``tell``, and at its end ``None``.
    Raises ``RedisRefusedError`` if Redis refuses to answer.
    """
    import anyio

    away = False
    while True:
        began = anyio.current_time()
        try:
            found = await look()
        except RedisRefusedError:
            raise
        except RedisUnavailableError as error:
            if not away:
                tell(error)
            away = True
        else:
            if away:
                tell(None)
            away = False
            seen(found)
        took = anyio.current_time() - began
        await anyio.sleep(max(interval, REST * took))


@dataclass
class Table(Generic[T]):
    """Items of one kind, with functions that describe an item to programs and people."""

    invocation: Invocation
    layout: Layout
    describe: Callable[[T], object]
    cells: Callable[[T], Mapping[str, Cell]]
    items: Sequence[T] = ()  # in the order of the rows
    summary: str = ""
    more: int = 0  # number of further items
    known: bool = False  # whether Redis has answered
    outage: RedisUnavailableError | None = None

    def record(self, outage: RedisUnavailableError | None) -> None:
        """Record the error of an outage, or ``None`` if Redis answers."""
        self.outage, self.known = outage, self.known or outage is None

    def fill(self, items: Sequence[T], summary: str = "", more: int = 0) -> None:
        self.items, self.summary, self.more = items, summary, more

    def write(self, empty: str = "", **values: object) -> None:
        """Write each item as JSON, or all items as a table.

        After a table, write the hint ``empty`` if there is no item. Otherwise write the
        summary, but only to a terminal.
        """
        out, names = self.invocation.out, [*self.layout.fields]
        if self.invocation.json:
            for item in self.items:
                out.json(self.describe(item))
            return
        if out.terminal:
            names = self.layout.fitting(out.columns)
        cells = map(self.cells, self.items)
        rows = [[row[name] for name in names] for row in cells]
        out.table(rows, self._titles(names))
        if empty and not self.items:
            self.invocation.hint(empty, **values)
        elif self.summary and out.terminal:
            self.invocation.hint("plain", text=self.summary)

    def write_change(self, item: T, described: object, *before: Cell) -> None:
        """Write a changed item, as JSON or as a row that begins with ``before``."""
        cells = self.cells(item)
        row = [cells[name] for name in self.layout.fields]
        self.invocation.record(described, *before, *row)

    def _titles(self, names: Sequence[str]) -> list[str]:
        texts, prefix = self.invocation.texts, self.layout.prefix
        return [texts[f"{prefix}_{name}"] for name in names]

    async def watch(
        self,
        look: Callable[[], Awaitable[S]],
        fill: Callable[[S], None],
        state: Callable[[T], tuple[Hashable, object]],
    ) -> None:
        """Call ``look`` at intervals; draw the table, or print each changed item.

        ``fill`` puts a result of ``look`` into the table. ``state`` returns the key of an
        item, and a value that differs if the item has changed.
        """
        known: dict[Hashable, object] = {}

        async def follow(redraw: Callable[[], None]) -> None:
            def tell(error: RedisUnavailableError | None) -> None:
                self.record(error)
                redraw()

            def draw(found: S) -> None:
                fill(found)
                tell(None)

            await poll(look, draw, tell)

        def print_changes(found: S) -> None:
            nonlocal known
            fill(found)
            before, known = known, dict(map(state, self.items))
            for item in self.items:
                key, now = state(item)
                if before.get(key) != now:
                    self.write_change(item, self.describe(item))

        if wants_live(self.invocation):
            await self.show(follow)
        else:
            await poll(look, print_changes, self.invocation.tell_outage)

    async def show(self, follow: _Follow) -> None:
        """Draw the table until q is pressed; meanwhile run ``follow(redraw)``."""
        import anyio

        out = self.invocation.out

        def redraw() -> None:
            lines = self._lines(*shutil.get_terminal_size())
            out.draw(HOME + f"{CLEAR_LINE}\n".join(lines) + CLEAR_BELOW)

        async def tick() -> None:
            while not noted:
                redraw()
                await anyio.sleep(PERIOD)
            tasks.cancel_scope.cancel()

        with _sigterm_noted() as noted, _keys_pressed() as keys:
            out.draw(ENTER)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(follow, redraw)
                    tasks.start_soon(tick)
                    await _wait_for_q(keys)
                    tasks.cancel_scope.cancel()
            finally:
                out.draw(LEAVE)
        if noted:
            sys.exit(128 + noted[0])

    def _lines(self, columns: int, lines: int) -> list[str]:
        """Return the lines to draw: summary, table, and the number of hidden rows."""
        out, names = self.invocation.out, self.layout.fitting(columns)
        room = max(1, lines - AROUND)
        cells = map(self.cells, self.items[:room])
        rows = [[row[name] for name in names] for row in cells]
        head = self._head(), "yellow" if self.outage else "dim"
        shown = [out.cut_line([head], [columns])]
        shown += out.frame(rows, self._titles(names), columns)
        if more := max(0, len(self.items) - room) + self.more:
            text = self.invocation.say("top_more", count=more)
            shown.append(out.cut_line([(text, "dim")], [columns]))
        return shown

    def _head(self) -> str:
        if self.outage is not None:
            return self.invocation.say("away", kind=visible(self.outage.kind))
        if not self.known:
            return self.invocation.say("waiting_redis")
        return f"{self.summary} · {self.invocation.say('top_quit')}"


@contextmanager
def _sigterm_noted() -> Generator[list[int]]:
    """Yield a list to which SIGTERM is added, so that the table can end itself.

    A second SIGTERM ends the process, also if the terminal accepts no output.
    """
    noted: list[int] = []

    def note(number: int, _: object) -> None:
        noted.append(number)
        signal.signal(number, signal.SIG_DFL)

    usual = signal.signal(signal.SIGTERM, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGTERM, usual)


@contextmanager
def _keys_pressed() -> Generator[int | None]:
    """Yield a file descriptor that reads single keys, or ``None`` without a terminal."""
    if sys.platform == "win32" or sys.stdin is None or not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)  # Ctrl-C still interrupts
        yield number
    finally:
        with suppress(termios.error):
            termios.tcsetattr(number, termios.TCSADRAIN, before)


async def _wait_for_q(number: int | None) -> None:
    """Wait until q or Ctrl-D is pressed, or the terminal is closed."""
    import anyio

    if number is None:
        await anyio.sleep_forever()
        return
    with suppress(OSError):  # EIO: the terminal is closed
        pressed = b"any"
        while pressed.lower() not in (b"", b"q", b"\x04"):
            await anyio.wait_readable(number)
            pressed = os.read(number, 64)
