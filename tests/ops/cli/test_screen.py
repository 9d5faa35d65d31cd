"""The pure parts of what is printed: JSON, tables, records, names."""

from __future__ import annotations

import io

import orjson
import pytest

from bls_agent import LogEntry
from bls_agent.ops.cli.commands.logs import for_people, for_pipe
from bls_agent.ops.cli.errors import find_likely
from bls_agent.ops.cli.output import Progress
from bls_agent.ops.terminal import Screen, clock_of, escape_json
from bls_agent.project.messages import Level
from tests.harness import until


class Terminal(io.StringIO):
    """A terminal of this process."""

    def isatty(self) -> bool:
        return True


def make_screen(
    monkeypatch: pytest.MonkeyPatch, columns: int, **environ: str
) -> tuple[Screen, Terminal]:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    return Screen(stream, {"TERM": "dumb", **environ}), stream


@pytest.mark.parametrize(
    "value", ["\x9b", "\u202e", "\x7f", "\u2028", "\U000e0001", "订", "a\\u202e"]
)
def test_json_keeps_its_value(value: str) -> None:
    """What is escaped reads the same."""
    text = escape_json(orjson.dumps([value]).decode())
    assert text.isprintable()
    assert orjson.loads(text) == [value]
    assert escape_json('"订"', "ascii") == '"\\u8ba2"'
    assert escape_json('"😀"', "gbk") == '"\\ud83d\\ude00"'
    assert escape_json('"x"', "no-such-encoding") == '"x"'


def test_a_table_by_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns side by side, folded, then one below the other; nothing is lost."""
    rows = [("订单系统", "a message that is long"), ("b", "")]
    for width, lines in ((80, 3), (24, 5), (20, None)):
        screen, stream = make_screen(monkeypatch, width)
        screen.table([(*row, "y") for row in rows], ["project", "message", "x"])
        shown = stream.getvalue()
        assert "订单系统" in shown.replace("\n", "")
        for word in ("message", "that", "long"):
            assert word in shown
        if lines:
            assert len(shown.splitlines()) == lines


def test_markup_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing interprets it."""
    screen, stream = make_screen(monkeypatch, 80)
    screen.table([(":smile: [red]a[/] [link=x]b[/]",)], ["[b]x[/]"])
    screen.line(("[bold]a[/]", "red"), ":skull:")
    assert ":smile: [red]a[/] [link=x]b[/]" in stream.getvalue()
    assert "[bold]a[/]:skull:" in stream.getvalue()


def test_a_line_does_not_begin_in_the_text_of_a_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The text is removed before the line, and drawn again below it."""
    monkeypatch.setattr("bls_agent.ops.cli.output.PATIENCE", 0.01)
    err, stream = make_screen(monkeypatch, 80)
    out = Screen(stream, {"TERM": "dumb"})
    with Progress(err, "wait", out):
        until(lambda: stream.getvalue() == "\rwait")
        out.line("result")
        assert stream.getvalue().startswith("\rwait\r    \rresult\n")
        until(lambda: stream.getvalue().endswith("result\n\rwait"))
        err.paragraph("warning")
    out.line("end")
    shown = stream.getvalue().replace("\rwait\r    \r", "")
    assert shown == "result\nwarning\nend\n"


def entry(
    level: Level = Level.INFO, message: str = "x", **metadata: object
) -> LogEntry:
    return LogEntry(
        timestamp="2026-01-12T12:34:56.789Z",
        level=level,
        message=message,
        metadata=metadata,
    )


def test_long_records_are_cut_for_people_alone() -> None:
    """And said so."""
    record = entry(message="m" * 5_000, 值="v" * 5_000)
    line, cut = for_people(record)
    assert cut
    assert sum(len(cell if isinstance(cell, str) else cell[0]) for cell in line) < 4_600
    assert sum(map(len, map(str, for_pipe(record)))) > 10_000
    assert not for_people(entry(agent="a#1", k="short"))[1]


def test_clocks() -> None:
    """Whatever a writer takes for a time."""
    assert len(clock_of("2026-01-12T12:34:56.789Z")) == len("01-12 12:34:56")
    for odd in ("", "soon", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"):
        assert len(clock_of(odd)) == len("01-12 12:34:56")


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("订单", ["订单系统", "库存"], ["订单系统"]),
        ("定单系统", ["订单系统", "库存"], ["订单系统"]),
        ("\uff2f\uff32\uff24\uff25\uff32", ["order", "x"], ["order"]),
        ("xyz", ["订单系统"], []),
        ("", ["订单系统"], []),
    ],
)
def test_likely_names(name: str, known: list[str], found: list[str]) -> None:
    """Misspelt, shortened, in another width."""
    assert find_likely(name, known) == found
