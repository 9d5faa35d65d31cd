"""What an agent keeps from one session to the next."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bls_agent.connection.after_fork import register
from bls_agent.project.commands.router import Router
from bls_agent.project.log.log import LogStream
from bls_agent.project.messages import OutcomeKind
from bls_agent.project.status.aggregate import StatusAggregator, StatusCounts
from bls_agent.project.status.health import HealthChecks
from bls_agent.runtime.threads import HandlerThreads
from bls_agent.runtime.watchdog import StallCounts

__all__ = ["AgentState"]


@dataclass(eq=False)
class AgentState:
    """What an agent keeps from one session to the next."""

    project: str
    clock: Callable[[], float]  # gives Unix seconds
    router: Router  # the handlers
    stream: LogStream  # the log on its way out
    # The status and where it comes from.
    board: StatusAggregator = field(default_factory=StatusAggregator)
    checks: HealthChecks = field(default_factory=HealthChecks)
    # Where plain handlers run.
    threads: HandlerThreads = field(default_factory=HandlerThreads)
    instance: str = ""  # name of this process; ``""`` before the first session
    # The next log record's number.
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    # How commands ended.
    outcomes: Counter[OutcomeKind] = field(default_factory=Counter[OutcomeKind])
    # How often the status was written.
    status_counts: StatusCounts = field(default_factory=StatusCounts)
    # How often and how long the event loop stood still.
    stall_counts: StallCounts = field(default_factory=StallCounts)
    forked: bool = False  # whether this process inherited all that from its parent

    def __post_init__(self) -> None:
        """Have it reset by a fork, also before the first session: records wait already."""
        register(self)

    def name_process(self, given: str | None) -> None:
        """Name this process, once; a forked child is never named like its parent."""
        if given and self.forked:
            given = f"{given}-{os.getpid()}"
        self.instance = self.instance or given or _new_instance()

    def forget_parent(self) -> None:
        """In a forked child begin afresh: what waits is the parent's to write."""
        self.forked = True
        self.instance = ""
        self.numbers = itertools.count(1)
        self.outcomes = Counter()
        self.status_counts = StatusCounts()
        self.stall_counts = StallCounts()
        self.board.forget_sources()
        self.stream.forget_parent()


def _new_instance() -> str:
    """Name a process: host, pid, and something that tells it from the one before."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
