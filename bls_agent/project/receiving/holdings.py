"""What a process holds of its in-flight list: decisions only, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from bls_agent.project.receiving.receiver import Message

__all__ = ["Holding", "Holdings", "Stage"]


class Stage(Enum):
    """How far a command has come in this process."""

    TAKEN = "taken"
    STARTED = "started"
    ENDED = "ended"


@dataclass(eq=False)
class Holding:
    """One command that this process has taken and not acknowledged.

    Attributes:
        payload: Its bytes.
        id: The id that its sender gave, or ``""``.
        ack_id: The id that counts as seen when it ends, or ``""``.
        stage: How far it has come.
        started_at: When it was started, on the clock of the event loop.
        gone: It does not stand in our list any more: somebody has reclaimed it.
    """

    payload: bytes
    id: str
    ack_id: str
    stage: Stage = Stage.TAKEN
    started_at: float = 0.0
    gone: bool = False


class Holdings:
    """The commands that this process has taken and not acknowledged.

    Commands with the same bytes cannot be told apart in Redis; they are counted.
    """

    def __init__(self) -> None:
        """Hold nothing."""
        self._held: dict[Message, Holding] = {}
        # Asked for each command: with thousands of them nothing may be searched for.
        self._at: dict[Stage, dict[Message, None]] = {stage: {} for stage in Stage}
        self._ids: Counter[str] = Counter()  # of what stands in our list

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, message: Message) -> bool:
        return message in self._held

    def find(self, message: Message) -> Holding | None:
        """Give what is known of a message, ``None`` if it is not held any more."""
        return self._held.get(message)

    def take(self, message: Message, *, id: str, ack_id: str) -> None:  # noqa: A002
        """Hold a message from now on."""
        self._held[message] = Holding(message.payload, id, ack_id)
        self._at[Stage.TAKEN][message] = None
        self._ids[id] += 1

    def advance(self, message: Message, stage: Stage) -> None:
        """Note how far it has come, if it is held."""
        held = self._held.get(message)
        if held is not None:
            del self._at[held.stage][message]
            self._at[stage][message] = None
            held.stage = stage

    def drop(self, message: Message) -> None:
        """Hold it no longer."""
        held = self._held.pop(message, None)
        if held is not None:
            del self._at[held.stage][message]
            self._strike_off(held)

    def _strike_off(self, held: Holding) -> None:
        """Note that it does not stand in our list any more."""
        if not held.gone:
            held.gone = True
            self._ids[held.id] -= 1
            if not self._ids[held.id]:
                del self._ids[held.id]

    def has_id(self, id: str) -> bool:  # noqa: A002 - the contract's name
        """Tell whether a command with this id is held and stands in our list."""
        return id in self._ids

    def of(self, stage: Stage) -> list[Message]:
        """Messages at a stage, in the order in which they came there."""
        return list(self._at[stage])

    def any_at(self, stage: Stage) -> bool:
        """Tell whether there is a message at a stage."""
        return bool(self._at[stage])

    def payloads(self, *stages: Stage) -> list[bytes]:
        """The bytes of what stands in our list, at these stages."""
        return [
            held.payload
            for held in self._held.values()
            if held.stage in stages and not held.gone
        ]

    def count_payloads(self) -> Counter[bytes]:
        """How many commands with the same bytes should stand in our list."""
        return Counter(self.payloads(*Stage))

    def standing(self) -> list[Message]:
        """What should stand in our list now."""
        return [message for message, held in self._held.items() if not held.gone]

    def compare(
        self, found: Iterable[bytes], standing: Iterable[Message]
    ) -> list[bytes]:
        """Compare with what really stands in our list.

        What is held and does not stand there was reclaimed, and is marked as gone.

        Args:
            found: What stands there.
            standing: What should have stood there when the question was sent; some of
                it may have been acknowledged since.

        Returns:
            What stands there and was never seen, in its order.
        """
        expected: dict[bytes, list[Message]] = {}
        for message in sorted(standing, key=self._is_leaving):
            expected.setdefault(message.payload, []).append(message)
        counts = Counter(found := list(found))
        for payload, messages in expected.items():
            for message in messages[counts[payload] :]:
                held = self._held.get(message)
                if held is not None:
                    self._strike_off(held)
        unseen: list[bytes] = []
        for payload in found:
            if expected.get(payload):
                expected[payload].pop()
            else:
                unseen.append(payload)
        return unseen

    def _is_leaving(self, message: Message) -> bool:
        """Of twins the one that has ended is the first to be missing."""
        held = self._held.get(message)
        return held is None or held.stage is Stage.ENDED

    def lose_all(self) -> None:
        """Everything stands in a list that is not ours any more."""
        for held in self._held.values():
            self._strike_off(held)
