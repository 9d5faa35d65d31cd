"""The plugin of pytest: fixtures for tests of agents, and their marker.

If bls-agent is installed, pytest loads this module in every run. So the module imports
only pytest and the standard library until a test uses a fixture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bls_agent.testing.fleet import AgentFleet, FleetServer
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
    """Run a command of an agent without a server. In a coroutine, await the call.

    ``outcome = bls_run(agent, "take", goods="tea")``
    """
    from bls_agent.testing.running import running_commands  # noqa: PLC0415 - not before it is used

    with running_commands() as run:
        yield run


@pytest.fixture(scope="session")
def bls_server() -> Iterator[FleetServer]:
    """Run the server of ``bls_fleet``, one server for all tests of a process."""
    from bls_agent.testing.fleet import open_server  # noqa: PLC0415 - not before it is used

    with open_server(os.environ) as server:
        yield server


@pytest.fixture
def bls_fleet(
    request: pytest.FixtureRequest, bls_server: FleetServer
) -> Iterator[AgentFleet]:
    """Run agents on a real server: ``async with bls_fleet.run(agent) as running:``."""
    from bls_agent.testing.fleet import open_fleet  # noqa: PLC0415 - not before it is used

    marker = request.node.get_closest_marker("bls")
    if marker is not None and marker.args:
        pytest.fail("pass allow_failed=… to pytest.mark.bls by its name", pytrace=False)
    allow_failed = marker is not None and bool(marker.kwargs.get("allow_failed"))
    found = ""
    try:
        with open_fleet(bls_server, allow_failed=allow_failed) as fleet:
            yield fleet
    except AssertionError as error:
        found = str(error)
    if found:  # not in the except block, so that pytest shows the text once
        pytest.fail(found, pytrace=False)
