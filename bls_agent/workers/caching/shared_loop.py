"""The one thread in which the caches of a process speak to Redis for plain functions."""

from __future__ import annotations

from threading import RLock
from typing import Final

from bls_agent.after_fork import register
from bls_agent.errors import RedisUnavailableError
from bls_agent.loop_thread import LoopThread
from bls_agent.threads import HandlerThreads

__all__ = ["SHARED_LOOP"]


class _SharedLoop:
    """A loop's thread that is started when it is first needed, once in each process.

    Attributes:
        workers: Threads for functions that run in the background.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._thread: LoopThread | None = None
        self.workers = HandlerThreads()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in the thread itself: who waits would wait for himself."""
        return self._thread is not None and self._thread.is_here

    def find(self) -> LoopThread:
        """Give the thread.

        Raises:
            RedisUnavailableError: The interpreter ends, no thread can be started.
        """
        thread = self._thread
        if thread is not None:
            return thread
        with self._lock:
            if self._thread is None:
                register(self)
                thread = LoopThread("bls-agent-cache")
                try:
                    thread.start()
                except RuntimeError as error:
                    raise RedisUnavailableError("closed", str(error)) from error
                self._thread = thread
            return self._thread

    def forget_parent(self) -> None:
        """In a forked child: the thread is not here."""
        self._lock = RLock()
        self._thread = None
        self.workers = HandlerThreads()


SHARED_LOOP: Final = _SharedLoop()
