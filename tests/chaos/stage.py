"""Where one row plays: a server to hurt, a bad link, an agent under load, witnesses."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import orjson
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from bls_agent import ProjectAgent, Status
from bls_agent.core.keys import (
    CONTROL,
    DEAD_LETTERS,
    INFLIGHT,
    PROJECT_CONSOLE,
    place_beside,
)
from tests.chaos.modes import Damage, Mode
from tests.chaos.nursery import Nursery
from tests.kit import (
    FaultProxy,
    History,
    HurtableServer,
    LogCount,
    Recovery,
    StatusSampler,
    Step,
    Violation,
)

PUSH_PAUSE = 0.05  # seconds between two commands
CROWD = 20  # commands that wait while the producer goes on, in the suite
HANDLER_TIME = 0.002  # seconds, at most, that a handler takes
PUSH_TIMEOUT = 2.0
LOOK_TIMEOUT = 30.0
RECOVERY_LIMIT = 60.0  # after that it is "never"
DRAIN_LIMIT = 60.0  # seconds without a command that is started
DRAIN_PAUSE = 0.05  # between two looks, which cost as much as a command


def client_of(url: str, timeout: float) -> Redis:
    """A client that never repeats anything by itself."""
    retry = Retry(NoBackoff(), 0)
    return Redis.from_url(url, protocol=2, socket_timeout=timeout, retry=retry)


@dataclass
class Stage:
    """All that a fault's function needs for one row.

    Attributes:
        mode: How the agent receives.
        seed: For all chance in this row.
        short: Whether this is the short form.
        damage: What the fault did; the promise depends on it.
        history: What happened.
    """

    mode: Mode
    seed: int
    short: bool
    server: HurtableServer
    proxy: FaultProxy
    producer: Redis
    redis: Redis
    nursery: Nursery
    damage: Damage = field(default_factory=Damage)
    history: History = field(default_factory=History)
    healed_at: float = 0.0
    agent: ProjectAgent = field(init=False)
    sampler: StatusSampler = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        if self.short:  # the suite runs on machines that have other things to do
            self.damage.recovery, self.damage.vanished = 20.0, 10.0
        self.project = f"混沌系统_{self.mode.name}"
        self.control = CONTROL.build(project=self.project)
        self._pushed = self._waiting = 0
        self._producing = True
        self.resting = False  # nothing is pushed for the moment
        self._produced = anyio.Event()
        self.operation = anyio.Lock()  # the server bears one injury at a time

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, mode: Mode, seed: int, nursery: Nursery, *, short: bool
    ) -> AsyncGenerator[Stage]:
        """Start server, proxy and client."""
        # What was written survives the process without fsync, which costs 10 ms and more.
        server = HurtableServer(append_only=True, options=("--appendfsync", "no"))
        await anyio.to_thread.run_sync(server.start)
        try:
            async with (
                FaultProxy(server.url, seed=seed) as proxy,
                client_of(server.url, PUSH_TIMEOUT) as producer,
                client_of(server.url, LOOK_TIMEOUT) as redis,
            ):
                yield cls(mode, seed, short, server, proxy, producer, redis, nursery)
        finally:
            await anyio.to_thread.run_sync(server.stop)

    def pick(self, short: Any, long: Any) -> Any:
        """Choose a number: for the suite, or for the campaign."""
        return short if self.short else long

    # -- the agent and its load

    def make_agent(self, url: str | None = None, **options: Any) -> ProjectAgent:
        """Make an agent of this row's mode, with a handler, watched by the history."""
        settings: dict[str, Any] = {
            **self.mode.settings,
            "log_list_limit": 1_000_000,
            "shutdown_timeout": 5.0,
            **options,
        }
        agent = ProjectAgent(self.project, redis=url or self.proxy.url, **settings)
        self.history.attach(agent)

        @agent.command
        async def mark(number: int) -> int:
            await anyio.sleep(self.rng.uniform(0, HANDLER_TIME))
            return number

        agent.command("fork")(mark)  # left behind by one that forked
        return agent

    @asynccontextmanager
    async def load(
        self, *, agent: ProjectAgent | None = None, **options: Any
    ) -> AsyncGenerator[ProjectAgent]:
        """Run an agent while commands and records keep coming; then tidy up and look.

        What is lost, repeated or left is in the history afterwards.
        """
        self.agent = agent or self.make_agent(**options)
        async with self.sampling(), anyio.create_task_group() as tasks:
            async with self.agent:
                await self.agent.ready(10)
                self.sampler.expect(Status.ONLINE)
                tasks.start_soon(self.produce, self.agent)
                yield self.agent
                self._producing = False
                await self._produced.wait()
                await self.drain()
                self.sampler.expect()
            tasks.cancel_scope.cancel()
        self.count_logs(self.agent, final=True)
        await self.take_stock()

    @asynccontextmanager
    async def sampling(self) -> AsyncGenerator[None]:
        """Look at the status from outside meanwhile."""
        statuses = self.history.evidence.statuses
        self.sampler = StatusSampler(self.server.port, self.project, statuses)
        with self.sampler:
            yield

    async def produce(self, agent: ProjectAgent | None = None) -> None:
        """Push commands, and let the agent log, until told to stop."""
        while self._producing:
            if self.resting:
                await anyio.sleep(PUSH_PAUSE)
                continue
            await self.push()
            if agent is not None:
                self.history.log(agent)
                self.count_logs(agent)
            await anyio.sleep(PUSH_PAUSE)
            if self.short and self._waiting > CROWD:
                await self.catch_up()
        self._produced.set()

    async def catch_up(self) -> None:
        """Give a busy machine up to two seconds until no command waits any more."""
        with anyio.move_on_after(2.0), suppress(RedisError, OSError):
            while self._producing and await self.redis.llen(self.control):
                await anyio.sleep(0.01)

    async def push(self, command: str = "mark", **args: Any) -> str:
        """Push one command straight to the server; write down what came of it."""
        self._pushed += 1
        number = f"cmd-{self._pushed:06}"
        body = {
            "id": number,
            "timestamp": "2026-01-12T12:35:00.000Z",
            "source": "BLS Project Console",
            "command": command,
            "args": args or {"number": self._pushed},
        }
        self.history.note(Step.MAYBE_PUSHED, number)  # it may start before we know
        with anyio.CancelScope(shield=True), suppress(RedisError, OSError):
            self._waiting = await self.producer.rpush(self.control, orjson.dumps(body))
            self.history.note(Step.PUSHED, number)
        return number

    def count_logs(self, agent: ProjectAgent, *, final: bool = False) -> None:
        """Keep the counters of a log; all of them are looked at."""
        evidence = self.history.evidence
        stats = agent.stats()
        if final:
            evidence.final_log_counts.append(LogCount.of(stats))
        elif len(evidence.log_counts) < 10_000:
            evidence.log_counts.append(LogCount.of(stats))
        if stats.faults:
            self.complain(f"{stats.faults} faults of the agent itself")

    def complain(self, error: str) -> None:
        """Write down, once, what the host must never see."""
        errors = self.history.evidence.host_errors
        if error not in errors:
            errors.append(error)

    # -- faults

    @asynccontextmanager
    async def hurt(
        self, *injuries: AbstractContextManager[None]
    ) -> AsyncGenerator[None]:
        """Hurt the server while the block runs; in a thread, because that blocks.

        Without an injury the block itself hurts the link.
        """
        for injury in injuries:
            await anyio.to_thread.run_sync(injury.__enter__)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                for injury in injuries:
                    await anyio.to_thread.run_sync(injury.__exit__, None, None, None)
            self.healed_at = time.monotonic()

    async def busy(self, commands: int = 5) -> None:
        """Wait until some more commands were started."""
        wanted = self.history.total(Step.STARTED) + commands
        await self.wait(lambda: self.history.total(Step.STARTED) >= wanted, 30)

    async def recovered(self, fault: str) -> None:
        """Write down how long it took until the next command ran."""

        def started() -> list[float]:
            events = self.history.events(Step.STARTED, since=self.healed_at)
            return [event.at for event in events]

        seconds = None
        if await self.wait(lambda: bool(started()), RECOVERY_LIMIT):
            seconds = started()[0] - self.healed_at
        self.history.evidence.recoveries.append(Recovery(fault, seconds))

    async def wait(self, condition: Callable[[], bool], limit: float) -> bool:
        """Wait for something; tell whether it came."""
        with anyio.move_on_after(limit):
            while not condition():
                await anyio.sleep(0.005)
            return True
        return False

    # -- the end

    async def drain(self, limit: float = DRAIN_LIMIT) -> None:
        """Let the agent run what is left and write its log.

        Commands may wait for as long as others are started: a fault that makes the
        agent slow leaves hundreds, and the machine may have other things to do.
        """

        async def is_empty() -> bool:
            with suppress(RedisError, OSError):
                lists = [self.control, *await self.inflight_lists()]
                return not any([await self.redis.llen(name) for name in lists])
            return False

        started = -1
        with anyio.move_on_after(limit) as scope:
            while not await is_empty() or self.agent.stats().commands_running:
                await anyio.sleep(DRAIN_PAUSE)
                before, started = started, self.history.total(Step.STARTED)
                if started != before:
                    scope.deadline = anyio.current_time() + limit
            await self.agent.flush(10)
            return
        self.complain(f"commands or records wait, and none started for {limit:g} s")

    async def inflight_lists(self) -> list[str]:
        """The private lists of mode ``reliable``."""
        pattern = INFLIGHT.pattern(place=place_beside(self.control))
        return [key.decode() async for key in self.redis.scan_iter(pattern, count=100)]

    async def take_stock(self) -> None:
        """Write down what is in the server still, and what the console list tells."""
        dead = DEAD_LETTERS.build(place=place_beside(self.control))
        for name in (self.control, dead, *await self.inflight_lists()):
            for value in await self.redis.lrange(name, 0, -1):
                number = command_id(value)
                self.history.note(Step.WAITING, number, detail=name)
        console = PROJECT_CONSOLE.build(project=self.project)
        self.history.find_records(await self.redis.lrange(console, 0, -1))
        for event in self.history.events(Step.ACKED):
            if event.detail in ("rejected", "unknown", "discarded"):
                self.complain(f"{event.id} was {event.detail}: nothing was tried")

    def conclude(self) -> list[Violation]:
        """Say what was broken besides the invariants that are checked in every row."""
        return []


def command_id(value: bytes | str) -> str:
    """The id of a command, or its bytes where it has none."""
    with suppress(orjson.JSONDecodeError, KeyError, TypeError):
        return str(orjson.loads(value)["id"])
    return repr(value)
