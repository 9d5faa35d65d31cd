"""The time limits of running handlers: one timer for all of them.

A cancel scope with a deadline for each command would cost about as much as all the rest
of a short one; most commands end long before their limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - see begin()

__all__ = ["Deadlines"]

INSIST_EVERY: Final = 0.5  # seconds until a handler that goes on is cancelled again


class Deadlines:
    """Cancels the task of a handler whose time is over, and again while it goes on.

    The clock is that of ``anyio.current_time()``.
    """

    def __init__(self) -> None:
        """Begin with nothing that runs."""
        self._ends: dict[asyncio.Task[Any], float] = {}
        self._cancels: dict[asyncio.Task[Any], int] = {}
        self._on_resisted: dict[asyncio.Task[Any], Callable[[], object]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def begin(
        self, deadline: float | None, on_resisted: Callable[[], object]
    ) -> asyncio.Task[Any]:
        """Note when the handler that the running task is about to call must be done.

        Args:
            deadline: When its time is over; ``None`` for never.
            on_resisted: Called once if it goes on although it was cancelled.
        """
        import asyncio  # noqa: PLC0415, TID251 - 20 ms; anyio cannot cancel a task

        task = cast("asyncio.Task[Any]", asyncio.current_task())
        if deadline is not None:
            self._ends[task] = deadline
            self._on_resisted[task] = on_resisted
            if deadline < self._timer_at:
                self._set_timer(task.get_loop(), deadline)
        return task

    def end(self, task: asyncio.Task[Any]) -> bool:
        """Take back what was done to a task; tell whether its time was over."""
        self._ends.pop(task, None)
        self._on_resisted.pop(task, None)
        cancels = self._cancels.pop(task, 0)
        for _ in range(cancels):
            task.uncancel()
        return cancels > 0

    def _set_timer(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = loop.call_at(when, self._cancel_late_ones, loop)

    def _cancel_late_ones(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task, deadline in self._ends.items():
            if deadline <= now:
                cancels = self._cancels.get(task, 0)
                self._cancels[task] = cancels + 1
                self._ends[task] = now + INSIST_EVERY
                task.cancel()
                if cancels == 1:
                    self._on_resisted[task]()
        self._timer, self._timer_at = None, math.inf
        earliest = min(self._ends.values(), default=math.inf)
        if earliest < math.inf:
            self._set_timer(loop, earliest)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, math.inf
