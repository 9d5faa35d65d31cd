"""Processes to be killed: one that has imported everything, and forks agents at will.

As a program it reads lines of JSON: ``{"go": …}`` forks an agent, ``{"poll": pid}``
tells whether it has ended; each is answered by one number. It ends with its input.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import threading
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import anyio
import orjson
from anyio.streams.buffered import BufferedByteReceiveStream

from bls_agent import ProjectAgent
from tests.chaos.crawlers import crawl_with_all
from tests.kit import History

RUNNING = 1_000  # no exit code
ROOT = Path(__file__).parents[2]


class Nursery:
    """The other end; the process is started when the first agent is wanted."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._exits = AsyncExitStack()
        self._said: BufferedByteReceiveStream | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._exits.aclose()

    async def go(self, **options: Any) -> int:
        """Fork an agent; give its process id."""
        return await self._ask({"go": options})

    async def wait(self, pid: int) -> int:
        """Wait for its end; give its exit code, or the signal's number below 0."""
        with anyio.fail_after(30):
            while (code := await self._ask({"poll": pid})) == RUNNING:
                await anyio.sleep(0.005)
        return code

    async def _ask(self, words: object) -> int:
        async with self._lock:
            said = self._said or await self._start()
            assert self._process.stdin is not None
            await self._process.stdin.send(orjson.dumps(words) + b"\n")
            return int(await said.receive_until(b"\n", 100))

    async def _start(self) -> BufferedByteReceiveStream:
        words = [sys.executable, "-m", "tests.chaos.nursery"]
        opened = await anyio.open_process(words, stderr=None, cwd=ROOT)
        self._process = await self._exits.enter_async_context(opened)
        assert opened.stdin is not None
        assert opened.stdout is not None
        self._exits.push_async_callback(opened.stdin.aclose)
        self._said = BufferedByteReceiveStream(opened.stdout)
        return self._said


def live(options: dict[str, Any]) -> None:
    """Be an agent, or a crawler, until the process ends."""
    rng = random.Random(options["seed"])
    history = History(Path(options["history"]))
    threading.Thread(target=follow_parent, args=(os.getppid(),), daemon=True).start()
    if options.get("kind") == "crawl":
        anyio.run(crawl_with_all, options, history, str(os.getpid()), rng)
        return
    agent = ProjectAgent(
        options["project"], redis=options["url"], **options["settings"]
    )
    history.attach(agent)

    @agent.command
    async def mark(number: int) -> int:
        await anyio.sleep(rng.uniform(0, 0.02))
        return number

    @agent.command
    async def fork(number: int) -> None:
        if not os.fork():
            agent.log.info("a child says nothing")
            os._exit(0)
        os.wait()

    anyio.run(agent.run)


def follow_parent(parent: int) -> None:
    """End with the process that forked us, in whatever way it ended."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(3)


def fork_agent(options: dict[str, Any]) -> int:
    """Fork, and never come back in the child."""
    child = os.fork()
    if child:
        return child
    try:
        live(options)
    except BaseException:
        os._exit(1)
    os._exit(0)


def warm_up() -> None:
    """Import what an agent imports when it is opened, once for all of them."""
    ProjectAgent("warm-up", redis="redis://127.0.0.1:1/0")
    for name in ("anyio._backends._asyncio", "hiredis", "redis.asyncio"):
        importlib.import_module(name)
    for name in ("project.session", "project.stats"):
        importlib.import_module(f"bls_agent.{name}")


def main() -> None:
    warm_up()
    for line in sys.stdin:
        words = orjson.loads(line)
        if "go" in words:
            print(fork_agent(words["go"]), flush=True)
        else:
            ended, status = os.waitpid(words["poll"], os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else RUNNING
            print(code, flush=True)


if __name__ == "__main__":
    main()
