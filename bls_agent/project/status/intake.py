"""Publishes which agents of a project are paused, in a hash in Redis.

The hash maps the name of an instance to a report in JSON. A report contains the time by
the server's clock at which the report expires, because a killed process does not remove
its report.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from bls_agent.core.codec import (
    JSONObject,
    JSONValue,
    decode_object,
    encode,
    format_timestamp,
)
from bls_agent.core.errors import DecodeError, RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import CONTROL, INTAKE, encode_key, place_beside
from bls_agent.project.messages import IntakeState

if TYPE_CHECKING:
    from bls_agent.connection.connection import Connection
    from bls_agent.connection.pool import ConnectionPool

TTL: Final = cast("int", INTAKE.ttl)  # seconds until a report expires
MOST: Final = 253_402_300_799_000  # milliseconds; the end of the year 9999


@dataclass(frozen=True, kw_only=True)
class IntakeReport:
    """The report of one process that takes no commands.

    Attributes:
        state: ``paused``, ``draining`` or ``drained``.
        reason: The reason from the sender of ``pause`` or ``drain``, or ``""``.
        since: The time of the change to this state, in Unix seconds of the server's
            clock.
        age: Seconds from ``since`` to the reading of the report.
        in_hand: Number of commands that the process has taken and that have not ended.
    """

    state: IntakeState
    reason: str = ""
    since: float
    age: float = field(default=0.0, compare=False)
    in_hand: int = 0


def describe_reports(reports: Mapping[str, IntakeReport]) -> list[JSONObject]:
    """Return the reports in the form for JSON output."""
    return [
        {
            "instance": instance,
            "state": report.state.value,
            "reason": report.reason,
            "since": format_timestamp(report.since),
            "age": round(report.age, 3),
            "inHand": report.in_hand,
        }
        for instance, report in reports.items()
    ]


def intake_key(project: str) -> str:
    return INTAKE.locate(place=place_beside(CONTROL.locate(project=project)))


def read_reports(entries: Sequence[bytes], now: float) -> dict[str, IntakeReport]:
    """Return the reports that have not expired at ``now``.

    ``entries`` is the reply to HGETALL. ``now`` is in Unix seconds of the server's
    clock.
    """
    reports: dict[str, IntakeReport] = {}
    for name, entry in zip(entries[::2], entries[1::2], strict=True):
        try:
            fields = decode_object(entry)
            named = fields.get("state")
            state = IntakeState(named if isinstance(named, str) else "")
        except (DecodeError, ValueError):
            continue
        if _number(fields.get("until")) / 1000 > now and state is not IntakeState.OPEN:
            since, reason = _number(fields.get("since")) / 1000, fields.get("reason")
            reports[name.decode("utf-8", "replace")] = IntakeReport(
                state=state,
                reason=reason if isinstance(reason, str) else "",
                since=since,
                age=max(0.0, now - since),
                in_hand=int(_number(fields.get("inHand"))),
            )
    return dict(sorted(reports.items()))


def _number(value: JSONValue) -> float:
    """Return a number that a time may be made of; other programs may write any value."""
    return float(min(max(value, 0), MOST)) if isinstance(value, int | float) else 0.0


async def read_intakes(
    pool: ConnectionPool, projects: Sequence[str]
) -> dict[str, Mapping[str, IntakeReport]]:
    """Return the reports of each project that has reports.

    A project is left out if Redis refuses to read its reports.
    """
    async with pool.to("") as connection:
        seconds, _ = await connection.read("TIME")
    keys = [encode_key(intake_key(project)) for project in projects]
    replies = await pool.read_many([("HGETALL", key) for key in keys])
    found: dict[str, Mapping[str, IntakeReport]] = {}
    for project, reply in zip(projects, replies, strict=True):
        if isinstance(reply, RedisRefusedError):  # no right, or a key of another type
            continue
        if isinstance(reply, RedisUnavailableError):
            raise reply
        if reports := read_reports(reply, int(seconds)):
            found[project] = reports
    return found


class IntakePublisher:
    """Writes the report of one process while the process is paused, and removes it."""

    def __init__(self, connection: Connection, project: str, instance: str) -> None:
        self._connection = connection
        self._key = intake_key(project)
        self.instance = instance
        self.published: bool = False  # whether a report may be in the hash

    async def publish(
        self, state: IntakeState, reason: str, changed_at: float, in_hand: int
    ) -> None:
        """Write the report.

        ``changed_at`` is the monotonic time in seconds at which the state changed.
        Raises RedisUnavailableError.
        """
        seconds, micros = await self._connection.call("TIME")
        now = int(seconds) * 1000 + int(micros) // 1000
        fields = {
            "state": state.value,
            "reason": reason,
            "since": now - int((time.monotonic() - changed_at) * 1000),
            "inHand": in_hand,
            "until": now + TTL * 1000,
        }
        self.published = True
        await self._call(
            ("HSET", self._key, self.instance, encode(fields)),
            ("PEXPIRE", self._key, TTL * 1000),
        )

    async def withdraw(self) -> None:
        """Remove the report, if there is one. Raises RedisUnavailableError."""
        if self.published:
            await self._call(("HDEL", self._key, self.instance))
            self.published = False

    async def _call(self, *requests: tuple[str | bytes | int, ...]) -> None:
        for reply in await self._connection.call_many(requests):
            if isinstance(reply, RedisUnavailableError):
                raise reply
