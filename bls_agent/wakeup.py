"""A flag that any thread may raise and one task waits for.

The one place beside the agent's supervisor that speaks to the event loop directly:
anyio has no way to poke a loop from another thread without waiting for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from bls_agent.forking import register

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - see above
    from collections.abc import Callable

__all__ = ["Wakeup"]


class Wakeup:
    """Raised by anybody, at any time, from any thread, signal handler or finaliser.

    The waiting task clears the flag and *then* looks at the work, so that work which
    was put down before :meth:`set` is never overlooked.
    """

    def __init__(self) -> None:
        """Remember nothing but the flag; the loop is found by :meth:`bind`."""
        self._raised = False
        self._event = anyio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_called_in_task: Callable[[], bool] = _never

    def bind(self) -> None:
        """Make the running event loop the one to wake (called by the waiting task)."""
        import asyncio  # noqa: PLC0415, TID251 - 20 ms, not at import

        register(self)
        self._event = anyio.Event()
        self._loop = loop = asyncio.get_running_loop()

        def is_called_in_task() -> bool:
            # In a signal handler that interrupts the waiting loop there is no task.
            running = asyncio._get_running_loop()  # noqa: SLF001 - documented; does not raise
            return running is loop and asyncio.current_task(loop) is not None

        self._is_called_in_task = is_called_in_task
        if self._raised:
            self._event.set()

    def unbind(self) -> None:
        """Forget the loop: from now on the flag is only remembered."""
        self._loop = None

    def forget_parent(self) -> None:
        """In a forked child: the way into the loop leads to the parent."""
        self.unbind()

    def set(self) -> None:
        """Raise the flag; never waits, never raises."""
        if self._raised:
            return
        try:
            self._raised = True
            loop = self._loop
            if loop is None:
                return
            if self._is_called_in_task():  # 20 µs cheaper than to poke the loop
                self._event.set()
                return
            loop.call_soon_threadsafe(self._fire)
        except RuntimeError:  # the loop is closed: the flag stays raised for the next
            self._loop = None
        except BaseException:  # a signal's: nobody was poked
            self._raised = False
            raise

    def _fire(self) -> None:
        self._event.set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is raised, and clear it.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether the flag was raised.
        """
        with anyio.move_on_after(timeout):
            await self._event.wait()
        raised = self._raised
        self._event = anyio.Event()
        self._raised = False
        return raised


def _never() -> bool:
    return False
