"""Helpers for tests of programs that use bls-agent: of handlers and of whole agents.

The names below are loaded when they are first used. pytest loads its plugin,
``bls_agent.testing.plugin``, without any configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bls_agent.core import lazy

if TYPE_CHECKING:
    from bls_agent.project.invocation import CheckResult, Invocation, make_context
    from bls_agent.testing.fleet import AgentFleet
    from bls_agent.testing.link import (
        Delay,
        Direction,
        FaultProxy,
        Hold,
        Rate,
        Refuse,
        Slices,
        Swallow,
    )
    from bls_agent.testing.recording import RecordedCommand
    from bls_agent.testing.running import RunCommand
    from bls_agent.testing.running_agent import RunningAgent
    from bls_agent.testing.waiting import eventually

__all__ = [
    "AgentFleet",
    "CheckResult",
    "Delay",
    "Direction",
    "FaultProxy",
    "Hold",
    "Invocation",
    "Rate",
    "RecordedCommand",
    "Refuse",
    "RunCommand",
    "RunningAgent",
    "Slices",
    "Swallow",
    "eventually",
    "make_context",
]

_HOMES = {  # name → module, if it is not the one below
    "Delay": "link",
    "Direction": "link",
    "FaultProxy": "link",
    "AgentFleet": "fleet",
    "Hold": "link",
    "Rate": "link",
    "RecordedCommand": "recording",
    "Refuse": "link",
    "RunCommand": "running",
    "RunningAgent": "running_agent",
    "Slices": "link",
    "Swallow": "link",
    "eventually": "waiting",
}

if not TYPE_CHECKING:  # checkers see the imports above, and refuse other names
    __getattr__, __dir__ = lazy.names(__name__, __all__, _HOMES, ".project.invocation")
