"""bls-agent: put a service on the BLS Project Console, over one shared Redis."""

from __future__ import annotations

import logging

from bls_agent.agent import ProjectAgent
from bls_agent.console import Console
from bls_agent.errors import (
    ArgumentError,
    BlsError,
    CommandError,
    ConfigurationError,
    ContractError,
    DecodeError,
    DuplicateHandlerError,
    MissingExtraError,
    NoOutcomeError,
    RedisRefusedError,
    RedisUnavailableError,
    Reject,
    UnknownCommandError,
    WrongTypeError,
)
from bls_agent.project.context import CommandContext
from bls_agent.project.messages import (
    Command,
    Level,
    LogEntry,
    Outcome,
    OutcomeKind,
    Status,
)
from bls_agent.settings import Settings
from bls_agent.stats import AgentStats

__version__ = "0.1.0"

__all__ = [
    "AgentStats",
    "ArgumentError",
    "BlsError",
    "Command",
    "CommandContext",
    "CommandError",
    "ConfigurationError",
    "Console",
    "ContractError",
    "DecodeError",
    "DuplicateHandlerError",
    "Level",
    "LogEntry",
    "MissingExtraError",
    "NoOutcomeError",
    "Outcome",
    "OutcomeKind",
    "ProjectAgent",
    "RedisRefusedError",
    "RedisUnavailableError",
    "Reject",
    "Settings",
    "Status",
    "UnknownCommandError",
    "WrongTypeError",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
