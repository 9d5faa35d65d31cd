"""Long runs that are no rows: programs of ``tests/soak``, each with its number.

Each is run as a process of its own, one after the other; it ends with exit code 0 if all
is well, and the last line that it prints goes into the ledger.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOAK_LIMIT = 300.0  # seconds


@dataclass(frozen=True)
class Soak:
    """One long run.

    Attributes:
        module: What is run with ``python -m``.
        title: For the ledger.
        number: How many rounds, moments, records.
        words: What else the program is told.
    """

    module: str
    title: str
    number: int
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class SoakResult:
    """What came of it."""

    soak: Soak
    said: str
    is_kept: bool
    seconds: float


SOAKS = [
    Soak("tests.soak.cancellation", "F18: cancellations from outside", 10_000),
    Soak(
        "tests.soak.cancellation",
        "F18: cancellations from outside, mode reliable",
        10_000,
        ("reliable",),
    ),
    Soak("tests.soak.rounds", "starts and stops", 1_000),
    Soak("tests.soak.burst", "records in one burst from 8 threads", 1_000_000),
    Soak(
        "tests.soak.followers", "20 followers, 50 cuts and a restart; events", 100_000
    ),
    Soak("tests.soak.single_reads", "a loop of single reads at 500 events/s", 5_000),
    Soak(
        "tests.soak.crawlers",
        "F30: 8 crawlers, 30 SIGKILLs, a restart; requests",
        100_000,
    ),
]


def play_soak(soak: Soak) -> SoakResult:
    """Run it to its end."""
    began = time.monotonic()
    words = [sys.executable, "-m", soak.module, str(soak.number), *soak.words]
    try:
        done = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, timeout=SOAK_LIMIT,
            check=False,
        )  # fmt: skip
        lines = (done.stdout if not done.returncode else done.stderr).splitlines()
        said, is_kept = (lines or [""])[-1], not done.returncode
    except subprocess.TimeoutExpired:
        said, is_kept = f"did not end within {SOAK_LIMIT:g} s", False
    return SoakResult(soak, said, is_kept, time.monotonic() - began)
