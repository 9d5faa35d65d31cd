"""What an agent does while Redis is away or refuses: one paced try, few warnings.

All connections of an agent share one :class:`ReconnectGate`, and its :class:`ThrottledLog`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import (
    BlsError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)

if TYPE_CHECKING:
    from bls_agent.connection.endpoint import Reply, Request

logger = logging.getLogger(__name__)

T = TypeVar("T")

REMIND_EVERY: Final = 60.0  # seconds between two warnings of the same cause
MOST_TOPICS: Final = 1_000  # causes to remember; the oldest is forgotten first

# Failures that depend on the request. All others are a state of the server, which all
# connections of an agent meet at the same time: one warning stands for all.
_OF_REQUEST: Final = frozenset({"unknown_command", "unsupported", "refused"})

_SAME: Final = {"role_changed": "read_only"}  # the same event, seen while waiting


# The remedy in the warning, where a connection cannot be made or is refused.
_REMEDIES: Final = {
    "auth": "User and password stand in the URL, redis://user:password@host:6379/0, "
    "which redis= or BLS_REDIS_URL gives.",
    "connection": "Is it running there? redis= or BLS_REDIS_URL says where it is.",
    "timeout": "Is it running there? redis= or BLS_REDIS_URL says where it is.",
}


def nobody_listens(name: str) -> bool:
    """Return whether no handler of the host would show what a logger writes.

    A handler that ships records to Redis does not count (``ships_away``).
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
    """Decides what to say again: of each topic something once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._warned_at: dict[str, float] = {}

    def is_due(self, topic: str) -> bool:
        """Return whether to log a topic now; then the topic is not due for a minute."""
        now = self._clock()
        if now - self._warned_at.get(topic, -REMIND_EVERY) < REMIND_EVERY:
            return False
        self._warned_at.pop(topic, None)
        if len(self._warned_at) >= MOST_TOPICS:  # one for each key of another type
            self._warned_at.pop(next(iter(self._warned_at)), None)
        self._warned_at[topic] = now
        return True


class Outage:
    """How long Redis has been away, for connections that share it; logs its end once.

    An outage that nobody has noticed is not logged: no try to connect failed, and no
    warning was logged.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._noticed = False
        self.quiet = False  # whether it logs nothing at all

    async def enter(self, connect: Callable[[], Awaitable[T]]) -> T:
        """Run one try to connect, which ends the outage or makes it noticed."""
        try:
            made = await connect()
        except RedisUnavailableError:
            self.begin()
            self.mark_noticed()
            raise
        self._end()
        return made

    def begin(self) -> None:
        """Record that a connection was lost, unless one was lost before."""
        if self._since is None:
            self._since = self._clock()

    def mark_noticed(self) -> None:
        """Record that somebody knows of the outage, if there is one."""
        self._noticed = self._since is not None

    def _end(self) -> None:
        if self._since is not None and self._noticed and not self.quiet:
            seconds = self._clock() - self._since
            decimals = 0 if seconds >= 10 else 1  # noqa: PLR2004 - two digits
            logger.info("Redis answers again after %.*f s", decimals, seconds)
        self._since, self._noticed = None, False


class ThrottledLog:
    """Warns of what is wrong with Redis, for all connections of one agent together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._reminders = Reminders(clock)
        self._weaker: set[str] = set()  # what missing rights weaken, as it was told
        self.outage = Outage(clock)
        self.quiet = False  # whether it logs nothing at all

    def silence(self) -> None:
        self.quiet = self.outage.quiet = True

    def warn(self, consequence: str, error: BlsError) -> bool:
        """Log what a failure means, unless its cause was logged within the last minute.

        ``consequence`` says what does not work, for failures of a single request.
        """
        if isinstance(error, WrongTypeError):
            return self._say_now(f"type of {error.key}", "%s: %s", consequence, error)
        if not isinstance(error, RedisUnavailableError):
            return self._say_now(consequence, "%s: %s", consequence, error)
        if error.kind == "moved":
            return False  # nothing is wrong: the request is sent elsewhere
        if error.kind == "no_permission" and not error.connecting:
            return False  # :meth:`note_denied` has logged it, by name
        if error.kind in _OF_REQUEST:
            topic = f"{consequence} {error.kind}"
            return self._say_now(topic, "%s: %s", consequence, error)
        self.outage.mark_noticed()
        topic = _SAME.get(error.kind, error.kind)
        text = "%s; trying again until it is back"
        if error.connecting and (remedy := _REMEDIES.get(error.kind)):
            text = f"{text}. {remedy}"
        return self._say_now(topic, text, error)

    def note_denied(
        self, requests: Sequence[Request], replies: Sequence[Reply]
    ) -> None:
        """Look for missing rights in replies; warn once of what each one weakens."""
        for request, reply in zip(requests, replies, strict=False):
            if not isinstance(reply, RedisUnavailableError):
                continue
            if reply.kind == "no_permission":
                self._say_weaker(request, reply)

    def _say_weaker(self, request: Request, error: RedisUnavailableError) -> None:
        from bls_agent.core.acl import find_right  # noqa: PLC0415 - 1 ms, and rare

        right = find_right(request, by_key="to run the" not in error.reason)
        if right is not None and right.extra:
            return  # no operator needs to grant it
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
    """Log a failure and wait before the next try; the gate has paced what connects."""
    permanent = isinstance(error, RedisRefusedError | WrongTypeError)
    delay = backoff.failed(permanent=permanent)
    if not (isinstance(error, RedisUnavailableError) and error.connecting):
        throttled_log.warn(consequence, error)
        await anyio.sleep(delay)


class ReconnectGate:
    """Lets one connection of an agent at a time try to reach Redis, and paces the tries.

    The first success opens the way for all. The gate logs that Redis is away, at once
    and then once a minute. A password is tried at most once a minute.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._lock = anyio.Lock()
        self._retry_at = 0.0
        self.throttled_log = ThrottledLog()
        self.outage = self.throttled_log.outage
        self.connect_time = 0.0  # seconds that the last success took: some round trips
        self.failures = 0  # tries that failed
        self.last_error = "nothing went wrong so far"
        # Called after each success.
        self.on_connected: Callable[[], object] = lambda: None

    async def enter(self, connect: Callable[[], Awaitable[T]]) -> T:
        """Run one try to connect as soon as the backoff allows it."""
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
