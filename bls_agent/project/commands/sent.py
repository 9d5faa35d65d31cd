"""What the console list is told of a command that somebody sends: no I/O."""

from __future__ import annotations

from bls_agent.codec import cut_text
from bls_agent.errors import BlsError, ConfigurationError, RedisUnavailableError
from bls_agent.project.log.records import LogRecord
from bls_agent.project.messages import Command, Level
from bls_agent.redaction import DEFAULT, Redactor

__all__ = ["SendNote"]


class SendNote:
    """Who sends what: the record before a command, and the one after a failure.

    Args:
        command: What is sent.
        sent_by: Who sends it.
        redactor: Takes the secrets out of the arguments.

    Raises:
        ConfigurationError: ``sent_by`` is no text, or blank.
    """

    def __init__(
        self, command: Command, sent_by: str, redactor: Redactor = DEFAULT
    ) -> None:
        """Keep what both records say."""
        _check_sender(sent_by)
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

    def before(self, now: float) -> bytes:
        """Write the record that goes first.

        Args:
            now: Unix seconds.
        """
        message = f"command {self._name!r} sent by {cut_text(self._sent_by, 100)}"
        told = self._metadata | {"args": self._args, "source": self._source}
        return self._write(Level.INFO, message, told, now)

    def after(self, error: BlsError, now: float) -> bytes:
        """Write the record that says that the command was not sent, or perhaps not.

        Args:
            error: What was raised.
            now: Unix seconds.
        """
        unknown = isinstance(error, RedisUnavailableError) and error.ambiguous
        said = "may not have been sent" if unknown else "was not sent"
        message = f"command {self._name!r} {said}: {error}"
        told = self._metadata | {
            "sent": None if unknown else False,
            "error": {"type": type(error).__name__, "message": str(error)},
        }
        return self._write(Level.WARN, message, told, now)

    def _write(
        self, level: Level, message: str, metadata: dict[str, object], now: float
    ) -> bytes:
        record = LogRecord(level, message, metadata, now=now, redactor=self._redactor)
        return record.payload


def _check_sender(sent_by: object) -> None:
    if not isinstance(sent_by, str) or not sent_by.strip():
        raise ConfigurationError("sent_by", sent_by, "a text that is not blank")
