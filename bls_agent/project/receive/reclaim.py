"""Giving commands back to the control list: of dead processes, and of this one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, cast

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Argument
from bls_agent.connection.reconnect import Complaints
from bls_agent.connection.scripts import HAND_BACK, RECLAIM, find_wrong_type
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.project.receive.inflight import ReliableKeys
from bls_agent.runtime.lease import Lease

__all__ = ["MAX_DELIVERIES", "Reclaimer"]

logger = logging.getLogger(__name__)

MAX_DELIVERIES: Final = 3
DEAD_LETTER_LIMIT: Final = 1_000
DELIVERIES_TTL: Final = 7 * 86_400  # seconds
LIMITS: Final = (MAX_DELIVERIES, DEAD_LETTER_LIMIT, DELIVERIES_TTL)
LISTS_AT_ONCE: Final = 100  # of a fleet's; the next round finds others
COMMANDS_AT_ONCE: Final = 100  # so that a script is short


class Reclaimer:
    """Gives back to the control list what was taken and did not end."""

    def __init__(
        self,
        connection: Connection,
        keys: ReliableKeys,
        ttl: float,
        report_dead: Callable[[bytes], None],
        complaints: Complaints,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._lease_ms = max(1, int(ttl * 1000))
        self._report_dead = report_dead
        self._complaints = complaints
        self.reclaimed = 0  # commands of dead processes, dead letters included

    async def look(self, *, but: str) -> None:
        """Check the lists of all processes but one, and empty those of the dead."""
        call, lists = self._connection.call, self._keys.lists
        try:
            found = await call("SRANDMEMBER", lists, LISTS_AT_ONCE)
        except RedisUnavailableError as error:
            wrong = await find_wrong_type(self._connection, error, {lists: "set"})
            raise wrong or error from error
        names = [name.decode("utf-8", "replace") for name in found]
        names = [n for n in names if n != but and self._keys.is_inflight(n)]
        requests = [("PTTL", self._keys.owner(name)) for name in names]
        left = await self._connection.call_many(requests)
        for name, answer in zip(names, left, strict=True):
            # Of a living process the script cuts a lease that is too long.
            if isinstance(answer, int) and not 0 <= answer <= self._lease_ms:
                await self.empty(name)

    async def empty(self, name: str) -> bool:
        """Empty a list unless its owner lives; return whether the owner lives."""
        moved = COMMANDS_AT_ONCE
        while moved == COMMANDS_AT_ONCE:
            try:
                lives, moved = await self._reclaim(name)
            except RedisUnavailableError as error:
                types = self._keys.types(name)
                wrong = await find_wrong_type(self._connection, error, types)
                if wrong is None or wrong.key not in (name, self._keys.owner(name)):
                    raise wrong or error from error
                self._complaints.say("commands stay where they are", wrong)
                return False
            if lives:
                return True
        return False

    async def _reclaim(self, name: str) -> tuple[bool, int]:
        keys = self._keys
        named = [keys.control, name, keys.owner(name)]
        reply = await RECLAIM.run(
            self._connection,
            [*named, keys.deliveries, keys.dead, keys.lists],
            [COMMANDS_AT_ONCE, *LIMITS, self._lease_ms],
        )
        lives, moved, dead = cast("tuple[int, int, list[bytes]]", reply)
        self.reclaimed += moved
        if moved:
            logger.info("%d commands of a dead process reclaimed: %s", moved, name)
        for payload in dead:
            self._report_dead(payload)
        return bool(lives), moved

    async def give_back(
        self,
        connection: Connection,
        lease: Lease,
        *,
        stay: Sequence[bytes],
        started: Sequence[bytes] = (),
        is_final: bool = False,
    ) -> list[bytes] | None:
        """Put everything in our list back except ``stay``.

        What was started has one more delivery. With ``is_final`` the list is given up.
        Returns what of ``stay`` does not stand there; ``None`` if the list is not ours.
        """
        keys = self._keys
        rest: list[Argument] = [int(is_final), len(stay), *stay, *started]
        named = [keys.control, lease.key, lease.owner_key]
        reply = await HAND_BACK.run(
            connection,
            [*named, keys.deliveries, keys.dead, keys.lists],
            [lease.token or "?", *LIMITS, *rest],
        )
        ours, dead, missing = cast("tuple[int, list[bytes], list[bytes]]", reply)
        for payload in dead:
            self._report_dead(payload)
        return missing if ours else None
