"""What a session puts together to hear commands and to run them."""

from __future__ import annotations

from collections.abc import Callable

from bls_agent.connection.connection import Connections
from bls_agent.core.backoff import Backoff
from bls_agent.core.keys import CONTROL
from bls_agent.core.settings import Settings
from bls_agent.project.commands.broadcast import FanOut
from bls_agent.project.commands.dispatcher import Dispatcher
from bls_agent.project.commands.runner import CommandRunner
from bls_agent.project.parts import Parts
from bls_agent.project.receive.blocking import BlockingReceiver
from bls_agent.project.receive.compat import AutoReceiver, CompatReceiver
from bls_agent.project.receive.receiver import Message, Receiver, Say

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
    match settings.mode:
        case "blocking":
            return BlockingReceiver(connections, key)
        case "compat":
            return CompatReceiver(connections, key, say)
        case "auto":
            return AutoReceiver(connections, key, say)
        case "reliable":
            # 3 ms, for those who use it.
            from bls_agent.project.receive.reliable import ReliableReceiver  # noqa: PLC0415

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


def make_runner(
    connections: Connections, parts: Parts, settings: Settings, say: Say
) -> CommandRunner:
    """Make what runs one command; of several replicas it passes broadcasts on."""
    fan_out = FanOut(connections, parts.project, parts.instance, say)
    return CommandRunner(
        parts.router,
        parts.stream,
        parts.outcomes,
        timeout=settings.command_timeout,
        max_age=settings.command_max_age,
        size_limit=settings.command_size_limit,
        clock=parts.clock,
        pass_on=fan_out.pass_on if settings.replicas else None,
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
        parts.threads,
        concurrency=settings.concurrency,
        prefetch=settings.prefetch,
        backoff=Backoff(base=0.25, cap=settings.reconnect_max),
        complaints=connections.complaints,
    )
