"""What is said of a project while its event loop stands still, by the watchdog's thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bls_agent.project.log.logs import LogStream
from bls_agent.project.messages import Level, Status
from bls_agent.project.state.status import StatusBoard

if TYPE_CHECKING:
    from bls_agent.connection import Connections
    from bls_agent.endpoint import Endpoint
    from bls_agent.project.state.status_writer import StatusWriter
from bls_agent.pulse import StallCounts

__all__ = ["StallVoice"]

logger = logging.getLogger(__name__)


class StallVoice:
    """Keeps the status of one agent alive and true while its loop cannot.

    A source of the board says 故障 from the moment at which a stall is noticed until
    nothing of the thread can arrive any more: so the loop, once it moves, says 故障 as
    well until then, and what comes after that is the truth again. What is written is
    what the board says; before ``stall_after`` that is still the loop's own status,
    kept alive where it would vanish earlier.

    Attributes:
        endpoint: Where to speak.
        stall_after: Seconds of standing still that are a stall.
        speak_after: Seconds after which the status needs a refresh.
        interval: Seconds between two refreshes: less than a third of the TTL.
    """

    SOURCE = "event loop"

    def __init__(
        self,
        writer: StatusWriter,
        board: StatusBoard,
        stream: LogStream,
        counts: StallCounts,
        *,
        project: str,
        endpoint: Endpoint,
        connect: Callable[[], Connections],
        changed: Callable[[], None],
        stall_after: float,
        ttl: int,
    ) -> None:
        """Remember the parts.

        Args:
            writer: The loop's own; a copy of it writes over the thread's connection.
            board: Where it speaks.
            stream: Where the end of a stall is told.
            counts: Where stalls are counted.
            project: The project's name, for the host's log.
            endpoint: Where to speak.
            connect: Makes the connections of the thread.
            changed: Has the loop write the status once more.
            stall_after: Seconds of standing still that are a stall.
            ttl: Seconds a written status lives.
        """
        self._own_writer = writer
        self._writer: tuple[Connections, StatusWriter] | None = None
        self._board = board
        self._stream = stream
        self._counts = counts
        self._project = project
        self.endpoint = endpoint
        self.connect = connect
        self._changed = changed
        self.stall_after = stall_after
        self.speak_after = ttl / 3
        self.interval = ttl / 4

    def take_over(self) -> None:
        """What the thread writes is no stranger's."""
        self._own_writer.rivals.pause()

    def begin_stall(self, where: str) -> None:
        """Turn the status to 故障 and say where the loop stands."""
        self._counts.stalls += 1
        self._board.put(self.SOURCE, Status.FAULT)
        text = "%s: the event loop has not moved for %g s; it stands in %s"
        # In a thread that may be held: the loop may be standing in a handler of the log.
        threading.Thread(
            target=logger.warning,
            args=(text, self._project, self.stall_after, where),
            name="bls-agent stall",
            daemon=True,
        ).start()

    async def speak(self, connections: Connections) -> None:
        """Write what the board says.

        Raises:
            RedisUnavailableError: Not written, or perhaps.
            WrongTypeError: The key holds another type.
        """
        if self._writer is None or self._writer[0] is not connections:
            self._writer = connections, self._own_writer.over(connections)
        await self._writer[1].write(self._board.status(time.monotonic()))

    def give_back(self, seconds: float) -> None:
        """Withdraw the 故障, have the loop write the truth, and tell how long it was."""
        self._writer = None
        self._board.withdraw(self.SOURCE)
        self._own_writer.rivals.resume()
        self._changed()
        if not seconds:
            return
        self._counts.longest = max(self._counts.longest, seconds)
        self._stream.emit(
            Level.ERROR,
            f"the event loop stood still for {seconds:.1f} s",
            {"durationMs": round(seconds * 1000, 3), "stallAfter": self.stall_after},
            is_alarm=True,
        )
