"""Agents in every mode under steady load while something is done to their servers."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from bls_agent import (
    Console,
    ProjectAgent,
    RedisSource,
    RedisUnavailableError,
    Status,
)
from bls_agent.core.settings import Mode
from bls_agent.project.receive.reclaimer import ReliableKeys
from tests.harness import eventually

MODES: tuple[Mode, ...] = ("blocking", "compat", "auto", "reliable")
PREFETCH = {"auto": 8, "reliable": 8}  # modes that take several commands at once
PAUSE = 0.02  # seconds between two commands, and between two records
WINDOW = 0.5  # seconds in which what a server answered may not be copied yet


@dataclass
class Subject:
    """One agent, what it was sent, and what it did; times are monotonic.

    Attributes:
        sent: Number of each command that was acknowledged → when.
        doubtful: Commands of which nobody knows whether they were pushed.
        handled: Number of each command → when it was handled.
        logged: When each record was put.
    """

    mode: Mode
    agent: ProjectAgent
    sent: dict[int, float] = field(default_factory=dict)
    doubtful: set[int] = field(default_factory=set)
    handled: dict[int, list[float]] = field(default_factory=dict)
    logged: list[float] = field(default_factory=list)

    @property
    def project(self) -> str:
        """The agent's project."""
        return self.agent.project

    def attach(self) -> None:
        """Have the agent handle the commands of the load."""

        async def mark(number: int) -> None:
            self.handled.setdefault(number, []).append(time.monotonic())

        self.agent.command("mark")(mark)

    def longest_silence(self, since: float) -> float:
        """Give the longest time without a command handled, in seconds."""
        times = sorted(at for run in self.handled.values() for at in run if at > since)
        pairs = zip([since, *times], times, strict=False)
        return max((later - earlier for earlier, later in pairs), default=0.0)

    def missing(self) -> set[int]:
        """Commands that were acknowledged and not handled (yet)."""
        return set(self.sent) - set(self.handled)

    def check(
        self, faults: Sequence[float], records: Sequence[int], lag: float
    ) -> None:
        """Assert that nothing was lost or done twice but around a fault.

        Args:
            faults: When a server was lost that may have answered what it did not copy.
            records: The ``n`` of the records in the console list.
            lag: By how many seconds this process may have noted a moment too late.
        """
        near = WINDOW + lag

        def excused(at: float) -> bool:
            return any(fault - near < at < fault + near for fault in faults)

        lost = {n for n in self.missing() if not excused(self.sent[n])}
        assert not lost, f"{self.mode}: lost {lost}"
        twice = {n for n, run in self.handled.items() if len(run) > 1}
        assert not {n for n in twice if not excused(self.handled[n][0])}, self.mode
        assert set(self.handled) <= set(self.sent) | self.doubtful
        counts = Counter(records)
        absent = [n for n in range(len(self.logged)) if not counts[n]]
        assert not [n for n in absent if not excused(self.logged[n])], self.mode
        stats = self.agent.stats()
        assert (counts.total() - len(counts)) <= stats.logs_maybe_repeated
        if counts.total() == len(counts):
            assert list(records) == sorted(records), f"{self.mode}: out of order"
        said = stats.logs_delivered + sum(stats.logs_dropped.values())
        assert stats.logs_accepted == said + stats.logs_queued
        assert not stats.logs_dropped
        assert not stats.faults


@dataclass
class Load:
    """All subjects, and what produces for them.

    Attributes:
        lag: The longest time for which the event loop stood still, in seconds.
    """

    subjects: list[Subject]
    console: Console
    lag: float = 0.0
    stopped: bool = False
    producing: int = 0  # tasks that may still send

    async def produce(self, subject: Subject) -> None:
        """Push commands, one after the other, whatever happens."""
        number = 0
        self.producing += 1
        while not self.stopped:
            try:
                at = time.monotonic()
                await self.console.send(
                    subject.project, "mark", {"number": number}, create=True
                )
                subject.sent[number] = at
            except RedisUnavailableError as error:
                if error.ambiguous:
                    subject.doubtful.add(number)
            number += 1
            await anyio.sleep(PAUSE)
        self.producing -= 1

    async def log(self) -> None:
        """Log, and watch the event loop, which has to go on."""
        while not self.stopped:
            for subject in self.subjects:
                subject.agent.log.info("steady", n=len(subject.logged))
                subject.logged.append(time.monotonic())
            before = time.monotonic()
            await anyio.sleep(PAUSE)
            self.lag = max(self.lag, time.monotonic() - before - PAUSE)

    async def alive(self, since: float, timeout: float, but: str = "") -> None:
        """Wait until every agent, but those of some modes, has handled what is sent since."""

        def caught_up() -> bool:
            return all(
                any(at > since for at in s.sent.values())
                and any(s.sent.get(n, 0.0) > since for n in s.handled)
                for s in self.subjects
                if s.mode not in but.split()
            )

        await eventually(caught_up, timeout)

    async def settle(self, timeout: float = 60.0) -> None:
        """Stop producing, and wait until what was produced is done."""
        self.stopped = True
        await eventually(lambda: not self.producing, timeout)  # the last is sent
        await eventually(self._is_done, timeout)
        for subject in self.subjects:
            assert await subject.agent.flush(timeout), subject.mode

    async def _is_done(self) -> bool:
        for subject in self.subjects:
            missing = subject.missing()
            if missing and await self._waiting(subject):
                return False
        return True

    async def _waiting(self, subject: Subject) -> int:
        """Count what waits, and what stands in lists of what was taken."""
        read, places = (
            self.console._pool.read,
            ReliableKeys(f"{subject.project}_控制"),
        )
        try:
            lists = [name.decode() for name in await read(places.lists, "HKEYS")]
            counts = [await read(key, "LLEN") for key in (places.control, *lists)]
        except RedisUnavailableError:
            return 1
        return sum(counts)

    async def records(self, subject: Subject) -> list[int]:
        """The ``n`` of every record in a console list."""
        entries = await self.console.logs(subject.project, 100_000)
        return [int(e.metadata["n"]) for e in entries if "n" in e.metadata]


@asynccontextmanager
async def under_load(
    url: RedisSource, project: str, also: Sequence[str] = ()
) -> AsyncIterator[Load]:
    """Open an agent in every mode, and keep it busy while the block runs.

    Args:
        url: Where Redis is.
        project: What the projects' names begin with.
        also: More projects; for each there is one agent, the modes in turn.
    """
    names = [(mode, f"{project}-{mode}") for mode in MODES]
    names += zip(itertools.cycle(MODES), also, strict=False)
    subjects = [
        Subject(
            mode,
            ProjectAgent(name, redis=url, mode=mode, prefetch=PREFETCH.get(mode, 1)),
        )
        for mode, name in names
    ]
    async with Console(url, timeout=1) as console, anyio.create_task_group() as tasks:
        load = Load(subjects, console)
        for subject in subjects:
            subject.attach()
            await subject.agent.__aenter__()
        for subject in subjects:
            await subject.agent.ready(30)
            tasks.start_soon(load.produce, subject)
        tasks.start_soon(load.log)
        try:
            yield load
        finally:
            load.stopped = True
            for subject in subjects:
                await subject.agent.aclose()
            tasks.cancel_scope.cancel()


async def check_end(load: Load, faults: Sequence[float]) -> None:
    """Stop in order and assert what must hold however the servers were hurt."""
    await load.settle()
    for subject in load.subjects:
        assert await load.console.status(subject.project) is Status.ONLINE
        began = time.monotonic()
        await subject.agent.aclose()
        assert time.monotonic() - began < 12  # shutdown_timeout + 2
        assert await load.console.status(subject.project) is Status.OFFLINE
        subject.check(faults, await load.records(subject), load.lag)
    assert load.lag < 4.9  # a wait for Redis inside of the loop would be redis_timeout
