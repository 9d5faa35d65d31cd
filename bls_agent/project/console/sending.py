"""Sends a command together with the record that names its sender."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.core.errors import BlsError, RedisUnavailableError
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, checked_reply, encode_key
from bls_agent.project.commands.audit import AuditRecord

if TYPE_CHECKING:
    from bls_agent.connection.pool import ConnectionPool

RECORD_TIME: Final = 1.0  # seconds at most to record that a command was not sent


async def send_recorded(
    pool: ConnectionPool,
    project: str,
    payload: bytes,
    note: AuditRecord,
    *,
    longest: int,
    clock: Callable[[], float],
) -> None:
    """Send record and command in one write; only the command must succeed.

    If the log has more than ``longest`` records, the oldest record is removed.
    """
    console, key = (row.locate(project=project) for row in (PROJECT_CONSOLE, CONTROL))
    pushes = [("RPUSH", encode_key(console), note.before(clock()))]
    pushes.append(("RPUSH", encode_key(key), payload))
    try:
        length, reply = await pool.call_many(pushes)
        checked_reply(reply, key)
    except BlsError as error:
        if not (isinstance(error, RedisUnavailableError) and error.connecting):
            with suppress(BlsError), anyio.move_on_after(RECORD_TIME):
                await pool.call(console, "RPUSH", note.after(error, clock()))
        raise
    if isinstance(length, int) and length > longest:
        with suppress(BlsError):  # one record: the list may be longer on purpose
            await pool.call(console, "LTRIM", 1, -1)
