"""What every way to receive commands can do.

A receiver is asked for messages only when a handler is free, and stopped by
:meth:`Receiver.stop`: the reply of a read in flight may hold a command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from bls_agent.connection.endpoint import Endpoint
from bls_agent.core.codec import JSONObject, decode_object
from bls_agent.core.errors import ConfigurationError, DecodeError
from bls_agent.core.keys import CONTROL, PROJECT_STATUS, shares_slot

# Warns operator and host, of the same thing once a minute.
Warn = Callable[[str, dict[str, object]], None]


@dataclass(eq=False, slots=True)
class Message:
    """One element of the control list, as it was taken; equal only to itself."""

    payload: bytes
    delivery: int = 1  # how often it was handed out, this time included
    mode: str = "blocking"  # how it was taken
    _read: JSONObject | DecodeError | None = None

    def read(self, limit: int) -> JSONObject:
        """Return the fields; the payload is parsed once.

        Raises DecodeError if it is no JSON object, or longer than ``limit`` bytes.
        """
        if self._read is None:
            try:
                self._read = decode_object(self.payload, limit=limit)
            except DecodeError as error:
                self._read = error
        if isinstance(self._read, DecodeError):
            raise self._read
        return self._read

    @property
    def fields(self) -> JSONObject:
        """The fields if the payload was read as an object, else none."""
        return self._read if isinstance(self._read, dict) else {}

    @property
    def source(self) -> str:
        """The sender, or ``""``."""
        source = self.fields.get("source")
        return source if isinstance(source, str) else ""


class Start(Enum):
    """Whether a message may be run, decided at the moment when it is to begin."""

    RUN = "run"
    SKIP = "skip"  # another process has it by now
    # It is not run, and reported with this outcome.
    DUPLICATE = "duplicate"
    ABANDONED = "abandoned"


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

    def begin(self, message: Message) -> Start:  # noqa: ARG002 - for subclasses
        """Decide whether a message may be run now."""
        return Start.RUN

    def mark_ended(self, message: Message) -> None:
        """Record that a message's outcome is reported although its handler goes on."""

    async def settle(self, message: Message, *, fetch_follows: bool = False) -> None:
        """Record that a message has ended; not called in mode ``blocking``.

        ``fetch_follows``: the caller calls :meth:`receive` next, at once.
        """

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
