"""Helpers for tasks: wake them from any thread, run them outside of cancel scopes.

asyncio is used where anyio has no equivalent: to wake a loop from another thread
without waiting, and to start a task that belongs to no cancel scope of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
from anyio.abc import TaskGroup

from bls_agent.connection.after_fork import register

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
_RUN_TO_END: Final[set[asyncio.Task[Any]]] = set()  # because a loop keeps no reference


class ThreadSafeEvent:
    """A flag for which one task waits; any thread or signal handler may set the flag.

    The task clears the flag and *then* checks for work, so that the task misses no
    work.
    """

    def __init__(self) -> None:
        self._raised = False
        self._event = anyio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asyncio: Any = None

    def bind(self) -> None:
        """Let :meth:`set` wake the running event loop; the waiting task calls this."""
        import asyncio  # noqa: PLC0415 - the import takes 20 ms

        register(self)
        self._event = anyio.Event()
        self._asyncio = asyncio
        self._loop = asyncio.get_running_loop()
        if self._raised:
            self._event.set()

    def unbind(self) -> None:
        """Forget the loop; until the next :meth:`bind`, :meth:`set` wakes no task."""
        self._loop = None

    reset_after_fork = unbind  # after a fork the loop belongs to the parent

    def set(self) -> None:
        """Set the flag; never wait, and raise no error of the event loop."""
        if self._raised:
            return
        try:
            self._raised = True
            loop = self._loop
            if loop is None:
                return
            running = self._asyncio._get_running_loop()  # noqa: SLF001 - documented; does not raise
            # This is true in a task of the loop, but not in a signal handler that runs
            # between two tasks.
            if running is loop and self._asyncio.current_task(loop) is not None:
                self._event.set()  # 20 µs cheaper than to wake the loop
            else:
                loop.call_soon_threadsafe(lambda: self._event.set())  # noqa: PLW0108 - wait() may replace the event
        except RuntimeError:  # the loop is closed; the flag stays set for the next loop
            self._loop = None
        except BaseException:  # raised by a signal handler: the loop was not woken
            self._raised = False
            raise

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, clear it, and return whether it was set."""
        with anyio.move_on_after(timeout):
            await self._event.wait()
        raised = self._raised
        self._event = anyio.Event()
        self._raised = False
        return raised


def start_background(
    function: Callable[[], Coroutine[Any, Any, T]],
    name: str,
    context: Context | None = None,
) -> asyncio.Task[T]:
    """Run a coroutine function in the running event loop, outside of every scope.

    The caller must keep a reference to the task, and wait for the end of the task. A
    task that serves several callers gets an empty context, because otherwise it keeps
    the objects in the context of the first caller in memory.
    """
    import asyncio  # noqa: PLC0415 - the import takes 20 ms

    loop = asyncio.get_running_loop()
    return loop.create_task(function(), name=name, context=context)


async def run_to_end(function: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
    """Await a coroutine function, which continues if the caller is cancelled."""
    import asyncio  # noqa: PLC0415 - the import takes 20 ms

    task = start_background(function, name)
    _RUN_TO_END.add(task)
    task.add_done_callback(_RUN_TO_END.discard)
    return await asyncio.shield(task)


async def cancel(task: asyncio.Task[Any] | None) -> None:
    """Cancel a background task and wait for its end; ignore its result or error."""
    import asyncio  # noqa: PLC0415 - the import takes 20 ms

    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task])


async def call_in(
    loop: asyncio.AbstractEventLoop,
    function: Callable[[], Coroutine[Any, Any, T]],
    within: float | None,
) -> T | None:
    """Run a coroutine function in ``loop``, and return its result.

    If ``loop`` is not the running loop, return ``None`` after ``within`` seconds,
    because another loop may hang.
    """
    import asyncio  # noqa: PLC0415 - anyio cannot reach another loop

    if loop is asyncio.get_running_loop():
        return await function()
    future = asyncio.run_coroutine_threadsafe(function(), loop)
    with anyio.move_on_after(within):
        return await asyncio.wrap_future(future)
    return None


def start_soon(
    group: TaskGroup, function: Callable[..., Coroutine[Any, Any, None]], *args: object
) -> None:
    """Start a task in a group that may be cancelled before its first step.

    anyio makes the coroutine at once. If the group is then cancelled, Python warns
    about a coroutine that was never awaited. So the coroutine is made in the first step
    of its task.
    """
    name = getattr(function, "__qualname__", repr(function))
    group.start_soon(LateCoroutine, partial(function, *args), name=name)


class LateCoroutine(Coroutine[Any, Any, T]):
    """A coroutine that calls its function in its first step, and not before.

    If there is no first step, for example because a signal handler has raised while the
    coroutine was passed to another thread, Python has no coroutine to warn about.
    """

    def __init__(self, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._function = function
        self._begun: Coroutine[Any, Any, T] | None = None

    def _begin(self) -> Coroutine[Any, Any, T]:
        if self._begun is None:
            self._begun = self._function()
        return self._begun

    def __await__(self) -> Generator[Any, Any, T]:
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
