"""The console under a large fleet: its CPU, its pages, its readers, its memory.

Prints Markdown. A goal that is missed is printed as missed, and the exit code stays 0;
exit code 1: something did not work, so that the figures mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from redis.asyncio import Redis

from benchmarks.load.browsers import Browsers, log_path, paths_of
from benchmarks.load.fleet import Fleet
from benchmarks.load.process import Watched, console_process
from benchmarks.summary import quantile
from bls_agent.devserver import DevServer

SETTLE = 10.0  # seconds before the figures begin
MEGABYTE = 1024 * 1024


@dataclass
class Row:
    """One figure.

    Attributes:
        what: What was measured.
        value: What came out, as text.
        goal: What it should be, ``""`` if it only informs.
        met: Whether it is.
    """

    what: str
    value: str
    goal: str = ""
    met: bool = True

    def show(self) -> str:
        """Write the row of a Markdown table."""
        verdict = "" if not self.goal else "yes" if self.met else "**no**"
        return f"| {self.what} | {self.value} | {self.goal} | {verdict} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; give the exit code."""
    options = parse(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with DevServer() as server, console_process(server.url) as (process, url):
        return asyncio.run(run(options, server.url, process, url))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long")
    parser.add_argument("--projects", type=int, default=1_000)
    parser.add_argument("--logging", type=int, default=100, help="projects that log")
    parser.add_argument("--wallboards", type=int, default=25, help="browsers")
    parser.add_argument("--followers", type=int, default=25, help="browsers on a log")
    parser.add_argument("--lists", type=int, default=5, help="logs that are followed")
    return parser.parse_args(arguments)


async def run(
    options: argparse.Namespace, redis_url: str, process: Watched, url: str
) -> int:
    """Let the fleet live and the browsers look, and print what the console took."""
    redis = Redis.from_url(redis_url, protocol=2)
    fleet = Fleet(redis, options.projects, options.logging)
    browsers = Browsers(url)
    await fleet.settle()
    async with asyncio.TaskGroup() as tasks:
        begun = [tasks.create_task(fleet.live())]
        begun += [
            tasks.create_task(browsers.follow("fleet", "/events/fleet"))
            for _ in range(options.wallboards)
        ]
        lists = itertools.cycle(fleet.names[: options.lists])
        begun += [
            tasks.create_task(browsers.follow("log", log_path(name)))
            for name in itertools.islice(lists, options.followers)
        ]
        begun.append(tasks.create_task(browsers.look(paths_of(fleet.names[0]))))
        await asyncio.sleep(min(SETTLE, options.minutes * 20))
        begun.append(tasks.create_task(process.sample(2.0)))
        cpu, at, written = process.cpu_seconds(), time.monotonic(), fleet.written
        events = dict(browsers.events)
        browsers.took.clear()
        await asyncio.sleep(options.minutes * 60)
        seconds = time.monotonic() - at
        cpu = (process.cpu_seconds() - cpu) / seconds
        clients = [one["name"] for one in await redis.client_list()]
        for task in begun:
            task.cancel()
    rows = [
        Row("CPU of the console", f"{cpu:.2f} cores", "< 1", cpu < 1),
        *page_rows(browsers),
        *reader_rows(clients, options.lists),
        *memory_rows(process),
        Row("records written", f"{(fleet.written - written) / seconds:.0f} / s"),
        *(
            Row(
                f"events to {name} streams",
                f"{(n - events.get(name, 0)) / seconds:.0f} / s",
            )
            for name, n in browsers.events.items()
        ),
        Row("bytes to streams", f"{browsers.received / MEGABYTE:.0f} MB"),
    ]
    print(describe(options, rows))
    if browsers.wrong or browsers.ended:
        print(f"{browsers.ended} streams ended; {browsers.wrong[:5]}", file=sys.stderr)
    return bool(browsers.wrong or browsers.ended)


def page_rows(browsers: Browsers) -> list[Row]:
    """Judge how long answers took."""
    rows: list[Row] = []
    for name in paths_of(""):
        took = browsers.took[name]
        if not took:  # not left out: nothing has come, and that is a figure
            rows.append(Row(name, "no answer", "an answer", met=False))
            continue
        p50, p99 = quantile(took, 0.5) * 1e3, quantile(took, 0.99) * 1e3
        is_page = not name.startswith("GET")
        goal = "p50 < 300 ms" if is_page else ""
        value = f"p50 {p50:.0f} ms, p99 {p99:.0f} ms of {len(took)}"
        rows.append(Row(name, value, goal, p50 < 300))
    return rows


def reader_rows(clients: Sequence[str], lists: int) -> list[Row]:
    """Judge how many connections the console has at Redis."""
    ours = [name for name in clients if name in {"bls-console", "bls-fleet"}]
    value = f"{len(ours)} ({', '.join(sorted(ours))})"
    goal = f"<= {lists} followed + 2"
    return [Row("connections at Redis", value, goal, len(ours) <= lists + 2)]


def memory_rows(process: Watched) -> list[Row]:
    """Judge whether the memory is flat."""
    last, growth = process.memory[-1][1], process.growth()
    value = f"{last / MEGABYTE:.0f} MB, {growth / 1024:+.0f} KB a minute"
    return [Row("memory of the console", value, "< 256 KB a minute", growth < 2**18)]


def describe(options: argparse.Namespace, rows: Sequence[Row]) -> str:
    """Write the table, and what it was measured with."""
    head = (
        f"{options.projects} projects, {options.logging} of them log once a second; "
        f"{options.wallboards} browsers at the wallboard, {options.followers} at "
        f"{options.lists} logs; {options.minutes:g} minutes."
    )
    table = ["| what | figure | goal | met |", "| --- | --- | --- | --- |"]
    return "\n".join([head, "", *table, *(row.show() for row in rows)])


if __name__ == "__main__":
    sys.exit(main())
