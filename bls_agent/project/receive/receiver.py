"""The interface of all receivers of commands.

A receiver is asked for messages only when a handler is free. :meth:`Receiver.stop` must
end it, because the reply of an unfinished read may hold a command.
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

# Writes a warning to the console list and to the host's log, each text once a minute.
Warn = Callable[[str, dict[str, object]], None]


@dataclass(eq=False, slots=True, weakref_slot=True)
class Message:
    """One element taken from the control list. A message equals only itself."""

    payload: bytes
    delivery: int = 1  # how often it was handed out, this time included
    mode: str = "blocking"  # the mode in which it was taken
    _read: JSONObject | DecodeError | None = None

    def read(self, limit: int) -> JSONObject:
        """Return the fields; the payload is parsed once.

        Raises DecodeError if the payload is no JSON object, or longer than ``limit``
        bytes.
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
        """The fields if the payload was read and is an object, else ``{}``."""
        return self._read if isinstance(self._read, dict) else {}

    @property
    def source(self) -> str:
        source = self.fields.get("source")
        return source if isinstance(source, str) else ""


class Start(Enum):
    """Whether a message may run; decided just before its handler starts."""

    RUN = "run"
    SKIP = "skip"  # another process may have taken it over
    # The message is not run, but reported with this outcome.
    DUPLICATE = "duplicate"
    ABANDONED = "abandoned"


class ReceiverCounts(NamedTuple):
    """Counters that only mode ``reliable`` has."""

    held: int = 0  # commands that were taken and are not acknowledged
    reclaimed: int = 0  # commands taken back from dead processes
    lease_losses: int = 0  # times when another process may have taken over commands


class Receiver:
    """Takes commands from the control list; each subclass documents its guarantee."""

    mode = "blocking"  # how commands are taken: ``blocking``, ``compat``, ``reliable``
    one_at_a_time = False  # whether a command must end before the next is taken

    async def receive(self, limit: int) -> Sequence[Message]:
        """Wait for messages; return none if stopped or if none came.

        Raises RedisUnavailableError, or WrongTypeError if the control key is no list.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop receiving: end the blocking read and keep the commands of its reply."""
        raise NotImplementedError

    @property
    def standing(self) -> bytes | None:
        """The bytes of a command that runs and is still in the control list."""
        return None

    async def rest(self) -> None:
        """End the blocking read, as :meth:`stop` does; :meth:`receive` may follow."""

    def begin(self, message: Message) -> Start:  # noqa: ARG002 - for subclasses
        """Decide whether a message may be run now."""
        return Start.RUN

    def mark_ended(self, message: Message) -> None:
        """Record that a command was reported as ended while its handler runs."""

    async def settle(self, message: Message, *, fetch_follows: bool = False) -> None:
        """Record that a message has ended; not called in mode ``blocking``.

        ``fetch_follows`` means that the caller calls :meth:`receive` right afterwards.
        """

    async def give_back(self, messages: Sequence[Message]) -> bool | None:  # noqa: ARG002 - for subclasses
        """Put messages that were not started back to the head of the list.

        Returns ``False`` if they were surely not put back, ``None`` if that is unknown.
        """
        return True

    def leftovers(self) -> list[Message]:
        """Return, only once, taken messages that :meth:`receive` has not returned."""
        return []

    async def run(self) -> None:
        """Run the background work of the receiver until cancelled."""

    async def close(self) -> None:
        """Release connections and leases; the handlers have ended or were given up."""

    def counts(self) -> ReceiverCounts:
        """Return counts for ``stats()``; zeros in modes other than ``reliable``."""
        return ReceiverCounts()


def check_cluster_name(
    project: str, endpoint: Endpoint | None, *, mode: str, replicas: bool
) -> None:
    """Refuse a name that would put other keys of the project into another slot."""
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
