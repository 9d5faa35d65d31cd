"""What happens in a run, line by line: for ``runs follow``. Pure."""

from __future__ import annotations

from typing import Final

from bls_agent.core.codec import cut_text, parse_timestamp
from bls_agent.ops.cli.printable import json_text
from bls_agent.ops.cli.screen import Cell
from bls_agent.ops.terminal import visible
from bls_agent.ops.texts import Texts
from bls_agent.runs import Followed, Gap, StreamEvent

__all__ = ["for_people", "for_pipe", "source_of", "text_lines", "text_of"]

LONGEST: Final = 400  # bytes of data at a terminal
LONGEST_NAME: Final = 60
TEXT_FIELDS: Final = ("content", "delta", "text", "token", "chunk")
STYLES: Final = {
    "lifecycle": "cyan",
    "llm": "magenta",
    "dispatch": "blue",
    "agent": "green",
    "system": "dim",
}
BAD: Final = frozenset({"failed", "error"})


def text_of(event: StreamEvent) -> str | None:
    """Give the text that a language model has streamed; ``None`` for any other event."""
    if event.name != "llm.stream":
        return None
    told = (event.data.get(name) for name in TEXT_FIELDS)
    return next((text for text in told if isinstance(text, str)), None)


def text_lines(text: str) -> str:
    """Make running text fit for a terminal: its lines stay, nothing else is obeyed."""
    return "\n".join(map(visible, text.replace("\r\n", "\n").split("\n")))


def source_of(event: StreamEvent) -> str:
    """Name who an event comes from, in one word."""
    source = event.source or {}
    names = ("agent_name", "agent_id", "agent_type", "team_name")
    return next((source[name] for name in names if source.get(name)), "")


def for_people(one: Followed, texts: Texts, *, data: bool = True) -> list[Cell]:
    """Write what a follower was given for a terminal: as one line.

    Args:
        one: An event, a gap, or that the writer is lost.
        texts: The catalogue ``cli``.
        data: Whether with what an event says.
    """
    if isinstance(one, StreamEvent):
        return _event_line(one, data=data)
    if isinstance(one, Gap):
        name = "run_gap" if one.missing is None else "run_gap_counted"
        why = texts[f"run_gap_{one.reason.value}"]
        told = texts[name].format(count=one.missing, why=why)
    else:
        told = texts["run_writer_lost"]
    return [(f"── {told} ──", "yellow")]


def _event_line(event: StreamEvent, *, data: bool) -> list[Cell]:
    bad = event.action in BAD
    style = "bold red" if bad else STYLES.get(event.category, "")
    line: list[Cell] = [
        (_clock(event.timestamp), "dim"),
        f" {event.sequence:>4} ",
        (cut_text(event.name, LONGEST_NAME), style),
    ]
    if source := source_of(event):
        line += [" ", (cut_text(source, LONGEST_NAME), "bold")]
    if data and event.data:
        line += ["  ", (cut_text(json_text(event.data), LONGEST), "dim")]
    if event.faults:
        line += ["  ", (f"({', '.join(event.faults)}?)", "yellow")]
    return line


def _clock(timestamp: str) -> str:
    """Give the local time of an event, whatever its writer takes for a time."""
    moment = parse_timestamp(timestamp)
    try:
        local = moment.astimezone() if moment else None
    except (OverflowError, OSError, ValueError):  # the year 1, the year 9999
        local = None
    return local.strftime("%H:%M:%S.%f")[:12] if local else f"{'--:--:--':>12}"


def for_pipe(one: Followed) -> list[Cell]:
    """Write it for a pipe: id, time, number, source, name, data; nothing cut."""
    if isinstance(one, StreamEvent):
        number = str(one.sequence)
        told = json_text(one.data)
        return [one.id, one.timestamp or "-", number, source_of(one), one.name, told]
    name = "gap" if isinstance(one, Gap) else "writer_lost"
    return [one.after, "-", "-", "", name, json_text(one.to_dict())]
