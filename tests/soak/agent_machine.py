"""A state machine for whole agents on a real server, in every mode.

Commands are pushed while connections are killed at the server, handlers take their time
and agents are closed, cancelled and opened again; then it is looked what became of each.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, ClassVar, get_args

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
)
from redis.asyncio import Redis

from bls_agent import ProjectAgent
from bls_agent.core.settings import Mode
from bls_agent.devserver import DevServer
from tests.harness import History, cut_connections, eventually, records, remove_keys
from tests.soak import try_histories

PREFETCH = 3


class AgentMachine(RuleBasedStateMachine):
    """What a host, a console and an administrator may do to an agent."""

    url: ClassVar[str]
    mode: ClassVar[Mode]

    def __init__(self) -> None:
        """Open an agent of a fresh project."""
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.project = f"状态机_{secrets.token_hex(4)}"
        self.redis: Redis = Redis.from_url(self.url, protocol=2)
        self.history = History()
        self.agent = ProjectAgent(
            self.project, redis=self.url, mode=self.mode, prefetch=PREFETCH,
            concurrency=2, shutdown_timeout=2, reconnect_max=0.05,
        )  # fmt: skip
        self.pause = 0.0
        self.cuts = 0

        @self.agent.command
        async def mark(number: int) -> None:
            await asyncio.sleep(self.pause)
            self.history.handled.append(number)

        self.task: asyncio.Task[Any] | None = None
        self.do(self.redis.ping())
        self.opens()

    def do(self, work: Coroutine[Any, Any, Any] | Any) -> Any:
        """Bring something to its end in the machine's loop."""
        return self.loop.run_until_complete(work)

    @precondition(lambda self: self.task is None)
    @rule()
    def opens(self) -> None:
        """The agent is opened, and perhaps not yet connected."""
        self.task = self.loop.create_task(self.agent.run(handle_signals=False))
        self.do(asyncio.sleep(0))

    @rule(count=st.integers(1, 5), pause=st.sampled_from([0.0, 0.0, 0.004]))
    def push(self, count: int, pause: float) -> None:
        """The console sends commands that take some time."""
        self.pause = pause

        async def push_all() -> None:
            for _ in range(count):
                await self.history.push(self.redis, self.project)

        self.do(push_all())

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.005, 0.02]))
    def time_passes(self, seconds: float) -> None:
        """Things happen."""
        self.do(asyncio.sleep(seconds))

    @rule()
    def is_cut(self) -> None:
        """An administrator kills every connection."""
        self.cuts += 1
        self.do(cut_connections(self.redis))

    @precondition(lambda self: self.task is not None)
    @rule(is_cancelled=st.booleans())
    def ends(self, is_cancelled: bool) -> None:
        """The agent is cancelled, or closed in order."""
        self.ends_now(is_cancelled=is_cancelled)

    def ends_now(self, *, is_cancelled: bool) -> None:
        """End the agent and wait for it."""
        if self.task is not None and is_cancelled:
            self.task.cancel()
        elif self.task is not None:
            self.do(self.agent.aclose())
        if self.task is not None:
            with suppress(asyncio.CancelledError):
                self.do(self.task)
        self.task = None

    async def all_is_done(self) -> bool:
        """Tell whether nothing waits and nothing runs."""
        key = f"{self.project}_控制"
        return not (await self.redis.exists(key) or self.agent.stats().commands_running)

    def teardown(self) -> None:
        """When nobody disturbs any more everything comes to its end; then count."""
        try:
            if self.task is None:
                self.opens()
            self.do(eventually(self.all_is_done))
            self.ends_now(is_cancelled=False)
            self.check()
        finally:
            self.ends_now(is_cancelled=True)
            self.do(remove_keys(self.redis, self.project))
            self.do(self.redis.aclose())
            self.loop.close()

    async def waiting(self) -> set[int]:
        """The commands that were given back when the agent ended: they are not lost."""
        left = await self.redis.lrange(f"{self.project}_控制", 0, -1)
        return {json.loads(one)["args"]["number"] for one in left}

    def check(self) -> None:
        """Hold what became of each command against the promise of the mode."""
        counts = Counter(self.history.handled)
        lost = set(self.history.pushed) - set(counts) - self.do(self.waiting())
        twice = sum(counts.values()) - len(counts)
        stats = self.agent.stats()
        assert stats.logs_accepted == stats.logs_delivered + stats.logs_queued
        if self.mode in ("blocking", "auto"):
            found = self.do(records(self.redis, self.project))
            told = [r["metadata"] for r in found if "commandId" in r["metadata"]]
            cancelled = [one for one in told if one["outcome"] == "cancelled"]
            assert twice == 0
            assert len(lost) <= PREFETCH * self.cuts + len(cancelled)
        else:
            assert not lost
            assert twice <= self.cuts * 2


def run(server: str, way: Mode, examples: int) -> None:
    """Try so many histories of up to 20 steps.

    Args:
        server: Where Redis is.
        way: How commands are received.
        examples: How many histories.
    """

    class Machine(AgentMachine):
        url = server
        mode = way

    try_histories(Machine, examples, 20, shrink=False)


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    with DevServer() as real:
        for mode in get_args(Mode):
            run(real.url, mode, number)
            print(f"{mode}: {number} histories", flush=True)
