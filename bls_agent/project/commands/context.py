"""What a handler and a middleware are told about the command they run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bls_agent.codec import JSONObject
from bls_agent.project.log.logs import Log

__all__ = ["CommandContext"]


@dataclass(frozen=True, kw_only=True)
class CommandContext:
    """The command that is being run.

    Annotate a parameter of a handler with this class to get it.

    Attributes:
        id: The command's id.
        timestamp: When it was sent, as the sender wrote it, or ``""``.
        source: Who sent it, or ``""``.
        command: Its name.
        args: Its arguments as they were sent, before binding.
        delivery: 1; more if the command was handed out before (mode ``reliable``).
        deadline: When the handler will be cancelled, on the clock of
            ``anyio.current_time()`` in seconds; ``None`` for never.
        log: The agent's log, bound to this command.
    """

    id: str
    command: str
    timestamp: str = ""
    source: str = ""
    args: JSONObject = field(default_factory=dict[str, Any], repr=False)  # secrets
    delivery: int = 1
    deadline: float | None = None
    log: Log
