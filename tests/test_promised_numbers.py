"""The numbers of `docs/promises.md` are the numbers of the code.

Other tests set such a number to a small value, or allow a slow machine many times the
number. So they also pass with another number.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bls_agent.assets import git, github, library
from bls_agent.connection.transport import Pace
from bls_agent.core.settings import Settings
from bls_agent.ops.fleet import fleet, project_state
from bls_agent.project import invocation, session
from bls_agent.project.commands import dispatcher, pausing, runner
from bls_agent.project.receive import reclaimer, reliable
from bls_agent.project.status import intake
from bls_agent.runtime.batch_writer import BATCH_BYTES
from bls_agent.workers import heartbeat_writer

PAGE = Path(__file__).parent.parent / "docs" / "promises.md"
MIB = 2**20


def time_over_a_slow_link(size: int) -> float:
    """Return the seconds that a long request has after many timeouts."""
    pace = Pace(Settings().redis_timeout)
    for _ in range(9):
        pace.learn(size, None)
    return pace.time_for(size)


@pytest.mark.parametrize(
    ("sentence", "holds"),
    [
        ("A batch of log records arrives over every link that carries 2 kB/s or more", lambda: time_over_a_slow_link(BATCH_BYTES) >= BATCH_BYTES / 2_000),
        ("is cancelled and has half a second to clean up", lambda: dispatcher.CANCEL_GRACE == invocation.CANCEL_GRACE == 0.5),
        ("A stop with all these steps ends within `shutdown_timeout` + 2 s", lambda: session.FLUSH_GRACE < session.END_GRACE < 2),
        ("closes within about a second", lambda: session.AWAY_GRACE == reliable.AWAY_GRACE == 0.5),
        ("The agent writes the outcome within a second", lambda: runner.INSIST_EVERY <= 0.5),
        ("a command that was started three times and never ended", lambda: reclaimer.MAX_DELIVERIES == 3),
        ("Consoles show the pause within two seconds", lambda: pausing.LOOK_EVERY <= 1),
        ("consoles show it as paused for at most 30 s more", lambda: intake.TTL == 30),
        ("within 0.1 s after an `update`", lambda: heartbeat_writer.COALESCE <= 0.1),
        ("A project without any key disappears within a minute", lambda: project_state.KEPT + fleet.INTERVAL + fleet.SEARCH <= 60),
        ("Changes arrive within about two seconds", lambda: library.LIST_INTERVAL == 2),
        ("the download is larger than 512 MiB", lambda: git.MAX_DOWNLOAD == 512 * MIB),
        ("more than 200,000 files and folders", lambda: git.MAX_ENTRIES == 200_000),
        ("need more than 128 MiB of memory", lambda: git.MAX_KEPT == 128 * MIB),
        ("the call ends after twenty times the timeout", lambda: git.LONGEST == 20),
        ("an archive of GitHub is larger than 64 MiB, or unpacked larger than 512 MiB", lambda: (github.MAX_ARCHIVE, github.MAX_UNPACKED) == (64 * MIB, 512 * MIB)),
    ],
)  # fmt: skip
def test_a_promised_number(sentence: str, holds: Callable[[], bool]) -> None:
    """The page contains the sentence, and the code keeps the number in it."""
    assert sentence in PAGE.read_text("utf-8")
    assert holds()
