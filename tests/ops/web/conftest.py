"""What the tests of the console's pages share."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from bls_agent.devserver import DevServer
from tests.ops.web.browsers import a_browser

# The Chromium of the tests that follow each other in test_browser*.py, if it was started.
STARTED: list[Any] = []
ENDS = ExitStack()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None]:
    """End the Chromium after the last test with one: Playwright occupies the thread's loop."""
    try:
        return (yield)
    finally:
        if nextitem is None or not nextitem.path.match("ops/web/test_browser*.py"):
            STARTED.clear()
            ENDS.close()


@pytest.fixture(scope="module")
def browser() -> Any:
    """One Chromium for all tests with a browser."""
    if not STARTED:
        STARTED.append(ENDS.enter_context(a_browser()))
    return STARTED[0]


@pytest.fixture
def server(browser: Any) -> Iterator[DevServer]:
    """A server with nothing on it but what the test writes; there is a browser for it."""
    with DevServer() as server:
        yield server
