"""A demo of an agent and a console: ``python -m bls_agent.ops.demo``.

A console sends valid and invalid commands to an order service. Meanwhile Redis is killed
and started again. Each step does something with the agent or the console and waits until
the console has read the result from Redis. With ``--console``, the demo runs a small
fleet of services, workers and runs, and the console in the browser, until Ctrl-C.

The demo starts its own server (the extra ``server``). The exit code is 0 if the demo
reached its end, 1 if it took too long, 2 if it could not run, and 130 after Ctrl-C.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Final

import anyio
import anyio.to_thread
from anyio.streams.text import TextReceiveStream

from bls_agent.agent import ProjectAgent
from bls_agent.console import Console
from bls_agent.core.codec import decode_object, encode
from bls_agent.core.errors import BlsError, RedisUnavailableError
from bls_agent.core.settings import Settings
from bls_agent.devserver import DevServer, start_for_user
from bls_agent.ops import terminal
from bls_agent.ops.texts import Texts, find_language, load_texts, make_parser
from bls_agent.project.messages import Command, LogEntry, Status
from bls_agent.runs import EventStore
from bls_agent.workers import BacktestWorkerHeartbeat, Heartbeat, TaskStatus

PROGRAM: Final = "python -m bls_agent.ops.demo"
DEADLINE: Final = 30.0  # seconds for all steps
LOOK_INTERVAL: Final = 0.05  # seconds between two reads of the console
SLOW_TIMEOUT: Final = 0.5  # seconds that the command ``import`` may run
BEAT: Final = 2.0  # seconds between two records of the fleet
IN_ERROR: Final = range(5, 10)  # of 30 beats, those with an error of the risk service
BETWEEN_RUNS: Final = 10.0  # seconds from the end of a run to the next run
CODES: Final = ("600519.SH", "000858.SZ", "300750.SZ", "601318.SH")
CLOCK_COLUMNS: Final = 8
LABEL_COLUMNS: Final = 6


class Screen:
    """Writes lines for people on standard output: a time, a label and a text."""

    def __init__(self, texts: Texts) -> None:
        self._out = terminal.Screen(sys.stdout, os.environ, needed=False)
        self.texts = texts

    def text(self, text: str, style: str = "") -> None:
        self._out.row([(text, style)], [self._out.columns])

    def heading(self, text: str) -> None:
        self._out.write("")
        self.text(text, "bold")

    def event(self, label: str, text: str, style: str, clock: str = "") -> None:
        clock = clock or datetime.now(UTC).astimezone().strftime("%H:%M:%S")
        room = self._out.columns - CLOCK_COLUMNS - LABEL_COLUMNS - 2 * terminal.GAP
        widths = [CLOCK_COLUMNS, LABEL_COLUMNS, room]
        self._out.row([(clock, "dim"), (label, style), text], widths)

    def entry(self, entry: LogEntry) -> None:
        clock = terminal.clock_of(entry.timestamp, "%H:%M:%S", CLOCK_COLUMNS)
        message, metadata, _ = terminal.describe_record(entry)
        if entry.outcome is None or entry.outcome.succeeded:
            message = f"{message}  {metadata}".rstrip()
        style = terminal.LEVEL_STYLES[entry.level]
        self.event(entry.level.value, message, style, clock)


class Story:
    """An agent, a console and the records that the console has read.

    Each step of the demo is one method.
    """

    def __init__(self, server: DevServer, console: Console, screen: Screen) -> None:
        self.server = server
        self.console = console
        self.screen = screen
        self.texts: Texts = screen.texts
        self.project: str = screen.texts["project"]
        self.packed: anyio.Event = anyio.Event()  # lets the handler of `pack` return
        self.agent: ProjectAgent = make_orders(server.url, screen.texts, self.packed)
        # Closing this stack closes the agent.
        self.life: AsyncExitStack[bool | None] = AsyncExitStack()
        self.entries: list[LogEntry] = []
        self.status: Status | None = None
        self.reachable: bool = True  # whether Redis answered the last request

    async def follow_log(self) -> None:
        async for entry in self.console.follow_logs(
            self.project, last=1_000, interval=LOOK_INTERVAL
        ):
            self.screen.entry(entry)
            self.entries.append(entry)

    async def follow_status(self) -> None:
        """Show each change of the status, and whether Redis answers."""
        while True:
            before, reachable, kind = self.status, True, ""
            try:
                self.status = await self.console.status(self.project)
            except RedisUnavailableError as error:
                reachable, kind = False, error.kind
            if self.reachable is not reachable:
                self.show_redis("back" if reachable else "away", kind=kind)
                self.reachable = reachable
            if self.status is not before and self.status is not None:
                meaning = self.texts[f"status_{self.status.name}"]
                shown = " ".join(dict.fromkeys([self.status.value, meaning]))
                style = terminal.STATUS_STYLES[self.status]
                self.screen.event(self.texts["label_status"], shown, style)
            await anyio.sleep(LOOK_INTERVAL)

    def show_redis(self, name: str, **values: object) -> None:
        text = self.texts[name].format(**values)
        self.screen.event(self.texts["label_redis"], text, "yellow")

    async def send(self, name: str, **args: object) -> Command:
        shown = f"{name} {encode(args).decode() if args else ''}"
        self.screen.event(self.texts["label_send"], shown, "bold")
        return await self.console.send(self.project, name, args)

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110 - what the console has read
            await anyio.sleep(LOOK_INTERVAL)

    async def shows(self, status: Status) -> None:
        await self.until(lambda: self.status is status)

    async def logs_for(self, command: Command, *, outcome: bool) -> None:
        """Wait for a record of a command: of its handler, or of its outcome."""

        def is_logged() -> bool:
            return any(
                one.metadata.get("commandId") == command.id
                and (one.outcome is not None) is outcome
                for one in self.entries
            )

        await self.until(is_logged)

    async def come_online(self) -> None:
        await self.life.enter_async_context(self.agent)
        await self.shows(Status.ONLINE)

    async def run_command(self) -> None:
        await self.logs_for(await self.send("reload", force=True), outcome=True)

    async def reject_arguments(self) -> None:
        await self.logs_for(
            await self.send("reload", force="yes", fast=1), outcome=True
        )

    async def cut_off(self) -> None:
        """Send a command whose handler takes too long and is cancelled."""
        await self.logs_for(await self.send("import"), outcome=True)

    async def survive_restart(self) -> None:
        """Kill Redis while one command runs and another waits, and log meanwhile."""
        packing = await self.send("pack", order=7)
        await self.logs_for(packing, outcome=False)
        waiting = await self.send("reload")
        await anyio.to_thread.run_sync(self.server.kill)
        self.show_redis("killed", pid=self.server.pid)
        await self.until(lambda: not self.reachable)
        for number in range(1, 4):
            self.agent.log.info(self.texts["log_meanwhile"], number=number)
        self.packed.set()
        await anyio.to_thread.run_sync(self.server.restart)
        self.show_redis("restarted", pid=self.server.pid)
        for command in (packing, waiting, await self.send("reload")):
            await self.logs_for(command, outcome=True)

    async def stop(self) -> None:
        await self.life.aclose()
        await self.shows(Status.OFFLINE)


STEPS: Final[Mapping[str, Callable[[Story], Awaitable[None]]]] = {
    "online": Story.come_online,
    "command": Story.run_command,
    "arguments": Story.reject_arguments,
    "timeout": Story.cut_off,
    "restart": Story.survive_restart,
    "stop": Story.stop,
}


async def play(server: DevServer, screen: Screen) -> int:
    began, texts = anyio.current_time(), screen.texts
    deadline = anyio.CancelScope(deadline=began + DEADLINE)
    async with (
        Console(server.url) as console,
        anyio.create_task_group() as watching,
    ):
        story = Story(server, console, screen)
        watching.start_soon(story.follow_log)
        watching.start_soon(story.follow_status)
        async with story.life:
            with deadline:
                for number, (name, step) in enumerate(STEPS.items(), 1):
                    screen.heading(f"{number}/{len(STEPS)} {texts[f'step_{name}']}")
                    await step(story)
        watching.cancel_scope.cancel()
    verdict = texts["too_long" if deadline.cancelled_caught else "all_shown"]
    screen.heading(verdict.format(seconds=anyio.current_time() - began))
    return int(deadline.cancelled_caught)


def make_orders(redis: str, texts: Texts, packed: anyio.Event) -> ProjectAgent:
    """Make the order service, as a user of the package would write it."""
    agent = ProjectAgent(texts["project"], redis=redis, settings=Settings())

    @agent.command
    async def reload(*, force: bool = False) -> dict[str, int]:
        """Read the configuration again."""
        agent.log.info(texts["log_reloaded"], force=force)
        return {"rules": 42}

    @agent.command("import", timeout=SLOW_TIMEOUT)
    async def import_orders() -> None:
        """Take longer than allowed."""
        agent.log.info(texts["log_importing"])
        await anyio.sleep_forever()

    @agent.command
    async def pack(order: int) -> dict[str, int]:
        """Pack an order, which takes until the demo lets it end."""
        agent.log.info(texts["log_packing"], order=order)
        await packed.wait()
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
        run_id = int(time.time())  # noqa: TID251 - a real program uses a key of its database
        async with store.run(run_id, source=source) as run:
            run.emit("agent", "tool_call", {"tool": "quotes.latest", "codes": CODES})
            await anyio.sleep(BEAT)
            run.emit("agent", "tool_result", {"rows": len(CODES)})
            for letter in texts["fleet_note"]:
                run.emit("llm", "stream", {"text": letter})
                await anyio.sleep(LOOK_INTERVAL)
        await anyio.sleep(BETWEEN_RUNS)


@asynccontextmanager
async def console_in_browser(redis: str) -> AsyncGenerator[str]:
    """Run ``bls-agent console`` and yield its address, or "" if it does not start."""
    command = [sys.executable, "-m", "bls_agent", "console", "--redis", redis]
    command += ["--json", "--port", "0"]
    async with await anyio.open_process(
        command,
        stderr=None,  # the console prints its errors on our standard error
        start_new_session=True,  # Ctrl-C reaches only us, and we end the console
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


async def serve_fleet(server: DevServer, screen: Screen) -> int:
    """Run the fleet, and the console in the browser, until SIGINT or SIGTERM."""
    redis, texts = server.url, screen.texts
    packed = anyio.Event()
    packed.set()
    orders = make_orders(redis, texts, packed)
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
            screen.text(texts["fleet_serving"].format(url=page), "bold")
            for name in ("cards", "workers", "runs"):
                screen.text(texts[f"fleet_{name}"])
            screen.text(texts["fleet_terminal"].format(url=redis))
            screen.text(texts["fleet_quit"])
            await anext(signals)
            work.cancel_scope.cancel()
    screen.text(texts["fleet_ended"])
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    logging.getLogger("bls_agent").addHandler(logging.NullHandler())  # no log on stderr
    given = sys.argv[1:] if arguments is None else arguments
    texts = load_texts("demo", find_language(given, os.environ))
    parser = make_parser(PROGRAM, texts["demo_help"], texts)
    parser.add_argument("--console", action="store_true", help=texts["opt_console"])
    in_browser = parser.parse_args(given).console
    screen = Screen(texts)
    try:
        if in_browser:
            server = start_for_user(None, texts)
        else:
            server = DevServer(append_only=True)
            server.start()
    except BlsError as error:
        parser.exit(2, f"{error}\n")
    try:
        screen.text(texts["title"], "bold")
        screen.text(texts["our_server"].format(url=server.url))
        return anyio.run(serve_fleet if in_browser else play, server, screen)
    except KeyboardInterrupt:
        return 130
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
