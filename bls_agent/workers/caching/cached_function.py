"""One cached function: its options, counters, keys and stored results.

A stored result is a JSON object with ``result``, ``timestamp`` and ``func_name``.
"""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from math import inf
from typing import Any, Final, NamedTuple, cast

from bls_agent.connection.after_fork import register
from bls_agent.connection.endpoint import Argument, Reply, Request
from bls_agent.connection.reconnect import Reminders
from bls_agent.core.checks import check_count, check_seconds
from bls_agent.core.codec import decode_object, encode_strictly, format_timestamp
from bls_agent.core.errors import (
    ConfigurationError,
    DecodeError,
    WrongTypeError,
)
from bls_agent.core.keys import KEYS, checked_reply
from bls_agent.workers.caching.key import Arguments, MisfitError, qualified_name

logger: logging.Logger = logging.getLogger(__name__)

FUNC_CACHE: Final = KEYS["func_cache"]
FOR_EVER: Final = -1  # PTTL of a key that never expires
LEAST_SIZE: Final = 256  # smallest allowed ``size_limit`` in bytes
MAX_DEPTH: Final = 120  # largest number of levels in a result

_REMEDIES: Final = {
    "too_large": "raise size_limit=…, or cache less",
    "dump": "the function dump=… must take every result",
}
_REMEDY: Final = (
    "JSON would not return it as it is: give dump=… and load=…, which turn it into "
    "JSON's own types and back"
)


@dataclass(frozen=True, kw_only=True)
class CacheStats:
    """Counters of this process. Each call is either a hit or a miss.

    Attributes:
        hits: Calls that returned a stored value.
        misses: Calls for which no valid value was stored.
        computed: How often functions were run.
        waited: Misses that returned the value of another call, which may be in another
            process.
        stale_served: Calls that returned an expired value, because the function raised
            an exception.
        not_stored: Results that were returned but not stored, by reason: ``type``,
            ``not_finite``, ``not_unicode``, ``too_deep``, ``too_large``, ``dump``.
        discarded: Stored values that were not valid, by reason: ``not_json``,
            ``no_entry``, ``other_function``, ``wrong_type``, ``load``.
        redis_failures: Reads and writes that Redis did not answer, or refused.
    """

    hits: int = 0
    misses: int = 0
    computed: int = 0
    waited: int = 0
    stale_served: int = 0
    not_stored: Mapping[str, int] = field(default_factory=dict[str, int])
    discarded: Mapping[str, int] = field(default_factory=dict[str, int])
    redis_failures: int = 0


class Counts:
    """Counters of one function and, through its parent, of the whole cache."""

    def __init__(self, parent: Counts | None = None) -> None:
        self._parent = parent
        self._counted: defaultdict[tuple[str, str], int] = defaultdict(int)

    def add(self, name: str, reason: str = "") -> None:
        """Increment a field of :class:`CacheStats`. Some fields count by reason."""
        # No other thread and no signal handler can interrupt this increment, because it
        # calls no Python code.
        self._counted[name, reason] += 1
        if self._parent is not None:
            self._parent.add(name, reason)

    def show(self) -> CacheStats:
        """Return the counters at this moment."""
        fields: dict[str, Any] = {"not_stored": {}, "discarded": {}}
        for (name, reason), number in self._counted.copy().items():
            if reason:
                fields[name][reason] = number
            else:
                fields[name] = number
        return CacheStats(**fields)


@dataclass(frozen=True)
class Policy:
    """The options of one cached function, which ``FunctionCache.cached`` describes."""

    ttl: float
    stale_on_error: float = 0.0
    lock: bool = False
    lock_timeout: float = 30.0
    lock_ttl: float = 10.0
    size_limit: int = 1_048_576

    def __post_init__(self) -> None:
        for name in ("ttl", "lock_timeout", "lock_ttl"):
            check_seconds(name, getattr(self, name))
        if self.stale_on_error != 0:
            rule = "seconds, or 0 for never"
            check_seconds("stale_on_error", self.stale_on_error, rule)
        if self.ttl * 1000 < 1:
            rule = "Redis counts in milliseconds"
            raise ConfigurationError("ttl", self.ttl, rule)
        check_count("size_limit", self.size_limit, least=LEAST_SIZE, most=2**40)

    @cached_property
    def expiry(self) -> tuple[Argument, ...]:
        """The arguments of SET that set the key's TTL."""
        seconds = float(self.ttl + self.stale_on_error)
        if seconds.is_integer():
            return ("EX", int(seconds))
        return ("PX", int(seconds * 1000))


class _UnstorableError(Exception):
    """A result that JSON would change. ``CacheStats`` counts it by ``reason``."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class BrokenEntryError(Exception):
    """A stored value that is not valid. ``CacheStats`` counts it by ``reason``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Found(NamedTuple):
    """The stored result of a key, as far as Redis has replied."""

    value: Any
    left: float  # seconds until the result expires; below 0 if it has expired
    writable: bool  # whether Redis has replied and the key has no other type
    payload: bytes | None = None  # the stored bytes; ``None`` if no result is stored

    @property
    def fresh(self) -> bool:
        """Whether the result may be returned."""
        return self.left > 0


MISSING: Final = Found(value=None, left=0.0, writable=True)
UNKNOWN: Final = Found(value=None, left=0.0, writable=False)


@dataclass(eq=False)
class CachedFunction:
    """One function with its options, counters and running writes."""

    name: str  # the name under which results are stored
    function: Callable[..., Any]
    policy: Policy
    arguments: Arguments
    dump: Callable[[Any], Any] | None  # result → what JSON can hold
    load: Callable[[Any], Any] | None  # dumped value → result
    counts: Counts
    generation: int = 0  # grows when the function's entries are cleared
    # Writes that are not finished. ``clear`` waits for them.
    writes: set[object] = field(default_factory=set[object])

    def __post_init__(self) -> None:
        self._prefix = FUNC_CACHE.build(func=self.name, key="0")[:-1]
        self._logged_unstorable = False
        self._reminders = Reminders()
        register(self)

    def reset_after_fork(self) -> None:
        """Forget writes of the parent's threads, which do not run in a forked child."""
        self.writes.clear()

    def key_of(self, args: Sequence[object], kwargs: dict[str, Any]) -> str | None:
        """Return the key for a call, or ``None`` if the arguments do not fit."""
        try:
            return self._prefix + self.arguments.digest(args, kwargs)
        except MisfitError:
            return None  # the call of the function raises a better error

    def computation_key(self, key: str) -> str:
        """Return the key under which calls share a computation until the next clear."""
        return key if not self.generation else f"{key} {self.generation}"

    @contextmanager
    def storing(self, generation: int) -> Generator[bool]:
        """Yield whether a result may be written: ``False`` after a ``clear``."""
        mine = object()
        # Register the write before the comparison, because ``clear`` first changes the
        # generation, and then waits for the registered writes.
        self.writes.add(mine)
        try:
            yield generation == self.generation
        finally:
            self.writes.discard(mine)

    def read_requests(self, key: str) -> tuple[Request, ...]:
        if self.policy.stale_on_error:
            return (("GET", key), ("PTTL", key))
        return (("GET", key),)

    def decode(self, key: str, replies: Sequence[Reply]) -> Found:
        """Decode the replies to a read. Count an invalid value and return MISSING.

        Raise the same exceptions as :func:`~bls_agent.core.keys.checked_reply`.
        """
        payload, *rest = [checked_reply(reply, key) for reply in replies]
        if payload is None:
            return MISSING
        try:
            value = self.unpack(payload)
        except BrokenEntryError as error:
            self.counts.add("discarded", error.reason)
            return MISSING
        left = inf
        if rest and rest[0] != FOR_EVER:
            left = rest[0] / 1000 - self.policy.stale_on_error
        return Found(value, left, True, payload)  # noqa: FBT003 - passing it by name costs 1 µs

    def unpack(self, payload: bytes) -> Any:
        """Decode a stored result, or raise :class:`BrokenEntryError`."""
        value = decode_entry(self.name, payload)
        if self.load is None:
            return value
        try:
            return self.load(value)
        except Exception as error:
            raise BrokenEntryError("load") from error

    def pack(self, value: object) -> bytes | None:
        """Encode a result. Return ``None``, and log once, if JSON would change it."""
        try:
            plain = self._dumped(value)
            now = time.time()  # noqa: TID251 - the entry holds the time of this machine
            return _encode_entry(self.name, plain, now, self.policy.size_limit)
        except _UnstorableError as error:
            self.counts.add("not_stored", error.reason)
            if not self._logged_unstorable:
                self._logged_unstorable = True
                remedy = _REMEDIES.get(error.reason, _REMEDY)
                text = "%s: a result is given but not cached (%s); %s"
                logger.warning(text, self.name, error, remedy)
            return None

    def _dumped(self, value: object) -> object:
        if self.dump is None:
            return value
        try:
            return self.dump(value)
        except Exception as error:
            raise _UnstorableError("dump", f"dump raised {error!r}") from error

    def log_stale(self, error: BaseException) -> None:
        """Log, at most once a minute, an error that an expired result replaces."""
        text = "%s raised %r: its callers get the last result, which has expired"
        self._log("raised", text, self.name, error)

    def discard(self, error: WrongTypeError) -> None:
        """Count a key with a wrong type. Log the error at most once a minute."""
        self.counts.add("discarded", "wrong_type")
        self._log("type", "%s: a result is not cached: %s", self.name, error)

    def _log(self, topic: str, text: str, *arguments: object) -> None:
        if self._reminders.is_due(topic):
            logger.warning(text, *arguments)


class Origin(Enum):
    """Where the value of an outcome comes from."""

    STORED = auto()  # the value was in Redis
    COMPUTED = auto()  # this process ran the function
    OTHERS = auto()  # another process ran the function
    STALE = auto()  # this process ran the function, which raised; the value has expired


@dataclass
class Outcome:
    """How a computation ended: with a result or an exception, for each caller.

    Each caller receives the result as a separate object.
    """

    value: Any = None
    payload: bytes | None = None  # the encoded value; ``None`` if it cannot be stored
    error: BaseException | None = None
    origin: Origin = Origin.COMPUTED
    taken: bool = False  # the first caller has received ``value``; others get copies

    def __post_init__(self) -> None:
        """Store the original traceback, because each raise makes it longer."""
        self._traceback = None if self.error is None else self.error.__traceback__

    @classmethod
    def of_error(
        cls, function: CachedFunction, error: Exception, found: Found
    ) -> Outcome:
        """Return an expired result if Redis has one, otherwise the exception."""
        if found.payload is None:
            return cls(error=error)
        function.log_stale(error)
        return cls(found.value, found.payload, origin=Origin.STALE)

    def deliver(self, function: CachedFunction) -> Any:
        """Count one call. Return its result or raise its exception.

        1. The value was in Redis: a hit. The other cases are misses.
        2. The value has expired.
        3. This call ran the function.
        4. This call waited for another call, in this or another process.
        """
        first, self.taken = not self.taken, True
        match self.origin:
            case Origin.STORED:
                counted = ["hits"]
            case Origin.STALE:
                counted = ["misses", "stale_served"]
            case Origin.COMPUTED if first:
                counted = ["misses"]
            case _:
                counted = ["misses", "waited"]
        for name in counted:
            function.counts.add(name)
        if self.error is not None:
            raise self.error.with_traceback(self._traceback)
        if first or self.payload is None:
            return self.value
        try:
            return function.unpack(self.payload)
        except BrokenEntryError:  # ``load`` raised for a value that ``dump`` returned
            return self.value


def check_function(function: object) -> None:
    """Refuse a function that cannot be cached."""
    shown = type(function).__qualname__
    if isinstance(function, classmethod | staticmethod | property):
        rule = "what is cached is a function"
        remedy = f"Write @cached below @{shown}."
        raise ConfigurationError("function", shown, rule, remedy)
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError("function", shown, "what is cached is a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        shown = str(getattr(cast("object", function), "__qualname__", shown))
        rule = "a generator has no result to keep"
        raise ConfigurationError("function", shown, rule, "Return a list.")


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name, which is equal in every process. Refuse a lambda."""
    shown = getattr(function, "__qualname__", "")
    if not shown or shown.rpartition(".")[2] == "<lambda>":
        rule = "results stand under the function's name, and this one has none"
        raise ConfigurationError(
            "function", shown or type(function).__qualname__, rule, "Give it name=…"
        )
    return qualified_name(function)


def _encode_entry(name: str, result: object, now: float, limit: int) -> bytes:
    """Encode a result as an entry, in the form that the protocol defines."""
    _check([result], 0)
    entry = {"result": result, "timestamp": format_timestamp(now), "func_name": name}
    try:
        payload = encode_strictly("result", entry)
    except ConfigurationError as error:
        is_text = isinstance(error.__context__, UnicodeError)
        # Otherwise an integer is larger than every float.
        reason = "not_unicode" if is_text else "not_finite"
        raise _UnstorableError(reason, error.rule) from None
    if len(payload) > limit:
        detail = f"{len(payload):,} bytes, the limit is {limit:,}"
        raise _UnstorableError("too_large", detail)
    return payload


_PLAIN: Final = frozenset({str, int, bool, float, type(None)})


def _check(values: Iterable[Any], depth: int) -> None:
    """Refuse values that JSON would change. Lists of numbers are checked quickly."""
    kinds = set(map(type, values))
    floats = values if kinds == {float} else (v for v in values if type(v) is float)
    if float in kinds and not all(map(math.isfinite, floats)):
        raise _UnstorableError("not_finite", "nan or an infinity")
    if kinds <= _PLAIN:
        return
    if foreign := kinds - {*_PLAIN, list, dict}:
        raise _UnstorableError("type", f"a {foreign.pop().__qualname__}")
    if depth >= MAX_DEPTH:
        detail = f"more than {MAX_DEPTH} levels"
        raise _UnstorableError("too_deep", detail)
    for value in values:
        if type(value) is list:
            _check(cast("list[object]", value), depth + 1)
        elif type(value) is dict:
            mapping = cast("dict[object, object]", value)
            _check_keys(mapping)
            _check(mapping.values(), depth + 1)


def _check_keys(mapping: Mapping[object, object]) -> None:
    if foreign := set(map(type, mapping)) - {str}:
        detail = f"a dict with a key of type {foreign.pop().__qualname__}"
        raise _UnstorableError("type", detail)


def decode_entry(name: str, payload: bytes) -> Any:
    """Return the result in an entry, or raise :class:`BrokenEntryError`."""
    try:
        entry = decode_object(payload)
    except DecodeError:
        raise BrokenEntryError("not_json") from None
    if "result" not in entry or "func_name" not in entry:
        raise BrokenEntryError("no_entry")
    if entry["func_name"] != name:
        raise BrokenEntryError("other_function")
    return entry["result"]
