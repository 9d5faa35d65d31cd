"""``bls-agent run``: an agent as the application, until a signal ends it."""

from __future__ import annotations

import inspect
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bls_agent.ops.cli.command import command, new_app
from bls_agent.ops.cli.exits import Exit, Failure
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.loading import load_agent, own_failure

if TYPE_CHECKING:
    from bls_agent.agent import ProjectAgent

__all__ = ["run"]

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
CODES: Final = {signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED}

app = new_app()


@command(app, "run")
async def run(
    invocation: Invocation,
    target: Annotated[str, typer.Argument(metavar="MODULE:AGENT", help="arg_target")],
) -> Exit:
    """Serve until a signal; drain; end with the signal's exit code."""
    invocation.export_redis()  # before the import: an agent may read it there
    found = load_agent(target, Path.cwd())
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format=FORMAT, stream=sys.stderr)
    agent = await _make(found, target)
    ended = await agent.run(task_status=_Announcement(invocation, agent))
    told = {
        "projectName": agent.project,
        "signal": ended.name if ended else None,
    }
    if invocation.json:
        invocation.out.json(told)
    else:
        invocation.hint("ended", project=agent.project)
    return CODES[ended] if ended else Exit.DONE


async def _make(found: ProjectAgent | Callable[[], Any], target: str) -> ProjectAgent:
    """Call a factory, which may be a coroutine function."""
    from bls_agent.agent import ProjectAgent

    if isinstance(found, ProjectAgent):
        return found
    try:
        made = found()
        if inspect.isawaitable(made):
            made = await made
    except Exception as error:
        raise own_failure(error, target) from error
    if not isinstance(made, ProjectAgent):
        kind = type(made).__name__
        raise Failure(
            "no_agent", Exit.USAGE, hint="hint_target", target=target, kind=kind
        )
    return made


class _Announcement:
    """Says on standard error when the first status has been written."""

    def __init__(self, invocation: Invocation, agent: ProjectAgent) -> None:
        self._invocation = invocation
        self._agent = agent

    def started(self, value: None = None) -> None:  # noqa: ARG002 - anyio's protocol
        stats = self._agent.stats()
        if stats.status_writes:  # else it was ended before it could say anything
            self._invocation.hint("online", project=self._agent.project)
