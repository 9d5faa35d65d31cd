"""Reclaiming the commands in the in-flight lists of dead processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, cast

import anyio

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Argument
from bls_agent.connection.scripts import HAND_BACK, RECLAIM
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.project.receive.inflight import ReliableKeys, find_wrong_type
from bls_agent.runtime.lease import Lease

__all__ = ["MAX_DELIVERIES", "Reclaimer"]

logger = logging.getLogger(__name__)

MAX_DELIVERIES: Final = 3
DEAD_LETTER_LIMIT: Final = 1_000
DELIVERIES_TTL: Final = 7 * 86_400  # seconds
LIMITS: Final = (MAX_DELIVERIES, DEAD_LETTER_LIMIT, DELIVERIES_TTL)
LISTS_AT_ONCE: Final = 100  # of a fleet's; the next round finds others
COMMANDS_AT_ONCE: Final = 100  # so that a script is short
NO_LEASE: Final = -2  # PTTL of a key that is not there
QUIET: Final = 4.0  # seconds: longer than the block of a read of a dead process


class Reclaimer:
    """Gives back to the control list what dead processes had taken and not ended."""

    def __init__(
        self, keys: ReliableKeys, ttl: float, report_dead: Callable[[bytes], None]
    ) -> None:
        self._keys = keys
        self._quiet = max(QUIET, 2 * ttl)
        self._lease_ms = max(1, int(ttl * 1000))
        self._report_dead = report_dead
        self._empty_since: dict[str, float] = {}
        self._warned: set[str] = set()
        self.reclaimed = 0  # commands given back, or made dead letters

    async def look(
        self, connection: Connection, *, but: str = "", also: str = ""
    ) -> None:
        """Check the lists of all processes, and empty those of the dead.

        ``but`` is left alone; ``also`` is checked in any case.
        """
        lists = self._keys.lists
        try:
            found = await connection.call("SRANDMEMBER", lists, LISTS_AT_ONCE)
        except RedisUnavailableError as error:
            wrong = await find_wrong_type(connection, error, {lists: "set"})
            raise wrong or error from error
        names = [name.decode("utf-8", "replace") for name in found]
        names = [n for n in names if n != but and self._keys.is_inflight(n)]
        names += [also] if also and also not in names else []
        self._empty_since = {n: t for n, t in self._empty_since.items() if n in names}
        requests = [("PTTL", self._keys.owner(name)) for name in names]
        left = await connection.call_many(requests) if requests else []
        for name, answer in zip(names, left, strict=True):
            if answer == NO_LEASE:
                await self._empty(connection, name)
                continue
            if isinstance(answer, int) and not 0 <= answer <= self._lease_ms:
                await self._empty(
                    connection, name
                )  # alive; a lease that is too long is cut
            self._empty_since.pop(name, None)

    async def _empty(self, connection: Connection, name: str) -> None:
        """Empty one list; remove its name when it has stayed empty for a while.

        Not at once, because a read of the dead process may still stand at the server.
        """
        moved = COMMANDS_AT_ONCE
        while moved == COMMANDS_AT_ONCE:
            now = anyio.current_time()
            quiet = now - self._empty_since.setdefault(name, now) >= self._quiet
            try:
                moved = await self._reclaim(connection, name, strike_off=quiet)
            except RedisUnavailableError as error:
                wrong = await find_wrong_type(connection, error, self._keys.types(name))
                if wrong is None or wrong.key not in (name, self._keys.owner(name)):
                    raise wrong or error from error
                self._warn_once(str(wrong))
                return
            if moved:
                self._empty_since[name] = now

    async def return_inherited(
        self, connection: Connection, lease: Lease, found: Sequence[bytes]
    ) -> bool:
        """Put back what a dead process of our own name has left in our list.

        That process may have started all of it, so each has one more delivery. Returns
        whether the list was ours.
        """
        ours, dead = await self._hand_back(connection, lease, [0, 0, *found])
        if ours:
            self._record(lease.key, len(found), dead)
        return bool(ours)

    async def give_back(
        self,
        connection: Connection,
        lease: Lease,
        *,
        stay: Sequence[bytes],
        started: Sequence[bytes] = (),
        is_final: bool = False,
    ) -> None:
        """Put everything in our list back except ``stay``.

        What was started has one more delivery. With ``is_final`` the list is given up.
        """
        rest: list[Argument] = [int(is_final), len(stay), *stay, *started]
        _, dead = await self._hand_back(connection, lease, rest)
        for payload in dead:
            self._report_dead(payload)

    async def _hand_back(
        self, connection: Connection, lease: Lease, rest: Sequence[Argument]
    ) -> tuple[int, list[bytes]]:
        keys = self._keys
        return cast(
            "tuple[int, list[bytes]]",
            await HAND_BACK.run(
                connection,
                [
                    keys.control,
                    lease.key,
                    lease.owner_key,
                    keys.deliveries,
                    keys.dead,
                    keys.lists,
                ],
                [lease.token or "?", *LIMITS, *rest],
            ),
        )

    def _record(self, name: str, moved: int, dead: Sequence[bytes]) -> None:
        self.reclaimed += moved
        if moved:
            logger.info("%d commands of a dead process reclaimed: %s", moved, name)
        for payload in dead:
            self._report_dead(payload)

    async def _reclaim(
        self, connection: Connection, name: str, *, strike_off: bool
    ) -> int:
        keys = self._keys
        reply = await RECLAIM.run(
            connection,
            [
                keys.control,
                name,
                keys.owner(name),
                keys.deliveries,
                keys.dead,
                keys.lists,
            ],
            [COMMANDS_AT_ONCE, *LIMITS, int(strike_off), self._lease_ms],
        )
        _, moved, dead = cast("tuple[int, int, list[bytes]]", reply)
        self._record(name, moved, dead)
        return moved

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s", text)
