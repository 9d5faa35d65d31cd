"""What a session puts together to say how it is: alone, among replicas, and when it hangs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from bls_agent.connection.connection import Connections
from bls_agent.connection.endpoint import Endpoint
from bls_agent.core.backoff import Backoff
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, PROJECT_STATUS
from bls_agent.core.settings import Settings
from bls_agent.project.commands.broadcast import Inbox
from bls_agent.project.commands.dispatcher import Dispatcher
from bls_agent.project.log.log import LogSink
from bls_agent.project.parts import Parts
from bls_agent.project.receive.receiver import Say
from bls_agent.project.status.health import HealthMonitor
from bls_agent.project.status.replicas import ReplicaRegistry
from bls_agent.project.status.writer import (
    StallStatusPublisher,
    StatusReporter,
    StatusWriter,
)
from bls_agent.runtime.watchdog import LoopWatch

__all__ = [
    "connect",
    "make_health",
    "make_inbox",
    "make_reporter",
    "make_sink",
    "make_watch",
    "make_writer",
]

logger = logging.getLogger(__name__)


def connect(
    endpoint: Endpoint, parts: Parts, settings: Settings, use: str = ""
) -> Connections:
    """Make the connections of an agent; nothing is opened yet."""
    return Connections(
        endpoint,
        f"bls-agent:{parts.instance}{use}",
        timeout=settings.redis_timeout,
        reconnect_max=settings.reconnect_max,
        keys={
            "control": CONTROL.build(project=parts.project),
            "data": PROJECT_CONSOLE.build(project=parts.project),
            "liveness": PROJECT_STATUS.build(project=parts.project),
        },
    )


def make_sink(connections: Connections, parts: Parts, settings: Settings) -> LogSink:
    """Make what writes the log's records into the console list."""
    return LogSink(
        connections,
        parts.stream,
        key=PROJECT_CONSOLE.build(project=parts.project),
        identity=parts.instance if settings.record_ids else "",
        list_limit=settings.log_list_limit,
        numbers=parts.numbers,
    )


def make_writer(
    connections: Connections, parts: Parts, settings: Settings, say: Say
) -> StatusWriter:
    """Make what writes the status: into a key of our own, or together with others."""
    key = PROJECT_STATUS.build(project=parts.project)

    def warn_of_conflict() -> None:
        say(
            "somebody else writes the status of this project, too: give the processes "
            "replicas=True, or each a project name of its own",
            {"key": key},
        )

    if settings.replicas:
        replicas = ReplicaRegistry(parts.project, parts.instance, say)
        return StatusWriter(
            connections, key, ttl=settings.status_ttl, replicas=replicas
        )
    return StatusWriter(
        connections, key, ttl=settings.status_ttl, on_conflict=warn_of_conflict
    )


def make_reporter(
    connections: Connections, parts: Parts, settings: Settings, writer: StatusWriter
) -> StatusReporter:
    """Make what keeps the written status true."""
    if settings.status_interval * 3 > settings.status_ttl:
        text = (
            "status_interval %g s is more than a third of status_ttl %d s: one lost "
            "refresh is enough to show a living service as gone"
        )
        logger.warning(text, settings.status_interval, settings.status_ttl)
    return StatusReporter(
        writer,
        parts.board,
        interval=settings.status_interval,
        backoff=Backoff(base=0.25, cap=settings.reconnect_max),
        complaints=connections.complaints,
        counts=parts.status_counts,
    )


def make_health(parts: Parts, check: Callable[[], None]) -> HealthMonitor:
    """Make what runs the health checks; ``check`` has the status written if it changed."""
    return HealthMonitor(
        parts.checks, parts.board, parts.stream, project=parts.project, check=check
    )


def make_watch(
    endpoint: Endpoint,
    parts: Parts,
    settings: Settings,
    writer: StatusWriter,
    changed: Callable[[], None],
) -> LoopWatch | None:
    """Make what looks after the session's loop; ``None`` if that is switched off.

    Args:
        endpoint: Where to speak.
        parts: Of the agent.
        settings: As it was opened.
        writer: The session's own.
        changed: Has the session write its status once more.
    """
    if settings.stall_after is None:
        return None
    silent = replace(endpoint, notes=())  # they have been said
    voice = StallStatusPublisher(
        writer,
        parts.board,
        parts.stream,
        parts.stall_counts,
        project=parts.project,
        endpoint=silent,
        connect=lambda: connect(silent, parts, settings, ":watchdog"),
        changed=changed,
        stall_after=settings.stall_after,
        ttl=settings.status_ttl,
    )
    return LoopWatch(voice)


def make_inbox(
    connections: Connections, parts: Parts, dispatcher: Dispatcher, say: Say
) -> Inbox:
    """Make what takes the broadcasts that other replicas have passed on."""
    return Inbox(
        connections,
        dispatcher,
        project=parts.project,
        instance=parts.instance,
        say=say,
    )
