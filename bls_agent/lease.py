"""One key, one owner, for as long as the owner keeps saying so.

The owner's token stands beside the key, never in it, and its TTL is counted by the
server. So nobody has to compare two machines' clocks, and an owner that dies, freezes
or loses its link is out of office after at most one TTL. A server whose clock is set back
would keep a dead owner in office for as long; so the token tells the length of its lease,
and a lease with more time left is cut to that length by the first process that wants it.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

from bls_agent.forking import register
from bls_agent.keys import OWNER
from bls_agent.names import place_beside
from bls_agent.scripts import END_LEASE, RENEW_LEASE
from bls_agent.wire import Wire

__all__ = ["Lease", "boot_seconds", "length_of", "valid_until"]

MARGIN: Final = 0.1  # of the TTL: we step down before the server says so
LONGEST_MARGIN: Final = 1.0  # seconds
_DIGITS: Final = 16


def boot_seconds() -> float:
    """Seconds that go on while the machine sleeps: its leases end meanwhile."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def valid_until(sent_at: float, ttl: float) -> float:
    """Say until when a lease is surely ours that was asked for at some time."""
    return sent_at + ttl - min(LONGEST_MARGIN, ttl * MARGIN)


def length_of(token: bytes | None) -> float | None:
    """Give the seconds that the token of an owner tells; ``None`` if it does not."""
    told = (token or b"").partition(b"@")[0].partition(b".")[2]
    return int(told) / 1000 if told.isdigit() and len(told) < _DIGITS else None


class Lease:
    """The right to be the only one who works on a key.

    Held by at most one owner at any time, as far as the server tells. Whoever holds it
    has to look at :attr:`valid` before each thing that only the owner may do: it is
    true only as long as the server surely still says the same, by our own clock from
    the moment *before* the last request was sent.

    Attributes:
        key: What is owned.
        owner_key: Where the owner's token stands.
        ttl: Seconds until the lease ends if nobody renews it.
        token: Ours, ``""`` once it is surely not in office any more.
    """

    def __init__(self, wire: Wire, key: str, ttl: float) -> None:
        """Remember what for; nothing is acquired yet."""
        self._wire = wire
        self.key = key
        self.owner_key = OWNER.locate(place=place_beside(key))
        self.ttl = ttl
        self.token = ""
        self._valid_until = float("-inf")
        register(self)

    @property
    def valid(self) -> bool:
        """Whether the lease is surely still ours."""
        return boot_seconds() < self._valid_until

    async def acquire(self) -> bool:
        """Take the lease if nobody has it.

        Called again after a failure in doubt it finds out whether it has been ours
        since then.

        Returns:
            Whether it is ours.

        Raises:
            RedisUnavailableError: Nobody knows; ask again.
        """
        self.token = self.token or f"{secrets.token_hex(16)}.{self._ttl_ms}"
        sent_at = boot_seconds()
        request = ("SET", self.owner_key, self.token, "NX", "PX", self._ttl_ms)
        if await self._wire.call(*request) is not None:
            self._begin_anew(sent_at)
            return True
        return await self.renew()

    async def renew(self) -> bool:
        """Begin the TTL anew if the lease is still ours.

        Returns:
            Whether it is. ``False`` is final: acquire it again, with a new token.

        Raises:
            RedisUnavailableError: Nobody knows; :attr:`valid` goes on as it was.
        """
        sent_at, token = boot_seconds(), self.token
        if token and await RENEW_LEASE.run(
            self._wire, [self.owner_key], [token, self._ttl_ms]
        ):
            self._begin_anew(sent_at)
            return True
        self.forget()
        return False

    async def give_back(self) -> None:
        """End the lease if it is ours; somebody else may have it at once.

        Raises:
            RedisUnavailableError: It ends by itself, at the end of its TTL.
        """
        token = self.token
        self.forget()
        if token:
            await END_LEASE.run(self._wire, [self.owner_key], [token])

    def step_down(self) -> None:
        """Not be :attr:`valid` until the server has confirmed the lease again."""
        self._valid_until = float("-inf")

    def forget(self) -> None:
        """Let the lease end by itself, without a word to the server."""
        self.token = ""
        self.step_down()

    def forget_parent(self) -> None:
        """In a forked child: the lease is the parent's."""
        self.forget()

    @property
    def _ttl_ms(self) -> int:
        return max(1, int(self.ttl * 1000))

    def _begin_anew(self, sent_at: float) -> None:
        self._valid_until = valid_until(sent_at, self.ttl)
