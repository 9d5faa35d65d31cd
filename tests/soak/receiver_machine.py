"""A state machine for the ways to receive: what docs/promises.md says of each mode.

Elements are pushed, taken, started and settled while links break, processes crash and
agents stop. What is nowhere any more must have been swallowed by a broken link or held
by a crashed process, in ``blocking``; in ``compat`` nothing may be missing at all.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from bls_agent.core.errors import RedisUnavailableError
from bls_agent.project.receive.blocking import BlockingReceiver
from bls_agent.project.receive.compat import CompatReceiver
from bls_agent.project.receive.receiver import Message, PutBack, Receiver
from tests.soak import try_histories
from tests.soak.list_model import ListServer, ModelConnections
from tests.soak.virtual_time import VirtualLoop

LOOP = VirtualLoop()
PREFETCH = 3


class ReceiverMachine(RuleBasedStateMachine):
    """What all modes have in common."""

    concurrency: ClassVar = 2

    def __init__(self) -> None:
        """Begin with one process that asks for nothing yet."""
        super().__init__()
        self.server = ListServer(LOOP)
        self.pushed: list[bytes] = []
        self.pending: list[Message] = []
        self.running: list[Message] = []
        self.started: list[bytes] = []
        self.ended: list[bytes] = []
        self.reported: list[bytes] = []  # cancelled: may be in the list, or not
        self.held_at_crash: list[bytes] = []
        self.cuts = self.deaths = 0
        self.said: list[str] = []
        self.asking: asyncio.Task[Sequence[Message]] | None = None
        self.begin()

    def make(self, connections: ModelConnections) -> Receiver:
        """Make the receiver of this mode."""
        raise NotImplementedError

    def begin(self) -> None:
        """Open an agent."""
        self.connections = ModelConnections(self.server)
        self.receiver = self.make(self.connections)

    def teardown(self) -> None:
        """Leave no task behind."""
        self._cancel_asking()

    def _cancel_asking(self) -> None:
        task, self.asking = self.asking, None
        if task is None:
            return
        task.cancel()
        with suppress(asyncio.CancelledError, RedisUnavailableError):
            self.pending += LOOP.run(_result(task))

    def _take_what_came(self) -> None:
        LOOP.turn()
        if self.asking is not None and self.asking.done():
            task, self.asking = self.asking, None
            with suppress(RedisUnavailableError):
                self.pending += task.result()

    @rule(count=st.integers(1, 4))
    def push(self, count: int) -> None:
        """The console sends commands."""
        for _ in range(count):
            value = b"%d" % len(self.pushed)
            self.pushed.append(value)
            self.server.push(value)
        self._take_what_came()

    @precondition(lambda self: self.asking is None and self._may_ask())
    @rule(limit=st.integers(1, PREFETCH))
    def ask(self, limit: int) -> None:
        """A slot is free: ask for commands."""
        self.asking = LOOP.create_task(_receive(self.receiver, limit))
        self._take_what_came()

    def _may_ask(self) -> bool:
        if self.pending or len(self.running) >= self.concurrency:
            return False
        return not (self.receiver.one_at_a_time and self.running)

    @precondition(lambda self: self.asking is not None)
    @rule()
    def ask_is_cancelled(self) -> None:
        """Somebody cancels the task that waits; the next one goes on."""
        self._cancel_asking()

    @precondition(lambda self: self.pending and len(self.running) < self.concurrency)
    @rule()
    def start(self) -> None:
        """A handler starts."""
        message = self.pending.pop(0)
        self.running.append(message)
        self.started.append(message.payload)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_cancelled=st.booleans(), turns=st.integers(0, 4))
    def finish(self, data: st.DataObject, is_cancelled: bool, turns: int) -> None:
        """A handler ends, and its message is settled, if nobody cancels that."""
        message = data.draw(st.sampled_from(self.running))
        self.running.remove(message)
        self.ended.append(message.payload)
        task = LOOP.create_task(_settle(self.receiver, message))
        if is_cancelled:
            LOOP.turn(turns)
            task.cancel()
        with suppress(asyncio.CancelledError):
            LOOP.run(_result(task))
        self._take_what_came()

    @rule(
        use=st.sampled_from(["data", "liveness", "blocking"]),
        when=st.sampled_from(["now", "before", "after"]),
        server_knows=st.booleans(),
    )
    def link_breaks(self, use: str, when: str, server_knows: bool) -> None:
        """A link breaks: now, or around the next request."""
        self.cuts += 1
        connection: Any = getattr(self.connections, use)
        if when == "now":
            connection.break_link(server_knows=server_knows)
        else:
            connection.cut_next = when
        self._take_what_came()

    @rule(seconds=st.sampled_from([0.2, 1.0, 2.5, 65.0]))
    def time_passes(self, seconds: float) -> None:
        """Blocks and polls end."""
        LOOP.advance(seconds)
        self._take_what_came()

    @rule()
    def crash(self) -> None:
        """The process is killed and started again; the server notices that."""
        self.deaths += 1
        for connection in self.connections.all:
            connection.break_link(server_knows=True)  # type: ignore[attr-defined]
        taken = [*self.pending, *self.running, *self.receiver.leftovers()]
        self._cancel_asking()
        self.held_at_crash += [message.payload for message in taken]
        self.pending, self.running = [], []
        self.begin()

    @rule(cut=st.sampled_from(["", "before", "after"]))
    def close(self, cut: str) -> None:
        """The agent stops as the dispatcher has it, and is opened again."""
        while self.running:
            message = self.running.pop()
            self.ended.append(message.payload)
            LOOP.run(_settle(self.receiver, message))
        self._cancel_asking()
        LOOP.run(_with_patience(self.receiver.stop()))
        self.pending += self.receiver.leftovers()
        liveness: Any = self.connections.liveness
        liveness.cut_next = cut
        self.cuts += bool(cut)
        put_back = LOOP.run(self.receiver.give_back(self.pending))
        values = [message.payload for message in self.pending]
        if put_back is PutBack.UNKNOWN:
            self.reported += values
        elif put_back is PutBack.REFUSED:  # run while there is time
            self.started += values
            self.ended += values
        self.pending = []
        for connection in self.connections.all:
            LOOP.run(connection.aclose())
        self.begin()

    def in_transit(self) -> list[bytes]:
        """What has left the list and was not read yet."""
        found = [message.payload for message in self.receiver_taken()]
        for link in self.server.links.values():
            for reply in link.replies:
                if isinstance(reply, list):
                    found += [one for one in reply if one != b"key"]
        return found

    def receiver_taken(self) -> list[Message]:
        """What the receiver keeps for its next answer."""
        if not isinstance(self.receiver, BlockingReceiver):
            return []
        read = self.receiver._read
        replies, messages = read.replies, self.receiver.leftovers()
        read.replies = replies  # this was but a look
        return messages


async def _receive(receiver: Receiver, limit: int) -> Sequence[Message]:
    return await receiver.receive(limit)


async def _settle(receiver: Receiver, message: Message) -> None:
    with suppress(RedisUnavailableError):
        await receiver.settle(message)


async def _with_patience(work: Any) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(30.0):
            await work


async def _result(task: asyncio.Task[Any]) -> Any:
    return await task


class BlockingMachine(ReceiverMachine):
    """Each element at most once; lost is what a link swallowed or a process held."""

    def make(self, connections: ModelConnections) -> Receiver:
        """Make a receiver that waits."""
        return BlockingReceiver(connections, "key")

    @invariant()
    def nothing_is_lost(self) -> None:
        """Whatever was pushed is somewhere, and in one place."""
        here = [
            *self.server.list,
            *self.in_transit(),
            *(message.payload for message in (*self.pending, *self.running)),
            *self.ended,
            *self.server.swallowed,
            *self.held_at_crash,
        ]
        doubtful = set(self.reported)
        sure = [value for value in here if value not in doubtful]
        assert len(sure) == len(set(sure))
        assert set(here) | doubtful == set(self.pushed)

    @invariant()
    def nothing_is_started_twice(self) -> None:
        """At most once, whatever happens; what was given back stands in its place."""
        assert len(self.started) == len(set(self.started))
        numbers = [int(value) for value in self.server.list]
        assert numbers == sorted(numbers)

    @invariant()
    def little_is_swallowed(self) -> None:
        """Never more than ``prefetch`` for each broken link or crash."""
        assert len(self.server.swallowed) <= PREFETCH * (self.cuts + self.deaths)


class CompatMachine(ReceiverMachine):
    """At least once, in order; again only after a crash or a stop before the cut."""

    concurrency: ClassVar = 1

    def make(self, connections: ModelConnections) -> Receiver:
        """Make a receiver that polls."""
        return CompatReceiver(
            connections, "key", lambda text, _: self.said.append(text)
        )

    @invariant()
    def nothing_is_lost(self) -> None:
        """What has not ended is in the list; nothing was cut that was not handled."""
        assert set(self.pushed) == set(self.server.list) | set(self.ended)

    @invariant()
    def order_is_kept(self) -> None:
        """First starts come in the order of the list, and nothing stands there twice."""
        firsts = list(dict.fromkeys(self.started))
        assert firsts == self.pushed[: len(firsts)]
        assert len(self.server.list) == len(set(self.server.list))
        assert (
            self.server.list == self.pushed[len(self.pushed) - len(self.server.list) :]
        )

    @invariant()
    def repeats_are_few(self) -> None:
        """One command for each process that ended before its cut had arrived."""
        again = len(self.started) - len(set(self.started))
        assert again <= self.deaths + self.cuts
        assert not self.said  # nobody else is accused


def run(machine: type[ReceiverMachine], examples: int) -> None:
    """Try so many histories of up to 40 steps."""
    try_histories(machine, examples, 40, shrink=True)


if __name__ == "__main__":
    for chosen in (BlockingMachine, CompatMachine):
        run(chosen, int(sys.argv[1]) if len(sys.argv) > 1 else 5_000)
