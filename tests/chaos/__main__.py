"""Play the campaign and write the ledger: ``python -m tests.chaos``.

Exit code 1: a promise was broken; the ledger says which one, and the seed.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from tests.chaos.campaign import ALL_MODES, Row, play_all, rows_of
from tests.chaos.ledger import write_ledger
from tests.chaos.soaks import SOAKS, Soak, SoakResult, play_soak
from tests.chaos.table import FAULTS

LEDGER = Path(__file__).parents[2] / "docs" / "ledger.md"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "faults", nargs="*", help=f"all, if none is given: {', '.join(FAULTS)}"
    )
    parser.add_argument("--mode", action="append", choices=[*ALL_MODES], dest="modes")
    parser.add_argument("--seed", type=int, help="play the same again")
    parser.add_argument("--short", action="store_true", help="as in the test-suite")
    parser.add_argument("--at-once", type=int, default=6, help="rows at the same time")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the histories of broken rows"
    )
    parser.add_argument(
        "--ledger", type=Path, help=f"default: {LEDGER.name} if everything is played"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.faults) - FAULTS.keys():
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, print, write; give the exit code."""
    options = parse(arguments)
    began = time.monotonic()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    modes = options.modes or [*ALL_MODES]
    rows = rows_of(options.faults or FAULTS, modes, seed=seed, short=options.short)
    errors = anyio.run(play_rows, rows, options)
    for error in errors:
        print(f"the host: {error}")
    complete = not options.faults and not options.modes and not options.short
    soaks = [play_and_tell(soak) for soak in SOAKS] if complete else []
    seconds = time.monotonic() - began
    if path := options.ledger or (LEDGER if complete else None):
        text = write_ledger(rows, soaks, errors, seed, seconds, short=options.short)
        path.write_text(text, "utf-8")
    broken = sum(not row.is_kept for row in rows)
    broken += sum(not soak.is_kept for soak in soaks)
    print(f"{len(rows)} rows and {len(soaks)} soaks, {broken} broken, {seconds:.0f} s")
    return bool(broken or errors)


async def play_rows(rows: Sequence[Row], options: argparse.Namespace) -> list[str]:
    def tell(row: Row) -> None:
        print(describe(row), flush=True)
        if options.keep and row.violations:
            options.keep.mkdir(parents=True, exist_ok=True)
            path = options.keep / f"{row.name.replace('/', '-')}-{row.seed}.txt"
            path.write_text("\n".join(map(str, row.events)), "utf-8")

    return await play_all(
        rows, short=options.short, at_once=options.at_once, tell_row=tell
    )


def play_and_tell(soak: Soak) -> SoakResult:
    result = play_soak(soak)
    verdict = "ok    " if result.is_kept else "BROKEN"
    print(f"{verdict} {soak.title}, {soak.number}: {result.said}", flush=True)
    return result


def describe(row: Row) -> str:
    """One line, and one for each broken promise."""
    recovery = "-" if row.recovery is None else f"{row.recovery:.2f}"
    line = (
        f"{'ok    ' if row.is_kept else 'BROKEN'} {row.name:<26} "
        f"sent {row.sent:>5} handled {row.handled:>5} "
        f"lost {row.lost}/{row.may_lose} repeated {row.repeated}/{row.may_repeat} "
        f"recovery {recovery} s, took {row.seconds:.1f} s, seed {row.seed}"
    )
    return "\n".join([line, *(f"       {violation}" for violation in row.violations)])


if __name__ == "__main__":
    sys.exit(main())
