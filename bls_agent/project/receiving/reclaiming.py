"""Looking after the in-flight lists of dead processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, cast

import anyio

from bls_agent.endpoint import Argument
from bls_agent.errors import RedisUnavailableError
from bls_agent.lease import Lease
from bls_agent.project.receiving.places import Places, find_wrong_type
from bls_agent.scripts import HAND_BACK, RECLAIM
from bls_agent.wire import Wire

__all__ = [
    "DEAD_LETTER_LIMIT",
    "DELIVERIES_TTL",
    "MAX_DELIVERIES",
    "Reclaimer",
]

logger = logging.getLogger(__name__)

MAX_DELIVERIES: Final = 3
DEAD_LETTER_LIMIT: Final = 1_000
DELIVERIES_TTL: Final = 7 * 86_400  # seconds
LISTS_AT_ONCE: Final = 100  # of a fleet's; the next look finds others
COMMANDS_AT_ONCE: Final = 100  # so that a script is short
NO_LEASE: Final = -2  # what PTTL says of a key that is not there
QUIET: Final = 4.0  # seconds: longer than the block of a read of a dead process


class Reclaimer:
    """Gives back to the control list what dead processes had taken and not ended.

    Attributes:
        reclaimed: Commands given back, or made dead letters.
    """

    def __init__(
        self, places: Places, ttl: float, report_dead: Callable[[bytes], None]
    ) -> None:
        """Remember the parts.

        Args:
            places: Where the lists are.
            ttl: Seconds of their leases.
            report_dead: Called for each command that became a dead letter.
        """
        self._places = places
        self._quiet = max(QUIET, 2 * ttl)
        self._lease_ms = max(1, int(ttl * 1000))
        self._report_dead = report_dead
        self._empty_since: dict[str, float] = {}
        self._said: set[str] = set()
        self.reclaimed = 0

    async def look(self, wire: Wire, *, but: str = "", also: str = "") -> None:
        """Look at the lists of all processes, and empty those of the dead.

        Args:
            wire: Over which.
            but: A list that is left alone.
            also: One that is looked at whether or not it is among those named.

        Raises:
            RedisUnavailableError: Not all were looked at.
            WrongTypeError: One of the keys holds another type.
        """
        lists = self._places.lists
        try:
            found = await wire.call("SRANDMEMBER", lists, LISTS_AT_ONCE)
        except RedisUnavailableError as error:
            wrong = await find_wrong_type(wire, error, {lists: "set"})
            raise wrong or error from error
        names = [name.decode("utf-8", "replace") for name in found]
        names = [n for n in names if n != but and self._places.is_inflight(n)]
        names += [also] if also and also not in names else []
        self._empty_since = {n: t for n, t in self._empty_since.items() if n in names}
        requests = [("PTTL", self._places.owner(name)) for name in names]
        left = await wire.call_many(requests) if requests else []
        for name, answer in zip(names, left, strict=True):
            if answer == NO_LEASE:
                await self._empty(wire, name)
                continue
            if isinstance(answer, int) and not 0 <= answer <= self._lease_ms:
                await self._empty(
                    wire, name
                )  # it lives; a lease that is too long is cut
            self._empty_since.pop(name, None)

    async def _empty(self, wire: Wire, name: str) -> None:
        """Empty one list; strike it off when it has stayed empty for a while.

        Not at once, because a read of the dead process may still stand at the server.
        """
        moved = COMMANDS_AT_ONCE
        while moved == COMMANDS_AT_ONCE:
            now = anyio.current_time()
            quiet = now - self._empty_since.setdefault(name, now) >= self._quiet
            try:
                moved = await self._reclaim(wire, name, strike_off=quiet)
            except RedisUnavailableError as error:
                wrong = await find_wrong_type(wire, error, self._places.types(name))
                if wrong is None or wrong.key not in (name, self._places.owner(name)):
                    raise wrong or error from error
                self._say_once(str(wrong))
                return
            if moved:
                self._empty_since[name] = now

    async def return_inherited(
        self, wire: Wire, lease: Lease, found: Sequence[bytes]
    ) -> bool:
        """Put back what a dead process of our own name has left in our list.

        It may have started all of it, so each has one more delivery.

        Args:
            wire: Over which.
            lease: Ours on the list.
            found: What stands there.

        Returns:
            Whether the list was ours.

        Raises:
            RedisUnavailableError: Nobody knows; look again.
        """
        places = self._places
        keys = [places.control, lease.key, lease.owner_key, places.deliveries]
        told: list[Argument] = [MAX_DELIVERIES, DEAD_LETTER_LIMIT, DELIVERIES_TTL]
        ours, dead = cast(
            "tuple[int, list[bytes]]",
            await HAND_BACK.run(
                wire,
                [*keys, places.dead, places.lists],
                [lease.token or "?", *told, 0, 0, *found],
            ),
        )
        if ours:
            self._note(lease.key, len(found), dead)
        return bool(ours)

    def _note(self, name: str, moved: int, dead: Sequence[bytes]) -> None:
        self.reclaimed += moved
        if moved:
            logger.info("%d commands of a dead process reclaimed: %s", moved, name)
        for payload in dead:
            self._report_dead(payload)

    async def _reclaim(self, wire: Wire, name: str, *, strike_off: bool) -> int:
        places = self._places
        keys = [
            places.control,
            name,
            places.owner(name),
            places.deliveries,
            places.dead,
            places.lists,
        ]
        reply = await RECLAIM.run(
            wire,
            keys,
            [
                COMMANDS_AT_ONCE,
                MAX_DELIVERIES,
                DEAD_LETTER_LIMIT,
                DELIVERIES_TTL,
                int(strike_off),
                self._lease_ms,
            ],
        )
        _, moved, dead = cast("tuple[int, int, list[bytes]]", reply)
        self._note(name, moved, dead)
        return moved

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)
