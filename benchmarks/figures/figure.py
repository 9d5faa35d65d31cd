"""What a figure is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.stage import Stage
from benchmarks.summary import Goal, Round

__all__ = ["Figure"]


@dataclass(frozen=True)
class Figure:
    """One comparison.

    Attributes:
        name: How it is chosen on the command line.
        title: Its heading.
        about: What is run, in a few sentences.
        rounds: How often, if nobody says otherwise.
        play: Lets all subjects perform once, one after the other.
        goals: What is asked of the result.
        describe: Tells what else is to be known of this run.
    """

    name: str
    title: str
    about: str
    rounds: int
    play: Callable[[Stage], Round]
    goals: tuple[Goal, ...] = ()
    describe: Callable[[Stage], str] | None = None
