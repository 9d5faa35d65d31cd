"""Sends commands and settles dead letters. A log record may name the sender."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict

import anyio

from bls_agent.core.errors import BlsError, RedisUnavailableError
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, checked_reply, encode_key
from bls_agent.core.redaction import Redactor
from bls_agent.project.console.audit import (
    AuditRecord,
    find_sender,
    write_settlement,
)
from bls_agent.project.console.queue import CommandLists, wrong_type_of
from bls_agent.project.messages import Command

if TYPE_CHECKING:
    from bls_agent.connection.pool import ConnectionPool

RECORD_TIME: Final = 1.0  # seconds that a separate write of a record may take


class CallOptions(TypedDict, total=False):
    """The options that ``Console.call`` passes on to ``Console.send``."""

    create: bool
    size_limit: int
    source: str
    record: bool
    sent_by: str


@dataclass(frozen=True)
class RecordedActions:
    """Actions that write a record with the sender's name into the project's log.

    If the record cannot be written, the action still succeeds.
    """

    pool: ConnectionPool
    redactor: Redactor
    longest: int  # if the log has more records, a new record replaces the oldest
    clock: Callable[[], float]

    async def send(
        self, project: str, command: Command, payload: bytes, sender: str
    ) -> None:
        """Send a command, together with a record if ``sender`` is not empty.

        Both are sent in one round trip. Raises an error only if the command could not
        be written.
        """
        console, key = (
            row.locate(project=project) for row in (PROJECT_CONSOLE, CONTROL)
        )
        if not sender:
            with wrong_type_of(key):
                await self.pool.call(key, "RPUSH", payload)
            return
        note = AuditRecord(command, sender, self.redactor)
        pushes = [("RPUSH", encode_key(console), note.before(self.clock()))]
        pushes.append(("RPUSH", encode_key(key), payload))
        try:
            length, reply = await self.pool.call_many(pushes)
            checked_reply(reply, key)
        except BlsError as error:
            if not (isinstance(error, RedisUnavailableError) and error.connecting):
                with suppress(BlsError), anyio.move_on_after(RECORD_TIME):
                    after = note.after(error, self.clock())
                    length = await self.pool.call(console, "RPUSH", after)
                    await self._trim(console, length - 1)  # for the first record
                    await self._trim(console, length)
            raise
        await self._trim(console, length)

    async def settle(
        self,
        project: str,
        command_id: str | None,
        *,
        chooses_all: bool,
        requeues: bool,
        record: bool,
        sent_by: str,
    ) -> list[Command]:
        """Requeue or discard dead letters, and then write a record if ``record``."""
        sender = find_sender(sent_by, record=record)
        settled = await CommandLists(self.pool, project).settle_dead_letters(
            command_id, chooses_all=chooses_all, requeues=requeues
        )
        if settled and sender:
            done, now = "requeued" if requeues else "discarded", self.clock()
            note = write_settlement(settled, done, sender, self.redactor, now=now)
            console = PROJECT_CONSOLE.locate(project=project)
            with suppress(BlsError), anyio.move_on_after(RECORD_TIME):
                length = await self.pool.call(console, "RPUSH", note)
                await self._trim(console, length)
        return settled

    async def _trim(self, console: str, length: object) -> None:
        if isinstance(length, int) and length > self.longest:
            # Remove only one record, because the agent may allow a longer list.
            with suppress(BlsError):
                await self.pool.call(console, "LTRIM", 1, -1)
