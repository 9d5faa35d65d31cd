"""One cached function: its name, its keys, and what a reply of Redis means for it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, NamedTuple

from bls_agent.endpoint import Reply, Request
from bls_agent.errors import RedisUnavailableError, WrongTypeError
from bls_agent.keys import KEYS
from bls_agent.workers.caching.arguments import Arguments, MisfitError
from bls_agent.workers.caching.counts import Counts
from bls_agent.workers.caching.entries import (
    BrokenEntryError,
    UnstorableError,
    read_entry,
    write_entry,
)
from bls_agent.workers.caching.policy import Policy

__all__ = ["FUNC_CACHE", "MISSING", "UNKNOWN", "CachedFunction", "Found"]

logger = logging.getLogger(__name__)

FUNC_CACHE: Final = KEYS["func_cache"]
REMIND_EVERY: Final = 60.0  # seconds between two warnings of one function's failures
FOR_EVER: Final = -1  # what PTTL says of a key without an end

_REMEDIES: Final = {
    "too_large": "raise size_limit=…, or cache less",
    "dump": "the function dump=… must take every result",
}
_REMEDY: Final = (
    "JSON would not return it as it is: give dump=… and load=…, which turn it into "
    "JSON's own types and back"
)


class Found(NamedTuple):
    """What stands under a key.

    Attributes:
        has: Whether there is a result.
        value: The result.
        left: Seconds for which it is fresh; below 0 if it has expired.
        writable: Whether a new one may be written: Redis is there, and the key holds
            nothing of another type.
        payload: The result as it is stored.
    """

    has: bool
    value: Any
    left: float
    writable: bool
    payload: bytes | None = None

    @property
    def fresh(self) -> bool:
        """Whether the result may be given."""
        return self.has and self.left > 0


MISSING: Final = Found(has=False, value=None, left=0.0, writable=True)
UNKNOWN: Final = Found(has=False, value=None, left=0.0, writable=False)


@dataclass(eq=False)
class CachedFunction:
    """What is known of one function.

    Attributes:
        name: Under which its results stand.
        function: The user's.
        policy: Its options.
        arguments: Digests what it is called with.
        dump: Makes a plain value of a result, if results are none themselves.
        load: Makes a result of a plain value.
        counts: How it has done.
        clock: Gives Unix seconds.
        generation: Grows when its entries are cleared.
        writes: Results that are being written: who clears lets them arrive first.
    """

    name: str
    function: Callable[..., Any]
    policy: Policy
    arguments: Arguments
    dump: Callable[[Any], Any] | None
    load: Callable[[Any], Any] | None
    counts: Counts
    clock: Callable[[], float]
    generation: int = 0
    writes: set[object] = field(default_factory=set[object])

    def __post_init__(self) -> None:
        """Say once and for all how its keys begin."""
        self._prefix = FUNC_CACHE.build(func=self.name, key="0")[:-1]
        self._told_unstorable = False
        self._said_at: dict[str, float] = {}

    def key_of(self, args: Sequence[object], kwargs: dict[str, Any]) -> str | None:
        """Give the key for a call, or ``None`` if the function cannot be called so.

        Raises:
            ConfigurationError: An argument has no canonical form.
        """
        try:
            return self._prefix + self.arguments.digest(args, kwargs)
        except MisfitError:
            return None  # it says so better itself

    def course(self, key: str) -> str:
        """Name what may be waited for: not what was begun before the entries were cleared."""
        return key if not self.generation else f"{key} {self.generation}"

    @contextmanager
    def storing(self, generation: int) -> Generator[bool]:
        """Write a result, unless entries were cleared since this generation; says so."""
        mine = object()
        self.writes.add(mine)  # before the look: who clears looks the other way round
        try:
            yield generation == self.generation
        finally:
            self.writes.discard(mine)

    def questions(self, key: str) -> tuple[Request, ...]:
        """Give the requests that read an entry."""
        if self.policy.asks_for_end:
            return (("GET", key), ("PTTL", key))
        return (("GET", key),)

    def writing(self, key: str, payload: bytes) -> tuple[Request, ...]:
        """Give the request that writes an entry."""
        return (("SET", key, payload, *self.policy.life),)

    def understand(self, key: str, replies: Sequence[Reply]) -> Found:
        """Say what was found; what cannot be believed is counted and as if absent.

        Raises:
            RedisUnavailableError: Redis refuses to tell.
            WrongTypeError: Something else than a text stands there.
        """
        for reply in replies:
            if isinstance(reply, RedisUnavailableError):
                if reply.kind == "wrong_type":
                    self.counts.add_discarded("wrong_type")
                    raise WrongTypeError(key, "string")
                raise reply
        payload, *rest = replies
        if payload is None:
            return MISSING
        try:
            value = self.unpack(payload)
        except BrokenEntryError as error:
            self.counts.add_discarded(error.reason)
            return MISSING
        left = self._left(rest[0]) if rest else inf
        return Found(True, value, left, True, payload)  # noqa: FBT003 - by name costs 1 µs

    def _left(self, milliseconds: int) -> float:
        if milliseconds == FOR_EVER:
            return inf
        return milliseconds / 1000 - self.policy.stale_on_error

    def unpack(self, payload: bytes) -> Any:
        """Give the result that was stored.

        Raises:
            BrokenEntryError: It cannot be believed.
        """
        value = read_entry(self.name, payload)
        if self.load is None:
            return value
        try:
            return self.load(value)
        except Exception as error:
            raise BrokenEntryError("load") from error

    def pack(self, value: object) -> bytes | None:
        """Write a result, or ``None`` if it would not come back as it is: said once."""
        try:
            plain = self._dumped(value)
            return write_entry(self.name, plain, self.clock(), self.policy.size_limit)
        except UnstorableError as error:
            self.counts.add_not_stored(error.reason)
            self._say_unstorable(error)
            return None

    def _dumped(self, value: object) -> object:
        if self.dump is None:
            return value
        try:
            return self.dump(value)
        except Exception as error:
            raise UnstorableError("dump", f"dump raised {error!r}") from error

    def _say_unstorable(self, error: UnstorableError) -> None:
        if self._told_unstorable:
            return
        self._told_unstorable = True
        remedy = _REMEDIES.get(error.reason, _REMEDY)
        text = "%s: a result is given but not cached (%s); %s"
        logger.warning(text, self.name, error, remedy)

    def is_due(self, left: float) -> bool:
        """Say whether this caller shall see to a new value before the end.

        Surely in the second half of the time for it, by chance in the first: so the
        processes of a fleet do not all begin at once.
        """
        early = self.policy.early
        return left <= early * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def say_raised(self, error: BaseException, consequence: str) -> None:
        """Tell the host's log of an exception that no caller gets, once a minute."""
        self._say("raised", "%s raised %r: %s", self.name, error, consequence)

    def say_wrong_type(self, error: WrongTypeError) -> None:
        """Tell the host's log of a key that is not ours, once a minute."""
        self._say("type", "%s: a result is not cached: %s", self.name, error)

    def _say(self, topic: str, text: str, *arguments: object) -> None:
        now = time.monotonic()
        if now - self._said_at.get(topic, -inf) >= REMIND_EVERY:
            self._said_at[topic] = now
            logger.warning(text, *arguments)
