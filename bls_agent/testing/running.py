"""Runs commands of an agent in plain tests and in coroutines, by the same call."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Protocol, cast

from bls_agent.agent import ProjectAgent
from bls_agent.project.invocation import Invocation
from bls_agent.project.messages import Command


class RunCommand(Protocol):
    """The type of the fixture ``bls_run``: :meth:`ProjectAgent.invoke` of any agent.

    In a plain test the call returns when the command has ended. In a coroutine the call
    is awaited: ``await bls_run(agent, "take")``. The commands of a plain test run in one
    event loop.
    """

    def __call__(
        self,
        agent: ProjectAgent,
        command: str | Command,
        args: Mapping[str, Any] | None = None,
        /,
        *,
        delivery: int | None = None,
        **arguments: Any,
    ) -> Invocation: ...


@contextmanager
def running_commands() -> Generator[RunCommand]:
    """Provide the function of the fixture, and close its event loop at the end."""
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def run(
        agent: ProjectAgent,
        command: str | Command,
        args: Mapping[str, Any] | None = None,
        /,
        *,
        delivery: int | None = None,
        **arguments: Any,
    ) -> Invocation:
        coroutine = agent.invoke(command, args, delivery=delivery, **arguments)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return runner.run(coroutine, context=copy_context())
        return cast("Invocation", coroutine)

    try:
        yield run
    finally:
        runner.close()
