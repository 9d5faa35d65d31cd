"""Waiting for a condition, with a deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Final, TypeVar, cast

import anyio

T = TypeVar("T")

LONGEST_PAUSE: Final = 0.05  # seconds between two checks


async def eventually(
    condition: Callable[[], T | Awaitable[T]], within: float = 5.0
) -> T:
    """Wait until a condition holds, and return its value.

    Write ``await eventually(lambda: running.status is Status.FAULT)``, or pass an
    assertion: ``await eventually(lambda: running.assert_logged("warn", "stock is low"))``.

    Args:
        condition: A function or a coroutine function, which is called again and again.
            The condition holds if the function returns a true value. It does not hold
            if the function raises AssertionError.
        within: Seconds to wait at most.

    Returns:
        The first true value that the function returned.

    Raises:
        AssertionError: The condition did not hold in time. If the function raised
            AssertionError at the last call, this error is raised.
    """
    __tracebackhide__ = True  # pytest leaves this frame out
    failure: AssertionError | None = AssertionError("the condition has not returned")
    value: T | None = None
    began = anyio.current_time()
    with anyio.move_on_after(within):
        while True:
            try:
                found = condition()
                value = cast("T", await found if isawaitable(found) else found)
                failure = None
            except AssertionError as error:
                failure = error
            if failure is None and value:
                return value
            waited = anyio.current_time() - began
            await anyio.sleep(min(max(0.005, waited / 10), LONGEST_PAUSE))
    code = getattr(condition, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    text = f"the condition did not hold within {within:g} s{where}"
    if failure is None:
        text = f"{text}; it returned {value!r}, and a true value was expected"
        raise AssertionError(text)
    failure.add_note(text)
    raise failure
