"""What can go wrong with one request or reply, and what that means for its bytes. Pure.

*Rules* wait for a request or reply, perhaps of a certain command, and then do one thing
to it: cut, lose, flip, be late.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from bls_agent.testing.link import BREAK, Act, Direction
from tests.kit.resp import Piece


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing that happens to the next request or reply.

    Attributes:
        direction: Whether it concerns requests or replies.
        command: Only requests with this command word, or replies to them.
        times: How often it happens; ``None`` for ever.
        chance: Probability that it happens to a request or reply that fits; drawn
            from the proxy's seeded generator.
    """

    direction: Direction = Direction.REPLIES
    command: str | None = None
    times: int | None = 1
    chance: float = 1.0

    def fits(self, piece: Piece) -> bool:
        """Tell whether the request or reply of this piece is concerned."""
        return piece.direction is self.direction and self.command in (
            None,
            piece.command,
        )

    def apply(self, piece: Piece) -> list[Act]:
        """Say what becomes of a piece of the request or reply that was chosen."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Cut(Rule):
    """The connection breaks after so many bytes; with fewer bytes, at the end.

    Attributes:
        at: Bytes that still get through: 0 for none.
    """

    at: int = 0

    def apply(self, piece: Piece) -> list[Act]:
        """Let the first bytes through, then break."""
        after = piece.offset + len(piece.data)
        if after < self.at and not piece.ends:
            return [piece.data]
        kept = piece.data[: max(0, self.at - piece.offset)]
        return [kept, BREAK] if kept else [BREAK]


@dataclass(frozen=True, kw_only=True)
class Lose(Rule):
    """The whole request or reply vanishes, and with it what follows on its connection.

    TCP leaves no hole in a stream; other connections, and new ones, are not concerned.
    """

    def apply(self, piece: Piece) -> list[Act]:  # noqa: ARG002 - whatever it is
        """Let nothing through."""
        return []


@dataclass(frozen=True, kw_only=True)
class Flip(Rule):
    """One byte is changed.

    Attributes:
        at: Which one.
        mask: The bits of it that are turned round.
    """

    at: int = 0
    mask: int = 0xFF

    def apply(self, piece: Piece) -> list[Act]:
        """Change the byte if it lies in this piece."""
        place = self.at - piece.offset
        if not 0 <= place < len(piece.data):
            return [piece.data]
        changed = bytearray(piece.data)
        changed[place] ^= self.mask
        return [bytes(changed)]


@dataclass(frozen=True, kw_only=True)
class Late(Rule):
    """One request or reply, and with it what follows on its connection, is late."""

    seconds: float = 1.0

    def apply(self, piece: Piece) -> list[Act]:
        """Wait before the first byte."""
        return [float(self.seconds), piece.data] if piece.offset == 0 else [piece.data]


@dataclass
class Armed:
    """A rule that waits for its moment.

    Attributes:
        rule: What will happen.
        fired: How often it has happened.
        seen: Bytes of the last request or reply that it happened to, so far.
        saw_end: Whether these are all of its bytes.
    """

    rule: Rule
    fired: int = 0
    seen: int = 0
    saw_end: bool = False

    @property
    def is_spent(self) -> bool:
        """Whether it will not happen any more."""
        return self.rule.times is not None and self.fired >= self.rule.times


@dataclass
class RuleBook:
    """All rules of a proxy, and to what they are being applied."""

    rng: random.Random
    armed: list[Armed] = field(default_factory=list[Armed])
    _bound: dict[tuple[int, Direction], Armed] = field(
        default_factory=dict[tuple[int, Direction], Armed]
    )

    def decide(self, connection: int, piece: Piece) -> tuple[list[Act], Armed | None]:
        """Say what becomes of a piece.

        Returns:
            What to do, and the rule that has just been chosen for it, if one has.
        """
        place = (connection, piece.direction)
        chosen = self._choose(piece) if piece.offset == 0 else None
        if chosen is not None:
            chosen.fired += 1
            self._bound[place] = chosen
        bound = self._bound.get(place)
        if bound is not None:
            bound.seen = piece.offset + len(piece.data)
            bound.saw_end = piece.ends
        if piece.ends:
            self._bound.pop(place, None)
        return ([piece.data] if bound is None else bound.rule.apply(piece)), chosen

    def _choose(self, piece: Piece) -> Armed | None:
        for armed in self.armed:
            if armed.is_spent or not armed.rule.fits(piece):
                continue
            if armed.rule.chance >= 1 or self.rng.random() < armed.rule.chance:
                return armed
        return None

    def forget(self, connection: int) -> None:
        """Let go of a connection that is over."""
        for direction in Direction:
            self._bound.pop((connection, direction), None)
