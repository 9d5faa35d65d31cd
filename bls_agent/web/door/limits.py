"""How much one client may ask for: bounded tables, decided without I/O."""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

__all__ = ["Bucket", "Buckets", "StreamQuota", "group_address"]

NETWORK: Final = 64  # bits of an IPv6 address that one customer has


@dataclass
class Bucket:
    """Tokens that come back with time.

    Attributes:
        size: Tokens at most.
        rate: Tokens per second that come back.
        level: Tokens now.
        at: When that was counted.
    """

    size: float
    rate: float
    level: float
    at: float

    def take(self, now: float) -> float:
        """Take a token, or say for how many seconds there is none."""
        self._fill(now)
        if self.level >= 1:
            self.level -= 1
            return 0.0
        return (1 - self.level) / self.rate

    def give_back(self) -> None:
        """Put a token back."""
        self.level = min(self.size, self.level + 1)

    def is_full(self, now: float) -> bool:
        """Tell whether it is as if it had never been used."""
        self._fill(now)
        return self.level >= self.size

    def _fill(self, now: float) -> None:
        self.level = min(self.size, self.level + max(0.0, now - self.at) * self.rate)
        self.at = now


class Buckets:
    """A bucket for each client, of a bounded number of clients.

    Args:
        size: Tokens of each.
        rate: Tokens per second.
        most: Clients; of more, the one seen longest ago is forgotten.
    """

    def __init__(self, size: float, rate: float, *, most: int = 4_096) -> None:
        """Begin with nobody."""
        self._size = size
        self._rate = rate
        self._most = most
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def __len__(self) -> int:
        """Count the clients that are remembered."""
        return len(self._buckets)

    def take(self, client: str, now: float) -> float:
        """Take a token of a client, or say for how many seconds it has none."""
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = Bucket(self._size, self._rate, self._size, now)
            self._buckets[client] = bucket
            while len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(client)
        return bucket.take(now)

    def give_back(self, client: str) -> None:
        """Put a token of a client back."""
        if client in self._buckets:
            self._buckets[client].give_back()


class StreamQuota:
    """Counts open streams, of each user and of all."""

    def __init__(self, *, each: int, total: int) -> None:
        """Begin with none."""
        self._each = each
        self._total = total
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """Streams that are open now."""
        return self._open.total()

    def refuse(self, user: str) -> int:
        """Give the status that one more stream of a user gets; 0 if it may open."""
        if self._open[user] >= self._each:
            return 429
        return 503 if self.open >= self._total else 0

    @contextmanager
    def hold(self, user: str) -> Generator[None]:
        """Count a stream while the block lasts."""
        self._open[user] += 1
        try:
            yield
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]


def group_address(address: str) -> str:
    """Name those who share an address: of IPv6, a network of 64 bits."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:  # noqa: PLR2004 - IPv4
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), NETWORK), strict=False))
