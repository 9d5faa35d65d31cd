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
from bls_agent.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)

__all__ = ["Message", "Receiver", "Say", "receive_patiently"]

logger = logging.getLogger(__name__)

Say = Callable[[str, dict[str, object]], None]


@dataclass(frozen=True)
class Message:
    """One element of the control list, as it was taken.

    Attributes:
        payload: Its bytes.
        delivery: How often it was handed out, this time included.
    """

    payload: bytes
    delivery: int = 1


class Receiver(Protocol):
    """What every way to receive can do."""

    @property
    def mode(self) -> str:
        """How commands come: ``blocking`` or ``compat``."""
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


async def receive_patiently(
    receiver: Receiver, limit: int, backoff: Backoff
) -> Sequence[Message]:
    """Receive; a failure waits its backoff and gives nothing, so that the loop goes on.

    What is refused for good is said once per text in the host's log.
    """
    try:
        messages = await receiver.receive(limit)
    except (RedisUnavailableError, WrongTypeError) as error:
        permanent = isinstance(error, RedisRefusedError | WrongTypeError)
        delay = backoff.failed(permanent=permanent)
        if isinstance(error, RedisUnavailableError) and error.connecting:
            return ()
        logger.warning("no commands can be received: %s", error)
        await anyio.sleep(delay)
        return ()
    except Exception:  # a fault of ours: the loop lives, the host sees it in its log
        logger.exception("no commands can be received")
        await anyio.sleep(backoff.failed())
        return ()
    backoff.succeeded()
    return messages
