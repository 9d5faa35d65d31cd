"""What a process holds, compared with what stands in its list: no Redis."""

from __future__ import annotations

import pytest

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import Endpoint
from bls_agent.core.settings import Settings
from bls_agent.project.receive.inflight import (
    InFlightList,
    ListState,
    Stage,
)
from bls_agent.project.receive.receiver import Message, Start
from bls_agent.project.receive.reclaimer import Reclaimer, ReliableKeys


def make_list() -> InFlightList:
    """A list of which no server is asked."""
    endpoint = Endpoint.of("redis://127.0.0.1:1/0")
    connections = AgentConnections(endpoint, "x", timeout=1, reconnect_max=1)
    keys = ReliableKeys("订单系统_控制")
    control, throttled_log = connections.control, connections.throttled_log
    reclaimer = Reclaimer(control, keys, 15.0, lambda _: None, throttled_log)
    settings = Settings(mode="reliable")
    return InFlightList(
        connections,
        keys,
        settings,
        reclaimer,
        lambda _: None,
        instance="a",
    )


def holding(*payloads: bytes) -> tuple[InFlightList, list[Message]]:
    """Hold messages with these bytes."""
    inflight = make_list()
    messages = [Message(payload) for payload in payloads]
    for message in messages:
        inflight.hold(message, id=message.payload.decode())
    return inflight, messages


@pytest.mark.parametrize(
    ("held", "missing", "left"),
    [
        ([], [], []),
        ([b"a"], [], [b"a"]),
        ([b"a"], [b"a"], []),
        ([b"a", b"b"], [b"a"], [b"b"]),
        ([b"a", b"a"], [b"a"], [b"a"]),
    ],
)
def test_missing(held: list[bytes], missing: list[bytes], left: list[bytes]) -> None:
    """What is missing was reclaimed; twins count."""
    inflight, messages = holding(*held)
    inflight.mark_missing(missing)
    assert inflight.payloads(*Stage) == left
    assert len(inflight) == len(messages)


@pytest.mark.parametrize("ended", [0, 1])
def test_of_twins_the_one_that_has_ended_is_missing_first(ended: int) -> None:
    """Its ack may have arrived; the one that runs stands there still."""
    inflight, messages = holding(b"a", b"a")
    inflight.end(messages[ended])
    inflight.mark_missing([b"a"])
    assert inflight.payloads(Stage.TAKEN) == [b"a"]
    assert inflight.payloads(Stage.ENDED) == []


def start_of(inflight: InFlightList, own_id: str) -> Start:
    """Take another command with this id, and let it begin."""
    message = Message(b"another")
    inflight.hold(message, id=own_id)
    inflight.state = ListState.OURS
    inflight.lease.record_renewed(float("inf"))
    start = inflight.begin(message)
    inflight.drop(message)
    return start


def test_an_id_that_several_have_counts_until_the_last_of_them() -> None:
    """Twins of one id are held one by one, whatever becomes of each."""
    inflight, messages = holding(b"a", b"a", b"a")
    inflight.drop(messages[0])
    inflight.drop(messages[0])
    assert start_of(inflight, "a") is Start.DUPLICATE
    inflight.mark_missing([b"a"])
    assert start_of(inflight, "a") is Start.DUPLICATE
    inflight.drop(messages[1])
    inflight.drop(messages[2])
    assert start_of(inflight, "a") is Start.RUN
    assert not len(inflight)


@pytest.mark.parametrize("state", ListState)
def test_what_is_held_starts_while_the_list_may_be_ours(state: ListState) -> None:
    """Also in doubt; never when another process may have reclaimed it."""
    inflight, (message,) = holding(b"a")
    inflight.lease.record_renewed(float("inf"))
    inflight.state = state
    may_start = state in (ListState.OURS, ListState.IN_DOUBT)
    assert (inflight.begin(message) is Start.RUN) == may_start
    assert (message in inflight) == may_start


def test_nothing_starts_behind_the_end_of_the_lease() -> None:
    """Although nobody has said so yet: the server may have handed it to others."""
    inflight, (message,) = holding(b"a")
    inflight.state = ListState.OURS
    assert inflight.begin(message) is Start.SKIP
    assert inflight.state is ListState.IN_DOUBT
