"""What every way to receive commands can do (contract 002, section 3.1).

A receiver is asked for messages only when a handler is free. It is stopped by
:meth:`Receiver.stop`, never by throwing a read away: the reply of a read in flight may
hold a command that Redis has already taken out of the list.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio

from bls_agent.backoff import Backoff
from bls_agent.complaints import Complaints
from bls_agent.errors import (
    BlsError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.project.messages import OutcomeKind
from bls_agent.redaction import redact_traceback

__all__ = ["BESIDE", "Intake", "Message", "Receiver", "Say"]

logger = logging.getLogger(__name__)

BESIDE = "broadcast"  # the mode of what came by another way than the receiver


def _granted(_: Message) -> bool:
    return True


def _ignore(_: Message) -> None:
    pass


Say = Callable[[str, dict[str, object]], None]


@dataclass(frozen=True, eq=False)
class Message:
    """One element of the control list, as it was taken; equal only to itself.

    Attributes:
        payload: Its bytes.
        delivery: How often it was handed out, this time included.
        mode: How it was taken.
        verdict: How it ends without being started, if that is known already.
        claim: Asked when it is to be run; if false, it is somebody else's by now.
        on_overdue: Told when its outcome is reported although its handler goes on.
    """

    payload: bytes
    delivery: int = 1
    mode: str = "blocking"
    verdict: OutcomeKind | None = None
    claim: Callable[[Message], bool] = _granted
    on_overdue: Callable[[Message], None] = _ignore


class Receiver(Protocol):
    """What every way to receive can do."""

    @property
    def mode(self) -> str:
        """How commands come: ``blocking``, ``compat`` or ``reliable``."""
        ...

    @property
    def one_at_a_time(self) -> bool:
        """Whether a command must be settled before the next one is asked for."""
        ...

    async def receive(self, limit: int) -> Sequence[Message]:
        """Wait for messages; an empty sequence when stopped or nothing came.

        Raises:
            RedisUnavailableError: Redis is away or refuses.
            WrongTypeError: The control key is no list.
        """
        ...

    async def settle(self, message: Message) -> None:
        """Tell that a message came to its final end."""
        ...

    async def give_back(self, messages: Sequence[Message]) -> bool | None:
        """Put messages that were not started back to the head of the list.

        Returns:
            ``False``: surely not given back; ``None``: nobody knows.
        """
        ...

    async def stop(self) -> None:
        """End the intake: release the read that is parked and keep what it brings."""
        ...

    def leftovers(self) -> list[Message]:
        """Give what was taken and never came out of :meth:`receive`."""
        ...

    async def run(self) -> None:
        """Keep up what receiving needs, beside it, until cancelled."""
        ...

    async def close(self) -> None:
        """End everything; handlers have ended, or are left behind."""
        ...


class Intake:
    """Asks a receiver again and again, whatever happens: a failure waits and gives nothing.

    What goes wrong is said in the host's log: each cause once, then once a minute.
    """

    def __init__(
        self, receiver: Receiver, backoff: Backoff, complaints: Complaints
    ) -> None:
        """Remember whom to ask, how to pace it and who tells the host."""
        self._receiver = receiver
        self._backoff = backoff
        self._complaints = complaints

    async def receive(self, limit: int) -> Sequence[Message]:
        """Ask once; never raises."""
        try:
            messages = await self._receiver.receive(limit)
        except (RedisUnavailableError, WrongTypeError) as error:
            await self._after_failure(error)
            return ()
        except Exception as error:  # noqa: BLE001 - ours: the loop lives, the log tells
            text = "no commands can be received\n%s"
            logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
            await anyio.sleep(self._backoff.failed())
            return ()
        self._backoff.succeeded()
        return messages

    async def _after_failure(self, error: BlsError) -> None:
        permanent = isinstance(error, RedisRefusedError | WrongTypeError)
        delay = self._backoff.failed(permanent=permanent)
        if isinstance(error, RedisUnavailableError) and error.connecting:
            return  # the gate has paced it, and has said so
        self._complaints.say("no commands can be received", error)
        await anyio.sleep(delay)
