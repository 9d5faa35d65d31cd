"""The console: sends commands to agents in any language, reads statuses and logs."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

import anyio

from bls_agent.connection.access import RedisOrAgent, Store
from bls_agent.connection.endpoint import Reply
from bls_agent.core.checks import check_count, check_seconds, refuse_text
from bls_agent.core.errors import (
    BlsError,
    NoOutcomeError,
    RedisUnavailableError,
    UnknownProjectError,
)
from bls_agent.core.keys import (
    PROJECT_CONSOLE,
    PROJECT_STATUS,
    check_name,
    checked_reply,
    encode_key,
)
from bls_agent.core.redaction import Redactor
from bls_agent.core.settings import Settings
from bls_agent.project.console.audit import find_sender
from bls_agent.project.console.log import (
    WINDOW,
    LogReader,
    OutcomeCollector,
    follow_log,
)
from bls_agent.project.console.projects import find_projects, forget_project, has_keys
from bls_agent.project.console.queue import (
    CommandLists,
    CommandsInHand,
    nothing_written,
)
from bls_agent.project.console.sending import CallOptions, RecordedActions
from bls_agent.project.console.tracing import SendTracing, encode_within
from bls_agent.project.messages import (
    COMMAND_LIMIT,
    CONSOLE_SOURCE,
    Command,
    LogEntry,
    Outcome,
    Status,
)

if TYPE_CHECKING:
    from bls_agent.connection.pool import ConnectionPool
    from bls_agent.project.console.search import LogFilter, LogSearch
    from bls_agent.project.log.reading import LogPage
    from bls_agent.project.status.intake import IntakeReport

NAMES_KEPT: Final = 1_000  # most names of projects that a console remembers
STARTING: Final = 0.5  # seconds to wait for the first key of a starting agent
NEWEST: Final = 50  # number of newest records in which the agent's last one is searched
LOOK_TIME: Final = 1.0  # most seconds to find a command after a timeout


class Console(Store):
    """Sends commands, reads statuses and logs.

    Close the console with :meth:`aclose` if it was used without ``async with``. If Redis
    is unreachable, a read raises an error and does not return an empty result.

    Args:
        redis: A URL, a client of redis-py or a :class:`~bls_agent.ProjectAgent`. Default:
            ``BLS_REDIS_URL``, read at the first request.
        timeout: Deadline of one request in seconds.

    Raises:
        ConfigurationError: The URL, the client or ``timeout`` cannot be used.
    """

    client_name: ClassVar[str] = "bls-console"

    def __init__(
        self, redis: RedisOrAgent | None = None, *, timeout: float = 5.0
    ) -> None:
        super().__init__(redis, timeout=timeout)
        self._clock: Callable[[], float] = time.time  # noqa: TID251 - the clock is chosen here and passed on
        self._tracing = SendTracing()
        self._seen: set[str] = set()  # projects for which a key was found

    @property
    def _pool(self) -> ConnectionPool:
        return self._access.pool

    @cached_property
    def _settings(self) -> Settings:
        return Settings.from_env(os.environ)

    @cached_property
    def redactor(self) -> Redactor:
        """Removes secrets from texts; ``BLS_REDACT_KEYS`` adds names of secrets."""
        return Redactor(self._settings.redact_keys)

    @property
    def _actions(self) -> RecordedActions:
        longest = self._settings.log_list_limit
        return RecordedActions(self._pool, self.redactor, longest, self._clock)

    async def send(
        self,
        project: str,
        command: str,
        args: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the name in the protocol
        broadcast: bool = False,
        create: bool = False,
        size_limit: int = COMMAND_LIMIT,
        record: bool = False,
        sent_by: str = "",
        source: str = CONSOLE_SOURCE,
        timestamp: str = "",
    ) -> Command:
        """Put a command into a project's control list.

        Args:
            project: The project's name. The project needs a status, a log or a queue.
            command: The command's name.
            args: The command's arguments.
            id: The command's id. Default: a new id.
            broadcast: Whether every replica runs the command (agents with
                ``replicas=True``).
            create: Whether to send the command even if the project has no key yet.
            size_limit: Longest command in bytes. Pass more than 64 KB only if every
                agent of the project reads longer commands.
            record: Whether to try to write a record of sender, command and arguments
                (without secrets) into the console list. A second record is written if
                the command could not be sent. If the list has more than
                ``BLS_LOG_LIST_LIMIT`` records (10,000), the oldest record is removed.
            sent_by: The sender that the record names. Default: user and host.
            source: The command's ``source``.
            timestamp: The command's ``timestamp``, ISO-8601 with a zone. Default: now.

        Returns:
            The command as it was sent.

        Raises:
            ConfigurationError: A name or an argument cannot be sent. If the command is
                too long, the error is a :class:`~bls_agent.CommandTooLargeError`.
            UnknownProjectError: The project has no status, no log and no queue.
            RedisUnavailableError: If ``error.ambiguous`` is true, the command may have
                been sent. Otherwise it was not sent.
            WrongTypeError: The project's control key is not a list.
        """
        message = Command.create(
            command,
            args,
            now=self._clock(),
            id=id,
            source=source,
            timestamp=timestamp,
            broadcast=broadcast,
        )
        payload = encode_within(size_limit, message)
        sender = find_sender(sent_by, record=record)
        with nothing_written():
            await self._find(project, create=create)
        with self._tracing.tracer(project, message, payload, size_limit) as payload:
            await self._actions.send(project, message, payload, sender)
        return message

    async def _find(self, project: str, *, create: bool) -> None:
        """Raise UnknownProjectError if a project gets no key within ``STARTING``."""
        try:
            if project in self._seen:
                return
            encode_key(project)
        except (TypeError, AttributeError, UnicodeEncodeError):
            check_name("project", project)  # raises an error that names the fault
        until = anyio.current_time() + STARTING
        while create or not await has_keys(self._pool, project):
            check_name("project", project)
            if create:
                break
            if anyio.current_time() > until:
                raise UnknownProjectError(project)
            await anyio.sleep(STARTING / 10)
        if len(self._seen) >= NAMES_KEPT:
            self._seen.clear()
        self._seen.add(project)

    async def call(
        self,
        project: str,
        command: str,
        args: Mapping[str, Any] | None = None,
        *,
        timeout: float = 10.0,
        broadcast: bool = False,
        **options: Unpack[CallOptions],
    ) -> Outcome:
        """Send a command and wait for the record of its outcome.

        The first outcome of a broadcast is returned. The options are those of
        :meth:`send`: ``create``, ``size_limit``, ``source``, ``record`` and ``sent_by``.

        Raises:
            ConfigurationError: An argument of :meth:`send` cannot be sent, or
                ``timeout`` is not a time. Nothing was sent.
            UnknownProjectError: The project has no status, no log and no queue.
            NoOutcomeError: No outcome was recorded within ``timeout`` seconds. The
                error states what is known about the command.
            RedisUnavailableError: The command could not be sent (see :meth:`send`), or
                Redis refuses to read the log. During an outage after sending, the
                method waits.
        """
        outcomes = await self._collect(
            project, command, args, (), timeout, broadcast=broadcast, **options
        )
        return next(iter(outcomes.values()))

    async def call_all(
        self,
        project: str,
        command: str,
        args: Mapping[str, Any] | None = None,
        *,
        timeout: float = 10.0,
        **options: Unpack[CallOptions],
    ) -> dict[str, Outcome]:
        """Send a broadcast and wait for the outcome of every replica that runs.

        The options are those of :meth:`call`.

        Returns:
            The outcome of each replica, by its instance name. A replica that has not
            answered in time is missing.

        Raises:
            BlsError: The errors of :meth:`call`, for the same reasons.
        """
        with nothing_written():
            expected = await self.instances(project)
        outcomes = await self._collect(
            project, command, args, expected, timeout, broadcast=True, **options
        )
        return dict(sorted(outcomes.items()))

    async def _collect(
        self,
        project: str,
        command: str,
        args: Mapping[str, Any] | None,
        expected: Collection[str],
        timeout: float,
        *,
        broadcast: bool,
        **options: Unpack[CallOptions],
    ) -> dict[str, Outcome]:
        from bls_agent.project.log.reading import Follower  # noqa: PLC0415 - few programs need the module

        check_seconds("timeout", timeout)
        roll = OutcomeCollector(frozenset(expected))
        follower = Follower()
        with nothing_written():
            follower.start(*await self._log(project).newest(WINDOW))
        message = await self.send(
            project, command, args, broadcast=broadcast, **options
        )
        roll.command_id = message.id
        await roll.collect(lambda: self._log(project).look(follower), timeout)
        if not roll.outcomes:
            state, since = await self._locate_command(project, message.id)
            raise NoOutcomeError(command, message.id, timeout, state=state, since=since)
        return roll.outcomes

    async def _locate_command(self, project: str, command_id: str) -> tuple[str, str]:
        """Return ``state`` and ``since`` of NoOutcomeError; ``""`` if not known."""
        with suppress(BlsError), anyio.move_on_after(LOOK_TIME):
            if await CommandLists(self._pool, project).is_waiting(command_id):
                if await self.status(project) not in (None, Status.OFFLINE):
                    return "waiting", ""
                for entry in reversed(await self.logs(project, NEWEST)):
                    if "sentBy" not in entry.metadata:  # the agent wrote it
                        return "offline", entry.timestamp
                return "offline", ""
            return "taken", ""
        return "", ""

    async def queue(self, project: str, limit: int = 200) -> list[Command]:
        """Read the first ``limit`` waiting commands of a project, in queue order.

        If the agent uses mode ``compat``, the first command may be running. An element
        that is not a command has ``""`` as its ``command``, and empty values for other
        missing fields.

        Raises:
            ConfigurationError: ``limit`` is not an integer above 0.
            WrongTypeError: The control key is not a list.
            RedisUnavailableError: Redis cannot answer.
        """
        check_count("limit", limit)
        return await CommandLists(self._pool, project).waiting(limit)

    async def withdraw(self, project: str, id: str) -> Command | None:  # noqa: A002 - the name in the protocol
        """Take a command out of a project's control list, before an agent takes it.

        Either the command is withdrawn or an agent gets the command, because one
        request removes its exact bytes. If the agent uses mode ``compat``, the first
        command of the list may be running although it is withdrawn. If several commands
        have this id, all are withdrawn.

        Returns:
            The command; ``None`` if no command with this id waits.

        Raises:
            ConfigurationError: ``id`` is not a text, or is empty.
            WrongTypeError: The control key is not a list.
            RedisUnavailableError: If ``error.ambiguous`` is true, the command may have
                been withdrawn. Otherwise it was not withdrawn.
        """
        withdrawn = await CommandLists(self._pool, project).withdraw(id or "")
        return withdrawn[-1] if withdrawn else None

    async def withdraw_all(self, project: str) -> list[Command]:
        """Take all waiting commands out of a project's control list, and return them.

        Each command is withdrawn, or an agent gets it. In mode ``compat`` a running
        command may be withdrawn, as with :meth:`withdraw`, whose errors are the same. If ``error.ambiguous``, some commands may be withdrawn.
        """
        return await CommandLists(self._pool, project).withdraw(None)

    async def in_hand(self, project: str, limit: int = 200) -> list[CommandsInHand]:
        """Read the unfinished commands of each process in mode ``reliable``.

        ``limit`` is the largest number of commands of each process. Errors and missing
        fields are those of :meth:`queue`.
        """
        check_count("limit", limit)
        return await CommandLists(self._pool, project).in_hand(limit)

    async def dead_letters(self, project: str, limit: int = 200) -> list[Command]:
        """Read the newest ``limit`` dead letters of a project, newest first.

        A dead letter is a command that was started three times in mode ``reliable`` and
        never ended. At most 1,000 are kept. Errors and missing fields are those of
        :meth:`queue`.
        """
        check_count("limit", limit)
        return await CommandLists(self._pool, project).dead_letters(limit)

    async def requeue(
        self,
        project: str,
        id: str | None = None,  # noqa: A002 - the name in the protocol
        *,
        all: bool = False,  # noqa: A002 - the usual word
        record: bool = False,
        sent_by: str = "",
    ) -> list[Command]:
        """Put dead letters back at the end of the queue, byte for byte, to run again.

        Redis moves each command in one atomic step. So no command is lost or doubled,
        even if this program is killed, or two programs requeue at the same time. The
        deliveries of the commands are counted from 1 again.

        Args:
            project: The project's name.
            id: The command's id. If several dead letters have this id, all are moved.
            all: Whether all dead letters are moved, also those without an id.
            record: Whether to write a record of the sender and at most 100 ids into the
                console list, after the commands were moved. A failure is ignored.
            sent_by: The sender that the record names. Default: user and host.

        Returns:
            The commands that were moved, oldest first; empty if there were none.

        Raises:
            ConfigurationError: ``id`` or ``sent_by`` is an empty text, not exactly one
                of ``id`` and ``all`` is passed, or ``sent_by`` without ``record``.
            WrongTypeError: A key is of another type.
            RedisUnavailableError: If ``error.ambiguous`` is true, some commands may have
                been moved. Otherwise none was moved. The method may be called again.
        """
        return await self._actions.settle(
            project, id, chooses_all=all, requeues=True, record=record, sent_by=sent_by
        )

    async def discard(
        self,
        project: str,
        id: str | None = None,  # noqa: A002 - the name in the protocol
        *,
        all: bool = False,  # noqa: A002 - the usual word
        record: bool = False,
        sent_by: str = "",
    ) -> list[Command]:
        """Delete dead letters, and return them.

        Arguments, errors and guarantees are those of :meth:`requeue`.
        """
        return await self._actions.settle(
            project, id, chooses_all=all, requeues=False, record=record, sent_by=sent_by
        )

    async def forget(self, project: str, *, force: bool = False) -> list[str]:
        """Delete every key of a project: its status, its log, its waiting commands.

        The method also deletes the keys of this package for the project: those of mode
        ``reliable``, of replicas and of broadcasts. The deletion is not atomic, so that
        keys that an agent writes meanwhile may be deleted or stay. ``force`` deletes
        the keys even if the project is online, but its agent then writes its status
        again. Commands that an agent in mode ``reliable`` has taken and not ended
        always stay.

        Returns:
            The keys that were deleted.

        Raises:
            LeaseHeldError: The project is online. Nothing was deleted.
            RedisUnavailableError: Some keys may be left. Call this method again.
        """
        deleted = await forget_project(self._pool, project, force=force)
        self._seen.discard(project)
        return deleted

    async def instances(self, project: str) -> dict[str, Status]:
        """Read the status of each replica of a project that runs.

        Returns:
            Instance name → status; empty without agents with ``replicas=True``.

        Raises:
            WrongTypeError: The key of the replicas is not a hash.
            RedisUnavailableError: Redis cannot answer.
        """
        from bls_agent.project.status.replicas import read_replicas  # noqa: PLC0415 - few programs need the module

        key = PROJECT_STATUS.locate(project=project)
        async with self._pool.to(key) as connection:
            return await read_replicas(connection, project)

    async def intakes(
        self, projects: Iterable[str]
    ) -> dict[str, Mapping[str, IntakeReport]]:
        """Read which processes of projects are paused, draining or drained.

        Returns:
            Project → instance → report, without projects that have no report or whose
            reports this console may not read. A killed process stays for at most 30 s.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        from bls_agent.project.status.intake import read_intakes  # noqa: PLC0415 - few programs need the module

        refuse_text("projects", projects)
        return await read_intakes(self._pool, list(projects))

    async def status(self, project: str) -> Status | None:
        """Read a project's status.

        Returns:
            The status; ``None`` if the project never wrote a status, or did not refresh
            the status in time.

        Raises:
            DecodeError: The value is none of the four statuses.
            WrongTypeError: The status key is not a string.
            RedisUnavailableError: Redis cannot answer.
        """
        value = await self._read("GET", PROJECT_STATUS.locate(project=project))
        return None if value is None else Status.decode(value)

    async def exists(self, project: str) -> bool:
        """Return whether a project has a status, a log or waiting commands.

        A key counts even if this console may not read the key, or its type is wrong.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        return await has_keys(self._pool, project)

    async def projects(self) -> dict[str, Status | None]:
        """Find every project that has a status, a log or waiting commands.

        The method uses SCAN, because KEYS would block Redis. Projects whose status this
        console may not read are left out.

        Returns:
            The status of each project, sorted by name; ``None`` for no valid status.

        Raises:
            RedisUnavailableError: Redis cannot answer, or refuses every status.
        """
        return await find_projects(self._pool)

    async def logs(self, project: str, limit: int = 200) -> list[LogEntry]:
        """Read the newest records of a project, at most ``limit``, newest last.

        Fewer records are returned if they are very long (about 16 MiB together).

        Raises:
            ConfigurationError: ``limit`` is not an integer above 0.
            WrongTypeError: The key is not a list.
            RedisUnavailableError: Redis cannot answer.
        """
        check_count("limit", limit)
        window, _ = await self._log(project).newest(limit)
        return [LogEntry.decode(item) for item in window]

    async def log_page(
        self, project: str, *, before: str = "", limit: int = 200
    ) -> LogPage:
        """Read records page by page, backwards from the newest.

        The pages repeat and skip no record while the list grows and is trimmed at its
        front. Equal records in a row without ids are an exception, because this method
        cannot distinguish them.

        Args:
            project: The project's name.
            before: ``page.before`` of the previous page; ``""`` for the newest page.
            limit: Largest number of records; fewer if they are very long.

        Raises:
            ConfigurationError: ``before`` is not from an earlier page, or ``limit`` is
                not an integer above 0.
            WrongTypeError: The key is not a list.
            RedisUnavailableError: Redis cannot answer.
        """
        check_count("limit", limit)
        return await self._log(project).page(before, limit)

    async def search_logs(
        self, project: str, wanted: LogFilter, *, before: str = "", limit: int = 200
    ) -> LogSearch:
        """Search the records of a project backwards from the newest.

        One search reads about 10,000 records, the default length of a list. It ends
        earlier if ``limit`` records match.

        Args:
            project: The project's name.
            wanted: The filter for records, for example ``LogFilter(text="1024")``.
            before: ``search.before`` of the search to continue; ``""`` for a new search.
            limit: Largest number of matching records; the newest ones are returned.

        Raises:
            ConfigurationError: ``before`` is not from an earlier search, or ``limit`` is
                not an integer above 0.
            WrongTypeError: The key is not a list.
            RedisUnavailableError: Redis cannot answer.
        """
        check_count("limit", limit)
        return await self._log(project).search(wanted, before, limit)

    def follow_logs(
        self, project: str, *, last: int = 0, interval: float = 0.25
    ) -> AsyncIterator[LogEntry]:
        """Yield records as they are written, until the iteration is left or cancelled.

        A record with an id (``metadata.agent``) is yielded only once, even after
        trimming and reconnects. A record without an id may be yielded again. An entry
        with ``is_gap`` replaces missing records. While Redis is unreachable, the
        iteration waits. If Redis refuses a read, the iteration raises.

        Args:
            project: The project's name.
            last: Number of existing records to yield first.
            interval: Seconds between two reads; longer if records are very long.

        Raises:
            ConfigurationError: An argument is not valid.
        """
        check_count("last", last, least=0)
        check_seconds("interval", interval)
        PROJECT_CONSOLE.locate(project=project)  # refuses what is no name
        return follow_log(partial(self._log, project), last, interval)

    def _log(self, project: str) -> LogReader:
        return LogReader(self._pool, project)

    async def _read(self, name: str, key: str, *rest: int) -> Reply:
        try:
            return await self._pool.read(key, name, *rest)
        except RedisUnavailableError as error:
            return checked_reply(error, key)
