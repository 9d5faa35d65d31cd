"""The proxy of ``bls_agent.testing`` with rules for single requests and replies."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import suppress

from bls_agent.testing.link import Act, Direction, FaultProxy as PublicProxy
from tests.kit.resp import Conversation
from tests.kit.rules import Armed, Lose, Rule, RuleBook


class FaultProxy(PublicProxy):
    """A bad link that also does something to the requests and replies of one command.

    Write ``proxy.arm(Cut(command="BLPOP", at=3))``. It understands RESP2 and RESP3.

    Args:
        target: The server's URL, not under TLS, which would show no requests.
        seed: For everything that is left to chance; made up if not given. Print
            :attr:`seed` where a test fails, to run it again.

    Attributes:
        fired: The commands to whose requests or replies a rule was applied, in order.
    """

    def __init__(self, target: str, *, seed: int | None = None) -> None:
        super().__init__(target)
        self.seed = secrets.randbits(32) if seed is None else seed
        self.fired: list[str] = []
        self._book = RuleBook(random.Random(self.seed))
        self._conversations: dict[int, Conversation] = {}
        self.examine = self._apply_rules

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, seed {self.seed}>"

    def arm(self, rule: Rule) -> Armed:
        """Let a rule wait for its moment; the result tells how often it has fired."""
        armed = Armed(rule)
        self._book.armed.append(armed)
        return armed

    def disarm(self, armed: Armed) -> None:
        """Take a rule back; does nothing if it is gone."""
        with suppress(ValueError):
            self._book.armed.remove(armed)

    async def heal(self) -> None:
        """Switch all conditions off and disarm all rules."""
        self._book.armed.clear()
        await super().heal()

    def _apply_rules(
        self, number: int, direction: Direction, data: bytes
    ) -> Iterator[Act]:
        conversation = self._conversations.get(number)
        if conversation is None:
            for over in self._conversations.keys() - {*self.connections}:
                del self._conversations[over]
                self._book.forget(over)
            conversation = self._conversations[number] = Conversation()
        for piece in conversation.feed(direction, data):
            acts, chosen = self._book.decide(number, piece)
            if chosen is not None:
                self.fired.append(piece.command)
                if isinstance(chosen.rule, Lose):
                    self.deafen(direction, numbers=[number])
            yield from acts
