"""The interface of all receivers, which take commands from the control list.

The dispatcher calls :meth:`Receiver.receive` only when a handler slot is free. At the
end it calls :meth:`Receiver.stop`, because the reply of an unfinished read may contain
a command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from bls_agent.connection.endpoint import Endpoint
from bls_agent.core.codec import JSONObject, decode_object
from bls_agent.core.errors import ConfigurationError, DecodeError
from bls_agent.core.keys import CONTROL, PROJECT_STATUS, shares_slot

# Logs a warning in the console list and with ``logging``. A text is logged again with
# the same metadata at most once a minute.
Warn = Callable[[str, dict[str, object]], None]


@dataclass(eq=False, slots=True)
class Message:
    """One element taken from the control list.

    Two messages are never equal, even if their payloads are equal.
    """

    payload: bytes
    delivery: int = 1  # how often the command was taken from Redis, including this time
    mode: str = "blocking"  # the mode in which the message was taken
    _read: JSONObject | DecodeError | None = None

    def read(self, limit: int) -> JSONObject:
        """Return the fields of the payload, which is parsed only at the first call.

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
        """The fields, or ``{}`` before :meth:`read` and if the payload is invalid."""
        return self._read if isinstance(self._read, dict) else {}

    @property
    def source(self) -> str:
        source = self.fields.get("source")
        return source if isinstance(source, str) else ""


class Start(Enum):
    """Whether a message may run. Decided just before its handler would start."""

    RUN = "run"
    SKIP = "skip"  # not run, because another process may have taken over the command
    # The command is not run. Its outcome record has the outcome of this value.
    DUPLICATE = "duplicate"
    ABANDONED = "abandoned"


class PutBack(Enum):
    """Whether commands that were not started are back in the control list."""

    DONE = auto()
    REFUSED = auto()  # they are surely not in the list
    UNKNOWN = auto()  # the connection was lost before the reply


class ReceiverCounts(NamedTuple):
    """Counters of mode ``reliable``. In other modes they are zero."""

    held: int = 0  # commands that were taken and are not acknowledged
    reclaimed: int = 0  # commands of dead processes that this process has put back
    lease_losses: int = 0  # how often this process has lost its lease


class Receiver:
    """Takes commands from the control list.

    The docstring of each subclass describes which commands may be lost or repeated.
    """

    mode = "blocking"  # how commands are taken: ``blocking``, ``compat``, ``reliable``
    one_at_a_time = False  # whether a command must end before the next one is taken

    async def receive(self, limit: int) -> Sequence[Message]:
        """Wait for messages and return them.

        The result is empty if no message has come for some time, or if :meth:`stop` was
        called. Raises RedisUnavailableError, or WrongTypeError if the control key is no
        list.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop receiving. End the blocking read, and keep the commands of its reply."""
        raise NotImplementedError

    @property
    def standing(self) -> bytes | None:
        """The payload of a running command that is still in the control list."""
        return None

    async def rest(self) -> None:
        """End the blocking read. Unlike after :meth:`stop`, receiving may continue."""

    def begin(self, message: Message) -> Start:  # noqa: ARG002 - subclasses use it
        """Return whether a message may run now."""
        return Start.RUN

    def mark_ended(self, message: Message) -> None:
        """Record that the outcome was reported, although the handler still runs."""

    async def settle(self, message: Message, *, fetch_follows: bool = False) -> None:
        """Record that a message has ended. Not called in mode ``blocking``.

        With ``fetch_follows=True`` the caller promises to call :meth:`receive` at once.
        """

    async def give_back(self, messages: Sequence[Message]) -> PutBack:  # noqa: ARG002 - subclasses use it
        """Put messages that were not started back to the head of the control list."""
        return PutBack.DONE

    def leftovers(self) -> list[Message]:
        """Return the taken messages that no call of :meth:`receive` has returned.

        Each message is returned only once.
        """
        return []

    async def run(self) -> None:
        """Run the background work of the receiver until cancelled."""

    async def close(self) -> None:
        """Release connections and leases. Called after the handlers were stopped."""

    def counts(self) -> ReceiverCounts:
        """Return counters for ``agent.stats()``."""
        return ReceiverCounts()


def check_cluster_name(
    project: str, endpoint: Endpoint | None, *, mode: str, replicas: bool
) -> None:
    """Refuse a project name whose braces allow no further keys in its cluster slots.

    Mode ``reliable`` and ``replicas=True`` put further keys into the slots of the
    control list and of the status.
    """
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
