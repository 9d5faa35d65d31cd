"""Starting a task that may be cancelled before its first step.

From 4.14 on anyio wraps the coroutine that it makes at once. A task that somebody
cancels before it has begun never gets to what is wrapped, and Python complains of a
coroutine that was never awaited, in the host's name. So it is made in the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from anyio.abc import TaskGroup

__all__ = ["start_soon"]


def start_soon(
    group: TaskGroup, function: Callable[..., Coroutine[Any, Any, None]], *args: object
) -> None:
    """Start a task in a group; what was never begun leaves nothing to complain of."""
    name = getattr(function, "__qualname__", repr(function))
    if hasattr(group, "create_task"):
        group.start_soon(_Unbegun, function, args, name=name)
    else:  # before anyio 4.14, which asks a task's own coroutine how far it is
        group.start_soon(function, *args, name=name)


class _Unbegun(Coroutine[Any, Any, None]):
    """A coroutine that is made when it is first asked for anything."""

    def __init__(
        self,
        function: Callable[..., Coroutine[Any, Any, None]],
        args: tuple[object, ...],
    ) -> None:
        self._function = function
        self._args = args
        self._begun: Coroutine[Any, Any, None] | None = None

    def _begin(self) -> Coroutine[Any, Any, None]:
        if self._begun is None:
            self._begun = self._function(*self._args)
        return self._begun

    def __await__(self) -> Generator[Any, Any, None]:
        return self._begin().__await__()

    def send(self, value: Any, /) -> Any:
        return self._begin().send(value)

    def throw(self, *error: Any) -> Any:
        if self._begun is None:
            raise error[-1] if isinstance(error[-1], BaseException) else error[0]
        return self._begun.throw(*error)

    def close(self) -> None:
        if self._begun is not None:
            self._begun.close()
