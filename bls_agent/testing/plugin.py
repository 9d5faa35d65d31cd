"""The plugin of pytest: fixtures for tests of agents, and their marker.

pytest loads this module in every run of everybody who has installed bls-agent. So it
imports pytest and the standard library alone until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bls_agent.testing.running import RunCommand

MARKER = (
    "bls(allow_failed=False): what bls-agent checks when the test has ended; "
    "allow_failed=True lets commands fail that the test does not look at."
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, because a strict configuration refuses unknown markers."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def bls_run() -> Iterator[RunCommand[Any]]:
    """Run a command of an agent without a server; awaited in coroutines.

    ``outcome = bls_run(agent, "take", goods="tea")``
    """
    from bls_agent.testing.running import running_commands  # noqa: PLC0415 - not before it is used

    with running_commands() as run:
        yield run
