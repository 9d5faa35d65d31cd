"""What every way to receive commands can do.

A receiver is asked for messages only when a handler is free, and stopped by
:meth:`Receiver.stop`: the reply of a read in flight may hold a command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bls_agent.connection.endpoint import Endpoint
from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import CONTROL, PROJECT_STATUS, shares_slot
from bls_agent.project.messages import OutcomeKind

# Warns operator and host, of the same thing once a minute.
Say = Callable[[str, dict[str, object]], None]


def _start_always(_: Message) -> bool:
    return True


def _ignore(_: Message) -> None:
    pass


@dataclass(eq=False, slots=True)
class Message:
    """One element of the control list, as it was taken; equal only to itself."""

    payload: bytes
    delivery: int = 1  # how often it was handed out, this time included
    mode: str = "blocking"  # how it was taken
    # Its outcome, if it is known without running it.
    preset_outcome: OutcomeKind | None = None
    # Called right before it is run; if false, another process has it by now.
    on_start: Callable[[Message], bool] = _start_always
    # Called when its outcome is reported although its handler goes on.
    on_overdue: Callable[[Message], None] = _ignore


class ReceiverCounts(NamedTuple):
    """What only mode ``reliable`` counts."""

    held: int = 0  # commands that were taken and are not acknowledged
    reclaimed: int = 0  # commands taken back from dead processes
    lease_losses: int = 0  # times when others may have taken over what was held


class Receiver:
    """Takes commands from the control list; each subclass gives its guarantee."""

    mode = "blocking"  # how commands come: ``blocking``, ``compat`` or ``reliable``
    one_at_a_time = False  # a command is settled before the next is taken

    async def receive(self, limit: int) -> Sequence[Message]:
        """Wait for messages; an empty sequence when stopped or none came.

        Raises RedisUnavailableError, or WrongTypeError if the control key is no list.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """End the intake: release the parked read and keep what it brings."""
        raise NotImplementedError

    async def settle(self, message: Message) -> None:
        """Record that a message has ended; not called in mode ``blocking``."""

    async def give_back(self, messages: Sequence[Message]) -> bool | None:  # noqa: ARG002 - for subclasses
        """Put messages that were not started back to the head of the list.

        ``False``: surely not given back; ``None``: that cannot be known.
        """
        return True

    def leftovers(self) -> list[Message]:
        """Return, once, what was taken and never came out of :meth:`receive`."""
        return []

    async def run(self) -> None:
        """Do the upkeep of receiving until cancelled."""

    async def close(self) -> None:
        """End everything; handlers have ended, or are left behind."""

    def counts(self) -> ReceiverCounts:
        """Return the counts of mode ``reliable`` for ``stats()``."""
        return ReceiverCounts()


def check_cluster_name(
    project: str, endpoint: Endpoint | None, *, mode: str, replicas: bool
) -> None:
    """Refuse a name that on a cluster leaves no key in the slots of its own."""
    needs = "mode='reliable'" if mode == "reliable" else "replicas=True" * replicas
    keys = (CONTROL.build(project=project), PROJECT_STATUS.build(project=project))
    is_cluster = endpoint is not None and endpoint.is_cluster
    if is_cluster and needs and not all(map(shares_slot, keys)):
        rule = (
            f"on a cluster {needs} keeps keys in the slots of the project's own, and "
            "the braces of this name make a slot that no other key can be put into"
        )
        remedy = f"Use a name without {{ and }}, one server, or no {needs}."
        raise ConfigurationError("project", project, rule, remedy)
