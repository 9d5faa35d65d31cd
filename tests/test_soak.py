"""The long runs, with small numbers; ``python -m tests.soak.<subject>`` for large ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bls_agent.core.settings import Mode
from bls_agent.devserver import DevServer
from tests.soak import agent_machine, log_machine, receiver_machine
from tests.soak.burst import THREADS, burst
from tests.soak.cancellation import cancel_outside
from tests.soak.rounds import start_and_stop
from tests.soak.single_reads import WAYS, read_in_a_loop


def test_every_history_of_the_log_keeps_the_account() -> None:
    """Exact, in order, within the bounds, nothing twice uncounted."""
    log_machine.run(100)


@pytest.mark.parametrize(
    "machine", [receiver_machine.BlockingMachine, receiver_machine.CompatMachine]
)
def test_every_history_of_receiving_keeps_the_promises(
    machine: type[receiver_machine.ReceiverMachine],
) -> None:
    """At most once and nothing lost but what a link swallowed; or nothing lost at all."""
    receiver_machine.run(machine, 60)


@pytest.mark.parametrize("mode", ["blocking", "compat", "reliable"])
def test_every_history_of_an_agent_keeps_the_promises(
    redis_url: str, mode: Mode
) -> None:
    """The same of whole agents on a real server."""
    agent_machine.run(redis_url, mode, 8)


@pytest.mark.parametrize("mode", ["blocking", "reliable"])
@pytest.mark.parametrize("seed", [20260112, 20260114], ids=["prefetch-8", "one"])
async def test_outside_cancellations_in_every_way(
    redis_url: str, mode: Any, seed: int
) -> None:
    """0 lost, 0 twice, every cancellation comes out, nothing is left."""
    assert await cancel_outside(redis_url, 75, seed, mode) > 0


async def test_rounds_leave_nothing(redis_url: str) -> None:
    """No task, thread, descriptor, connection or key."""
    await start_and_stop(redis_url, 10)


async def test_a_burst_is_counted_exactly(redis_url: str) -> None:
    """What was put is in the list or told there as dropped, to the last record."""
    done = await burst(redis_url, 60_000)
    assert done.accepted == 60_000 // THREADS * THREADS + 1
    assert done.grown_kib < 28 * 1024


@pytest.mark.parametrize("way", WAYS)
async def test_a_loop_of_single_reads_misses_none(
    own_server: DevServer, way: str, record_property: Callable[..., None]
) -> None:
    """``tail``, then ``subscribe``, under another process that writes 500 events/s."""
    done = await read_in_a_loop(own_server.url, 1, way, 1_000)
    record_property("pace", round(done.pace))
    assert done.missed == 0
    assert done.is_in_order
