"""Decides the status of this process, and runs its health checks.

The status has several sources: the program, each health check, recent errors and the
event loop. The worst status of all sources is the status of the process.
"""

from __future__ import annotations

import inspect
import logging
import math
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Protocol,
    TypeAlias,
    TypeVar,
)

import anyio

from bls_agent.connection.after_fork import register
from bls_agent.core.backoff import jittered
from bls_agent.core.codec import cut_text, format_timestamp
from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import check_name
from bls_agent.core.redaction import redact
from bls_agent.core.settings import Rule
from bls_agent.project.log.log import LogStream, describe_error
from bls_agent.project.messages import STATUS_REASON, Level, Status
from bls_agent.runtime.tasks import ThreadSafeEvent
from bls_agent.runtime.threads import HandlerThreads, is_coroutine_function

if TYPE_CHECKING:
    import asyncio

logger: logging.Logger = logging.getLogger(__name__)

INTERVAL: Final = 10.0  # seconds from the end of one call to the beginning of the next
TIMEOUT: Final = 5.0  # seconds that a call may take
REASON_LIMIT: Final = 1_000  # bytes; a longer reason of a status is cut
FAILURES: Final = 2  # failures in a row until 故障, because one may be a coincidence
_SECONDS: Final = Rule(float, "", "seconds", minimum=0.001, maximum=86_400.0)
_COUNT: Final = Rule(int, "", "failures in a row", minimum=1, maximum=1_000_000)

Check: TypeAlias = Callable[[], object]
C = TypeVar("C", bound=Check)


class StatusAggregator:
    """Stores the status of each source in this process, and finds the worst status.

    The source ``HOST`` is the program. Another source counts only if its status is not
    在线, so that it cannot replace 离线 from the program by 在线.

    There is no lock, because a signal handler or finaliser may call ``set_status`` or
    ``log.error`` at any line here. A lock is not needed, because setting a status is
    one assignment, and readers copy the sources first.
    """

    HOST: Final = "host"

    def __init__(self) -> None:
        self._sources: dict[str, tuple[Status, float, str]] = {
            self.HOST: (Status.ONLINE, math.inf, "")
        }

    def set(
        self,
        source: str,
        status: Status,
        *,
        until: float = math.inf,
        reason: str = "",
    ) -> None:
        """Set the status of a source. Never waits, never raises.

        ``until`` is the monotonic time in seconds at which the status becomes 在线.
        """
        self._sources[source] = (status, until, reason)

    def withdraw(self, source: str) -> None:
        """Remove a source, so that its status no longer counts."""
        self._sources.pop(source, None)

    def forget_sources(self) -> None:
        for source in self._sources.copy():
            if source != self.HOST:
                self._sources.pop(source, None)

    def list_sources(self, now: float) -> dict[str, Status]:
        """Return the current status of each source, in the order of their addition."""
        return {
            source: status if now < until else Status.ONLINE
            for source, (status, until, _) in self._sources.copy().items()
        }

    def worst_source(self, now: float) -> tuple[str, Status, str]:
        """Return the worst status, with its source and its reason.

        The result is a tuple of source, status and reason. If several sources have the
        worst status, the first of them is returned.
        """
        sources = self._sources.copy()
        name, (worst, _, reason) = self.HOST, sources[self.HOST]
        for source, (status, until, why) in sources.items():
            complains = now < until and status is not Status.ONLINE
            if complains and status.severity > worst.severity:
                name, worst, reason = source, status, why
        return name, worst, reason

    def status(self, now: float) -> Status:
        return self.worst_source(now)[1]

    def reason(self, now: float) -> str:
        """Return the reason of the current status, or ``""`` if it is unknown."""
        return self.worst_source(now)[2]

    def next_change(self, now: float) -> float:
        """Return the monotonic time at which the next status expires, or infinity."""
        moments = [until for _, until, _ in self._sources.copy().values()]
        return min(until for until in moments if until > now)


@dataclass
class StatusCounts:
    """How often the status was written, and how often writing failed."""

    writes: int = 0
    failures: int = 0


class HealthCheckDecorator(Protocol):
    """The type of the decorator ``agent.health_check(...)``.

    The decorator returns the function unchanged, so its type stays the same.
    """

    def __call__(self, function: C, /) -> C: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class HealthCheck:
    """A registered health check, with its function and its schedule."""

    name: str
    function: Check  # a coroutine function or a plain function, without arguments
    interval: float = INTERVAL  # seconds from the end of one call to the next call
    timeout: float = TIMEOUT  # seconds
    failures: int = FAILURES  # failures in a row after which the status becomes 故障

    def __post_init__(self) -> None:
        check_name("health check", self.name)
        _SECONDS.check("interval", self.interval)
        _SECONDS.check("timeout", self.timeout)
        _COUNT.check("failures", self.failures)
        _check_function(self.name, self.function)

    @property
    def source(self) -> str:
        return f"health check {self.name}"


def _check_function(name: str, function: object) -> None:
    """Raise ConfigurationError for a generator, or a function that needs arguments."""
    field_name = f"health check {name}"
    if not callable(function):
        rule = "a function that is called without arguments"
        raise ConfigurationError(field_name, function, rule, "Give it the function.")
    for called in (function, getattr(function, "__call__", None)):  # noqa: B004 - it is always callable
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            rule = "calling a generator function runs nothing of it"
            remedy = "Return or raise instead of yielding."
            raise ConfigurationError(field_name, "generator function", rule, remedy)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        rule = f"it is called without arguments ({error})"
        remedy = "Bind them before: functools.partial(function, …)."
        raise ConfigurationError(field_name, repr(function), rule, remedy) from None
    except ValueError:
        pass  # a built-in function without a signature; its first call shows errors


@dataclass(frozen=True, eq=False, kw_only=True)
class CheckCall:
    """One call of a check. A plain function may run after its timeout."""

    check: HealthCheck
    began: float  # Unix time in seconds
    deadline: float  # monotonic time in seconds


class HealthChecks:
    """The registered health checks. They stay when the agent is closed and reopened."""

    def __init__(self) -> None:
        self.all: dict[str, HealthCheck] = {}  # in the order of registration
        self.added: ThreadSafeEvent = ThreadSafeEvent()  # set when a check was added
        # The calls of plain functions that run now. Kept after a session, because their
        # threads still run.
        self.plain_calls: set[CheckCall] = set()

    def reset_after_fork(self) -> None:
        """Forget the running calls, because a forked child has no threads for them."""
        self.plain_calls = set()

    def overdue_since(self, check: HealthCheck) -> float | None:
        """Return the Unix time at which a call began that has exceeded its timeout.

        A call within its timeout is no failure. It may belong to another monitor,
        because ``run_checks`` may be called beside an open session.
        """
        now = time.monotonic()
        calls = [call for call in list(self.plain_calls) if call.check is check]
        return next((call.began for call in calls if now >= call.deadline), None)

    def add(self, check: HealthCheck) -> None:
        """Register a check. May be called from any thread."""
        register(self)
        if self.all.setdefault(check.name, check) is not check:
            rule = "a health check of this name is registered already"
            remedy = 'Choose another one: agent.health_check("name")(function).'
            raise ConfigurationError("name", check.name, rule, remedy)
        self.added.set()

    def run_plain(self, call: CheckCall) -> object:
        """Call a check that is a plain function, in a thread of the monitor."""
        calls = self.plain_calls
        calls.add(call)
        try:
            return call.check.function()
        finally:
            calls.discard(call)


class HealthMonitor:
    """Runs the health checks of one session and reports the changes of their results.

    Each check has its own schedule. Each call is an asyncio task outside of all cancel
    scopes. After the check's timeout the task is cancelled, and the monitor does not
    wait for its end. While the task still runs, the check is not called again, and
    counts as failed. Plain functions run in threads of the monitor.
    """

    def __init__(
        self,
        checks: HealthChecks,
        aggregator: StatusAggregator,
        stream: LogStream,
        *,
        project: str,
        on_change: Callable[[], None],
    ) -> None:
        self._checks = checks
        self._aggregator = aggregator
        self._stream = stream
        self._project = project
        self._on_change = on_change
        # For the name of each check: the task of the last call, and the Unix time in
        # seconds at which this call began.
        self._calls: dict[str, tuple[asyncio.Task[dict[str, str] | None], float]] = {}
        self._threads = HandlerThreads()
        self._rng = random.Random()  # noqa: S311 - for jitter, not for secrets

    async def run(self) -> None:
        """Run all checks until cancelled, also checks that are registered later."""
        self._checks.added.bind()
        watched: set[str] = set()
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    for check in list(self._checks.all.values()):
                        if check.name not in watched:
                            watched.add(check.name)
                            tasks.start_soon(self._watch, check)
                    await self._checks.added.wait()
        finally:
            self._checks.added.unbind()
            self.cancel_calls()

    def cancel_calls(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so no task runs
            for task, _ in self._calls.values():
                task.cancel()

    def close(self) -> None:
        self._threads.close()

    async def _watch(self, check: HealthCheck) -> None:
        """Call a check repeatedly.

        Report when the check has failed ``failures`` times in a row, and when the check
        then recovers.
        """
        failures, since = 0, 0.0  # failures in a row, and the time of the first one
        self._aggregator.set(check.source, Status.ONLINE)
        while True:
            failure, now = await self.call(check), time.monotonic()
            if failure is not None:
                since = since if failures else now
                failures += 1
                if failures == check.failures:
                    self._report_alarm(check, failure)
            elif failures >= check.failures:
                self._report_recovery(check, failures, now - since)
            failures = failures if failure else 0
            await anyio.sleep(jittered(check.interval, self._rng))

    def _report_alarm(self, check: HealthCheck, error: dict[str, str]) -> None:
        times = "once" if check.failures == 1 else f"{check.failures} times in a row"
        cause = f"{error['type']}: {error['message']}"
        text = cut_text(f"health check {check.name!r} failed {times}: {cause}", 2_000)
        reason = cut_text(f"health check {check.name!r}: {cause}", REASON_LIMIT)
        self._aggregator.set(check.source, Status.FAULT, reason=reason)
        metadata = {
            "healthCheck": check.name,
            "failures": check.failures,
            STATUS_REASON: self._aggregator.reason(time.monotonic()),
        }
        # Logged before the status is written, because a console that reads the new
        # status then reads its reason from the log.
        self._stream.emit(
            Level.ERROR, text, {**metadata, "error": error}, is_alarm=True
        )
        self._on_change()
        trace = redact(error.get("traceback", ""))
        logger.error("%s: %s", self._project, f"{redact(text)}\n{trace}".rstrip())

    def _report_recovery(
        self, check: HealthCheck, failures: int, seconds: float
    ) -> None:
        self._aggregator.set(check.source, Status.ONLINE)
        text = f"health check {check.name!r} is good again after {seconds:.1f} s"
        metadata = {
            "healthCheck": check.name,
            "failures": failures,
            "durationMs": round(seconds * 1000, 3),
            STATUS_REASON: self._aggregator.reason(time.monotonic()),
        }
        self._stream.emit(Level.INFO, text, metadata)
        self._on_change()
        logger.info("%s: %s", self._project, text)

    async def call(self, check: HealthCheck) -> dict[str, str] | None:
        """Call a check once. Return its failure, or ``None`` if the check succeeded.

        If an earlier call still runs, this is a failure, and the check is not called.
        """
        import asyncio  # noqa: PLC0415 - anyio has no task without a scope

        since = self._busy_since(check)
        if since is not None:
            text = f"it has not returned since {format_timestamp(since)}"
            return {"type": "StillRunning", "message": text}
        began = self._stream.now()
        deadline = time.monotonic() + check.timeout
        call = CheckCall(check=check, began=began, deadline=deadline)
        task = asyncio.get_running_loop().create_task(
            self._attempt(call), name=f"bls-agent {check.source}"
        )
        self._calls[check.name] = task, began
        await asyncio.wait({task}, timeout=check.timeout)
        if not task.done():
            task.cancel()  # the thread of a plain function continues to run
            text = f"it has not returned within {check.timeout:g} s"
            return {"type": "TimedOut", "message": text}
        # Dropped, because an exception in the task would keep the objects of the check
        # in memory.
        del self._calls[check.name]
        if task.cancelled():
            return {"type": "Cancelled", "message": "it was cancelled from inside"}
        return task.result()

    def _busy_since(self, check: HealthCheck) -> float | None:
        """Return the Unix time at which the running call began, or ``None``."""
        call = self._calls.get(check.name)
        if call is not None and not call[0].done():
            call[0].cancel()  # the task has ignored an earlier cancellation
            return call[1]
        return self._checks.overdue_since(check)

    async def _attempt(self, call: CheckCall) -> dict[str, str] | None:
        """Call a check and return its failure, or ``None``. Never raises."""
        function: Callable[[], Any] = call.check.function
        if not is_coroutine_function(function):
            function = self._threads.wrap(partial(self._checks.run_plain, call))
        try:
            result = await function()
            if inspect.isawaitable(result):  # for example from a lambda without await
                result = await result
        except BaseException as error:  # noqa: BLE001 - also KeyboardInterrupt
            return describe_error(error)
        if result is False:
            return {"type": "ReturnedFalse", "message": "it returned False"}
        return None
