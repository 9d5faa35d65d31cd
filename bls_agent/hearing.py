"""What a session puts together to hear commands and to run them."""

from __future__ import annotations

from collections.abc import Callable

from bls_agent.backoff import Backoff
from bls_agent.connection import Connections
from bls_agent.keys import CONTROL
from bls_agent.parts import Parts
from bls_agent.project.commands.dispatcher import Dispatcher
from bls_agent.project.commands.runner import CommandRunner
from bls_agent.project.receiving.auto import AutoReceiver
from bls_agent.project.receiving.blocking import BlockingReceiver
from bls_agent.project.receiving.compat import CompatReceiver
from bls_agent.project.receiving.receiver import Message, Receiver, Say
from bls_agent.settings import Settings

__all__ = ["make_dispatcher", "make_receiver", "make_runner"]


def make_receiver(
    connections: Connections,
    parts: Parts,
    settings: Settings,
    say: Say,
    report: Callable[[Message], None],
) -> Receiver:
    """Make what takes commands from the control list, as the mode says.

    Args:
        connections: The wires.
        parts: Of the agent.
        settings: As it was opened.
        say: Tells operator and host.
        report: Called for each command that has ended without being taken.
    """
    key = CONTROL.build(project=parts.project)
    blocking = BlockingReceiver(connections, key)
    compat = CompatReceiver(connections, key, say)
    match settings.mode:
        case "blocking":
            return blocking
        case "compat":
            return compat
        case "auto":
            return AutoReceiver(connections, blocking, compat, say)
        case "reliable":
            # 3 ms, for those who use it.
            from bls_agent.project.receiving.reliable import ReliableReceiver  # noqa: PLC0415

            return ReliableReceiver(
                connections,
                key,
                say,
                instance=parts.instance,
                lease_ttl=settings.lease_ttl,
                window=settings.dedup_window,
                on_redelivery=settings.on_redelivery,
                size_limit=settings.command_size_limit,
                report=report,
            )


def make_runner(parts: Parts, settings: Settings) -> CommandRunner:
    """Make what runs one command."""
    return CommandRunner(
        parts.router,
        parts.stream,
        timeout=settings.command_timeout,
        max_age=settings.command_max_age,
        size_limit=settings.command_size_limit,
        clock=parts.clock,
    )


def make_dispatcher(
    connections: Connections,
    parts: Parts,
    settings: Settings,
    receiver: Receiver,
    runner: CommandRunner,
) -> Dispatcher:
    """Make what hands the commands of a receiver to as many handlers as may run."""
    return Dispatcher(
        receiver,
        runner,
        parts.stream,
        parts.threads,
        concurrency=settings.concurrency,
        prefetch=settings.prefetch,
        backoff=Backoff(base=0.25, cap=settings.reconnect_max),
        complaints=connections.complaints,
        outcomes=parts.outcomes,
    )
