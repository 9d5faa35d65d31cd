"""A processor that sends the events of structlog into the console list."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from bls_agent.project.log.bridge import (
    HasLog,
    call_guarded,
    clean_fields,
    cut_beginning,
    describe_exception,
    find_log,
    is_ignored,
    strip_colours,
)
from bls_agent.project.messages import Level

__all__ = ["BLSProcessor"]

# Fields that structlog adds, and fields that a record stores outside its metadata.
_NOT_METADATA: Final = frozenset(
    {
        *("_record", "_from_structlog", "event", "level", "level_number", "logger"),
        *("timestamp", "exc_info", "exception", "stack", "stack_info"),
    }
)


class BLSProcessor:
    """Sends each event into the agent's log and passes it on unchanged.

    Put the processor before the renderer and before ``format_exc_info``::

        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                BLSProcessor(agent),
                structlog.dev.ConsoleRenderer(),
            ]
        )

    The event becomes the message, and the bound keys become the metadata. A key whose
    name this package uses gets an underscore at its end, like ``agent_``. The agent's
    ``log_level`` applies. Like ``agent.log``, the processor never waits and never
    raises, in any thread. Events of the loggers ``bls_agent`` and ``redis`` are passed
    on, but are not sent.

    Args:
        agent: The agent into whose console list the events go.

    Raises:
        ConfigurationError: ``agent`` has no log.
    """

    def __init__(self, agent: HasLog) -> None:
        self._log = find_log(agent)

    def __call__(
        self, logger: Any, method_name: str, event_dict: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Send the event, and return it for the next processor."""
        call_guarded(self._log, self._send, logger, method_name, event_dict)
        return event_dict

    def _send(
        self, logger: Any, method_name: str, event: MutableMapping[str, Any]
    ) -> None:
        source = getattr(event.get("_record"), "name", None)  # a record of logging
        source = event.get("logger") or source or getattr(logger, "name", "")
        word = str(event.get("level", method_name)).lower()
        level = Level.ERROR if word == "exception" else Level.parse(word)
        if is_ignored(source) or not self._log.is_enabled_for(level):
            return
        metadata = {"logger": source} if source else {}
        if word in ("critical", "fatal"):
            metadata["severity"] = "CRITICAL"
        own = {name: event[name] for name in event if name not in _NOT_METADATA}
        metadata |= clean_fields(own)
        metadata |= describe_exception(event.get("exc_info"), event.get("exception"))
        if stack := event.get("stack"):
            metadata["stack"] = cut_beginning(str(stack))
        self._log.write(level, strip_colours(event.get("event", "")), metadata)
