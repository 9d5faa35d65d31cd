"""Delays tries to connect, and limits warnings, while Redis is unreachable or refuses.

All connections of an agent share one :class:`ReconnectGate` and its
:class:`ThrottledLog`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from bls_agent.connection.outage import Outage
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import (
    BlsError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)

if TYPE_CHECKING:
    from bls_agent.connection.endpoint import Reply, Request

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

REMIND_EVERY: Final = 60.0  # seconds between two warnings of the same cause
MOST_TOPICS: Final = 1_000  # most causes to remember; the oldest is forgotten first

# Failures that depend on the request. All other failures come from the server's state
# and reach all connections of an agent at the same time, so that one warning is enough.
_OF_REQUEST: Final = frozenset({"unknown_command", "unsupported", "refused"})

# Failures after which the connection is opened again at once.
_LOST: Final = ("connection", "timeout")

# A blocking read fails with the first kind when other requests fail with the second.
_SAME: Final = {"role_changed": "read_only"}


# Kind of error → advice in the warning if connecting fails.
_REMEDIES: Final = {
    "auth": "User and password stand in the URL, redis://user:password@host:6379/0, "
    "which redis= or BLS_REDIS_URL gives.",
    "connection": "Is it running there? redis= or BLS_REDIS_URL says where it is.",
    "timeout": "Is it running there? redis= or BLS_REDIS_URL says where it is.",
}


def nobody_listens(name: str) -> bool:
    """Return whether no handler of a logger shows its records on this machine.

    A handler that only sends records to Redis has the attribute ``ships_away``.
    """
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if not all(getattr(one, "ships_away", False) for one in logger.handlers):
            return False
        logger = logger.parent if logger.propagate else None
    return True


@contextmanager
def show_log() -> Generator[None]:
    """Show the package's log on standard error, if logging is not configured."""
    logger = logging.getLogger("bls_agent")
    if not nobody_listens(logger.name):
        yield
        return
    handler, level = logging.StreamHandler(), logger.level
    logger.addHandler(handler)
    logger.setLevel(level or logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class Reminders:
    """Decides whether to log a warning again; each topic is logged once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._warned_at: dict[str, float] = {}

    def is_due(self, topic: str) -> bool:
        """Return whether to log a topic now; after ``True``, not again for a minute."""
        now = self._clock()
        if now - self._warned_at.get(topic, -REMIND_EVERY) < REMIND_EVERY:
            return False
        self._warned_at.pop(topic, None)
        if len(self._warned_at) >= MOST_TOPICS:  # a topic may contain the name of a key
            self._warned_at.pop(next(iter(self._warned_at)), None)
        self._warned_at[topic] = now
        return True


class ThrottledLog:
    """Logs warnings about Redis for all connections; one per cause and minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._reminders = Reminders(clock)
        self._weaker: set[str] = set()  # effects of missing rights, already logged
        self._names_rights = False  # whether note_denied() looks for missing rights
        self.outage: Outage = Outage(clock)
        self.quiet: bool = False  # whether it logs nothing at all

    def silence(self) -> None:
        self.quiet = self.outage.quiet = True

    def warn(self, consequence: str, error: BlsError) -> bool:
        """Log a failure, unless its cause was logged in the last minute.

        Return whether the failure was logged. ``consequence`` describes what does not
        work. While Redis is unreachable, only the error is logged, because everything
        fails.
        """
        if isinstance(error, WrongTypeError):
            return self._say_now(f"type of {error.key}", "%s: %s", consequence, error)
        if not isinstance(error, RedisUnavailableError):
            return self._say_now(consequence, "%s: %s", consequence, error)
        is_denied = error.kind == "no_permission" and not error.connecting
        if error.kind == "moved" or (is_denied and self._names_rights):
            # MOVED is no fault, because the request is sent to another node.
            # note_denied() has logged the missing right.
            return False
        if is_denied or error.kind in _OF_REQUEST:
            topic = f"{consequence} {error.kind}"
            return self._say_now(topic, "%s: %s", consequence, error)
        if error.kind in _LOST:
            self.outage.begin()
        self.outage.mark_noticed()
        topic = _SAME.get(error.kind, error.kind)
        text = "%s; trying again until it is back"
        if error.connecting and (remedy := _REMEDIES.get(error.kind)):
            text = f"{text}. {remedy}"
        return self._say_now(topic, text, error)

    def note_denied(
        self, requests: Sequence[Request], replies: Sequence[Reply]
    ) -> None:
        """Find missing rights in error replies; log the effect of each right once.

        After the first call, :meth:`warn` does not log missing rights.
        """
        self._names_rights = True
        for request, reply in zip(requests, replies, strict=False):
            if not isinstance(reply, RedisUnavailableError):
                continue
            if reply.kind == "no_permission":
                self._say_weaker(request, reply)

    def _say_weaker(self, request: Request, error: RedisUnavailableError) -> None:
        from bls_agent.core.acl import find_right  # noqa: PLC0415 - the import takes 1 ms and is rarely needed

        right = find_right(request, by_key="to run the" not in error.reason)
        if right is not None and right.extra:
            return  # an optional right, which no operator needs to grant
        shown = right.shown if right else str(request[0])
        weaker = right.weaker if right else "it is not among the rights of an agent"
        if weaker not in self._weaker and not self.quiet:
            self._weaker.add(weaker)
            text = "Redis at %s refuses %s to this user (no_permission): %s. "
            text += "`bls-agent acl` prints what to grant"
            logger.warning(text, error.address, shown, weaker)

    def _say_now(self, topic: str, text: str, *arguments: object) -> bool:
        if self.quiet or not self._reminders.is_due(topic):
            return False
        logger.warning(text, *arguments)
        return True


async def wait_after_failure(
    error: BlsError, consequence: str, backoff: Backoff, throttled_log: ThrottledLog
) -> None:
    """Log a failure and wait before the next try.

    If connecting has failed, do nothing, because the gate has logged the failure and
    delays the next try.
    """
    permanent = isinstance(error, RedisRefusedError | WrongTypeError)
    delay = backoff.failed(permanent=permanent)
    if not (isinstance(error, RedisUnavailableError) and error.connecting):
        throttled_log.warn(consequence, error)
        await anyio.sleep(delay)


class ReconnectGate:
    """Lets one connection of an agent at a time try to connect, and delays the tries.

    After a success the other connections connect without delay. The gate logs at once,
    and then once a minute, that Redis cannot be reached. A refused password is tried at
    most once a minute.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._lock = anyio.Lock()
        self._retry_at = 0.0
        self.throttled_log: ThrottledLog = ThrottledLog()
        self.outage: Outage = self.throttled_log.outage
        self.connect_time: float = 0.0  # seconds that the last successful try took
        self.failures: int = 0  # number of tries that failed
        self.last_error: str = "nothing went wrong so far"
        self.on_connected: Callable[[], object] = lambda: None

    async def enter(self, connect: Callable[[], Awaitable[T]]) -> T:
        """Wait until the delay after the last failure is over, then try to connect."""
        async with self._lock:
            if (delay := self._retry_at - anyio.current_time()) > 0:
                await anyio.sleep(delay)
            try:
                began = anyio.current_time()
                made = await self.outage.enter(connect)
            except RedisUnavailableError as error:
                self._failed(error)
                raise
            self.connect_time = anyio.current_time() - began
            self._retry_at = 0.0
            self._backoff.succeeded()
            self.on_connected()
            return made

    def _failed(self, error: RedisUnavailableError) -> None:
        now = anyio.current_time()
        permanent = isinstance(error, RedisRefusedError)
        self._retry_at = now + self._backoff.failed(
            permanent=permanent, longest=error.kind == "auth"
        )
        self.failures += 1
        self.last_error = str(error)
        self.throttled_log.warn("Redis cannot be reached", error)
