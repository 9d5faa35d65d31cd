"""What became of one computing, and how each who waited for it gets a part of his own."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from bls_agent.workers.caching.cached_function import CachedFunction, Found
from bls_agent.workers.caching.entries import BrokenEntryError

__all__ = ["Outcome", "conclude", "excuse"]


@dataclass
class Outcome:
    """A result or an exception.

    Attributes:
        value: The result.
        payload: The same as it is stored; ``None`` if it cannot be.
        error: The exception.
        stale: Whether the result is an expired one, because the function raised.
        computed: Whether the function was run here.
        hit: Whether it was stored already.
        taken: Whether the first has taken the object itself; others get a copy.
    """

    value: Any = None
    payload: bytes | None = None
    error: BaseException | None = None
    stale: bool = False
    computed: bool = True
    hit: bool = False
    taken: bool = False

    def __post_init__(self) -> None:
        """Keep the traceback as it is now: raising adds to it."""
        self._traceback = None if self.error is None else self.error.__traceback__

    def give(self, function: CachedFunction) -> Any:
        """Give the result, or raise the exception, to one of those who waited.

        The first gets the object itself. Everybody else gets another one where that is
        possible, so that nobody sees what somebody else does with his.
        """
        first, self.taken = not self.taken, True
        function.counts.add("hits" if self.hit else "misses")
        if self.hit:
            pass
        elif self.stale:
            function.counts.add("stale_served")
        elif not (first and self.computed):
            function.counts.add("waited")
        if self.error is not None:
            raise self.error if first else _copy_of(self.error, self._traceback)
        if first or self.payload is None:
            return self.value
        try:
            return function.unpack(self.payload)
        except BrokenEntryError:  # load raises what dump has made
            return self.value


def conclude(function: CachedFunction, value: object) -> Outcome:
    """Make an outcome of a result."""
    return Outcome(value, function.pack(value))


def excuse(function: CachedFunction, error: Exception, found: Found) -> Outcome:
    """Make an outcome of an exception: an expired result, if there is one."""
    if not found.has:
        return Outcome(error=error)
    function.say_raised(error, "its callers get the last result, which has expired")
    return Outcome(found.value, found.payload, stale=True)


def _copy_of(error: BaseException, traceback: TracebackType | None) -> BaseException:
    """Copy an exception: who raises one and the same adds his traceback to the others'."""
    try:
        other = copy.copy(error)
        alike = type(other) is type(error) and str(other) == str(error)
    except Exception:  # noqa: BLE001 - a foreign constructor
        alike, other = False, error
    if not alike or other is error:
        return error.with_traceback(traceback)
    other.__cause__, other.__context__ = error.__cause__, error.__context__
    other.__suppress_context__ = error.__suppress_context__
    return other.with_traceback(traceback)
