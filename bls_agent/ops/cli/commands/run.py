"""``bls-agent run`` and ``demo``: programs that run until a signal."""

from __future__ import annotations

import inspect
import logging
import re
import signal
import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, NamedTuple

from typer import Argument

import bls_agent
from bls_agent.agent import ProjectAgent
from bls_agent.core.redaction import redact_traceback
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit, Failure
from bls_agent.ops.cli.output import Invocation

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
CODES: Final = {signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED}
PACKAGE: Final = str(Path(bls_agent.__file__).parent)
_TARGET: Final = re.compile(
    r"(?P<module>[^:()/\\]+?)(?::(?P<path>[^:()]+?)(?P<call>\(\))?)?"
)


@command("run")
async def run(
    invocation: Invocation,
    target: Annotated[str, Argument(metavar="MODULE:AGENT")],
) -> Exit:
    """Run the agent until a signal, then drain it, and return the signal's exit code."""
    invocation.export_redis()  # before the import, which may read the variable
    agent = await load_agent(parse_target(target), Path.cwd())
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format=FORMAT, stream=sys.stderr)
    ended = await agent.run(task_status=_Announcement(invocation, agent))
    if invocation.json:
        signal_name = ended.name if ended else None
        invocation.out.json({"projectName": agent.project, "signal": signal_name})
    else:
        invocation.hint("ended", project=agent.project)
    return CODES[ended] if ended else Exit.DONE


class _Announcement:
    """Reports on standard error when the first status has been written."""

    def __init__(self, invocation: Invocation, agent: ProjectAgent) -> None:
        self._invocation = invocation
        self._agent = agent

    def started(self, value: None = None) -> None:  # noqa: ARG002 - anyio's protocol
        stats = self._agent.stats()
        if stats.status_writes:  # otherwise the agent has already ended
            self._invocation.hint("online", project=self._agent.project)


class Target(NamedTuple):
    """The argument of ``run``."""

    module: str
    path: str  # the attribute of the module, such as ``agent`` or ``app.agent``
    call: bool  # whether the attribute is a function that makes the agent


def parse_target(text: str) -> Target:
    """Read ``module:agent``, ``module:make()``, or ``module`` for its ``agent``."""
    found = _TARGET.fullmatch(text.strip())
    if found is None or found["module"].endswith(".py"):
        raise Failure("bad_target", Exit.USAGE, hint="hint_target", target=text)
    return Target(found["module"], found["path"] or "agent", bool(found["call"]))


async def load_agent(target: Target, directory: Path) -> ProjectAgent:
    """Import the target, and call the function if the target has ``()``.

    Python searches modules in the user's ``directory`` first.
    """
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    shown = f"{target.module}:{target.path}"
    found = _import(target, directory)
    try:
        found = attrgetter(target.path)(found)
    except AttributeError:
        raise Failure(
            "no_attribute",
            Exit.USAGE,
            hint="hint_target",
            name=target.path,
            module=target.module,
        ) from None
    hint = "hint_target"
    if target.call and callable(found):
        try:
            found = found()
            found = await found if inspect.isawaitable(found) else found
        except Exception as error:
            raise _own_failure(error, f"{shown}()") from error
    elif inspect.isfunction(found):
        hint = "hint_factory"
    if isinstance(found, ProjectAgent):
        return found
    kind = type(found).__name__
    raise Failure("no_agent", Exit.USAGE, hint=hint, target=shown, kind=kind)


def _import(target: Target, directory: Path) -> Any:
    try:
        return import_module(target.module)
    except Exception as error:
        name = (
            getattr(error, "name", None)
            if isinstance(error, ModuleNotFoundError)
            else None
        )
        if not name or not f"{target.module}.".startswith(f"{name}."):
            raise _own_failure(error, target.module) from error
        raise Failure(
            "no_module",
            Exit.USAGE,
            hint="hint_directory",
            module=target.module,
            directory=directory,
        ) from None


def _own_failure(error: BaseException, name: str) -> Failure:
    """Make the failure for an error of the user's code, with the traceback."""
    trimmed = error.with_traceback(_from_user_code(error.__traceback__))
    failure = Failure("own_code_failed", Exit.FAILED, name=name)
    failure.details = redact_traceback(trimmed)
    return failure


def _from_user_code(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_ours(filename: str) -> bool:
    importing = filename.startswith("<frozen importlib") or "/importlib/" in filename
    return importing or filename.startswith(PACKAGE)


@command("demo")
def demo(invocation: Invocation) -> Exit:
    """Run ``python -m bls_agent.ops.demo --console``."""
    from bls_agent.ops.demo import main

    if invocation.json:
        raise Failure("no_json", Exit.USAGE, command="demo")
    return Exit(main(["--console", "--lang", invocation.language]))
