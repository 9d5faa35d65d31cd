"""bls-agent connects a service to the BLS Project Console through a shared Redis.

Each public name is loaded at its first use, so that importing the package is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bls_agent.core import lazy

if TYPE_CHECKING:
    from bls_agent.agent import ProjectAgent
    from bls_agent.connection.access import RedisOrAgent
    from bls_agent.connection.endpoint import RedisSource
    from bls_agent.console import Console
    from bls_agent.core.errors import (
        ArgumentError,
        BlsError,
        CommandError,
        CommandTooLargeError,
        ConfigurationError,
        ContractError,
        DecodeError,
        DuplicateHandlerError,
        DuplicateItem,
        LeaseHeldError,
        ManifestError,
        ManifestFault,
        MissingExtraError,
        NoOutcomeError,
        RedisRefusedError,
        RedisUnavailableError,
        Reject,
        SourceError,
        UnknownCommandError,
        UnknownProjectError,
        WrongTypeError,
    )
    from bls_agent.core.settings import Settings
    from bls_agent.project.commands.router import CallNext, CommandContext
    from bls_agent.project.console.search import LogFilter, LogSearch
    from bls_agent.project.log.handler import BLSHandler
    from bls_agent.project.messages import (
        Command,
        Level,
        LogEntry,
        Outcome,
        OutcomeKind,
        Status,
    )
    from bls_agent.project.stats import AgentStats
    from bls_agent.runs.store import EventStore
    from bls_agent.sync_console import SyncConsole

__version__ = "0.1.0"

__all__ = [
    "AgentStats",
    "ArgumentError",
    "BLSHandler",
    "BlsError",
    "CallNext",
    "Command",
    "CommandContext",
    "CommandError",
    "CommandTooLargeError",
    "ConfigurationError",
    "Console",
    "ContractError",
    "DecodeError",
    "DuplicateHandlerError",
    "DuplicateItem",
    "EventStore",
    "LeaseHeldError",
    "Level",
    "LogEntry",
    "LogFilter",
    "LogSearch",
    "ManifestError",
    "ManifestFault",
    "MissingExtraError",
    "NoOutcomeError",
    "Outcome",
    "OutcomeKind",
    "ProjectAgent",
    "RedisOrAgent",
    "RedisRefusedError",
    "RedisSource",
    "RedisUnavailableError",
    "Reject",
    "Settings",
    "SourceError",
    "Status",
    "SyncConsole",
    "UnknownCommandError",
    "UnknownProjectError",
    "WrongTypeError",
]

_HOMES = {
    "AgentStats": "project.stats",
    "BLSHandler": "project.log.handler",
    "CallNext": "project.commands.router",
    "Command": "project.messages",
    "CommandContext": "project.commands.router",
    "Console": "console",
    "EventStore": "runs.store",
    "Level": "project.messages",
    "LogEntry": "project.messages",
    "LogFilter": "project.console.search",
    "LogSearch": "project.console.search",
    "Outcome": "project.messages",
    "OutcomeKind": "project.messages",
    "ProjectAgent": "agent",
    "RedisOrAgent": "connection.access",
    "RedisSource": "connection.endpoint",
    "Settings": "core.settings",
    "Status": "project.messages",
    "SyncConsole": "sync_console",
}

if not TYPE_CHECKING:  # type checkers read the imports above, and refuse other names
    __getattr__, __dir__ = lazy.names(__name__, __all__, _HOMES, "core.errors")
