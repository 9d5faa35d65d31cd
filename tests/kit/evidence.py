"""What is measured from outside while things go wrong: status, counters, footprint."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from redis.exceptions import RedisError, ResponseError

from bls_agent.core.keys import PROJECT_STATUS
from bls_agent.project.messages import Status
from bls_agent.project.stats import AgentStats
from tests.kit.admin import AdminConnection

SAMPLE_INTERVAL: Final = 0.1
SAMPLE_TIMEOUT: Final = 1.0
STATM: Final = Path("/proc/self/statm")
DESCRIPTORS: Final = (Path("/proc/self/fd"), Path("/dev/fd"))


@dataclass(frozen=True)
class StatusSample:
    """What the status key said at one moment, and what was true.

    Attributes:
        at: When, on the clock of ``time.monotonic()``.
        answered: Whether Redis answered at all; if not, nobody was told a lie.
        shown: The value; ``None`` if there was none.
        truth: What would have been right.
    """

    at: float
    answered: bool
    shown: str | None
    truth: frozenset[str | None]

    @property
    def is_true(self) -> bool:
        """Whether nobody was told anything wrong."""
        return not self.answered or self.shown in self.truth


@dataclass(frozen=True)
class LogCount:
    """The log's counters at one moment, as ``agent.stats()`` gives them."""

    accepted: int
    delivered: int
    dropped: int
    queued: int
    maybe_repeated: int

    @classmethod
    def of(cls, stats: AgentStats) -> Self:
        """Take them from an agent's stats."""
        return cls(
            accepted=stats.logs_accepted,
            delivered=stats.logs_delivered,
            dropped=sum(stats.logs_dropped.values()),
            queued=stats.logs_queued,
            maybe_repeated=stats.logs_maybe_repeated,
        )


@dataclass(frozen=True)
class Footprint:
    """What the process holds at one moment; 0 for what this system does not tell.

    Attributes:
        memory: Resident bytes.
        descriptors: Open files and sockets.
        threads: Threads of Python.
        tasks: Tasks of the running event loop.
    """

    memory: int
    descriptors: int
    threads: int
    tasks: int

    @classmethod
    def take(cls) -> Self:
        """Measure; in a coroutine, to count its loop's tasks."""
        try:
            tasks = len(asyncio.all_tasks())
        except RuntimeError:  # no loop runs here
            tasks = 0
        return cls(
            memory=_resident_bytes(),
            descriptors=_count_descriptors(),
            threads=threading.active_count(),
            tasks=tasks,
        )


@dataclass(frozen=True)
class Recovery:
    """How long it took until all was well again.

    Attributes:
        fault: What had been wrong.
        seconds: From the end of the fault; ``None`` if it never was.
    """

    fault: str
    seconds: float | None


@dataclass
class Evidence:
    """All that was measured.

    Attributes:
        statuses: Samples of the status key, in order.
        log_counts: Counters of the log, of each agent, at any moments.
        final_log_counts: The last ones of each agent, when its log had been flushed.
        footprints: Of the host process: the first before, the last after everything.
        host_errors: Exceptions that reached the host and that it did not cause.
        recoveries: One for each fault that ended.
    """

    statuses: list[StatusSample] = field(default_factory=list[StatusSample])
    log_counts: list[LogCount] = field(default_factory=list[LogCount])
    final_log_counts: list[LogCount] = field(default_factory=list[LogCount])
    footprints: list[Footprint] = field(default_factory=list[Footprint])
    host_errors: list[str] = field(default_factory=list[str])
    recoveries: list[Recovery] = field(default_factory=list[Recovery])


class StatusSampler:
    """A thread that looks at a project's status key ten times a second, from outside.

    A context manager. Say what is true whenever that changes::

        with StatusSampler(server.port, "订单系统", evidence.statuses) as sampler:
            async with agent:
                await agent.ready(5)
                sampler.expect(Status.ONLINE)

    Args:
        port: Where the server itself listens on loopback (not the proxy).
        project: The project's name.
        samples: Where the samples go.
        interval: Seconds between two looks.
    """

    def __init__(
        self,
        port: int,
        project: str,
        samples: list[StatusSample],
        *,
        interval: float = SAMPLE_INTERVAL,
    ) -> None:
        self._key = PROJECT_STATUS.build(project=project)
        self._samples = samples
        self._interval = interval
        self._truth: frozenset[str | None] = frozenset()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._connection = AdminConnection(port, SAMPLE_TIMEOUT)

    def expect(self, *truth: Status | None) -> None:
        """Say what is true from now on; ``None``: no status at all. Nothing: anything."""
        self._truth = frozenset(truth)

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look for the last time."""
        self._over.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._over.wait(self._interval):
            before = self._truth
            answered, shown = self._look()
            if before and before is self._truth:
                now = time.monotonic()
                self._samples.append(StatusSample(now, answered, shown, before))
        self._connection.close()

    def _look(self) -> tuple[bool, str | None]:
        try:
            value = self._connection.ask("GET", self._key)
        except ResponseError as error:
            return "WRONGTYPE" in str(error), None
        except RedisError:
            return False, None
        return True, value.decode() if isinstance(value, bytes) else None


def _resident_bytes() -> int:
    if sys.platform != "linux":
        return 0
    pages = int(STATM.read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _count_descriptors() -> int:
    for folder in DESCRIPTORS:
        if folder.is_dir():
            return len(list(folder.iterdir()))
    return 0
