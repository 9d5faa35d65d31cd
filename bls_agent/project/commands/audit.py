"""Log records in which a sender documents its commands. No I/O."""

from __future__ import annotations

import getpass
import os
import socket

from bls_agent.core.codec import cut_text
from bls_agent.core.errors import BlsError, ConfigurationError, RedisUnavailableError
from bls_agent.core.redaction import DEFAULT, Redactor
from bls_agent.project.log.record import LogRecord
from bls_agent.project.messages import Command, Level


def local_user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user id without a name
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "?"
    return f"{user}@{socket.gethostname()}"


class AuditRecord:
    """Makes the log records of a sender: before sending, and after a failure."""

    def __init__(
        self, command: Command, sent_by: object, redactor: Redactor = DEFAULT
    ) -> None:
        if not isinstance(sent_by, str) or not sent_by.strip():
            raise ConfigurationError("sent_by", sent_by, "a text that is not blank")
        self._redactor = redactor
        self._name = cut_text(command.command, 100)
        self._sent_by = cut_text(sent_by, 1_000)
        self._args = command.args
        self._metadata: dict[str, object] = {
            "sentBy": self._sent_by,
            "commandId": command.id,
            "command": cut_text(command.command, 1_000),
        }
        self._source = command.source

    @classmethod
    def make(
        cls, command: Command, sent_by: str, redactor: Redactor, *, record: bool
    ) -> AuditRecord | None:
        """Make the records of a command; ``None`` if its sender is not recorded."""
        if record:
            return cls(command, sent_by or local_user(), redactor)
        if sent_by:
            rule = "it stands in the record of a command, which is off by default"
            raise ConfigurationError("sent_by", sent_by, rule, "Pass record=True.")
        return None

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
