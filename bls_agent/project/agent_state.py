"""The state that an agent keeps from one session to the next.

A session lasts from the opening of an agent to its closing.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bls_agent.connection.after_fork import register
from bls_agent.core.codec import cut_text
from bls_agent.core.settings import Settings
from bls_agent.project.commands.observer import Observers
from bls_agent.project.commands.router import Router
from bls_agent.project.log.log import LogStream, describe_error
from bls_agent.project.messages import STATUS_REASON, Level, OutcomeKind, Status
from bls_agent.project.status.health import (
    REASON_LIMIT,
    HealthChecks,
    StatusAggregator,
    StatusCounts,
)
from bls_agent.runtime.threads import HandlerThreads
from bls_agent.runtime.watchdog import StallCounts


@dataclass(eq=False)
class AgentState:
    """The counters, handlers and log of an agent, which all its sessions share."""

    project: str
    clock: Callable[[], float]  # returns Unix seconds
    router: Router
    stream: LogStream
    observers: Observers = field(default_factory=Observers)
    board: StatusAggregator = field(default_factory=StatusAggregator)
    checks: HealthChecks = field(default_factory=HealthChecks)
    threads: HandlerThreads = field(default_factory=HandlerThreads)
    settings: Settings = field(default_factory=Settings)  # of the newest session
    instance: str = ""  # name of this process; empty before the first session
    # The next number of a log record in ``metadata.agent``.
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    outcomes: Counter[OutcomeKind] = field(default_factory=Counter[OutcomeKind])
    status_counts: StatusCounts = field(default_factory=StatusCounts)
    stall_counts: StallCounts = field(default_factory=StallCounts)
    forked: bool = False  # whether this process was forked after the agent was made

    def __post_init__(self) -> None:
        """Register this object, so that a forked child calls :meth:`reset_after_fork`.

        This is done before the first session, because log records may already wait.
        """
        register(self)

    def name_process(self, given: str | None) -> None:
        """Set the name of this process, unless the process already has a name.

        A forked child appends its process id to ``given``, so that parent and child
        have different names.
        """
        if given and self.forked:
            given = f"{given}-{os.getpid()}"
        unique = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self.instance = self.instance or given or unique

    def apply(self, settings: Settings) -> None:
        """Keep the settings, apply them to the log, and name this process."""
        self.settings = settings
        buffer = self.stream.delivery.buffer
        buffer.max_items = settings.log_buffer
        buffer.max_bytes = settings.log_buffer_bytes
        self.stream.set_level(Level(settings.log_level))
        self.name_process(settings.instance)

    def set_status(self, status: Status, reason: str) -> None:
        """Set the status that the program reports about itself.

        Log the new status if the reason that the console shows has changed.
        """
        now, board = time.monotonic(), self.board
        before = board.reason(now)
        board.set(board.HOST, status, reason=cut_text(reason, REASON_LIMIT))
        after = board.reason(now)
        if after != before:
            is_bad = status.severity > Status.ONLINE.severity
            level = Level.ERROR if is_bad else Level.INFO
            text = f"the service reports {status.value}" + (reason and f": {reason}")
            metadata = {STATUS_REASON: after}
            self.stream.emit(level, text, metadata, is_alarm=True)

    def log_end(self, error: BaseException) -> None:
        """Log the exception that ends the service with the status 故障."""
        fields = describe_error(error)
        reason = cut_text(f"{fields['type']}: {fields['message']}", REASON_LIMIT)
        metadata = {STATUS_REASON: reason, "error": fields}
        text = f"the service was ended by {reason}"
        self.stream.emit(Level.ERROR, text, metadata, is_alarm=True)

    def reset_after_fork(self) -> None:
        """Reset the state in a forked child.

        Waiting records are dropped, because the parent process writes them.
        """
        self.forked = True
        self.instance = ""
        self.numbers = itertools.count(1)
        self.outcomes = Counter()
        self.status_counts = StatusCounts()
        self.stall_counts = StallCounts()
        self.board.forget_sources()
        self.stream.reset_after_fork()


class HasState(Protocol):
    """A :class:`~bls_agent.ProjectAgent`, for integrations and the testing kit."""

    _state: AgentState


def state_of(agent: HasState) -> AgentState:
    return agent._state  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - declared in this module
