"""Choose figures, let them play in turn, print them: ``python -m benchmarks``.

The tables are Markdown, as docs/performance.md shows them. A goal that is missed is
printed as missed and the exit code stays 0: benchmarks inform. Exit code 1: a run did
not do its work, so that there is no figure.
"""

from __future__ import annotations

import argparse
import resource
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import FIGURES, Figure
from benchmarks.machine import describe_machine
from benchmarks.stage import PEERS, BenchmarkError, Stage
from benchmarks.summary import Round, judge, show_goals, show_values
from bls_agent.devserver import DevServer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for and give the exit code."""
    options = parse(arguments)
    began = time.monotonic()
    allow_many_connections()
    with DevServer() as server:
        stage = Stage(
            server.url, quick=options.quick, loop=options.loop, peers=options.peers
        )
        print(wrapped(describe_machine(stage)), flush=True)
        if options.quick:
            print("A quick run: shorter and fewer of everything.")
        failed = 0
        for name in chosen(options.figures) or FIGURES:
            try:
                print(f"\n{show(FIGURES[name], stage, options.rounds)}", flush=True)
            except BenchmarkError as error:
                failed = 1
                print(f"{name} gave no figure: {error}", file=sys.stderr)
        stage.close()
    print(f"\nTook {time.monotonic() - began:.0f} s.")
    return failed


def allow_many_connections() -> None:
    """Raise the limit of open files as far as we may, for the server and a fleet."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "figures",
        nargs="*",
        type=known_figure,
        metavar="figure",
        help=f"default: all of {', '.join(FIGURES)}",
    )
    parser.add_argument(
        "--rounds", type=at_least_one, help="instead of each figure's own"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round: does it work?"
    )
    parser.add_argument(
        "--loop",
        choices=["asyncio", "uvloop"],
        default="asyncio",
        help="the event loop of all subjects",
    )
    parser.add_argument(
        "--peers",
        type=Path,
        default=PEERS,
        metavar="FOLDER",
        help="where the environments of the peers are",
    )
    return parser.parse_args(arguments)


def at_least_one(text: str) -> int:
    """Refuse what is no number of rounds."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least one")
    return number


def chosen(names: Sequence[str]) -> list[str]:
    """Give the figures of these names; ``runs`` means all that begin so."""
    return [
        figure
        for name in names
        for figure in FIGURES
        if figure == name or figure.startswith(f"{name}-")
    ]


def known_figure(name: str) -> str:
    """Refuse a name that no figure has."""
    if not chosen([name]):
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(FIGURES)}")
    return name


def show(figure: Figure, stage: Stage, rounds: int | None) -> str:
    """Play a figure and give it as Markdown."""
    played = play(figure, stage, rounds or (1 if stage.quick else figure.rounds))
    parts = [f"### {figure.title}", wrapped(figure.about)]
    if figure.describe is not None:
        parts.append(wrapped(figure.describe(stage)))
    parts.append(show_values(played))
    if figure.goals:
        parts.append(show_goals([judge(goal, played) for goal in figure.goals]))
    return "\n\n".join(parts)


def wrapped(text: str) -> str:
    """Break a paragraph as the documents do."""
    return textwrap.fill(text, 100, break_on_hyphens=False, break_long_words=False)


def play(figure: Figure, stage: Stage, rounds: int) -> list[Round]:
    """Give all rounds of a figure; progress goes to the standard error."""
    played = []
    for number in range(1, rounds + 1):
        print(f"{figure.name}: round {number} of {rounds}", file=sys.stderr)
        played.append(figure.play(stage))
    return played


if __name__ == "__main__":
    sys.exit(main())
