"""Frames as an answer: it ends in order with its server, and with who takes nothing."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from sse_starlette.sse import AppStatus

from bls_agent.integrations import run_events
from bls_agent.integrations.run_events import RunEventsResponse, _FrameStream
from bls_agent.runs import EventStore, Follower
from bls_agent.runs.sse import EventFrames, write_comment, write_retry
from tests.harness import eventually

SCOPE = {"type": "http", "method": "GET", "headers": [], "query_string": b""}


def stream_of(follower: Follower, heartbeat: float = 15.0) -> _FrameStream:
    return _FrameStream(EventFrames(follower, heartbeat), {})


async def receive() -> Any:
    """Hear nothing of the client."""
    await anyio.sleep_forever()


@pytest.mark.parametrize("taken", [0, 1])
def test_a_client_that_takes_nothing_loses_its_place(
    monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """Else it would hold a connection, and what it was to be sent, for ever.

    Also where it is a comment that it does not take.
    """
    monkeypatch.setattr(run_events, "STALLED", 0.05)

    sent: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])
            if len(sent) > taken:
                await anyio.sleep_forever()

    async def answer() -> None:
        follower = EventStore("redis://127.0.0.1:1").follow(1)
        with anyio.fail_after(10):
            await stream_of(follower, 0.01)(SCOPE, receive, send)
        assert sent == [b"retry: 2000\n\n", b": \n\n"][: taken + 1]

    anyio.run(answer)


def test_a_server_that_stops_ends_a_stream_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The frames end, and with them the answer: it is not cut off after a grace."""
    monkeypatch.setattr(run_events, "GRACE", 3_600.0)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body"):  # it waits for events now; what stops is uvicorn
            monkeypatch.setattr(AppStatus, "should_exit", True)

    async def answer() -> None:
        follower = EventStore("redis://127.0.0.1:1").follow(1)
        with anyio.fail_after(10):
            await stream_of(follower)(SCOPE, receive, send)

    anyio.run(answer)
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_stream_that_is_ended_before_it_begins(
    store: EventStore, run_id: int
) -> None:
    """A server may stop while Redis is still asked whether the run is there."""
    await store.add(run_id, "a", "b")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    response = RunEventsResponse(store, run_id)
    response.end()
    with anyio.fail_after(10):
        await response(SCOPE, receive, send)
    assert sent[0]["status"] == 200
    assert b"".join(one.get("body", b"") for one in sent) == b"retry: 2000\n\n"
    assert sent[-1]["more_body"] is False


class Client:
    """Takes how soon to come back, and the rest when it may."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.has_begun = anyio.Event()
        self.may_take = anyio.Event()

    async def send(self, message: Any) -> None:
        """Be sent a message."""
        if not message.get("body"):
            return
        if self.taken:
            self.has_begun.set()
            await self.may_take.wait()
        self.taken.append(message["body"])


async def test_what_is_being_sent_is_sent_to_its_end(
    store: EventStore, run_id: int
) -> None:
    """Half a frame would be lost, and neither side would know."""
    await store.add(run_id, "a", "b")
    client, stream = Client(), stream_of(store.follow(run_id))
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream, SCOPE, receive, client.send)
            await client.has_begun.wait()
            stream.end()
            await anyio.wait_all_tasks_blocked()
            client.may_take.set()
    assert client.taken[0] == write_retry(2_000)
    assert [chunk.count(b"event: a.b") for chunk in client.taken[1:]] == [1]


async def test_a_comment_waits_for_what_is_being_sent(
    store: EventStore, run_id: int
) -> None:
    """Who takes slowly is alive, and is sent nothing besides."""
    await store.add(run_id, "a", "b")
    client, stream = Client(), stream_of(store.follow(run_id), 0.02)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream, SCOPE, receive, client.send)
            await client.has_begun.wait()
            client.has_begun = anyio.Event()
            with anyio.move_on_after(0.2) as patience:
                await client.has_begun.wait()
            assert patience.cancelled_caught
            client.may_take.set()
            await eventually(lambda: len(client.taken) > 2)
            tasks.cancel_scope.cancel()
    assert client.taken[1].startswith(b"id: ")
    assert client.taken[2] == write_comment()
