"""What the demo shows and how: its services, a small fleet of them, and its screen.

For ``python -m bls_agent.demo --console``: services with status, log and commands,
workers with heartbeats and tasks, and runs that write events, on a server of their own,
until Ctrl-C, with the console in the browser beside them.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from typing import Final, Literal

import anyio
from anyio import to_thread

from bls_agent.agent import ProjectAgent
from bls_agent.core.errors import ConfigurationError, Reject
from bls_agent.core.settings import Settings
from bls_agent.devserver import start_for_user
from bls_agent.ops import terminal
from bls_agent.ops.terminal import (
    LEVEL_STYLES,
    STATUS_STYLES,
    clock_of,
    describe_record,
)
from bls_agent.ops.texts import Texts
from bls_agent.ops.web import need_web
from bls_agent.project.messages import LogEntry, Status
from bls_agent.runs import EventStore
from bls_agent.workers import (
    BacktestWorkerHeartbeat,
    DataWorkerHeartbeat,
    Heartbeat,
    SchedulerHeartbeat,
    TaskStatus,
)

CODES: Final = ("600519.SH", "000858.SZ", "300750.SZ", "601318.SH")
BEAT: Final = 2.0  # seconds between two records, and two values of a heartbeat
IN_ERROR: Final = 10.0  # seconds
WELL: Final = 50.0  # seconds between two errors of the risk service
BETWEEN_RUNS: Final = 10.0  # seconds
STEP: Final = 0.05  # seconds between two words of a run, and two steps of a task
START_TIMEOUT: Final = 20.0  # seconds
SLOW_TIMEOUT: Final = 0.5
TIME_COLUMNS: Final = 8
LABEL_COLUMNS: Final = 6
HANGING: Final = TIME_COLUMNS + LABEL_COLUMNS + 4
MARKS: Final = ("✓✗-", "√\N{MULTIPLICATION SIGN}-", "+x-")  # the first that it knows
STYLES: Final = ("green", "red", "yellow")  # of the marks


class Screen:
    """Lines for people: time, label, text."""

    def __init__(self, out: terminal.Screen, texts: Texts) -> None:
        self._out = out
        self.texts = texts

    def heading(self, text: str) -> None:
        """Begin a part."""
        self.write("")
        self.text(text, "bold")

    def text(self, text: str, style: str = "") -> None:
        """Write a paragraph."""
        self._out.row([(text, style)], [self._out.columns])

    def entry(self, entry: LogEntry) -> None:
        """Write a log record that the console has read."""
        clock = clock_of(entry.timestamp, "%H:%M:%S", TIME_COLUMNS)
        style = LEVEL_STYLES[entry.level]
        message, metadata, _ = describe_record(entry)
        failed = entry.outcome is not None and not entry.outcome.succeeded
        shown = message if failed else f"{message}  {metadata}".rstrip()
        self._event(entry.level.value, shown, style, clock)

    def status(self, status: Status | None) -> None:
        """Write the status that the console has read."""
        label = self.texts["label_status"]
        if status is None:
            self._event(label, self.texts["no_status"], "dim")
            return
        meaning = self.texts[f"status_{status.name}"]
        shown = status.value if meaning == status else f"{status.value} ({meaning})"
        self._event(label, shown, STATUS_STYLES[status])

    def sent(self, text: str) -> None:
        """Write a command that is sent."""
        self._event(self.texts["label_send"], text, "bold")

    def redis(self, text: str) -> None:
        """Write what happens to Redis itself."""
        self._event(self.texts["label_redis"], text, "yellow")

    def mark(self, mark: int, title: str, detail: str) -> None:
        """Write a row of the table at the end."""
        known = next(marks for marks in MARKS if self._out.encodable(marks) == marks)
        widths = [1, self._out.columns - 3]
        self._out.row([(known[mark], STYLES[mark]), title], widths)
        if detail:
            self._out.row(["", detail], widths)

    def write(self, line: str) -> None:
        """Write a line unchanged."""
        self._out.write(line)

    def _event(self, label: str, text: str, style: str, clock: str = "") -> None:
        clock = clock or datetime.now(UTC).astimezone().strftime("%H:%M:%S")
        widths = [TIME_COLUMNS, LABEL_COLUMNS, self._out.columns - HANGING]
        self._out.row([(clock, "dim"), (label, style), text], widths)


def serve_fleet(screen: Screen, redis_url: str) -> int:
    """Serve the fleet and its console until SIGINT or SIGTERM; give the exit code.

    ``redis_url`` is that of the environment; nothing is written there.
    """
    need_web()
    texts = screen.texts
    server = start_for_user(None, None, texts)
    try:
        if redis_url:
            screen.text(texts["your_server_unused"])
        anyio.run(_live, screen, server.url)
    finally:
        server.stop()
    screen.text(texts["fleet_ended"])
    return 0


@asynccontextmanager
async def _console(redis: str) -> AsyncGenerator[str]:
    """Serve the console in a thread, so that signals are ours; give its address."""
    from bls_agent.ops.web.app import create_app  # noqa: PLC0415 - the extra
    from bls_agent.ops.web.config import WebConfig  # noqa: PLC0415 - it, too
    from bls_agent.ops.web.server import make_server, open_sockets  # noqa: PLC0415 - it, too

    listening = SimpleQueue[Sequence[str]]()
    config = WebConfig(redis=redis)
    with ExitStack() as stack:
        try:
            sockets = stack.enter_context(open_sockets(config))
        except ConfigurationError:  # the port is taken: any other one will do
            config = WebConfig(redis=redis, port=0)
            sockets = stack.enter_context(open_sockets(config))
        server = make_server(create_app(config), sockets, listening.put)
        async with anyio.create_task_group() as serving:
            serving.start_soon(to_thread.run_sync, server.run, sockets)
            try:
                wait = partial(listening.get, timeout=START_TIMEOUT)
                yield (await to_thread.run_sync(wait))[0]
            finally:
                server.should_exit = True


async def _live(screen: Screen, redis: str) -> None:
    texts = screen.texts
    async with AsyncExitStack() as stack:
        page = await stack.enter_async_context(_console(redis))
        packed = anyio.Event()
        packed.set()
        orders = make_orders(redis, texts["fleet_orders"], texts, packed)
        quotes, risk = _make_quotes(redis, texts), _make_risk(redis, texts)
        for agent in (orders, quotes, risk):
            await stack.enter_async_context(agent)
        store = await stack.enter_async_context(EventStore(redis))
        async with anyio.create_task_group() as work:
            # Caught before the first line: from there on Ctrl-C ends it in order.
            signals = stack.enter_context(
                anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM)
            )
            work.start_soon(_write_records, orders, quotes, texts)
            work.start_soon(_err_now_and_then, risk, texts)
            work.start_soon(_count_quotes, redis, texts)
            work.start_soon(_compute, redis, texts)
            work.start_soon(_write_runs, store, texts)
            screen.text(texts["fleet_serving"].format(url=page), "bold")
            for name in ("cards", "workers", "runs"):
                screen.text(texts[f"fleet_{name}"])
            screen.heading(texts["fleet_terminal"])
            screen.write(f"bls-agent top --redis {redis}")
            reload = f"bls-agent call {orders.project} reload --arg force=true"
            screen.write(f"{reload} --redis {redis}")
            screen.text(texts["fleet_quit"])
            await anext(signals)
            work.cancel_scope.cancel()


def make_orders(
    redis: str, project: str, texts: Texts, packed: anyio.Event
) -> ProjectAgent:
    """Make the order service: what a user of the package would write."""
    agent = ProjectAgent(project, redis=redis, settings=Settings())

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
        """Pack an order, which takes until the story lets it end."""
        agent.log.info(texts["log_packing"], order=order)
        await packed.wait()
        return {"packed": order}

    return agent


def _make_quotes(redis: str, texts: Texts) -> ProjectAgent:
    """Make a service whose commands have arguments of every kind."""
    agent = ProjectAgent(texts["fleet_quotes"], redis=redis, settings=Settings())

    @agent.command
    async def subscribe(codes: list[str], depth: Literal[1, 5, 10] = 5) -> list[str]:
        """Subscribe to the quotes of these securities."""
        if unknown := [code for code in codes if code not in CODES]:
            reason = texts["fleet_unknown_codes"].format(codes=", ".join(unknown))
            raise Reject(reason)
        agent.log.info(texts["log_subscribed"], codes=codes, depth=depth)
        return codes

    @agent.command
    async def replay(day: str, speed: float = 1.0) -> None:
        """Send the quotes of a day again."""
        agent.log.info(texts["log_replayed"], day=day, speed=speed)

    return agent


def _make_risk(redis: str, texts: Texts) -> ProjectAgent:
    """Make a service of which one command fails."""
    agent = ProjectAgent(texts["fleet_risk"], redis=redis, settings=Settings())

    @agent.command
    async def check_limits(account: str, *, strict: bool = True) -> dict[str, float]:
        """Compare the exposure of an account with its limit."""
        agent.log.info(texts["log_limits"], account=account, strict=strict)
        return {"exposure": 0.62, "limit": 0.8 if strict else 1.0}

    @agent.command
    async def recompute() -> None:
        """Compute the model again, which fails."""
        raise ZeroDivisionError(texts["log_no_volume"])

    return agent


async def _write_records(orders: ProjectAgent, quotes: ProjectAgent, t: Texts) -> None:
    while True:
        orders.log.info(t["log_packed"], order=random.randrange(1_000, 10_000))  # noqa: S311 - a number to look at
        quotes.log.debug(t["log_quotes"], rows=random.randrange(500, 900))  # noqa: S311 - as above
        await anyio.sleep(BEAT)


async def _err_now_and_then(risk: ProjectAgent, texts: Texts) -> None:
    """Set the status to error once a minute."""
    while True:
        await anyio.sleep(IN_ERROR)
        risk.log.error(texts["log_no_volume"], code=CODES[2])
        risk.set_status(Status.ERROR)
        await anyio.sleep(IN_ERROR)
        risk.set_status(Status.ONLINE)
        risk.log.info(texts["log_recovered"])
        await anyio.sleep(WELL - IN_ERROR)


async def _count_quotes(redis: str, texts: Texts) -> None:
    """Run a data worker that counts, and the scheduler of the other workers."""
    data = DataWorkerHeartbeat.create(texts["fleet_data_worker"], stats={"rows": 0})
    plan = SchedulerHeartbeat.create(texts["fleet_scheduler"], running_tasks=2)
    rows = 0
    async with Heartbeat(redis, data) as counted, Heartbeat(redis, plan) as planned:
        while True:
            await anyio.sleep(BEAT)
            rows += random.randrange(500, 900)  # noqa: S311 - as above
            counted.update(stats={"rows": rows})
            planned.update(pending_tasks=random.randrange(8))  # noqa: S311 - as above


async def _compute(redis: str, texts: Texts) -> None:
    """Run two workers that compute one task after the other."""
    async with (
        TaskStatus(redis, on_error="none") as tasks,
        anyio.create_task_group() as workers,
    ):
        for number in (1, 2):
            name = f"{texts['fleet_worker']}-{number}"
            workers.start_soon(_work, redis, tasks, name, number)


async def _work(redis: str, tasks: TaskStatus, name: str, pace: int) -> None:
    said = BacktestWorkerHeartbeat.create(name, max_tasks=1)
    async with Heartbeat(redis, said) as beat:
        for number in range(10**9):
            task = f"{name}-{number}"
            beat.update(running_tasks=1, task_uuids=[task])
            await tasks.set(task, "running", worker=name, code=CODES[number % 4])
            for percent in range(0, 100, 5):
                await tasks.update(task, progress=percent)
                await anyio.sleep(STEP * 10 * pace)
            await tasks.update(task, status="done", progress=100)
            beat.update(running_tasks=0, task_uuids=[])
            await anyio.sleep(BEAT)


async def _write_runs(store: EventStore, texts: Texts) -> None:
    """Write one run after the other: a call of a tool, and a text word by word."""
    source = {"agent_id": "analyst", "agent_name": texts["fleet_analyst"]}
    while True:
        run_id = int(time.time())  # noqa: TID251 - a program takes its database's key
        async with store.run(run_id, source=source) as run:
            run.emit("agent", "tool_call", {"tool": "quotes.latest", "codes": CODES})
            await anyio.sleep(BEAT)
            run.emit("agent", "tool_result", {"rows": len(CODES)})
            for word in texts["fleet_note"]:
                run.emit("llm", "stream", {"text": word})
                await anyio.sleep(STEP)
        await anyio.sleep(BETWEEN_RUNS)
