"""``module:agent``: found, imported, and what is wrong with it in words."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from bls_agent.ops.cli.exits import Exit, Failure

if TYPE_CHECKING:
    from bls_agent.agent import ProjectAgent

__all__ = ["Target", "load_agent", "own_failure", "parse_target"]

PACKAGE: Final = str(Path(__file__).parents[2])
_TARGET: Final = re.compile(
    r"(?P<module>[^:()/\\]+?)(?::(?P<path>[^:()]+?)(?P<call>\(\))?)?"
)


@dataclass(frozen=True)
class Target:
    """What ``run`` is asked to run.

    Attributes:
        module: The module that is imported.
        path: The attribute in it, with dots for one of one.
        call: Whether that is a function that makes the agent.
    """

    module: str
    path: str
    call: bool


def parse_target(text: str) -> Target:
    """Read ``module:agent``, ``module:make()`` or ``module``, which means its ``agent``.

    Raises:
        Failure: It is none of these.
    """
    found = _TARGET.fullmatch(text.strip())
    if found is None or found["module"].endswith(".py"):
        raise Failure("bad_target", Exit.USAGE, hint="hint_target", target=text)
    return Target(found["module"], found["path"] or "agent", bool(found["call"]))


def load_agent(text: str, directory: Path) -> ProjectAgent | Callable[[], Any]:
    """Import what a target names; a factory is given back and not called yet.

    Args:
        text: As :func:`parse_target`.
        directory: Where the user is: modules are looked for there first.

    Raises:
        Failure: There is no such module or attribute, or it is no agent; or the module
            failed, with its own traceback in ``details``.
    """
    target = parse_target(text)
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    found: Any = _import(target, directory)
    for number, name in enumerate(target.path.split(".")):
        if not hasattr(found, name):
            within = ".".join([target.module, *target.path.split(".")[:number]])
            raise _no_attribute(found, name, within)
        found = getattr(found, name)
    return _checked(found, target)


def _import(target: Target, directory: Path) -> ModuleType:
    try:
        return import_module(target.module)
    except ModuleNotFoundError as error:
        if not f"{target.module}.".startswith(f"{error.name}."):
            raise own_failure(error, target.module) from error
        names = [one.stem for one in directory.glob("*.py")]
        likely = get_close_matches(target.module, names)
        raise Failure(
            "no_module",
            Exit.USAGE,
            hint="did_you_mean" if likely else "hint_directory",
            module=target.module,
            directory=directory,
            names=", ".join(likely),
        ) from None
    except Exception as error:
        raise own_failure(error, target.module) from error


def _no_attribute(found: Any, name: str, within: str) -> Failure:
    from bls_agent.agent import ProjectAgent

    public = [one for one in dir(found) if not one.startswith("_")]
    agents = [o for o in public if isinstance(getattr(found, o, None), ProjectAgent)]
    likely = agents or get_close_matches(name, public)
    return Failure(
        "no_attribute",
        Exit.USAGE,
        hint="did_you_mean" if likely else "hint_target",
        name=name,
        module=within,
        names=", ".join(f"{within}:{one}" for one in likely),
    )


def _checked(found: Any, target: Target) -> ProjectAgent | Callable[[], Any]:
    from bls_agent.agent import ProjectAgent

    shown = f"{target.module}:{target.path}"
    if target.call and callable(found):
        maker: Callable[[], Any] = found
        return maker
    if isinstance(found, ProjectAgent) and not target.call:
        return found
    kind = type(found).__name__
    function = inspect.isfunction(found) and not target.call
    hint = "hint_factory" if function else "hint_target"
    raise Failure("no_agent", Exit.USAGE, hint=hint, target=shown, kind=kind)


def own_failure(error: BaseException, name: str) -> Failure:
    """Make the end of a command in which the user's own code has failed."""
    from bls_agent.core.redaction import redact_traceback

    trimmed = error.with_traceback(_from_user_code(error.__traceback__))
    failure = Failure("own_code_failed", Exit.FAILED, name=name)
    failure.details = redact_traceback(trimmed)
    return failure


def _from_user_code(trace: TracebackType | None) -> TracebackType | None:
    """Leave out how the user's code came to be run: that is our affair."""
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_ours(filename: str) -> bool:
    importing = filename.startswith("<frozen importlib") or "/importlib/" in filename
    return importing or filename.startswith(PACKAGE)
