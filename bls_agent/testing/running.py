"""Runs commands of an agent by the same call in plain tests and in coroutines."""

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
    """The type of the fixture ``bls_run``, which calls ``ProjectAgent.invoke``.

    In a plain test, the call returns when the command has ended. Annotate the fixture
    with ``RunCommand[Invocation]``. All commands of the test run in one event loop. In
    a coroutine, await the call, and annotate the fixture with
    ``RunCommand[Awaitable[Invocation]]``.
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
    """Yield the function of the fixture, and close its event loop at the end."""
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
