"""Runs commands of an agent in plain tests and in coroutines, by the same call."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Protocol, TypeVar

from bls_agent.agent import ProjectAgent
from bls_agent.project.messages import Command

R_co = TypeVar("R_co", covariant=True)


class RunCommand(Protocol[R_co]):
    """The type of the fixture ``bls_run``: :meth:`~bls_agent.ProjectAgent.invoke`.

    In a plain test the call returns when the command has ended: annotate the fixture
    ``RunCommand[Invocation]``. The commands of a test run in one event loop. In a
    coroutine the call is awaited: ``RunCommand[Awaitable[Invocation]]``.
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
    ) -> R_co: ...


@contextmanager
def running_commands() -> Generator[RunCommand[Any]]:
    """Provide the function of the fixture, and close its event loop at the end."""
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def run(agent: ProjectAgent, /, *command: Any, **arguments: Any) -> object:
        coroutine = agent.invoke(*command, **arguments)
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - documented
            return coroutine
        return runner.run(coroutine, context=copy_context())

    try:
        yield run
    finally:
        runner.close()
