"""Frames as an answer: it ends in order with its server, and with who takes nothing."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from sse_starlette.sse import AppStatus

from bls_agent.integrations import run_events
from bls_agent.integrations.run_events import RunEventsResponse, _FrameStream
from bls_agent.runs import EventStore, sse
from bls_agent.runs.sse import FramePump


@pytest.mark.parametrize("taken", [0, 1])
def test_a_client_that_takes_nothing_loses_its_place(
    monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """Else it would hold a connection, and what it was to be sent, for ever.

    Also where it is a comment that it does not take.
    """
    monkeypatch.setattr(sse, "STALLED", 0.05)

    async def receive() -> Any:
        await anyio.sleep_forever()

    sent: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])
            if len(sent) > taken:
                await anyio.sleep_forever()

    async def answer() -> None:
        follower = EventStore("redis://127.0.0.1:1").follow(1)
        pump = FramePump(follower, 0.01)
        with anyio.fail_after(10):
            scope = {"type": "http", "method": "GET"}
            await _FrameStream(pump, {})(scope, receive, send)
        assert sent == [b"retry: 2000\n\n", b": \n\n"][: taken + 1]

    anyio.run(answer)


def test_a_server_that_stops_ends_a_stream_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The frames end, and with them the answer: it is not cut off after a grace."""
    monkeypatch.setattr(run_events, "GRACE", 3_600.0)
    sent: list[Any] = []

    async def receive() -> Any:
        await anyio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body"):  # it waits for events now; what stops is uvicorn
            monkeypatch.setattr(AppStatus, "should_exit", True)

    async def answer() -> None:
        follower = EventStore("redis://127.0.0.1:1").follow(1)
        pump = FramePump(follower, 15.0)
        with anyio.fail_after(10):
            scope = {"type": "http", "method": "GET"}
            await _FrameStream(pump, {})(scope, receive, send)

    anyio.run(answer)
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_stream_that_is_ended_before_it_begins(
    store: EventStore, run_id: int
) -> None:
    """A server may stop while Redis is still asked whether the run is there."""
    await store.add(run_id, "a", "b")
    sent: list[Any] = []

    async def receive() -> Any:
        await anyio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)

    response = RunEventsResponse(store, run_id)
    response.end()
    scope = {"type": "http", "method": "GET", "headers": [], "query_string": b""}
    with anyio.fail_after(10):
        await response(scope, receive, send)
    assert sent[0]["status"] == 200
    assert b"".join(one.get("body", b"") for one in sent) == b"retry: 2000\n\n"
    assert sent[-1]["more_body"] is False
