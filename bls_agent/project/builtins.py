"""The built-in commands of an agent. They act on the agent's open session."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from bls_agent.core.codec import JSONObject
from bls_agent.core.errors import Reject
from bls_agent.core.settings import BUILTINS, PAUSING
from bls_agent.project.agent_state import AgentState
from bls_agent.project.commands.pausing import IntakeSwitch
from bls_agent.project.commands.router import UNSET
from bls_agent.project.messages import Level
from bls_agent.project.stats import collect_stats

if TYPE_CHECKING:
    from bls_agent.project.session import AgentSession


def add_builtins(
    state: AgentState, session_of: Callable[[], AgentSession | None]
) -> None:
    """Add every built-in command. ``session_of`` is a method of the agent."""
    handlers = BuiltinCommands(state, session_of)
    for name in BUILTINS:
        function = getattr(handlers, name)
        timeout = None if name in PAUSING else UNSET  # a drain waits for all handlers
        state.router.add(name, function, function, timeout=timeout, builtin=True)


class BuiltinCommands:
    """The handlers. Each one has the name of its command.

    The docstrings of the handlers are the descriptions that the command ``help``
    returns.
    """

    def __init__(
        self, state: AgentState, session_of: Callable[[], AgentSession | None]
    ) -> None:
        self._state = state
        # A weak reference, so that the commands do not keep an unused agent in memory.
        self._session_of = weakref.WeakMethod(session_of)

    def _open_session(self) -> AgentSession | None:
        find = self._session_of()
        return None if find is None else find()

    def _find_switch(self, instance: str) -> IntakeSwitch:
        session = self._open_session()
        if session is None:
            reason = "the agent is not open"
            raise Reject(reason)
        own = session.switch.instance
        if instance not in ("", own):
            reason = f"no living replica is called {instance!r}; this one is {own!r}"
            raise Reject(reason)
        return session.switch

    async def ping(self) -> JSONObject:
        """Answer, to show that commands arrive and are run."""
        return {"pong": True}

    async def help(self) -> list[JSONObject]:
        """List the commands with their parameters as JSON Schema."""
        return [handler.describe() for handler in self._state.router.list_handlers()]

    async def stats(self) -> JSONObject:
        """Return every counter and state of the agent."""
        return asdict(collect_stats(self._state, self._open_session()))

    async def set_log_level(
        self,
        level: Literal["debug", "info", "warn", "error"],
        seconds: float | None = None,
    ) -> JSONObject:
        """Change the lowest level that is shipped, for some seconds or for good."""
        stream = self._state.stream
        before = stream.level
        stream.set_level(Level(level), seconds)
        return {"level": level, "before": before.value, "seconds": seconds}

    async def pause(self, reason: str = "", instance: str = "") -> JSONObject:
        """Take no more commands, except built-in ones, until the command resume."""
        switch = self._find_switch(instance)
        await switch.check_rights()
        await switch.pause(reason)
        return switch.describe()

    async def resume(self, instance: str = "") -> JSONObject:
        """Take commands again, after pause or drain."""
        switch = self._find_switch(instance)
        switch.resume()
        return switch.describe()

    async def drain(self, reason: str = "", instance: str = "") -> JSONObject:
        """Pause, and succeed when every command that was taken has ended."""
        switch = self._find_switch(instance)
        await switch.check_rights()
        if not await switch.drain(reason):
            reason = f"before it was empty, the agent became {switch.state.value}"
            raise Reject(reason)
        return switch.describe()
