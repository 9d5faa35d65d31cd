"""Tables of a command: as JSON, in a pipe, at a terminal, and live until q."""

from __future__ import annotations

import os
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
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.ops.cli.output import Invocation
from bls_agent.ops.terminal import Cell, visible

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Layout", "LiveTable", "poll", "wants_live"]

T = TypeVar("T")
S = TypeVar("S")
_Follow: TypeAlias = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]

PERIOD: Final = 1.0  # seconds between two drawings: ages pass by themselves
AROUND: Final = 3  # lines of the screen that are no row: summary, heading, footer
INTERVAL: Final = 2.0  # seconds between two looks at everything, at least
REST: Final = 4.0  # times as long as a look took


@dataclass(frozen=True)
class Layout:
    """The fields of a table, in their order.

    A heading is the text ``PREFIX_FIELD`` of the catalogue ``cli``. ``fields`` gives
    the columns of a terminal from which each is shown, ``shares`` the parts of a live
    table's width; a field without one takes what it needs.
    """

    prefix: str
    fields: Mapping[str, int]
    shares: Mapping[str, int] = field(default_factory=dict[str, int])

    def fitting(self, columns: int) -> list[str]:
        """Choose the fields that fit a terminal; the least important ones go first."""
        return [name for name, least in self.fields.items() if columns >= least]

    def write(
        self,
        invocation: Invocation,
        items: Sequence[T],
        describe: Callable[[T], object],
        cells: Callable[[T], Mapping[str, Cell]],
        *,
        empty: str = "",
        summary: str = "",
        **values: object,
    ) -> None:
        """Write each item as JSON, or as a row.

        Then, for people, the hint ``empty`` if there is none, or a summary.
        """
        out = invocation.out
        if invocation.json:
            for item in items:
                out.json(describe(item))
            return
        names = self.fitting(out.columns) if out.terminal else [*self.fields]
        titles = [invocation.texts[f"{self.prefix}_{name}"] for name in names]
        out.table([[row[name] for name in names] for row in map(cells, items)], titles)
        if empty and not items:
            invocation.hint(empty, **values)
        elif summary and out.terminal:
            invocation.hint("plain", text=summary)

    def write_change(
        self,
        invocation: Invocation,
        described: object,
        cells: Mapping[str, Cell],
        *before: Cell,
    ) -> None:
        """Write a changed item: as JSON, or as its row behind the given cells."""
        row = [cells[name] for name in self.fields]
        invocation.record(described, *before, *row)


def wants_live(invocation: Invocation) -> bool:
    """Whether the output is a terminal that can be drawn on."""
    dumb = os.environ.get("TERM") == "dumb"
    return invocation.out.terminal and not dumb and not invocation.json


async def poll(
    look: Callable[[], Awaitable[T]],
    seen: Callable[[T], None],
    tell: Callable[[RedisUnavailableError | None], None],
    interval: float = INTERVAL,
) -> None:
    """Call again and again; an outage and its end are reported once.

    Raises ``RedisRefusedError`` if Redis refuses for good.
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
class LiveTable(Generic[S, T]):
    """A table at a terminal that is redrawn until q is pressed."""

    invocation: Invocation
    layout: Layout
    found: S
    items: Callable[[S], Sequence[T]]  # in their order
    cells: Callable[[T], Mapping[str, Cell]]
    summary: Callable[[S], str]
    more: Callable[[S], int] = lambda _: 0  # items that are not among them
    known: bool = False  # Redis has answered
    outage: RedisUnavailableError | None = None

    def record(self, outage: RedisUnavailableError | None) -> None:
        """Record that Redis answers, or why it does not."""
        self.outage, self.known = outage, self.known or outage is None

    async def watch(
        self,
        look: Callable[[], Awaitable[S]],
        describe: Callable[[T], object],
        state: Callable[[T], tuple[Hashable, object]],
    ) -> None:
        """Look again and again: show the table, or print each item that has changed.

        ``state`` gives what an item is known by, and what changes.
        """
        if wants_live(self.invocation):
            await self.show(partial(self._poll, look))
            return
        known: dict[Hashable, object] = {}

        def print_changes(found: S) -> None:
            nonlocal known
            items = self.items(found)
            before, known = known, dict(map(state, items))
            for item, (key, now) in zip(items, map(state, items), strict=True):
                if before.get(key) != now:
                    cells = self.cells(item)
                    self.layout.write_change(self.invocation, describe(item), cells)

        await poll(look, print_changes, self.invocation.tell_outage)

    async def _poll(
        self, look: Callable[[], Awaitable[S]], redraw: Callable[[], None]
    ) -> None:
        def tell(error: RedisUnavailableError | None) -> None:
            self.record(error)
            redraw()

        def show(found: S) -> None:
            self.found = found
            tell(None)

        await poll(look, show, tell)

    async def show(self, follow: _Follow) -> None:
        """Draw while ``follow`` runs; its argument redraws at once."""
        import anyio
        from rich.console import Console
        from rich.live import Live

        out = self.invocation.out
        console = Console(
            markup=False,
            emoji=False,
            highlight=False,
            no_color=not out.colours,
            color_system="standard" if out.colours else None,
            legacy_windows=False,
        )
        with (
            _keys_pressed() as keys,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):

            def redraw() -> None:
                size = console.size
                live.update(self._draw(size.width, size.height), refresh=True)

            async def tick() -> None:
                while True:
                    redraw()
                    await anyio.sleep(PERIOD)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow, redraw)
                tasks.start_soon(tick)
                await _wait_for_q(keys)
                tasks.cancel_scope.cancel()

    def _draw(self, columns: int, lines: int) -> Table:
        """Make the table: a summary above, the number of hidden rows below."""
        from rich.table import Table
        from rich.text import Text

        texts, items = self.invocation.texts, self.items(self.found)
        names = self.layout.fitting(columns)
        table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
        table.title = Text(self._head(), "yellow" if self.outage else "dim")
        table.title_justify = "left"
        for name in names:
            title = Text(texts[f"{self.layout.prefix}_{name}"])
            share = self.layout.shares.get(name)
            table.add_column(title, no_wrap=True, overflow="ellipsis", ratio=share)
        room = max(1, lines - AROUND)
        for row in map(self.cells, items[:room]):
            cells = (row[name] for name in names)
            pairs = ((one, "") if isinstance(one, str) else one for one in cells)
            table.add_row(*(Text(visible(text), style) for text, style in pairs))
        if more := max(0, len(items) - room) + self.more(self.found):
            table.add_row(Text(texts["top_more"].format(count=more), "dim"))
        return table

    def _head(self) -> str:
        if self.outage is not None:
            return self.invocation.say("away", kind=visible(self.outage.kind))
        if not self.known:
            return self.invocation.say("waiting_redis")
        return f"{self.summary(self.found)} · {self.invocation.say('top_quit')}"


@contextmanager
def _keys_pressed() -> Generator[int | None]:
    """Read single keys from the terminal; ``None`` where there is none."""
    if sys.platform == "win32" or sys.stdin is None or not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)  # Ctrl-C stays Ctrl-C
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
    with suppress(OSError):  # EIO: the other end is closed
        pressed = b"any"
        while pressed.lower() not in (b"", b"q", b"\x04"):
            await anyio.wait_readable(number)
            pressed = os.read(number, 64)
