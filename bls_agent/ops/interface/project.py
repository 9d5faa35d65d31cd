"""What is known of a project: where it is, and which commands it has."""

from __future__ import annotations

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
