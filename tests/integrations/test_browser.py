"""A page with a plain EventSource in a real Chromium follows a run through everything."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anyio
import orjson
import pytest
from redis import Redis

from bls_agent import EventStore
from bls_agent.devserver import DevServer
from tests.integrations.serving import WebProcess
from tests.ops.web.browsers import DEADLINE, a_browser

RUN = 7
NAMES = ["lifecycle.started", "agent.reasoning", "lifecycle.completed", "system.close"]
PAGE = """<!doctype html><script>
  window.ids = []; window.said = []; window.gaps = []; window.states = []; window.over = false;
  const source = new EventSource("/runs/%d/events/stream");
  for (const name of %s) source.addEventListener(name, (event) => {
    ids.push(event.lastEventId);
    said.push(JSON.parse(event.data).data.n);
  });
  source.addEventListener("gap", (event) => gaps.push([ids.length, JSON.parse(event.data)]));
  source.addEventListener("close", () => { over = true; source.close(); });
  source.onerror = () => states.push(source.readyState);
</script>""" % (RUN, orjson.dumps(NAMES).decode())  # noqa: UP031 - braces


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests of this module."""
    with a_browser() as browser:
        yield browser


@pytest.fixture
def web(browser: Any, own_server: DevServer) -> Iterator[WebProcess]:
    """uvicorn in a process, over a server that keeps its data."""
    with WebProcess(own_server.url) as process:
        yield process


class Follower:
    """The page."""

    def __init__(self, page: Any) -> None:
        self._page = page

    def see(self, name: str) -> Any:
        return self._page.evaluate(f"window.{name}")

    def wait(self, condition: str, argument: Any = None) -> None:
        self._page.wait_for_function(condition, arg=argument, polling=20)

    def wait_for_more(self, count: int = 20) -> None:
        """Wait for so many more events."""
        self.wait("n => ids.length >= n", len(self.see("ids")) + count)


@contextmanager
def looking(browser: Any, web: WebProcess) -> Iterator[Follower]:
    """Open the page: it comes from where the run does."""
    context = browser.new_context()
    try:
        page = context.new_page()
        page.set_default_timeout(DEADLINE)
        page.route(
            f"{web.url}/page",
            lambda route: route.fulfill(body=PAGE, content_type="text/html"),
        )
        page.goto(f"{web.url}/page")
        yield Follower(page)
    finally:
        context.close()


class Writer(threading.Thread):
    """Writes a run, as a program would that does not care what happens to Redis."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._enough = threading.Event()
        self.count = 0

    def run(self) -> None:
        anyio.run(self._write)

    async def _write(self) -> None:
        async with EventStore(self._url) as store, store.run(RUN) as run:
            while not self._enough.is_set():
                run.emit("agent", "reasoning", {"n": self.count})
                self.count += 1
                await anyio.sleep(0.005)

    def finish(self) -> None:
        """Let the run come to its end."""
        self._enough.set()
        self.join(30)
        assert not self.is_alive()


def elsewhere(function: Callable[..., Awaitable[list[str]]], *values: Any) -> list[str]:
    """Run something in an event loop of its own: the browser's driver has this thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(anyio.run, function, *values).result()


def ids_of(server: DevServer) -> list[str]:
    """What stands in Redis."""
    with Redis.from_url(server.url, protocol=2) as client:
        entries: Any = client.xrange(f"run:{RUN}:events")
    return [entry_id.decode() for entry_id, _ in entries]


def test_a_run_through_restarts(
    browser: Any, own_server: DevServer, web: WebProcess
) -> None:
    """Restarts of the web process and of Redis, one of both: every event once, in order."""
    writer = Writer(own_server.url)
    writer.start()
    try:
        with Redis.from_url(own_server.url, protocol=2) as client:
            while not client.exists(f"run:{RUN}:events"):
                assert writer.is_alive()
        with looking(browser, web) as page:
            page.wait_for_more()
            web.kill()
            web.start()
            page.wait_for_more()
            own_server.kill()
            own_server.restart()
            page.wait_for_more()
            own_server.kill()  # and the page comes back while there is no Redis
            cuts = len(page.see("states"))
            web.terminate()
            web.start()
            page.wait("n => states.length > n && source.readyState === 1", cuts)
            own_server.restart()
            page.wait_for_more()
            writer.finish()
            page.wait("() => over")
            assert page.see("ids") == ids_of(own_server)
            numbers = [number for number in page.see("said") if number is not None]
            assert numbers == list(range(writer.count))
            assert page.see("gaps") == []
            assert page.see("states")
            assert set(page.see("states")) == {0}  # connecting: it never gave up
    finally:
        writer.finish()
    assert web.errors == b""


def test_a_gap_is_shown(browser: Any, own_server: DevServer, web: WebProcess) -> None:
    """Where MAXLEN has trimmed the page's place: how much is missing, and the rest."""

    async def write(count: int, *more: tuple[str, str]) -> list[str]:
        async with EventStore(own_server.url, maxlen=100) as store:
            events = [("agent", "reasoning", {"n": n}) for n in range(count)]
            return await store.add_many(RUN, [*events, *more])

    first = elsewhere(write, 50)
    with looking(browser, web) as page:
        page.wait("() => ids.length === 50")
        web.terminate()
        elsewhere(write, 1_000)
        left = ids_of(own_server)
        assert len(left) < 300
        web.start()
        page.wait("n => ids.length === n", 50 + len(left))
        left += elsewhere(write, 10, ("system", "close"))
        page.wait("() => over")
        assert page.see("ids") == first + left
        [(place, gap)] = page.see("gaps")
        assert place == 50
        assert (gap["reason"], gap["after"], gap["before"]) == (
            "trimmed",
            first[-1],
            left[0],
        )
        # The sequence of the event behind which they are missing is gone with it.
        assert gap["missing"] in {None, 1_050 - 50 - (len(left) - 11)}
