"""What is known of a project, and the names that its document and its client use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bls_agent.ops.fields import read_commands
from bls_agent.ops.interface.schema import ArgumentSchema, read_arguments


@dataclass(frozen=True, kw_only=True)
class CommandInterface:
    """A command as its agent describes it; name and description may be any text."""

    name: str
    description: str
    arguments: ArgumentSchema | None  # ``None`` if they are not known


@dataclass(frozen=True, kw_only=True)
class ProjectInterface:
    """A project as other programs use it."""

    project: str
    address: str  # of Redis: a URL without credentials
    commands: tuple[CommandInterface, ...]
    status_ttl: int  # seconds
    log_limit: int  # records


def read_interface(result: object) -> tuple[CommandInterface, ...]:
    """Read an answer to ``help``, in its order.

    1. An element without a name is no command, and of one name the first counts.
    2. A description that is no text is empty.
    3. Parameters that describe no object are unknown, and allow any argument.
    """
    return tuple(
        CommandInterface(
            name=name,
            description=about
            if isinstance(about := one.get("description"), str)
            else "",
            arguments=read_arguments(one.get("parameters")),
        )
        for name, one in read_commands(result).items()
    )


class Names:
    """The names that are in use; ``make`` turns any text into a name that is allowed."""

    def __init__(self, make: Callable[[str], str], taken: Iterable[str] = ()) -> None:
        self._make = make
        self._taken = set(taken)

    def add(self, wanted: str) -> str:
        """Return a name that resembles ``wanted`` and is not in use yet."""
        name = plain = self._make(wanted)
        number = 2
        while name in self._taken:
            name = f"{plain}_{number}"
            number += 1
        self._taken.add(name)
        return name
