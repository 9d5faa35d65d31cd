"""One thread with an event loop for all of a kind that programs without a loop have open."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

from bls_agent.forking import register
from bls_agent.loop_thread import LoopThread

__all__ = ["SharedThread"]

LAST_WORDS: Final = 0.5  # seconds for the end of the thread


class SharedThread:
    """The thread for programs without an event loop; it ends with its last user."""

    def __init__(self, name: str, *, at_exit: float) -> None:
        """Remember; nothing is started yet.

        Args:
            name: What the thread is called.
            at_exit: Seconds that the exit of the interpreter waits at most for what
                was never closed.
        """
        self._name = name
        self._at_exit = at_exit
        self.forget_parent()

    def forget_parent(self) -> None:
        """In a forked child: there is none."""
        self._lock = threading.RLock()  # a signal handler may come in between
        self._thread: LoopThread | None = None
        self._users = 0

    def enter(self) -> LoopThread:
        """Give the thread, one user more; it is started for the first one."""
        register(self)
        with self._lock:
            if self._thread is None:
                thread = LoopThread(self._name)
                try:
                    thread.start()
                    atexit.register(self._end_at_exit, thread)
                    self._thread = thread
                except BaseException:  # a signal's, mostly: nobody else would end it
                    thread.stop()
                    raise
            self._users += 1
            return self._thread

    def open(self, opening: Callable[[], Coroutine[Any, Any, None]]) -> LoopThread:
        """Open something in the thread and give it, one user more if that worked.

        Raises whatever ``opening`` does, and what a signal raises meanwhile.
        """
        thread = self.enter()
        try:
            thread.call(opening)
        except BaseException:
            self.leave()
            raise
        return thread

    def leave(self) -> None:
        """Give it back; the last one ends it."""
        with self._lock:
            self._users -= 1
            if self._users or self._thread is None:
                return
            thread, self._thread = self._thread, None
            try:
                atexit.unregister(self._end_at_exit)
            finally:  # whatever a signal raises here
                thread.stop()
        thread.join(LAST_WORDS)

    def _end_at_exit(self, thread: LoopThread) -> None:
        """End what was never closed, when the interpreter exits."""
        thread.stop()
        thread.join(self._at_exit)
