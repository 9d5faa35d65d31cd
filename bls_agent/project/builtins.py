"""Adds the built-in commands to an agent. They act on the agent's open session."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from bls_agent.core.codec import JSONObject
from bls_agent.project.agent_state import AgentState
from bls_agent.project.commands.pausing import IntakeSwitch, pausing_handlers
from bls_agent.project.commands.router import add_builtins
from bls_agent.project.stats import collect_stats

if TYPE_CHECKING:
    from bls_agent.project.session import AgentSession


def add_session_builtins(
    state: AgentState, session_of: Callable[[], AgentSession | None]
) -> None:
    """Add every built-in command.

    ``session_of`` is a method of the agent. The commands have only a weak reference to
    this method, so that they do not keep an unused agent in memory.
    """
    reference = weakref.WeakMethod(session_of)

    def open_session() -> AgentSession | None:
        find = reference()
        return None if find is None else find()

    def read_stats() -> JSONObject:
        return asdict(collect_stats(state, open_session()))

    def open_switch() -> IntakeSwitch | None:
        session = open_session()
        return None if session is None else session.switch

    pausing = pausing_handlers(open_switch)
    add_builtins(state.router, state.stream, read_stats, pausing)
