"""An agent that a test has opened, with assertions and readers of its data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cached_property
from typing import Any, Final, Self, TypeVar

from bls_agent.agent import ProjectAgent
from bls_agent.assets import AssetLibrary
from bls_agent.connection.access import Store
from bls_agent.console import Console
from bls_agent.core.errors import ConfigurationError
from bls_agent.crawl import RequestQueue
from bls_agent.project.invocation import Invocation, exception_of
from bls_agent.project.messages import Level, LogEntry, Outcome, Status
from bls_agent.project.stats import AgentStats
from bls_agent.runs import EventStore
from bls_agent.testing.recording import RecordedCommand, Recording, join
from bls_agent.workers import WorkerRegistry

S = TypeVar("S", bound=Store)

SHOWN: Final = 20  # newest commands or records that a message shows


class RunningAgent:
    """An agent on the server of a test. ``bls_fleet.run(agent)`` yields this object.

    Assertions check what the agent has done so far, and do not wait. To wait, write
    ``await eventually(lambda: running.assert_logged("warn", "stock is low"))``.
    Expected values may be matchers, such as ``unittest.mock.ANY``.

    After the test, the fixture fails the test if there is a problem that the test has
    not checked. The test has checked

    1. the outcome of a command, if :meth:`call` has returned or raised it;
    2. the outcome of a command, if :meth:`assert_outcome` has found it;
    3. faults of the agent and lost log records, if :meth:`stats` was called afterwards.

    Attributes:
        agent: The agent.
    """

    def __init__(
        self,
        agent: ProjectAgent,
        recording: Recording,
        recordings: Sequence[Recording],
        server_url: str,
        read_status: Callable[[str], Status | None],
    ) -> None:
        self.agent = agent
        self._recording = recording
        self._recordings = recordings  # of all agents of the test
        self._server_url = server_url
        self._read_status = read_status
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Return this object. ``bls_fleet.run`` calls this method."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the console and the stores of this object."""
        self._recording.count()
        await self._opened.aclose()

    @property
    def commands(self) -> list[RecordedCommand]:
        """The commands that the agent has taken, oldest first."""
        return self._recording.commands

    @property
    def logs(self) -> list[LogEntry]:
        """The log records of the agent, oldest first, as consoles read them."""
        return [LogEntry.decode(item.payload) for item in self._recording.records]

    @property
    def status(self) -> Status | None:
        """The status in Redis, or ``None`` if Redis has no status.

        The status is read directly from the server, even during a fault.
        """
        return self._read_status(self.agent.project)

    def stats(self) -> AgentStats:
        """Return every counter of the agent. The test has then checked the counters."""
        return self._recording.look()

    async def call(
        self,
        command: str,
        args: Mapping[str, Any] | None = None,
        /,
        *,
        check: bool = True,
        within: float = 10.0,
        **arguments: Any,
    ) -> Any:
        """Send a command over Redis as a console does, and wait for its outcome.

        Args:
            command: The command's name.
            args: The arguments as a mapping. Use it for arguments that are called
                ``check`` or ``within``.
            check: Whether to raise the exception of a command that did not succeed.
            within: Seconds until the outcome is recorded.
            arguments: The arguments as keywords.

        Returns:
            The result, as JSON. If ``check`` is false, the
            :class:`~bls_agent.Outcome`.

        Raises:
            Exception: The exception that the handler has raised. If the command failed
                without such an exception, a TimeoutError or a CommandError.
            NoOutcomeError: No outcome was recorded in time.
        """
        __tracebackhide__ = True  # pytest leaves this frame out
        sent = {**(args or {}), **arguments}
        project = self.agent.project
        outcome = await self.console.call(project, command, sent, timeout=within)
        error: BaseException | None = None
        for recording in self._recordings:  # another replica may have taken the command
            for recorded in recording.commands:
                if recorded.id == outcome.command_id:
                    recorded.seen, error = True, recorded.exception or error
        if not check:
            return outcome
        exception = exception_of(outcome, error)
        return Invocation(outcome=outcome, logs=[], exception=exception).unwrap()

    def assert_called_once_with(self, command: str, /, **args: Any) -> RecordedCommand:
        """Assert that the agent has taken a command once, with these arguments.

        The command may have more arguments. Its outcome is not checked.

        Returns:
            The command.

        Raises:
            AssertionError: The command was not taken, or more than once, or with other
                arguments.
        """
        __tracebackhide__ = True
        taken = [one for one in self.commands if one.command == command]
        if len(taken) == 1 and _fits(args, taken[0].args):
            return taken[0]
        wanted = f"one command {command}({join(args)}), perhaps with more arguments"
        raise AssertionError(_compare(wanted, self.commands, "command"))

    def assert_not_called(self, command: str, /) -> None:
        """Assert that the agent has not taken a command.

        Raises:
            AssertionError: The command was taken.
        """
        __tracebackhide__ = True
        taken = [one for one in self.commands if one.command == command]
        if taken:
            raise AssertionError(_compare(f"no command {command}", taken, "command"))

    def assert_outcome(self, command: str, kind: str, /, **error: Any) -> Outcome:
        """Assert how a command ended. Each outcome that fits counts as checked.

        Args:
            command: The command's name.
            kind: The kind of the outcome, such as ``"failed"`` or ``"rejected"``.
            error: Fields of the outcome's error, such as ``type="OutOfStock"``.

        Returns:
            The newest outcome that fits.

        Raises:
            AssertionError: No command of this name has such an outcome.
        """
        __tracebackhide__ = True
        found: Outcome | None = None
        for one in self.commands:
            end = one.outcome
            fits = end is not None and one.command == command and end.kind == kind
            if end is not None and fits and _fits(error, end.error):
                one.seen, found = True, end
        if found is None:
            wanted = f"a command {command} that {kind}"
            wanted = f"{wanted} with {join(error)}" if error else wanted
            raise AssertionError(_compare(wanted, self.commands, "command"))
        return found

    def assert_logged(
        self, level: Level | str, message: str | re.Pattern[str], /, **metadata: Any
    ) -> LogEntry:
        """Assert that the agent has logged a record, and return the newest that fits.

        Args:
            level: ``debug``, ``info``, ``warn`` or ``error``.
            message: The whole message, or a regular expression that matches a part.
            metadata: Fields of the record's metadata; the record may have more.

        Raises:
            AssertionError: There is no such record.
            ConfigurationError: ``level`` is unknown.
        """
        __tracebackhide__ = True
        if level not in [*Level]:
            raise ConfigurationError("level", level, "debug, info, warn or error")
        logs = self.logs
        for entry in reversed(logs):
            if (
                entry.level == level
                and _is_like(message, entry.message)
                and _fits(metadata, entry.metadata)
            ):
                return entry
        shown = message.pattern if isinstance(message, re.Pattern) else message
        wanted = f"a record {level} {shown!r} {join(metadata)}".rstrip()
        got = [f"{e.level} {e.message!r} {join(e.metadata)}".rstrip() for e in logs]
        raise AssertionError(_compare(wanted, got, "record"))

    @cached_property
    def console(self) -> Console:
        """A console that is connected directly to the server, without faults."""
        return self._open(Console(self._server_url))

    @cached_property
    def workers(self) -> WorkerRegistry:
        """The heartbeats and tasks on the server."""
        return self._open(WorkerRegistry(self._server_url))

    @cached_property
    def events(self) -> EventStore:
        """The events of runs on the server."""
        return self._open(EventStore(self._server_url))

    @cached_property
    def assets(self) -> AssetLibrary:
        """The asset library on the server."""
        return self._open(AssetLibrary(self._server_url))

    def crawl_queue(self, project: str, spider: str | None = None) -> RequestQueue:
        """Return the crawl queue of a spider, or of a whole project, on the server."""
        return self._open(RequestQueue(self._server_url, project, spider))

    def _open(self, store: S) -> S:
        self._opened.push_async_callback(store.aclose)
        return store


def _fits(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> bool:
    """Return whether each expected value, possibly a matcher, equals the actual one."""
    return all(k in actual and value == actual[k] for k, value in expected.items())


def _is_like(expected: str | re.Pattern[str], text: str) -> bool:
    if isinstance(expected, re.Pattern):
        return expected.search(text) is not None
    return expected == text


def _compare(expected: str, got: Iterable[object], kind: str) -> str:
    lines = [f"  {one}" for one in got]
    older = len(lines) - SHOWN
    shown = [f"  and {older} older ones:", *lines[-SHOWN:]] if older > 0 else lines
    head = f"got {len(lines)} {kind}{'s' * (len(lines) != 1)}{':' * bool(lines)}"
    return "\n".join([f"expected {expected}", head, *shown])
