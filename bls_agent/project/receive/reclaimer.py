"""The keys of mode ``reliable``, and the return of commands from dead processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, cast

from bls_agent.connection.connection import Connection
from bls_agent.connection.reconnect import ThrottledLog
from bls_agent.connection.scripts import RECLAIM
from bls_agent.core.errors import RedisRefusedError
from bls_agent.core.keys import (
    DEAD_LETTERS,
    DELIVERIES,
    INFLIGHT,
    INFLIGHT_LISTS,
    OWNER,
    SEEN,
    place_beside,
)

logger: logging.Logger = logging.getLogger(__name__)

MAX_DELIVERIES: Final = 3
DEAD_LETTER_LIMIT: Final = 1_000
DELIVERIES_TTL: Final = cast("int", DELIVERIES.ttl)  # seconds
LISTS_AT_ONCE: Final = 100  # in-flight lists that one round checks, chosen at random
COMMANDS_AT_ONCE: Final = 100  # commands that one run of the script moves, at most


class ReliableKeys:
    """The keys of mode ``reliable``, in the same cluster slot as the control list.

    An in-flight list has the commands that one process has taken and not acknowledged.
    """

    def __init__(self, control: str) -> None:
        place = place_beside(control)
        self.control = control  # the control list of the console protocol
        # A hash. For each in-flight list: how many of its oldest commands may have
        # started.
        self.lists: str = INFLIGHT_LISTS.locate(place=place)
        # A hash. For each command that was put back: how often it was taken.
        self.deliveries: str = DELIVERIES.locate(place=place)
        # A sorted set with the ids of commands that have ended.
        self.seen: str = SEEN.locate(place=place)
        # A list of the commands that were taken too often without an end.
        self.dead_letters: str = DEAD_LETTERS.locate(place=place)

    def inflight(self, instance: str) -> str:
        return INFLIGHT.locate(place=place_beside(self.control), instance=instance)

    def owner(self, inflight: str) -> str:
        """Return the key of a list's lease, which exists while its process lives."""
        return OWNER.locate(place=place_beside(inflight))

    def is_inflight(self, key: str) -> bool:
        return key.startswith(self.inflight("")) and key != self.inflight("")

    def moving(self, inflight: str) -> tuple[str, ...]:
        """Return the keys for the scripts that put commands back, in their order."""
        owner = self.owner(inflight)
        return (
            *(self.control, inflight, owner, self.lists),
            *(self.deliveries, self.dead_letters),
        )

    def types(self, inflight: str) -> Mapping[str, str]:
        """Return the Redis type that each key must have."""
        return {
            self.control: "list",
            inflight: "list",
            self.owner(inflight): "string",
            self.lists: "hash",
            self.deliveries: "hash",
            self.seen: "zset",
            self.dead_letters: "list",
        }


class Reclaimer:
    """Puts the commands of dead processes back into the control list."""

    def __init__(
        self,
        connection: Connection,
        keys: ReliableKeys,
        ttl: float,
        report_dead: Callable[[bytes], None],
        throttled_log: ThrottledLog,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._lease_ms = max(1, int(ttl * 1000))
        self._report_dead = report_dead
        self._throttled_log = throttled_log
        self.reclaimed: int = 0  # moved commands, including those that are dead letters

    async def reclaim_all(self, *, but: str) -> None:
        """Empty the in-flight lists of dead processes. Skip the list ``but``."""
        call, lists = self._connection.call, self._keys.lists
        found = await call("HRANDFIELD", lists, LISTS_AT_ONCE)
        names = [name.decode("utf-8", "replace") for name in found]
        names = [n for n in names if n != but and self._keys.is_inflight(n)]
        requests = [("PTTL", self._keys.owner(name)) for name in names]
        left = await self._connection.call_many(requests)
        for name, answer in zip(names, left, strict=True):
            # The script is also run for a lease that is too long. It shortens the lease
            # of a living process.
            if isinstance(answer, int) and not 0 <= answer <= self._lease_ms:
                try:
                    await self.empty(name)
                except RedisRefusedError as error:
                    self._throttled_log.warn(f"commands stay in {name!r}", error)

    async def empty(self, name: str) -> bool:
        """Empty an in-flight list if its process is dead.

        Return whether the process lives.
        """
        moved = COMMANDS_AT_ONCE
        while moved == COMMANDS_AT_ONCE:
            reply = await RECLAIM.run(
                self._connection,
                self._keys.moving(name),
                RECLAIM.order(
                    milliseconds=self._lease_ms,
                    limit=COMMANDS_AT_ONCE,
                    most=MAX_DELIVERIES,
                    kept=DEAD_LETTER_LIMIT,
                    seconds=DELIVERIES_TTL,
                ),
            )
            lives, moved, dead = cast("tuple[int, int, list[bytes]]", reply)
            if lives:
                return True
            self.reclaimed += moved
            if moved:
                logger.info("%d commands of a dead process reclaimed: %s", moved, name)
            for payload in dead:
                self._report_dead(payload)
        return False
