"""What several tests of connections begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Endpoint
from bls_agent.devserver import DevServer


@pytest.fixture
async def connection(own_server: DevServer) -> AsyncIterator[Connection]:
    """A connection to a server of this test's own."""
    opened = Connection(Endpoint.of(own_server.url), "test", timeout=1)
    yield opened
    await opened.aclose()
