"""Daemon threads for handlers that are plain functions, one for each handler slot.

Worker threads of anyio are not used, because the program shares them, and because they
delay the interpreter's exit while a handler hangs.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from bls_agent.connection.after_fork import exit_if_child, register
from bls_agent.core.errors import ConfigurationError

if TYPE_CHECKING:
    import asyncio


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Return whether a call returns a coroutine; accepts partials and any callable."""
    plain = function
    while isinstance(plain, partial):
        plain = plain.func
    if isinstance(plain, type):
        return False  # calling a class makes an object
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(
        getattr(plain, "__call__", None)  # noqa: B004 - the method is needed
    )


class HandlerThreads:
    """Runs plain functions in daemon threads, which are started when needed."""

    def __init__(self) -> None:
        self._pool = _Pool()
        # Called in the loop's thread when a call ends after its command has timed out.
        self.on_freed: Callable[[], None] = lambda: None

    @property
    def stuck(self) -> int:
        """Number of calls that still run although their command has timed out."""
        return self._pool.stuck

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        if not callable(function):
            raise ConfigurationError("function", repr(function), "a function")

        async def call(*values: Any, **arguments: Any) -> Any:
            return await self.run(partial(function, *values, **arguments))

        return call

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function in a daemon thread, with this task's context variables.

        A cancelled caller stops waiting, but the thread continues. :attr:`stuck` counts
        such calls until they end.
        """
        import asyncio  # noqa: PLC0415 - a thread can wake only a loop of asyncio

        loop, pool = asyncio.get_running_loop(), self._pool
        call = _Call(function, loop, pool, self._finished, pool.forks)
        self._pool.submit(call)
        try:
            await call.done.wait()
        finally:
            if not call.done.is_set():
                call.abandoned = True
                call.pool.stuck += 1
        error, call.error = call.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it would keep this frame, and so the arguments, in memory
        return call.result

    def _finished(self, call: _Call) -> None:
        """Record that a call has ended and its thread is free, in the loop's thread."""
        call.pool.idle += 1
        call.done.set()
        if call.abandoned:
            call.pool.stuck -= 1
            if call.pool is self._pool:  # else the call began before close()
                self.on_freed()

    def close(self) -> None:
        """End the idle threads at once, and busy threads after their call."""
        pool, self._pool = self._pool, _Pool()
        pool.close()


class _Pool:
    """The threads that take calls until close(), after which a new pool is made."""

    def __init__(self) -> None:
        self.idle = 0
        self.stuck = 0
        self.forks = 0
        self._threads = 0
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()

    def submit(self, call: _Call) -> None:
        if self.idle > 0:
            self.idle -= 1
        else:
            register(self)
            self._threads += 1
            name = f"bls-agent-handler-{self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        self._calls.put(call)

    def _work(self) -> None:
        calls = self._calls
        while calls is self._calls and (call := calls.get()) is not None:
            call()
            del call  # else the thread would keep its values until the next call

    def reset_after_fork(self) -> None:
        """Forget the threads, because a forked child has only the forking thread."""
        self.idle = self.stuck = self._threads = 0
        # A thread that the child does not have may hold the lock of the old queue.
        self._calls = queue.SimpleQueue()
        self.forks += 1

    def close(self) -> None:
        for _ in range(self._threads):
            self._calls.put(None)


@dataclass(eq=False)
class _Call:
    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    pool: _Pool
    finished: Callable[[_Call], None]
    forks: int  # the pool's count of forks when the call was made
    process: int = field(default_factory=os.getpid)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    done: anyio.Event = field(default_factory=anyio.Event)
    abandoned: bool = False
    result: Any = None
    error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self.result = self.context.run(self.function)
        except KeyboardInterrupt as error:  # no signal, which only the main thread gets
            self.error = RuntimeError("KeyboardInterrupt raised by the handler")
            self.error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - run() raises the error
            self.error = error
        if self.forks != self.pool.forks:
            exit_if_child(self.error, self.process)
            return  # this is a forked child, which must not use the parent's loop
        with contextlib.suppress(RuntimeError):  # if the loop is closed, no task waits
            self.loop.call_soon_threadsafe(self.finished, self)
