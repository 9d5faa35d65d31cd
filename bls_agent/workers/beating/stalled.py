"""What heartbeats say while their event loop stands still, by the watchdog's thread."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Final, Protocol

from bls_agent.connection import Connections
from bls_agent.endpoint import Endpoint
from bls_agent.errors import RedisUnavailableError
from bls_agent.names import slot_of
from bls_agent.scripts import BEAT
from bls_agent.watchdog import StallCounts
from bls_agent.workers.beating.life import Life
from bls_agent.workers.heartbeat_fields import WorkerStatus

__all__ = ["StalledHeartbeats"]

logger = logging.getLogger(__name__)

BATCH: Final = 500  # heartbeats in one write
CAP: Final = 2.0  # seconds between two tries while Redis is away


class _Beats(Protocol):
    """The heartbeats of one event loop."""

    lives: dict[int, Life]
    stalls: StallCounts

    def hasten_all(self) -> None:
        """Have every beat written soon; from any thread."""
        ...


class StalledHeartbeats:
    """Keeps the heartbeats of one loop alive and true while the loop cannot.

    Only what is ours is written, and only as long as it is ours. Before ``stall_after``
    each says what it said, kept alive where it would vanish earlier; from then on
    ``error``.

    Attributes:
        endpoint: Where to speak.
        stall_after: Seconds of standing still that are a stall.
        publish_after: Seconds after which the first of them needs a refresh.
        interval: Seconds between two refreshes: less than a third of each TTL.
    """

    def __init__(
        self, endpoint: Endpoint, beats: _Beats, *, timeout: float, stall_after: float
    ) -> None:
        """Remember the parts.

        Args:
            endpoint: Where to speak.
            beats: Whose.
            timeout: Deadline of one request in seconds.
            stall_after: Seconds of standing still that are a stall.
        """
        self.endpoint = replace(endpoint, notes=())  # they have been said
        self._beats = beats
        self._timeout = timeout
        self._stalled = False
        self.stall_after = stall_after
        self.publish_after = self.interval = float("inf")

    def hurry(self, ttl: float) -> bool:
        """Note that one lives no longer than that; says whether that is news."""
        if ttl / 4 >= self.interval:
            return False
        self.publish_after, self.interval = ttl / 3, ttl / 4
        return True

    def connect(self) -> Connections:
        """Make the connections of the thread; nothing is opened yet."""
        first = next(iter(list(self._beats.lives.values())), None)
        return Connections(
            self.endpoint,
            "bls-agent:heartbeats:watchdog",
            timeout=self._timeout,
            reconnect_max=CAP,
            keys={"liveness": first.claim.key if first else ""},
        )

    def on_takeover(self) -> None:
        """Nothing has to be prepared: the order of writes is told by their numbers."""

    def on_stall(self, where: str) -> None:
        """Say ``error`` from now on, and tell where the loop stands."""
        self._stalled = True
        self._beats.stalls.stalls += 1
        text = "heartbeats: the event loop has not moved for %g s; it stands in %s"
        # In a thread that may be held: the loop may be standing in a handler of the log.
        threading.Thread(
            target=logger.warning,
            args=(text, self.stall_after, where),
            name="bls-agent stall",
            daemon=True,
        ).start()

    async def publish(self, connections: Connections) -> None:
        """Write every heartbeat that is ours.

        Raises:
            RedisUnavailableError: Not written, or perhaps.
        """
        lives = [life for life in list(self._beats.lives.values()) if not life.plain]
        if self.endpoint.is_cluster:  # a wire follows redirections, if there are few
            lives.sort(key=lambda life: slot_of(life.claim.key))
        status = WorkerStatus.ERROR if self._stalled else None
        failure: RedisUnavailableError | None = None
        for begin in range(0, len(lives), BATCH):
            runs = [
                life.claim.keep_request(life.value(status))
                for life in lives[begin : begin + BATCH]
            ]
            for reply in await BEAT.run_many(connections.liveness, runs):
                if isinstance(reply, RedisUnavailableError):
                    failure = reply
        if failure is not None:
            raise failure

    def on_recovery(self, seconds: float) -> None:
        """Have the loop write the truth, and tell how long it stood still."""
        self._stalled = False
        self._beats.hasten_all()
        if seconds:
            counts = self._beats.stalls
            counts.longest = max(counts.longest, seconds)
            logger.warning("the event loop stood still for %.1f s", seconds)
