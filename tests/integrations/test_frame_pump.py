"""Frames that are sent to one client: nothing is cut off, and the end is not held up."""

from __future__ import annotations

import anyio

from bls_agent.runs import EventStore
from bls_agent.runs.sse import FramePump
from tests.harness import eventually

RETRY = b"retry: 2000\n\n"


class Client:
    """Takes how soon to come back, and the rest when it may."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.has_begun = anyio.Event()
        self.may_take = anyio.Event()

    async def put(self, chunk: bytes) -> None:
        """Be sent a chunk."""
        if self.taken:
            self.has_begun.set()
            await self.may_take.wait()
        self.taken.append(chunk)


async def test_what_is_being_sent_is_sent_to_its_end(
    store: EventStore, run_id: int
) -> None:
    """Half a frame would be lost, and neither side would know."""
    await store.add(run_id, "a", "b")
    client, pump = Client(), FramePump(store.follow(run_id), 15.0)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pump.run, client.put)
            await client.has_begun.wait()
            pump.end()
            await anyio.wait_all_tasks_blocked()
            client.may_take.set()
    assert client.taken[0] == RETRY
    assert [chunk.count(b"event: a.b") for chunk in client.taken[1:]] == [1]


async def test_who_waits_for_events_ends_at_once(
    store: EventStore, run_id: int
) -> None:
    """Without a last word: the client is to come back."""
    client, pump = Client(), FramePump(store.follow(run_id), 15.0)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pump.run, client.put)
            while not client.taken:
                await anyio.sleep(0)
            await anyio.wait_all_tasks_blocked()
            pump.end()
    assert client.taken == [RETRY]


async def test_a_comment_waits_for_what_is_being_sent(
    store: EventStore, run_id: int
) -> None:
    """Who takes slowly is alive, and is sent nothing besides."""
    await store.add(run_id, "a", "b")
    client, pump = Client(), FramePump(store.follow(run_id), 0.02)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pump.run, client.put)
            tasks.start_soon(pump.send_heartbeats, client.put)
            await client.has_begun.wait()
            client.has_begun = anyio.Event()
            with anyio.move_on_after(0.2) as patience:
                await client.has_begun.wait()
            assert patience.cancelled_caught
            client.may_take.set()
            await eventually(lambda: len(client.taken) > 2)
            tasks.cancel_scope.cancel()
    assert client.taken[1].startswith(b"id: ")
    assert client.taken[2] == b": \n\n"
