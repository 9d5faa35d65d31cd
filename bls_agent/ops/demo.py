"""A demo of an agent and a console: ``python -m bls_agent.ops.demo``.

A console sends valid and invalid commands to an order service. Meanwhile Redis is killed
and started again. Each step does something with the agent or the console and waits until
the console has read the result from Redis. With ``--console``, the demo runs a small
fleet of services, workers and runs, and the console in the browser, until Ctrl-C.

The demo starts its own server (the extra ``server``). The exit code is 0 if every step
succeeded, 1 if a step failed, 2 if the demo could not run, and 130 after Ctrl-C.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import time
from collections import Counter
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
from bls_agent.project.messages import Command, LogEntry, Outcome, OutcomeKind, Status
from bls_agent.runs import EventStore
from bls_agent.workers import BacktestWorkerHeartbeat, Heartbeat, TaskStatus

PROGRAM: Final = "python -m bls_agent.ops.demo"
STEP_DEADLINE: Final = 5.0  # seconds after which a step has failed
LOOK_INTERVAL: Final = 0.05  # seconds between two reads of the console
SLOW_TIMEOUT: Final = 0.5  # seconds that the command ``import`` may run
BEAT: Final = 2.0  # seconds between two records of the fleet
IN_ERROR: Final = range(5, 10)  # of 30 beats, those with an error of the risk service
BETWEEN_RUNS: Final = 10.0  # seconds from the end of a run to the next run
MEANWHILE: Final = [1, 2, 3]  # numbers of records logged while Redis is down
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


class SurpriseError(Exception):
    """The console did not read what a step expects."""


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
        self.awaited: str = ""  # what the current step waits for

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

    async def until(self, what: str, holds: Callable[[], object]) -> None:
        self.awaited = what
        while True:
            if holds():
                return
            await anyio.sleep(LOOK_INTERVAL)

    async def shows(self, status: Status) -> None:
        await self.until(status.value, lambda: self.status is status)

    async def ended(self, command: Command, kind: OutcomeKind) -> Outcome:

        def outcomes() -> list[Outcome]:
            found = [entry.outcome for entry in self.entries if entry.outcome]
            return [one for one in found if one.command_id == command.id]

        await self.until(f"{command.command}: {kind.value}", outcomes)
        outcome = outcomes()[0]
        self.expect(outcome.message, holds=outcome.kind is kind)
        return outcome

    def records_of(self, command: Command) -> list[LogEntry]:
        written = [entry for entry in self.entries if not entry.outcome]
        return [one for one in written if one.metadata.get("commandId") == command.id]

    def expect(self, what: str, *, holds: bool) -> None:
        if not holds:
            raise SurpriseError(self.texts["not_as_expected"].format(what=what))

    async def come_online(self) -> None:
        """Open the agent and wait until the console reads that it is online."""
        await self.life.enter_async_context(self.agent)
        await self.shows(Status.ONLINE)

    async def run_command(self) -> None:
        """Send a valid command; check its result and its handler's log record."""
        command = await self.send("reload", force=True)
        outcome = await self.ended(command, OutcomeKind.SUCCEEDED)
        holds = outcome.result == {"rules": 42} and len(self.records_of(command)) == 1
        self.expect(outcome.message, holds=holds)

    async def reject_arguments(self) -> None:
        """Send wrong arguments; check that the outcome names them and no handler ran."""
        command = await self.send("reload", force="yes", fast=1)
        message = (await self.ended(command, OutcomeKind.REJECTED)).message
        named = "'force'" in message and "'fast'" in message
        self.expect(message, holds=named and not self.records_of(command))

    async def cut_off(self) -> None:
        """Send a command whose handler takes too long and is cancelled."""
        command = await self.send("import")
        outcome = await self.ended(command, OutcomeKind.TIMED_OUT)
        self.expect(outcome.message, holds=len(self.records_of(command)) == 1)

    async def survive_restart(self) -> None:
        """Kill Redis while one command runs and another waits, and log meanwhile.

        Check that each command has one outcome, and that no record is lost or repeated.
        """
        packing = await self.send("pack", order=7)
        await self.until("pack", lambda: self.records_of(packing))
        waiting = await self.send("reload")
        await anyio.to_thread.run_sync(self.server.kill)
        self.show_redis("killed", pid=self.server.pid)
        await self.until("Redis", lambda: not self.reachable)
        for number in MEANWHILE:
            self.agent.log.info(self.texts["log_meanwhile"], number=number)
        self.packed.set()
        await anyio.to_thread.run_sync(self.server.restart)
        self.show_redis("restarted", pid=self.server.pid)
        commands = (packing, waiting, await self.send("reload"))
        for command in commands:
            await self.ended(command, OutcomeKind.SUCCEEDED)
        # Read the whole log again, to check that it has one outcome of each command and
        # contains each record once.
        entries = await self.console.logs(self.project, 1_000)
        numbers = [
            one.metadata["number"] for one in entries if "number" in one.metadata
        ]
        self.expect(
            f"{self.texts['log_meanwhile']}: {numbers}", holds=numbers == MEANWHILE
        )
        ended = Counter(one.outcome.command_id for one in entries if one.outcome)
        for command in commands:
            self.expect(command.command, holds=ended[command.id] == 1)

    async def stop(self) -> None:
        """Close the agent and wait until the console reads the final status."""
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
    began, texts, failed = anyio.current_time(), screen.texts, 0
    async with (
        Console(server.url) as console,
        anyio.create_task_group() as watching,
    ):
        story = Story(server, console, screen)
        watching.start_soon(story.follow_log)
        watching.start_soon(story.follow_status)
        async with story.life:
            for number, (name, step) in enumerate(STEPS.items(), 1):
                screen.heading(f"{number}/{len(STEPS)} {texts[f'step_{name}']}")
                if fault := await attempt(step, story):
                    failed += 1
                    screen.text(fault, "bold red")
        watching.cancel_scope.cancel()
    seconds = anyio.current_time() - began
    verdict = texts["some_failed" if failed else "all_shown"]
    values = {"failed": failed, "count": len(STEPS), "seconds": seconds}
    screen.heading(verdict.format(**values))
    return int(failed > 0)


async def attempt(step: Callable[[Story], Awaitable[None]], story: Story) -> str:
    """Run one step; return why it has failed, or an empty text."""
    try:
        with anyio.fail_after(STEP_DEADLINE):
            await step(story)
    except TimeoutError:
        text = story.texts["not_seen"]
        return text.format(seconds=STEP_DEADLINE, what=story.awaited)
    except (SurpriseError, BlsError) as error:
        return str(error)
    return ""


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
