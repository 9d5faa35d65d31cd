"""``bls-agent run`` and ``demo``: programs that run until a signal."""

from __future__ import annotations

import inspect
import logging
import re
import signal
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Annotated, Any, Final, NamedTuple

from typer import Argument

import bls_agent
from bls_agent.agent import ProjectAgent
from bls_agent.core.redaction import redact_traceback
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit, Failure, misspelt
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
    """Run the agent until a signal, drain it, and return the signal's exit code."""
    invocation.export_redis()  # before the import, which may read the variable
    agent = await _load_agent(parse_target(target), Path.cwd())
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
        if stats.status_writes:  # otherwise the agent ended before
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


async def _load_agent(target: Target, directory: Path) -> ProjectAgent:
    """Import a target; call it if it is a function that makes the agent.

    The user's directory is the first in which modules are searched.
    """
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    found: Any = _import(target, directory)
    shown = f"{target.module}:{target.path}"
    for number, name in enumerate(target.path.split(".")):
        if not hasattr(found, name):
            within = ".".join([target.module, *target.path.split(".")[:number]])
            raise _no_attribute(found, name, within)
        found = getattr(found, name)
    hint = "hint_target"
    if target.call and callable(found):
        found = await _call(found, f"{shown}()")
    elif inspect.isfunction(found):
        hint = "hint_factory"
    if isinstance(found, ProjectAgent):
        return found
    kind = type(found).__name__
    raise Failure("no_agent", Exit.USAGE, hint=hint, target=shown, kind=kind)


async def _call(factory: Callable[[], Any], name: str) -> Any:
    """Call a function, which may be a coroutine function."""
    try:
        made = factory()
        return await made if inspect.isawaitable(made) else made
    except Exception as error:
        raise _own_failure(error, name) from error


def _import(target: Target, directory: Path) -> ModuleType:
    try:
        return import_module(target.module)
    except ModuleNotFoundError as error:
        if not f"{target.module}.".startswith(f"{error.name}."):
            raise _own_failure(error, target.module) from error
        names = [one.stem for one in directory.glob("*.py")]
        likely = get_close_matches(target.module, names)
        raise misspelt(
            "no_module",
            likely,
            "hint_directory",
            Exit.USAGE,
            module=target.module,
            directory=directory,
        ) from None
    except Exception as error:
        raise _own_failure(error, target.module) from error


def _no_attribute(found: Any, name: str, within: str) -> Failure:
    public = [one for one in dir(found) if not one.startswith("_")]
    agents = [o for o in public if isinstance(getattr(found, o, None), ProjectAgent)]
    likely = agents or get_close_matches(name, public)
    likely = [f"{within}:{one}" for one in likely]
    return misspelt(
        "no_attribute", likely, "hint_target", Exit.USAGE, name=name, module=within
    )


def _own_failure(error: BaseException, name: str) -> Failure:
    """Make the failure of a command whose cause is the user's own code."""
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
def demo(
    invocation: Invocation,
    *,
    console: bool = False,
) -> Exit:
    """Run ``python -m bls_agent.ops.demo``."""
    from bls_agent.ops.demo import main

    if invocation.json:
        raise Failure("no_json", Exit.USAGE, command="demo")
    wanted = ["--console"] if console else []
    return Exit(main(["--lang", invocation.language, *wanted]))
