"""``bls-agent logs``: a project's console log, and what comes after."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bls_agent.core.codec import parse_timestamp
from bls_agent.ops.cli.command import command, new_app
from bls_agent.ops.cli.exits import Exit, Failure
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.naming import (
    ProjectArgument,
    hint_likely,
    normalise,
    unknown_project,
)

if TYPE_CHECKING:
    from bls_agent.console import Console
    from bls_agent.ops.cli.records import Filter
    from bls_agent.project.messages import LogEntry

__all__ = ["LevelName", "logs"]

LINES: Final = 200  # records that are shown unless somebody says how many
MOST: Final = 100_000  # with --since, which bounds them by time
SPAN: Final = re.compile(
    r"(?=\d)(?:(\d{1,4})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?"
)
PAGE: Final = 1_000  # records of one read
LOOK: Final = 1.0  # seconds between two questions whether Redis still answers

app = new_app()


class LevelName(StrEnum):
    """The levels of the contract, as an option's values."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@command(app, "logs")
async def logs(
    invocation: Invocation,
    project: ProjectArgument,
    lines: Annotated[
        int | None,
        typer.Option("--lines", "-n", metavar="N", min=0, help="opt_lines"),
    ] = None,
    since: Annotated[
        str,
        typer.Option(metavar="TIME", help="opt_since", show_default=False),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="opt_follow")] = False,
    level: Annotated[
        LevelName,
        typer.Option(metavar="LEVEL", help="opt_level", case_sensitive=False),
    ] = LevelName.DEBUG,
    grep: Annotated[
        str, typer.Option(metavar="TEXT", help="opt_grep", show_default=False)
    ] = "",
) -> Exit:
    """Print the newest records, newest last, and follow the log if asked to."""
    from bls_agent.ops.cli.records import Filter
    from bls_agent.project.messages import Level

    wanted = Filter(Level(level.value), grep, _moment(since))
    if lines is None:
        lines = MOST if since else LINES
    project = normalise(invocation, project)
    printer = _Printer(invocation)
    async with invocation.console() as console:
        if follow:
            await _follow(invocation, console, project, lines, wanted, printer)
            return Exit.DONE
        with invocation.waiting("waiting_redis"):
            found = await _read(console, project, lines, wanted)
            if not found and not await console.logs(project, 1):
                await _refuse_unknown(invocation, console, project)
            elif not found and lines:
                invocation.hint("none_fit")
    for entry in found:
        printer.write(entry)
    return Exit.DONE


def _moment(since: str) -> datetime | None:
    """Read ``10m`` or ``1h30m``, back from now, or a time as records have it.

    Raises:
        Failure: It is neither.
    """
    if not since:
        return None
    if found := SPAN.fullmatch(since):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        ago = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        return datetime.now(UTC) - ago
    moment = parse_timestamp(since)
    if moment is None:
        raise Failure("bad_since", Exit.USAGE, time=since)
    return moment


async def _read(
    console: Console, project: str, lines: int, wanted: Filter
) -> list[LogEntry]:
    """Read backwards until there are enough that are wanted, or the list begins."""
    found: list[LogEntry] = []
    before = ""
    while len(found) < lines:
        page = await console.log_page(project, before=before, limit=PAGE)
        fitting = [entry for entry in page.entries if wanted.wants(entry)]
        found = fitting + found
        before = page.before
        if not before or all(map(wanted.is_old, page.entries)):
            break
    return found[-lines:] if lines else []


async def _refuse_unknown(
    invocation: Invocation, console: Console, project: str
) -> None:
    """End the command if the project has left no other key, either."""
    from bls_agent.core.errors import ContractError
    from bls_agent.ops.fleet import Fleet

    try:
        known = await console.status(project) is not None
    except ContractError:
        known = True
    if not known:
        async with Fleet(invocation.redis) as fleet:
            known = (await fleet.look_at(project)).queue != 0
    if not known:
        raise await unknown_project(console, project)
    invocation.hint("no_records", project=project)


async def _follow(
    invocation: Invocation,
    console: Console,
    project: str,
    lines: int,
    wanted: Filter,
    printer: _Printer,
) -> None:
    """Print what comes until somebody ends it; an outage is told and waited out."""
    import anyio

    if not await console.logs(project, 1):
        invocation.hint("waiting_records", project=project)
        await hint_likely(invocation, console, project)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_watch_outages, invocation, project)
        async for entry in console.follow_logs(project, last=lines):
            if wanted.wants(entry):
                printer.write(entry)


async def _watch_outages(invocation: Invocation, project: str) -> None:
    """Say when Redis goes away and when it is back: following waits in silence."""
    import anyio

    from bls_agent.core.errors import BlsError, RedisRefusedError, RedisUnavailableError

    away = False
    async with invocation.console() as console:
        while True:
            try:
                await console.status(project)
            except RedisRefusedError:
                return  # it answers; what is refused is no outage
            except RedisUnavailableError as error:
                if not away:
                    invocation.warn("away", kind=error.kind)
                away = True
            except BlsError:
                away = _note_return(invocation, away=away)
            else:
                away = _note_return(invocation, away=away)
            await anyio.sleep(LOOK)


def _note_return(invocation: Invocation, *, away: bool) -> bool:
    if away:
        invocation.hint("back")
    return False


class _Printer:
    """Writes records in the way that the reader can use."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._cut = False

    def write(self, entry: LogEntry) -> None:
        from bls_agent.ops.cli.records import for_people, for_pipe
        from bls_agent.ops.cli.views import describe_entry

        out = self._invocation.out
        if self._invocation.json:
            out.json(describe_entry(entry))
        elif out.terminal:
            line, cut = for_people(entry)
            if cut and not self._cut:
                self._cut = True
                self._invocation.hint("hint_cut")
            out.line(*line)
        else:
            out.line(*for_pipe(entry), between="\t")
