"""A sink that sends the records of loguru into the console list."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from bls_agent.project.log.bridge import (
    HasLog,
    call_guarded,
    clean_fields,
    describe_exception,
    find_log,
    is_ignored,
    level_of,
    strip_colours,
)

if TYPE_CHECKING:
    from loguru import Message

__all__ = ["loguru_sink"]


def loguru_sink(agent: HasLog) -> Callable[[Message], None]:
    """Return a sink for ``logger.add(loguru_sink(agent))``.

    The message is the record's own message, whatever ``format`` is. The metadata
    contains the fields of ``bind``, ``contextualize`` and ``patch``, the name of the
    module as ``logger``, and ``exception``. A field whose name this package uses gets
    an underscore at its end, like ``agent_``. A record is sent only if it reaches the
    sink's ``level`` and the agent's ``log_level``. Like ``agent.log``, the sink never
    waits and never raises, in any thread. Records of the modules of ``bls_agent`` and
    ``redis`` are not sent.

    Args:
        agent: The agent into whose console list the records go.

    Raises:
        ConfigurationError: ``agent`` has no log.
    """
    log = find_log(agent)

    def send(message: Message) -> None:
        record = message.record
        level, number = level_of(record["level"].no), record["level"].no
        if is_ignored(record["name"]) or not log.is_enabled_for(level):
            return
        metadata = {"logger": record["name"]}
        if number >= logging.CRITICAL:
            metadata["severity"] = record["level"].name
        metadata |= clean_fields(record["extra"])
        if record["exception"] is not None:
            metadata |= describe_exception(record["exception"].value)
        at = record["time"].timestamp()
        log.write(level, strip_colours(record["message"]), metadata, at=at)

    return lambda message: call_guarded(log, send, message)
