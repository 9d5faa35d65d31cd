"""Reports which replicas of a project are alive, and writes their common status.

Replicas are several processes with the same project name. Each has an entry in a hash
in Redis: its status, and the time by the server's clock at which the entry expires. One
script writes the entry of a replica, and also writes the worst status of all living
replicas to the status key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from bls_agent.connection.connection import Connection
from bls_agent.connection.faults import NOT_ALLOWED
from bls_agent.connection.scripts import SPEAK
from bls_agent.core.errors import (
    DecodeError,
    RedisUnavailableError,
)
from bls_agent.core.keys import (
    INSTANCES,
    PROJECT_STATUS,
    checked_reply,
    encode_key,
    place_beside,
)
from bls_agent.project.messages import Status
from bls_agent.project.receive.receiver import Warn
from bls_agent.runtime.lease import belongs_to_dead, make_token

_WORST_FIRST: Final = tuple(
    status.value for status in sorted(Status, key=lambda s: s.severity, reverse=True)
)
_DIGITS: Final = 16  # an expiry in milliseconds has fewer digits
# How many reports without a second process of this name make the name unique again.
# FIRST applies after one sighting, which may be this process before a restart.
FIRST: Final = 2
MANY: Final = 8  # applies after two sightings


class ReplicaRegistry:
    """Reports the status of this instance, which is one of a project's replicas."""

    def __init__(self, project: str, instance: str, ttl: int, warn: Warn) -> None:
        self._status_key = PROJECT_STATUS.build(project=project)
        self._key = _key_of(project)
        self._instance = instance
        self._token = make_token(ttl)
        self._warn = warn
        self._namesakes = 0

    async def report(self, connection: Connection, status: Status, ttl: int) -> bool:
        """Report the status of this instance, valid for ``ttl`` seconds.

        The script also writes the worst status of all instances to the status key. With
        ``ttl=0`` the entry of this instance is removed. If the server refuses the
        script, log a warning and return false.
        """
        # The token "-" removes no entry, because the entry may belong to another
        # process of this name.
        token = "-" if self._is_shared and not ttl else self._token
        words = (self._instance, token, status.value, ttl * 1000)
        keys = [self._status_key, self._key]
        try:
            namesake, dropped = await SPEAK.run(
                connection, keys, [*words, *_WORST_FIRST]
            )
        except RedisUnavailableError as error:
            if error.kind not in NOT_ALLOWED:
                raise
            self._warn(
                "replicas cannot share a status on this server: each writes the status as if "
                "it were alone",
                {"key": self._key, "reason": error.kind},
            )
            return False
        other = namesake.decode("utf-8", "replace")
        self._record_namesake(found=bool(other) and not belongs_to_dead(other))
        if dropped:
            text = f"the list of replicas {self._key!r} held {dropped} entries that no replica writes: they were removed"
            self._warn(text, {"key": self._key})
        return True

    def _record_namesake(self, *, found: bool) -> None:
        """Record whether another process has this name. Log a warning while it has."""
        if found:
            self._namesakes = MANY if self._namesakes else FIRST
        else:
            self._namesakes = max(self._namesakes - 1, 0)
        if self._is_shared:
            self._warn(
                f"two processes are called {self._instance!r}: give each an instance "
                "of its own",
                {"instance": self._instance},
            )

    @property
    def _is_shared(self) -> bool:
        return self._namesakes > FIRST


def _key_of(project: str) -> str:
    place = place_beside(PROJECT_STATUS.locate(project=project))
    return INSTANCES.locate(place=place)


async def read_replicas(connection: Connection, project: str) -> dict[str, Status]:
    key = _key_of(project)
    requests = [("HGETALL", encode_key(key)), ("TIME",)]
    replies = await connection.read_many(requests)
    entries, clock = (checked_reply(reply, key) for reply in replies)
    seconds, micros = cast("Sequence[bytes]", clock)
    return list_living(entries, int(seconds) * 1000 + int(micros) // 1000)


def list_living(entries: Sequence[bytes], now: int) -> dict[str, Status]:
    """Return the status of each instance whose entry has not expired at ``now``.

    ``entries`` is the reply to HGETALL. ``now`` is in milliseconds of the server's
    clock.
    """
    living: dict[str, Status] = {}
    for name, entry in zip(entries[::2], entries[1::2], strict=True):
        parts = entry.split(b" ", 2)  # token, expiry, status
        if len(parts) == 3 and _is_later(parts[1], now):  # noqa: PLR2004
            try:
                status = Status.decode(parts[2])
            except DecodeError:
                continue
            living[name.decode("utf-8", "replace")] = status
    return dict(sorted(living.items()))


def _is_later(expiry: bytes, now: int) -> bool:
    return expiry.isdigit() and len(expiry) < _DIGITS and int(expiry) > now
