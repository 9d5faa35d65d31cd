"""What a worker says of itself, changed by many at once."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pytest

from bls_agent import ConfigurationError
from bls_agent.workers import BacktestWorkerHeartbeat
from bls_agent.workers.beating.said import Said


@dataclass
class Interrupted(BacktestWorkerHeartbeat):
    """One that is changed by somebody else in the middle of a change."""

    interrupt: ClassVar[Any] = None

    def changed(self, **changes: Any) -> Self:
        """Let the other one come in between, once."""
        interrupt, Interrupted.interrupt = Interrupted.interrupt, None
        if interrupt is not None:
            interrupt()
        return super().changed(**changes)


def test_a_signal_handler_in_between() -> None:
    """It gets through without waiting for itself, and both changes count."""
    said = Said(Interrupted(worker_id="1"))
    Interrupted.interrupt = lambda: said.change({"max_tasks": 7})
    said.change({"running_tasks": 3})
    now: Any = said.now
    assert (now.running_tasks, now.max_tasks) == (3, 7)


def test_a_thread_in_between() -> None:
    """It waits its turn, and both changes count."""
    said = Said(Interrupted(worker_id="1"))
    thread = threading.Thread(target=said.change, args=({"max_tasks": 7},))
    Interrupted.interrupt = thread.start
    said.change({"running_tasks": 3})
    thread.join()
    now: Any = said.now
    assert (now.running_tasks, now.max_tasks) == (3, 7)


def test_a_change_that_does_not_fit() -> None:
    """Nothing of it counts."""
    said = Said(BacktestWorkerHeartbeat(worker_id="1"))
    with pytest.raises(ConfigurationError):
        said.change({"max_tasks": 7, "running_tasks": "many"})
    now: Any = said.now
    assert now.max_tasks == 5
