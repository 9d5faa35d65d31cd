"""``bls-agent logs``: print a project's console log, and follow it."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Annotated, Final

import anyio
from typer import Option

from bls_agent.console import Console
from bls_agent.core.errors import ContractError, RedisRefusedError
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import (
    Exit,
    Failure,
    hint_likely,
    normalise,
    unknown_project,
)
from bls_agent.ops.cli.options import ProjectArgument
from bls_agent.ops.cli.output import Invocation, describe_entry
from bls_agent.ops.cli.tables import poll
from bls_agent.ops.fleet import Fleet
from bls_agent.ops.terminal import (
    LEVEL_STYLES,
    Cell,
    clock_of,
    describe_record,
    json_text,
)
from bls_agent.project.console.search import LogFilter, LogSearch, read_moment
from bls_agent.project.messages import Level, LogEntry

LINES: Final = 200  # records that are shown by default
MOST: Final = 100_000  # most records with --since, because the time limits them
LOOK: Final = 1.0  # seconds between two checks whether Redis still answers
LEVEL_COLUMNS: Final = 5


@command("logs")
async def logs(
    invocation: Invocation,
    project: ProjectArgument,
    lines: Annotated[int | None, Option("--lines", "-n", metavar="N", min=0)] = None,
    since: Annotated[str, Option(metavar="TIME", show_default=False)] = "",
    until: Annotated[str, Option(metavar="TIME", show_default=False)] = "",
    follow: Annotated[bool, Option("--follow", "-f")] = False,
    level: Annotated[
        Level, Option(metavar="LEVEL", case_sensitive=False)
    ] = Level.DEBUG,
    grep: Annotated[str, Option(metavar="TEXT", show_default=False)] = "",
    replica: Annotated[str, Option(metavar="NAME", show_default=False)] = "",
    logger: Annotated[str, Option(metavar="NAME", show_default=False)] = "",
) -> Exit:
    """Print the newest records, the newest last; with ``--follow``, follow the log."""
    wanted = LogFilter(
        text=grep,
        level=level,
        since=_moment("since", since),
        until=_moment("until", until),
        replica=replica,
        logger=logger,
    )
    if lines is None:
        lines = MOST if since else LINES
    project = normalise(invocation, project)
    printer = _Printer(invocation)
    async with invocation.console() as console:
        if follow:
            await _follow(invocation, console, project, lines, wanted, printer)
            return Exit.DONE
        with invocation.waiting("waiting_redis"):
            found = await _search(console, project, lines, wanted)
            if not found.entries and not await console.logs(project, 1):
                async with Fleet(invocation.redis) as fleet:
                    if not (await fleet.look_at(project)).exists:
                        raise await unknown_project(console, project)
                invocation.hint("no_records", project=project)
            elif not found.entries and lines:
                invocation.hint("none_fit")
    for entry in found.entries:
        printer.write(entry)
    if found.searched and wanted != LogFilter():
        back_to = clock_of(found.back_to).strip()
        invocation.hint("searched", n=f"{found.searched:,}", time=back_to)
    return Exit.DONE


def _moment(option: str, text: str) -> datetime | None:
    moment = read_moment(text) if text else None
    if text and moment is None:
        raise Failure("bad_time", Exit.USAGE, option=f"--{option}", time=text)
    return moment


async def _search(
    console: Console, project: str, lines: int, wanted: LogFilter
) -> LogSearch:
    """Search backwards until enough records match or the log has no older records."""
    entries: list[LogEntry] = []
    searched, back_to, before = 0, "", ""
    while len(entries) < lines:
        limit = lines - len(entries)
        found = await console.search_logs(project, wanted, before=before, limit=limit)
        entries[:0] = found.entries
        searched += found.searched
        back_to, before = found.back_to or back_to, found.before
        if not before:
            break
    return LogSearch(entries=entries, searched=searched, back_to=back_to)


async def _follow(
    invocation: Invocation,
    console: Console,
    project: str,
    lines: int,
    wanted: LogFilter,
    printer: _Printer,
) -> None:
    """Print records as they arrive; report an outage, and wait until it ends."""
    if not await console.logs(project, 1):
        invocation.hint("waiting_records", project=project)
        await hint_likely(invocation, console, project)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_watch_outages, invocation, console, project)
        async for entry in console.follow_logs(project, last=lines):
            if wanted.wants(entry):
                printer.write(entry)


async def _watch_outages(
    invocation: Invocation, console: Console, project: str
) -> None:
    """Report outages and their ends, because ``follow_logs`` reports neither."""

    async def look() -> None:
        with suppress(ContractError):  # Redis answers, with a value that is no status
            await console.status(project)

    with suppress(RedisRefusedError):  # Redis answers; a refusal is no outage
        await poll(look, lambda _: None, invocation.tell_outage, LOOK)


class _Printer:
    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._cut = False

    def write(self, entry: LogEntry) -> None:
        out, json = self._invocation.out, self._invocation.json
        if json or not out.terminal:
            self._invocation.record(describe_entry(entry), *for_pipe(entry))
            return
        line, cut = for_people(entry)
        if cut and not self._cut:
            self._cut = True
            self._invocation.hint("hint_cut")
        out.line(*line)


def for_people(entry: LogEntry) -> tuple[list[Cell], bool]:
    """Format a record for a terminal; return also whether it was shortened."""
    level = entry.level.value.ljust(LEVEL_COLUMNS)
    message, shown, cut = describe_record(entry)
    style = "yellow" if entry.is_gap else ""
    line: list[Cell] = [
        (clock_of(entry.timestamp), "dim"),
        " ",
        (level, LEVEL_STYLES[entry.level]),
        " ",
        (message, style),
    ]
    if shown and not entry.is_gap:
        line += ["  ", (shown, "dim")]
    return line, cut


def for_pipe(entry: LogEntry) -> list[Cell]:
    """Format a record for a pipe: time, level, message and metadata, all in full."""
    metadata = json_text(entry.metadata) if entry.metadata else ""
    return [entry.timestamp or "-", entry.level.value, entry.message, metadata]
