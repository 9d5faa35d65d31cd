"""The table of all faults; each module of faults adds its own rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeAlias, TypeVar

from tests.chaos.stage import Stage

S = TypeVar("S", bound=Stage)
Play: TypeAlias = Callable[[S], Awaitable[None]]


class Short(Enum):
    """In which of an agent's modes the short form plays a fault."""

    EACH = auto()
    ONE = auto()  # log, status and clock do not depend on how commands are received
    NONE = auto()


@dataclass(frozen=True)
class Fault:
    """One fault: what it is called, what it does, for whom.

    Attributes:
        id: As ``F4-replies``: the catalogue's number, and which variant of it.
        title: For the ledger.
        play: Does it.
        modes: Names of the modes it concerns; empty for all of an agent's.
        subjects: Whether it concerns what is no agent, too: runs, heartbeat, cache, sync,
            crawlers.
        alone: Whether it blocks the event loop, and with it everybody else's row.
        short: In which modes it is in the short form, too.
    """

    id: str
    title: str
    play: Play[Any] = field(repr=False)
    modes: tuple[str, ...] = ()
    subjects: bool = False
    alone: bool = False
    short: Short = Short.EACH


FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    title: str,
    *,
    modes: tuple[str, ...] = (),
    subjects: bool = False,
    alone: bool = False,
    short: Short = Short.EACH,
) -> Callable[[Play[S]], Play[S]]:
    """Add a row to the table."""

    def add(play: Play[S]) -> Play[S]:
        assert name not in FAULTS
        FAULTS[name] = Fault(name, title, play, modes, subjects, alone, short)
        return play

    return add
