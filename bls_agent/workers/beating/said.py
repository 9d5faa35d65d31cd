"""What a worker says of itself at this moment, for everybody who changes or writes it."""

from __future__ import annotations

import copy
import threading
from typing import Any

from bls_agent.after_fork import register
from bls_agent.workers.heartbeats import WorkerHeartbeat

__all__ = ["Said"]


class Said:
    """What a worker says of itself; changed by anybody, read by whoever writes it.

    What is read is never changed afterwards. The lock may be taken again by what
    interrupts its holder: a signal handler or a finaliser.

    Attributes:
        now: What is said now.
    """

    def __init__(self, heartbeat: WorkerHeartbeat) -> None:
        """Begin with a copy of this."""
        self.now = copy.deepcopy(heartbeat)
        self._lock = threading.RLock()
        register(self)

    def forget_parent(self) -> None:
        """In a forked child: a thread that is not here may hold the lock."""
        self._lock = threading.RLock()

    def change(self, changes: dict[str, Any]) -> None:
        """Say something else.

        Raises:
            ConfigurationError: A field is unknown or cannot hold that value.
        """
        with self._lock:
            while True:
                before = self.now
                after = copy.deepcopy(before.changed(**changes))
                if self.now is before:
                    self.now = after
                    return
