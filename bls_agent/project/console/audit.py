"""Writes log records that name the sender of a command, or of a settlement.

A settlement puts dead letters back into the control list, or discards them. This module
does no I/O.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence
from typing import Final

from bls_agent.core.codec import cut_text
from bls_agent.core.errors import BlsError, ConfigurationError, RedisUnavailableError
from bls_agent.core.redaction import DEFAULT, Redactor
from bls_agent.project.log.record import LogRecord
from bls_agent.project.messages import Command, Level

MOST_IDS: Final = 100  # largest number of command ids in one record


def local_user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # the user id has no name
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "?"
    return f"{user}@{socket.gethostname()}"


def find_sender(sent_by: object, *, record: bool) -> str:
    """Return the name of the sender for a record, or ``""`` if ``record`` is false."""
    if not record and sent_by:
        rule = "it stands in a record, which is off by default"
        raise ConfigurationError("sent_by", sent_by, rule, "Pass record=True.")
    if not isinstance(sent_by, str) or (sent_by and not sent_by.strip()):
        raise ConfigurationError("sent_by", sent_by, "a text that is not blank")
    return cut_text(sent_by or local_user(), 1_000) if record else ""


def write_settlement(
    letters: Sequence[Command],
    done: str,
    sent_by: str,
    redactor: Redactor = DEFAULT,
    *,
    now: float,
) -> bytes:
    """Return the encoded record of settled dead letters.

    ``done`` is ``"requeued"`` or ``"discarded"``.
    """
    what = f"{len(letters)} dead letters"
    if len(letters) == 1:
        what = f"dead letter {cut_text(letters[0].command, 100)!r}"
    metadata: dict[str, object] = {
        "sentBy": sent_by,
        "count": len(letters),
        "commandIds": [cut_text(one.id, 100) for one in letters[:MOST_IDS]],
    }
    message = f"{what} {done} by {cut_text(sent_by, 100)}"
    record = LogRecord(Level.INFO, message, metadata, now=now, redactor=redactor)
    return record.payload


class AuditRecord:
    """Encodes the log records of one sent command.

    :meth:`before` returns the record that is written before the command is sent, and
    :meth:`after` the record that is written if sending fails.
    """

    def __init__(
        self, command: Command, sent_by: str, redactor: Redactor = DEFAULT
    ) -> None:
        self._redactor = redactor
        self._name = cut_text(command.command, 100)
        self._sent_by = sent_by
        self._args = command.args
        self._metadata: dict[str, object] = {
            "sentBy": sent_by,
            "commandId": command.id,
            "command": cut_text(command.command, 1_000),
        }
        self._source = command.source

    def before(self, now: float) -> bytes:
        message = f"command {self._name!r} sent by {cut_text(self._sent_by, 100)}"
        metadata = self._metadata | {"args": self._args, "source": self._source}
        return self._write(Level.INFO, message, metadata, now)

    def after(self, error: BlsError, now: float) -> bytes:
        unknown = isinstance(error, RedisUnavailableError) and error.ambiguous
        result = "may not have been sent" if unknown else "was not sent"
        message = f"command {self._name!r} {result}: {error}"
        metadata = self._metadata | {
            "sent": None if unknown else False,
            "error": {"type": type(error).__name__, "message": str(error)},
        }
        return self._write(Level.WARN, message, metadata, now)

    def _write(
        self, level: Level, message: str, metadata: dict[str, object], now: float
    ) -> bytes:
        record = LogRecord(level, message, metadata, now=now, redactor=self._redactor)
        return record.payload
