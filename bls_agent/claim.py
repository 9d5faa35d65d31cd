"""What the owner of a key asks with each write, and what the replies mean: no I/O here.

The sister of :class:`~bls_agent.lease.Lease` for a key whose value is written again and
again: the value and the lease are renewed in one step, and many of them in one write.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from bls_agent.endpoint import Argument, Reply
from bls_agent.keys import OWNER
from bls_agent.lease import valid_until
from bls_agent.names import place_beside

__all__ = ["Answer", "Claim", "Run", "Standing", "digest_of", "ttl_of"]

_LASTS: Final = 3  # the place of the milliseconds in a lease, see beat.lua
_DIGITS: Final = 16
MAY_ARRIVE: Final = 25.0  # seconds after a loss in which a request may still be served

Run = tuple[list[str], Sequence[Argument]]  # keys and arguments of a script


class Standing(StrEnum):
    """How it is with a key of ours.

    Attributes:
        UNKNOWN: Nobody has told yet, or our lease has ended and nobody has another.
        OURS: We own it.
        HELD: Somebody else owns it.
        STANDS: Nobody owns it, but a stranger's value stands there.
        WRONG_TYPE: It, or the key of its lease, holds another type.
    """

    UNKNOWN = "unknown"
    OURS = "ours"
    HELD = "held"
    STANDS = "stands"
    WRONG_TYPE = "wrong_type"


class Answer(NamedTuple):
    """What a reply says.

    Attributes:
        what: The script's word: ``written``, ``refreshed``, ``held``, ``stands``,
            ``lapsed``, ``late``, ``wrong_type``.
        remaining: Seconds until somebody else's lease or value ends; ``None`` for never.
        strange: Whether somebody else had overwritten the value.
        whose: The token of whoever owns it, or the key of the wrong type.
    """

    what: str
    remaining: float | None = 0.0
    strange: bool = False
    whose: str = ""

    @classmethod
    def of(cls, reply: Reply) -> Answer:
        """Read what ``beat.lua`` says."""
        what, number, whose = reply
        name = what.decode()
        remaining = max(number, 0) / 1000
        return cls(
            name,
            None if name in _OTHERS and number < 0 else remaining,
            strange=name == "written" and number == 1,
            whose=whose.decode("utf-8", "replace"),
        )


_OTHERS: Final = {
    "held": Standing.HELD,
    "stands": Standing.STANDS,
    "wrong_type": Standing.WRONG_TYPE,
}


class Claim:
    """The claim of one process to be the only one who writes a key; works once.

    Only a write that takes a key needs care afterwards: one that keeps it does nothing
    behind the end of our lease, however late it arrives.

    Attributes:
        key: What is owned.
        owner_key: Where the owner's token stands.
        ttl: Seconds until key and lease end if nobody writes again.
        token: Ours.
        standing: What the last reply has told.
        losses: How often somebody else has got it from us.
        digest: SHA-1 of the value that was last asked to be written.
    """

    def __init__(self, key: str, ttl: float, token: str = "") -> None:
        """Remember what for; nothing was asked yet.

        Args:
            key: What is to be owned.
            ttl: Seconds until key and lease end if nobody writes again.
            token: What tells us from everybody else; made here if none is given.
        """
        self.key = key
        self.owner_key = OWNER.locate(place=place_beside(key))
        self.ttl = ttl
        self.token = token or secrets.token_hex(16)
        self.standing = Standing.UNKNOWN
        self.losses = 0
        self._numbers = itertools.count(1)
        self.digest = ""
        self._valid_until = float("-inf")
        self._in_doubt = False
        self._harmless_at = float("-inf")

    def is_valid(self, now: float) -> bool:
        """Tell whether the key is surely ours, by :func:`~bls_agent.lease.boot_seconds`."""
        return now < self._valid_until

    def ask(self, value: bytes, *, true: bool = True, dead: str = "") -> Run:
        """Ask to write a value; where the key is not ours yet, to take it.

        Args:
            value: What to write.
            true: Whether the value written before is true enough to be kept alive
                where memory is out.
            dead: The token of an owner who is surely dead.
        """
        takes = self.standing is not Standing.OURS
        former = self.digest
        self.note_written(value)
        return self._run(value, takes=takes, former=former, dead=dead, true=true)

    def note_written(self, value: bytes) -> None:
        """Note a value of ours that may stand there, however it was written."""
        self.digest = digest_of(value)

    def ask_to_keep(self, value: bytes) -> Run:
        """Ask to write a value only as long as the key is ours; from any thread.

        What is asked for changes nothing here: the reply needs no hearing.
        """
        return self._run(value, takes=False, true=False)

    def _run(
        self, value: bytes, *, takes: bool, true: bool, former: str = "", dead: str = ""
    ) -> Run:
        number, ttl = next(self._numbers), int(self.ttl * 1000)
        return [self.key, self.owner_key], (
            self.token, number, value, ttl, int(takes), former, dead, int(true),
        )  # fmt: skip

    def hear(self, answer: Answer, *, sent_at: float, now: float) -> bool:
        """Note what a reply says.

        Args:
            answer: What was said to :meth:`ask`.
            sent_at: When it was asked.
            now: Both by :func:`~bls_agent.lease.boot_seconds`.

        Returns:
            Whether the value is written.
        """
        if self._in_doubt:
            self._in_doubt, self._harmless_at = False, now + MAY_ARRIVE
        if answer.what in ("written", "refreshed"):
            self.standing = Standing.OURS
            self._valid_until = valid_until(sent_at, self.ttl)
            return answer.what == "written"
        if answer.what == "late":
            return False
        if self.standing is Standing.OURS and answer.what in ("held", "stands"):
            self.losses += 1
        self.standing = _OTHERS.get(answer.what, Standing.UNKNOWN)
        self._valid_until = float("-inf")
        return False

    def fail(self, *, ambiguous: bool) -> None:
        """Note that a request had no reply.

        Args:
            ambiguous: Whether it may be executed all the same.
        """
        if ambiguous and self.standing is not Standing.OURS:
            self._in_doubt = True

    def ask_to_end(self, now: float) -> Run:
        """Ask to end the lease and to remove the key if they are ours."""
        in_doubt = self._in_doubt or now < self._harmless_at
        stays = int(MAY_ARRIVE * 1000) if in_doubt else 0
        return [self.key, self.owner_key], (self.token, stays)

    def end(self) -> None:
        """Own nothing any more, without a word to the server."""
        self.standing = Standing.UNKNOWN
        self._valid_until = float("-inf")


def ttl_of(lease: object) -> float | None:
    """Give the seconds for which the owner of a key lets each write count.

    Args:
        lease: What stands under the key of its lease.

    Returns:
        ``None`` if that does not say so.
    """
    words = lease.split() if isinstance(lease, bytes) else []
    told = words[_LASTS] if len(words) > _LASTS else b""
    return int(told) / 1000 if told.isdigit() and len(told) < _DIGITS else None


def digest_of(value: bytes) -> str:
    """Give the SHA-1 of a value, as the script does."""
    return hashlib.sha1(value, usedforsecurity=False).hexdigest()
