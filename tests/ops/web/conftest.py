"""What the tests of the console's pages share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bls_agent.devserver import DevServer
from tests.ops.web.browsers import a_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests of a module."""
    with a_browser() as browser:
        yield browser


@pytest.fixture
def server(browser: Any) -> Iterator[DevServer]:
    """A server with nothing on it but what the test writes; there is a browser for it."""
    with DevServer() as server:
        yield server
