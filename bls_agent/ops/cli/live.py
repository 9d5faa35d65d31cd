"""A table at a terminal that draws itself again and again, until q is pressed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bls_agent.ops.terminal import visible

if TYPE_CHECKING:
    from rich.table import Table

    from bls_agent.ops.cli.screen import Cell, Screen

__all__ = ["AROUND", "Heading", "live_table", "show_live", "wants_live"]

PERIOD: Final = 1.0  # seconds between two drawings: ages pass by themselves
AROUND: Final = 3  # lines of the screen that are no row: summary, heading, footer


def wants_live(out: Screen) -> bool:
    """Tell whether the output is a terminal that can be drawn on."""
    return out.terminal and os.environ.get("TERM") != "dumb"


async def show_live(
    out: Screen,
    draw: Callable[[int, int], Table],
    follow: Callable[[Callable[[], None]], Coroutine[Any, Any, None]],
) -> None:
    """Draw until q is pressed.

    Args:
        out: The terminal.
        draw: Makes the table for so many columns and lines.
        follow: Follows what is shown; it is given what draws at once.
    """
    import anyio
    from rich.console import Console
    from rich.live import Live

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
            live.update(draw(size.width, size.height), refresh=True)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, redraw)
            tasks.start_soon(_tick, redraw)
            await _wait_for_q(keys)
            tasks.cancel_scope.cancel()


async def _tick(redraw: Callable[[], None]) -> None:
    import anyio

    while True:
        redraw()
        await anyio.sleep(PERIOD)


@dataclass(frozen=True)
class Heading:
    """The head of one column.

    Attributes:
        title: What stands there.
        ratio: Its share of what is left; ``None`` for as much as it needs.
    """

    title: str
    ratio: int | None = None


def live_table(
    title: Cell,
    headings: Sequence[Heading],
    rows: Iterable[Sequence[Cell]],
    more: str = "",
) -> Table:
    """Make the table: a summary above, a last line for what found no room."""
    from rich.table import Table
    from rich.text import Text

    text, style = (title, "") if isinstance(title, str) else title
    table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
    table.title, table.title_justify = Text(text, style), "left"
    for one in headings:
        table.add_column(
            Text(one.title), no_wrap=True, overflow="ellipsis", ratio=one.ratio
        )
    for row in rows:
        pairs = [(cell, "") if isinstance(cell, str) else cell for cell in row]
        table.add_row(*(Text(visible(text), style) for text, style in pairs))
    if more:
        table.add_row(Text(more, "dim"))
    return table


@contextmanager
def _keys_pressed() -> Generator[int | None]:
    """Let single keys be read from the terminal; ``None`` where there is none."""
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
    """Wait until q is pressed, or the terminal has gone."""
    import anyio

    if number is None:
        await anyio.sleep_forever()
        return
    pressed = b"any"
    while pressed and pressed.lower() not in (b"q", b"\x04"):
        await anyio.wait_readable(number)
        with suppress(BlockingIOError):
            pressed = _read_keys(number)


def _read_keys(number: int) -> bytes:
    try:
        return os.read(number, 64)
    except BlockingIOError:
        raise
    except OSError:  # EIO: nobody holds the other end any more
        return b""
