"""A snapshot of every counter and state of an agent."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bls_agent.project.agent_state import AgentState
from bls_agent.project.messages import Status

if TYPE_CHECKING:
    from bls_agent.project.session import AgentSession


@dataclass(frozen=True, kw_only=True)
class AgentStats:
    """All counters and states of an agent at one moment.

    ``logs_accepted`` always equals the sum of ``logs_delivered``, ``logs_queued`` and
    all numbers in ``logs_dropped``.

    Attributes:
        project: The name of the project.
        instance: The name of this process in the ids of log records.
        open: Whether the agent is open.
        status: The current status of the agent.
        status_source: The source that decides the status: ``host`` (your program),
            ``health check <name>``, ``error window`` or ``event loop``. If several
            sources have this status, the first of them.
        status_sources: The status of each source.
        mode: How commands are received now: ``blocking``, ``compat`` or ``reliable``.
            ``closed`` if the agent is not open.
        intake: Whether commands are taken: ``open``, ``paused``, ``draining`` or
            ``drained``. ``closed`` if the agent is not open.
        connections: For each use of a connection, whether it is connected.
        reconnect_failures: Number of failed attempts to reach Redis.
        commands_running: Number of handlers that run now.
        commands_stuck: Number of handlers that still run after their timeout.
        commands_held: Number of commands that were taken and are not acknowledged (mode
            ``reliable``).
        commands_reclaimed: Number of commands that were taken back from dead processes
            (mode ``reliable``).
        lease_losses: How often this process has lost its lease (mode ``reliable``).
            After a loss, another process may have taken over its commands.
        outcomes: Number of commands for each kind of outcome.
        logs_accepted: Number of records that were logged.
        logs_delivered: Number of records that were written to Redis.
        logs_dropped: Number of dropped records for each reason.
        logs_queued: Number of records that wait or are being sent.
        logs_queued_bytes: Bytes of these records.
        logs_resent: Number of records that were sent again, because the first try may
            have failed.
        logs_maybe_repeated: Number of records that were sent again and may now be twice
            in the list.
        logs_not_encoded: Number of log calls whose record could not be encoded, for
            each reason.
        status_writes: How often the status was written.
        status_failures: How often the status could not be written.
        loop_stalls: How often the event loop was blocked for longer than
            ``stall_after``.
        loop_stalled_seconds: Seconds of the longest stall that has ended.
        faults: Number of failures of the agent's own code. Each is logged with
            ``logging``.
    """

    project: str
    instance: str
    open: bool = False
    status: Status
    status_source: str
    status_sources: dict[str, str]
    mode: str = "closed"
    intake: str = "closed"
    connections: dict[str, bool] = field(default_factory=dict[str, bool])
    reconnect_failures: int = 0
    commands_running: int = 0
    commands_stuck: int
    commands_held: int = 0
    commands_reclaimed: int = 0
    lease_losses: int = 0
    outcomes: dict[str, int]
    logs_accepted: int
    logs_delivered: int
    logs_dropped: dict[str, int]
    logs_queued: int
    logs_queued_bytes: int
    logs_resent: int
    logs_maybe_repeated: int
    logs_not_encoded: dict[str, int]
    status_writes: int
    status_failures: int
    loop_stalls: int
    loop_stalled_seconds: float
    faults: int = 0


def collect_stats(state: AgentState, session: AgentSession | None) -> AgentStats:
    """Return the counters now. Without a session, the counters of sessions are zero."""
    kept = _collect_kept(state)
    if session is None or session.closed.is_set():
        return kept
    receiver, connections = session.receiver, session.connections
    counts = receiver.counts()
    return replace(
        kept,
        open=True,
        mode=receiver.mode,
        intake=session.switch.state.value,
        connections={
            connection.use: connection.connected for connection in connections.all
        },
        reconnect_failures=connections.gate.failures,
        commands_running=session.dispatcher.running,
        commands_stuck=session.dispatcher.stuck,
        commands_held=counts.held,
        commands_reclaimed=counts.reclaimed,
        lease_losses=counts.lease_losses,
        faults=session.faults,
    )


def _collect_kept(state: AgentState) -> AgentStats:
    delivery, now = state.stream.delivery, time.monotonic()
    logs = delivery.buffer.stats()
    source, status, _ = state.board.worst_source(now)
    sources = state.board.list_sources(now)
    return AgentStats(
        project=state.project,
        instance=state.instance,
        status=status,
        status_source=source,
        status_sources={name: found.value for name, found in sources.items()},
        commands_stuck=state.threads.stuck,
        outcomes={kind.value: count for kind, count in dict(state.outcomes).items()},
        logs_accepted=logs.accepted,
        logs_delivered=logs.delivered,
        logs_dropped=logs.dropped,
        logs_queued=logs.queued,
        logs_queued_bytes=logs.queued_bytes,
        logs_resent=delivery.resent,
        logs_maybe_repeated=delivery.maybe_repeated,
        logs_not_encoded=dict(state.stream.failures),
        status_writes=state.status_counts.writes,
        status_failures=state.status_counts.failures,
        loop_stalls=state.stall_counts.stalls,
        loop_stalled_seconds=state.stall_counts.longest,
    )
