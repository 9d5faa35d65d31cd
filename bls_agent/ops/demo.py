"""A small fleet and its console in the browser: ``python -m bls_agent.ops.demo``.

Two services, two workers and runs are at work until Ctrl-C, on a server of their own (the
extra ``server``). The exit code is 2 if the demo could not run.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from anyio.streams.text import TextReceiveStream

from bls_agent.agent import ProjectAgent
from bls_agent.core.codec import decode_object
from bls_agent.core.errors import BlsError
from bls_agent.core.settings import Settings
from bls_agent.devserver import DevServer, start_for_user
from bls_agent.ops.terminal import Screen
from bls_agent.ops.texts import Texts, find_language, load_texts, make_parser
from bls_agent.project.messages import Status
from bls_agent.runs import EventStore
from bls_agent.workers import BacktestWorkerHeartbeat, Heartbeat, TaskStatus

PROGRAM: Final = "python -m bls_agent.ops.demo"
BEAT: Final = 2.0  # seconds between two records
PACKING: Final = 3.0  # seconds to pack an order
IN_ERROR: Final = range(5, 10)  # beats out of 30 in which the risk service is in error
BETWEEN_LETTERS: Final = 0.05
BETWEEN_RUNS: Final = 10.0  # seconds from the end of a run to the next run
CODES: Final = ("600519.SH", "000858.SZ", "300750.SZ", "601318.SH")


def make_orders(redis: str, texts: Texts) -> ProjectAgent:
    """Make the order service, as a user of the package would write it."""
    agent = ProjectAgent(texts["project"], redis=redis, settings=Settings())

    @agent.command
    async def reload(*, force: bool = False) -> dict[str, int]:
        """Read the configuration again."""
        agent.log.info(texts["log_reloaded"], force=force)
        return {"rules": 42}

    @agent.command
    async def pack(order: int) -> dict[str, int]:
        """Pack an order, which takes three seconds."""
        agent.log.info(texts["log_packing"], order=order)
        await anyio.sleep(PACKING)
        return {"packed": order}

    return agent


async def write_records(orders: ProjectAgent, risk: ProjectAgent, texts: Texts) -> None:
    """Write records; the risk service is in error for some seconds of each minute."""
    for beat in itertools.count():
        orders.log.info(texts["log_packed"], order=beat)
        if beat % 30 == IN_ERROR[0]:
            risk.log.error(texts["log_no_volume"], code=CODES[2])
        risk.set_status(Status.ERROR if beat % 30 in IN_ERROR else Status.ONLINE)
        await anyio.sleep(BEAT)


async def compute(redis: str, tasks: TaskStatus, number: int, texts: Texts) -> None:
    name = f"{texts['fleet_worker']}-{number}"
    first = BacktestWorkerHeartbeat.create(name, max_tasks=1)
    async with Heartbeat(first, redis=redis) as heartbeat:
        for count in itertools.count():
            task = f"{name}-{count}"
            heartbeat.update(running_tasks=1, task_uuids=[task])
            await tasks.set(task, "running", worker=name, code=CODES[count % 4])
            for percent in range(0, 100, 5):
                await tasks.update(task, progress=percent)
                await anyio.sleep(number / 2)
            await tasks.update(task, status="done", progress=100)
            heartbeat.update(running_tasks=0, task_uuids=[])
            await anyio.sleep(BEAT)


async def write_runs(store: EventStore, texts: Texts) -> None:
    """Write runs one after the other, each with a tool call and a streamed text."""
    source = {"agent_id": "analyst", "agent_name": texts["fleet_analyst"]}
    while True:
        run_id = int(time.time())  # noqa: TID251 - a real program takes the key in its database
        async with store.run(run_id, source=source) as run:
            run.emit("agent", "tool_call", {"tool": "quotes.latest", "codes": CODES})
            await anyio.sleep(BEAT)
            run.emit("agent", "tool_result", {"rows": len(CODES)})
            for letter in texts["fleet_note"]:
                run.emit("llm", "stream", {"text": letter})
                await anyio.sleep(BETWEEN_LETTERS)
        await anyio.sleep(BETWEEN_RUNS)


@asynccontextmanager
async def console_in_browser(redis: str) -> AsyncGenerator[str]:
    """Run ``bls-agent console`` and yield its address, or "" if it does not start."""
    command = [sys.executable, "-m", "bls_agent", "console", "--redis", redis]
    command += ["--json", "--port", "0"]
    async with await anyio.open_process(
        command,
        stderr=None,  # the console prints its errors there
        start_new_session=True,  # this process ends it after Ctrl-C
    ) as process:
        assert process.stdout is not None  # noqa: S101 - for the type checker
        page = ""
        with suppress(anyio.EndOfStream):
            line = await TextReceiveStream(process.stdout).receive()
            page = decode_object(line.encode())["urls"][0]
        try:
            yield page
        finally:
            with suppress(ProcessLookupError):
                process.terminate()


async def serve_fleet(server: DevServer, texts: Texts) -> int:
    """Run the fleet, and the console in the browser, until SIGINT or SIGTERM."""
    redis, screen = server.url, Screen(sys.stdout, os.environ, needed=False)
    screen.paragraph(texts["our_server"].format(url=redis))
    orders = make_orders(redis, texts)
    risk = ProjectAgent(texts["fleet_risk"], redis=redis, settings=Settings())
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with (
            console_in_browser(redis) as page,
            orders, risk,
            EventStore(redis, on_error="none") as store,
            TaskStatus(redis, on_error="none") as tasks,
            anyio.create_task_group() as work,
        ):  # fmt: skip
            if not page:
                return 2
            work.start_soon(write_records, orders, risk, texts)
            for number in (1, 2):
                work.start_soon(compute, redis, tasks, number, texts)
            work.start_soon(write_runs, store, texts)
            screen.paragraph(texts["fleet_serving"].format(url=page), "bold")
            for name in ("cards", "workers", "runs", "terminal", "quit"):
                screen.paragraph(texts[f"fleet_{name}"].format(url=redis))
            await anext(signals)
            work.cancel_scope.cancel()
    screen.paragraph(texts["fleet_ended"])
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    logging.getLogger("bls_agent").addHandler(logging.NullHandler())  # no log on stderr
    given = sys.argv[1:] if arguments is None else arguments
    texts = load_texts("demo", find_language(given, os.environ))
    parser = make_parser(PROGRAM, texts["demo_help"], texts)
    parser.parse_args(given)
    try:
        server = start_for_user(None, texts)
    except BlsError as error:
        parser.exit(2, f"{error}\n")
    try:
        return anyio.run(serve_fleet, server, texts)
    except KeyboardInterrupt:  # before the fleet waits for signals
        return 130
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
