"""Runs the health checks of a session and acts on what they say.

What a failure means is decided in ``health.py``; here are the calls, their deadlines
and the one place where whatever a check does ends.
"""

from __future__ import annotations

import inspect
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from bls_agent.backoff import jittered
from bls_agent.codec import cut_text, format_timestamp
from bls_agent.daemon_threads import HandlerThreads, is_coroutine_function
from bls_agent.project.log.logs import LogStream
from bls_agent.project.messages import Level, Status
from bls_agent.project.state.health import (
    Alarm,
    Failure,
    HealthState,
    Recovery,
)
from bls_agent.project.state.health_checks import HealthCheck, HealthChecks
from bls_agent.project.state.status import StatusBoard
from bls_agent.redaction import redact, redact_traceback
from bls_agent.wakeup import Wakeup

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - see HealthMonitor

__all__ = ["HealthMonitor"]

logger = logging.getLogger(__name__)


class HealthMonitor:
    """Runs the checks of one session, each on its own schedule, and acts on the end.

    Each call is a task of asyncio outside of every scope: it is cancelled once, at its
    timeout, and never waited for longer. (A scope of anyio would cancel a check that
    swallows it at every turn of the loop, and wait for it at the end.) While a call
    goes on no new one is begun: it counts as failed. Plain checks run in threads of
    the monitor's own, so that no hanging one takes a handler's place.
    """

    def __init__(
        self,
        checks: HealthChecks,
        board: StatusBoard,
        stream: LogStream,
        *,
        project: str,
        look: Callable[[], None],
    ) -> None:
        """Remember the parts.

        Args:
            checks: What is registered.
            board: Where they say how they are.
            stream: Where alarms and recoveries are told.
            project: The project's name, for the host's log.
            look: Has the board looked at after a change.
        """
        self._checks = checks
        self._board = board
        self._stream = stream
        self._project = project
        self._look = look
        self._states: dict[str, HealthState] = {}
        self._calls: dict[str, _Call] = {}
        self._threads = HandlerThreads()
        self._wakeup = Wakeup()
        self._rng = random.Random()  # noqa: S311 - jitter, not secrets

    async def run(self) -> None:
        """Run all checks, also those that are registered later, until cancelled."""
        self._wakeup.bind()
        self._checks.on_added = self._wakeup.set
        watched: set[str] = set()
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    for check in self._checks.list_checks():
                        if check.name not in watched:
                            watched.add(check.name)
                            tasks.start_soon(self._watch, check)
                    await self._wakeup.wait()
        finally:
            self._wakeup.unbind()
            with suppress(RuntimeError):  # the loop is closed: nothing runs any more
                for call in self._calls.values():
                    call.task.cancel()

    def close(self) -> None:
        """Let idle threads end, and let go of the registry."""
        self._checks.on_added = _nothing
        self._threads.close()

    async def _watch(self, check: HealthCheck) -> None:
        state = self._states.setdefault(check.name, HealthState(check.failures))
        self._board.put(check.source, Status.FAULT if state.alarmed else Status.ONLINE)
        while True:
            self._act(check, state.note(await self._call(check), time.monotonic()))
            await anyio.sleep(jittered(check.interval, self._rng))

    def _act(self, check: HealthCheck, change: Alarm | Recovery | None) -> None:
        match change:
            case Alarm():
                self._tell_alarm(check, change)
            case Recovery():
                self._tell_recovery(check, change)
            case None:
                pass

    def _tell_alarm(self, check: HealthCheck, alarm: Alarm) -> None:
        """Turn the status to 故障 and say why, once."""
        self._board.put(check.source, Status.FAULT)
        self._look()
        told = alarm.failure.describe()
        times = "once" if alarm.failures == 1 else f"{alarm.failures} times in a row"
        reason = f"{told['type']}: {told['message']}"
        text = cut_text(f"health check {check.name!r} failed {times}: {reason}", 2_000)
        metadata = {"healthCheck": check.name, "failures": alarm.failures}
        self._stream.emit(Level.ERROR, text, {**metadata, "error": told}, is_alarm=True)
        error = alarm.failure.error
        trace = "" if error is None else f"\n{redact_traceback(error)}"
        logger.error("%s: %s%s", self._project, redact(text), trace)

    def _tell_recovery(self, check: HealthCheck, recovery: Recovery) -> None:
        """Withdraw the 故障 and say how long it lasted."""
        self._board.put(check.source, Status.ONLINE)
        self._look()
        lasted = f"{recovery.seconds:.1f} s"
        text = f"health check {check.name!r} is good again after {lasted}"
        metadata = {
            "healthCheck": check.name,
            "failures": recovery.failures,
            "durationMs": round(recovery.seconds * 1000, 3),
        }
        self._stream.emit(Level.INFO, text, metadata)
        logger.info("%s: %s", self._project, text)

    async def _call(self, check: HealthCheck) -> Failure | None:
        """Call a check once, unless a former call goes on; say why it failed."""
        import asyncio  # noqa: PLC0415, TID251 - 20 ms; anyio has no task without a scope

        since = await self._busy_since(check)
        if since is not None:
            text = f"it has not returned since {format_timestamp(since)}"
            return Failure("StillRunning", text)
        began = self._stream.now()
        task = asyncio.get_running_loop().create_task(
            self._attempt(check, began), name=f"bls-agent {check.source}"
        )
        self._calls[check.name] = _Call(task, began)
        await asyncio.wait({task}, timeout=check.timeout)
        if not task.done():
            task.cancel()  # a thread goes on all the same
            text = f"it has not returned within {check.timeout:g} s"
            return Failure("TimedOut", text)
        del self._calls[check.name]  # an exception holds what the check had in hand
        if task.cancelled():
            return Failure("Cancelled", "it was cancelled from inside")
        return task.result()

    async def _busy_since(self, check: HealthCheck) -> float | None:
        """Unix seconds since when a former call goes on, if one does.

        A thread of the agent's former life may be as good as any: it gets its time.
        """
        call, going_on = self._calls.get(check.name), self._checks.going_on
        if call is None:
            with anyio.move_on_after(check.timeout):
                while check.name in going_on:  # noqa: ASYNC110 - a thread tells no event
                    await anyio.sleep(0.01)
        elif not call.task.done():
            call.task.cancel()  # it has swallowed the one before
            return call.began
        return going_on.get(check.name)

    async def _attempt(self, check: HealthCheck, now: float) -> Failure | None:
        """Let whatever a check does end here."""
        function: Callable[[], Any] = check.function
        if not is_coroutine_function(function):
            function = self._threads.wrap(partial(self._checks.call, check, now))
        try:
            result = await function()
            if inspect.isawaitable(result):  # a forgotten await proves nothing
                result = await result
        except BaseException as error:  # noqa: BLE001 - also what would end the loop
            return Failure(type(error).__name__, "", error)
        if result is False:
            return Failure("ReturnedFalse", "it returned False")
        return None


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class _Call:
    """A call that was begun, at this moment in Unix seconds."""

    task: asyncio.Task[Failure | None]
    began: float
