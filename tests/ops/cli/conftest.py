"""What the tests of the command line share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import anyio.to_thread
import pytest

from bls_agent.ops.cli import main
from tests.ops.cli.terminal import NOT_OURS, Ran, end_all


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """A test that fails leaves no process behind."""
    yield
    end_all()


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the environment that a developer has set, and nothing for later tests."""
    monkeypatch.setenv(
        "BLS_REDIS_URL", ""
    )  # a command may export it; undone at the end
    for name in list(os.environ):
        if name.startswith(NOT_OURS) and not name.startswith(("PYTHON", "COV")):
            monkeypatch.delenv(name)


@pytest.fixture
def bls(redis_url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Bls:
    """Run a command in this process, against the shared server, in English."""
    return Bls(redis_url, capfdbinary)


class Bls:
    """Runs commands in this process; a pipe reads what they print."""

    def __init__(self, url: str, captured: pytest.CaptureFixture[bytes]) -> None:
        self.url = url
        self._captured = captured

    async def __call__(
        self, *words: str, url: str | None = None, lang: str = "en"
    ) -> Ran:
        """Run in a thread: the command line has an event loop of its own."""
        given = [*words, "--redis", url or self.url, "--lang", lang]
        if "--" in words:
            given = ["--redis", url or self.url, "--lang", lang, *words]
        return await self.bare(*given)

    async def bare(self, *words: str) -> Ran:
        """Run with these words alone."""
        run: Callable[[], int] = lambda: main(words)  # noqa: E731 - typed
        code = await anyio.to_thread.run_sync(run)
        printed = self._captured.readouterr()
        return Ran(code, printed.out, printed.err)
