"""The ledger: what each mode lost and repeated under each fault, as Markdown."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.chaos.campaign import Row
from tests.chaos.soaks import SoakResult
from tests.kit import HurtableServer

ROOT = Path(__file__).parents[2]

HEAD = """# Ledger

What each mode lost and repeated under each fault, and how long it took to be well again. Written by
`make chaos`; nothing in it is edited by hand. Other pages describe [how the table is made](chaos.md), with the
invariants that are checked in every row, and list the [promises for each mode](promises.md).
"""

LEGEND = """*Sent*: commands, or requests of a crawl queue, that the server said it has. *Handled*: those that were started.
What is no agent (runs, heartbeat, cache, synchronisation) has figures of its own, named in its heading.
A command whose sender got no answer is not counted as sent, and may be handled.
*Lost*: sent, never started, and not in the server. *Repeated*: starts beyond the first one.
In both, behind the stroke: what the mode's promise allows under the damage of this row.
*Recovery*: the longest time from the end of a fault until the next command started, in seconds.
Where the server itself forgot what it had answered, losses and repeats are its own: they are in brackets.
"""

MODE_TEXTS = {
    "blocking": "`blocking` (BLPOP), `concurrency=1`, `prefetch=1`",
    "prefetch": "`blocking` with `concurrency=2`, `prefetch=8`",
    "compat": "`compat` (LRANGE, handle, cut)",
    "reliable": "`reliable` (BLMOVE), `concurrency=2`, `prefetch=1`",
    "reliable, prefetch 8": "`reliable` with `concurrency=2`, `prefetch=8`",
    "run": "A run that is written; *sent*: events emitted, *handled*: in the stream",
    "follow": "A run that is followed; *sent*: events of a peer, *handled*: followed",
    "heartbeat": "A worker heartbeat; *handled*: values that were seen",
    "cache": "A cached function with five callers; *handled*: hits",
    "sync": "An asset library that is synchronised; *handled*: versions that readers had",
    "crawl": "Crawl queue, three crawlers with two requests each, leases of 2 s",
}


def write_ledger(
    rows: Sequence[Row],
    soaks: Sequence[SoakResult],
    errors: Sequence[str],
    seed: int,
    seconds: float,
    *,
    short: bool,
) -> str:
    """Write the whole document."""
    broken = [row for row in rows if not row.is_kept]
    number = len(broken) + sum(not soak.is_kept for soak in soaks) + len(errors)
    verdict = f"**{number} broken**" if number else "every promise was kept"
    lines = [
        HEAD,
        "Short form, with few rounds of everything.\n" if short else "",
        f"{len(rows)} rows and {len(soaks)} long runs in {seconds / 60:.1f} minutes, {verdict}; seed {seed}.",
        f"Run on {describe_run()}.",
        "",
        LEGEND,
    ]
    lines += ["## Which fault is played where", "", *grid(rows), ""]
    for mode in dict.fromkeys(row.mode.name for row in rows):
        lines += [f"## {MODE_TEXTS.get(mode, mode)}", "", *table(rows, mode), ""]
    if soaks:
        lines += ["## Long runs", "", *table_of_soaks(soaks), ""]
    if broken or errors:
        lines += ["## Broken", ""]
        for row in broken:
            lines += [f"* **{row.name}**, seed {row.seed}"]
            lines += [f"  * {' '.join(str(v).split())}" for v in row.violations]
        lines += [f"* The host: {error}" for error in errors]
    return "\n".join(lines).rstrip() + "\n"


def grid(rows: Sequence[Row]) -> list[str]:
    """One line for each fault, one column for each mode; an empty cell is not played."""
    modes = list(dict.fromkeys(row.mode.name for row in rows))
    faults = {row.fault.id: row.fault.title for row in rows}
    played = {(row.fault.id, row.mode.name): row.is_kept for row in rows}
    marks = {True: "kept", False: "**broken**", None: ""}
    return [
        f"| | fault | {' | '.join(modes)} |",
        f"| --- | --- | {' | '.join(':---:' for _ in modes)} |",
        *(
            f"| {fault} | {title} | "
            + " | ".join(marks[played.get((fault, mode))] for mode in modes)
            + " |"
            for fault, title in faults.items()
        ),
    ]


def table(rows: Sequence[Row], mode: str) -> list[str]:
    """The rows of one mode."""
    lines = [
        "| | fault | sent | handled | lost | repeated | recovery | |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        if row.mode.name == mode:
            recovery = "" if row.recovery is None else f"{row.recovery:.2f}"
            lost = figure(row, row.lost, row.may_lose)
            repeated = figure(row, row.repeated, row.may_repeat)
            verdict = "kept" if row.is_kept else "**broken**"
            lines.append(
                f"| {row.fault.id} | {row.fault.title} | {row.sent} | {row.handled} "
                f"| {lost} | {repeated} | {recovery} | {verdict} |"
            )
    return lines


def table_of_soaks(soaks: Sequence[SoakResult]) -> list[str]:
    """The runs that are no rows."""
    lines = [
        "| run | number | what it said | seconds | |",
        "| --- | ---: | --- | ---: | --- |",
    ]
    for each in soaks:
        verdict = "kept" if each.is_kept else "**broken**"
        lines.append(
            f"| {each.soak.title} | {each.soak.number:,} | {each.said} "
            f"| {each.seconds:.0f} | {verdict} |"
        )
    return lines


def figure(row: Row, number: int, limit: int) -> str:
    return f"({number})" if row.damage.server_forgets else f"{number} / {limit}"


def describe_run() -> str:
    """Commit and versions."""
    with HurtableServer() as server:
        info: bytes = server.ask("INFO", "server")
    fields = dict(
        line.split(":", 1) for line in info.decode().splitlines() if ":" in line
    )
    name = fields.get("server_name", "redis")
    number = fields.get(f"{name}_version", fields["redis_version"])
    return (
        f"commit {commit()}, {name.capitalize()} {number}, "
        f"Python {platform.python_version()}, redis-py {version('redis')}, "
        f"hiredis {version('hiredis')}, {platform.system()} {platform.machine()}"
    )


def commit() -> str:
    """The commit that is played, marked if files differ from it."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
