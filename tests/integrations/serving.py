"""Runs over HTTP from a real uvicorn: in a process to be killed, or in a thread.

``python -m uvicorn --factory tests.integrations.serving:make_app`` starts the same.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import anyio
import httpx2 as httpx
import uvicorn

from bls_agent.integrations.run_events import (
    RunEventsApp,
    allow_all,
)
from bls_agent.runs import EventStore
from tests.engines import free_ports
from tests.event_source import EventSourceParser, Message

OWN = "http://127.0.0.1:8000"
ROOT = Path(__file__).parents[2]
FACTORY = "tests.integrations.serving:make_app"
START = 30.0  # seconds


def make_app() -> RunEventsApp:
    """Give the application for ``uvicorn --factory``; Redis is at ``BLS_REDIS_URL``."""
    return RunEventsApp(EventStore(), authorize=allow_all, max_streams=5_000)


class WebProcess:
    """uvicorn with an application in a process of its own, always at one port."""

    def __init__(
        self, redis_url: str, factory: str = FACTORY, *options: str, **environ: str
    ) -> None:
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.errors = b""
        self._command = [
            sys.executable, "-m", "uvicorn", "--factory", factory, "--lifespan", "on",
            "--host", "127.0.0.1", "--port", str(self.port), "--log-level", "warning",
            *options,
        ]  # fmt: skip
        python = {"PYTHONPATH": str(ROOT), "BLS_REDIS_URL": redis_url}
        self._environ = os.environ | python | environ
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(
            self._command, env=self._environ, cwd=ROOT, stderr=subprocess.PIPE
        )
        deadline = time.monotonic() + START
        while not self._listens():
            assert self.process.poll() is None, self.process.communicate()[1].decode()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _listens(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    def terminate(self) -> float:
        """Send SIGTERM; give the seconds until it was gone."""
        began = time.monotonic()
        self.process.terminate()
        self._gather()
        return time.monotonic() - began

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self._gather()

    def _gather(self) -> None:
        self.errors += self.process.communicate(timeout=START)[1]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Let an application listen at a free port, in a thread; give its address."""
    config = uvicorn.Config(
        app,
        port=0,
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + START
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(START)
        assert not thread.is_alive()


@asynccontextmanager
async def asking(app: Any, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application, without a server; for answers that end."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=OWN, **more) as client:
        yield client


async def write(store: EventStore, run_id: int, count: int) -> list[str]:
    return await store.add_many(
        run_id, [("llm", "stream", {"文本": f"{n}"}) for n in range(count)]
    )


@asynccontextmanager
async def following(
    url: str, run_id: int, last_id: str | None = None, **more: Any
) -> AsyncIterator[Followed]:
    """Follow a run."""
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    async with (
        httpx.AsyncClient(timeout=30, headers=headers, **more) as client,
        client.stream("GET", f"{url}/runs/{run_id}/events/stream") as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        yield Followed(answer)


class Followed:
    """A stream that is read bit by bit."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.parser = EventSourceParser()
        self.messages: list[Message] = []
        self._chunks = answer.aiter_raw()

    async def read(self) -> bool:
        """Read a piece; tell whether there was one."""
        with anyio.fail_after(30):
            async for chunk in self._chunks:
                self.messages += self.parser.feed(chunk)
                return True
        return False

    async def until(self, count: int) -> list[Message]:
        """Read until there are so many messages."""
        while len(self.messages) < count:
            assert await self.read(), f"it ended after {self.messages}"
        return self.messages

    async def rest(self) -> list[Message]:
        """Read to the end."""
        while await self.read():
            pass
        return self.messages

    @property
    def ids(self) -> list[str]:
        """Ids of the run's events."""
        return [one.last_event_id for one in self.messages if "." in one.type]
