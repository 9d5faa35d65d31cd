"""What the tasks of an event loop, its exchange and the scripts pass to each other."""

from __future__ import annotations

import asyncio
import math
import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bls_agent.connection.endpoint import Argument
from bls_agent.core.codec import JSONObject, cut_text, decode, encode
from bls_agent.core.redaction import redact
from bls_agent.crawl.fingerprint import CrawlRequest
from bls_agent.crawl.keys import RedisKeyManager

__all__ = [
    "Batch",
    "Held",
    "Push",
    "QueueKeys",
    "QueueOptions",
    "Settlement",
]

REASON_BYTES: Final = 2_000


class QueueKeys(NamedTuple):
    """The keys of one queue, as its scripts take them."""

    by_row: dict[str, str]
    pushing: list[str]
    taking: list[str]
    settling: list[str]
    retries: str  # without the member

    @classmethod
    def of(cls, manager: RedisKeyManager) -> QueueKeys:
        """Give the keys of a namespace."""
        found = {
            row.removeprefix("crawl_"): key
            for key, row in manager.single_keys().items()
            if row not in ("crawl_item_fingerprint", "crawl_bloom")
        }

        def some(rows: str) -> list[str]:
            return [found[row] for row in rows.split()]

        both = "requests requests_data processing processing_data"
        return cls(
            found,
            some("requests requests_data counters wake filter_fingerprint failed"),
            some(f"{both} leases delayed counters wake"),
            some(f"{both} leases delayed counters wake failed"),
            manager.get_failed_retries_key("-")[:-1],
        )


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """How a queue is used; see :class:`~bls_agent.crawl.RequestQueue`."""

    lease: float
    max_retries: int
    retry_delay: float
    leased: bool
    timeout: float


class Push(NamedTuple):
    """A request on its way into the queue: what the script takes of each."""

    priority: str
    body: bytes
    fingerprint: str = ""
    entry: bytes = b""  # of the failed list, from which it is moved


@dataclass(eq=False, slots=True)
class Held:
    """A request that was taken, and the right of this worker to it."""

    member: bytes  # by which it stands in the sorted sets
    token: str  # of its lease; none where it was taken for good
    body: bytes = b""  # as it stands in Redis; nothing where there was none
    priority: float = 0.0  # with which it was taken
    attempt: int = 1  # 1 for the first
    request: CrawlRequest | None = None  # the decoded body
    valid_until: float = math.inf  # by the clock of leases

    def failed_entry(self, reason: str) -> bytes:
        """Write the entry of the failed list."""
        entry: JSONObject = {"request": None}
        if self.request is not None:
            entry["request"] = decode(self.body)
        elif self.body:
            entry["raw_base64"] = b64encode(self.body).decode()
        entry |= {
            "reason": cut_text(redact(reason), REASON_BYTES),
            "attempts": self.attempt,
            "failed_at": time.time(),  # noqa: TID251 - for people
            "priority": self.priority,
            "member": self.member.decode("utf-8", "replace"),
        }
        return encode(entry)


@dataclass(eq=False, slots=True)
class Settlement:
    """The end of a lease, on its way to Redis."""

    what: str
    held: Held
    value: Argument = ""
    future: asyncio.Future[bool] | None = None
    in_doubt: bool = False  # whether it may have been executed already

    @property
    def words(self) -> tuple[Argument, ...]:
        """The arguments for the script."""
        return (self.what, self.held.member, self.held.token, self.value)

    def answer(self, *, done: bool) -> None:
        """Give the waiting task whether the request was still ours."""
        if self.future is not None and not self.future.done():
            self.future.set_result(done)


@dataclass(eq=False, slots=True)
class Batch:
    """Requests that one task pushes, on their way to Redis."""

    pushes: Sequence[Push]
    future: asyncio.Future[list[int]]

    @property
    def size(self) -> int:
        """Bytes of all bodies."""
        return sum(len(push.body) for push in self.pushes)

    def fail(self, error: Exception) -> None:
        """Fail the waiting task: as far as is known, nothing was pushed."""
        if not self.future.done():
            self.future.set_exception(error)
