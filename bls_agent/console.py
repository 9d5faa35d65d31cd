"""The other end of contract 002: what the BLS Project Console does.

For tests, tools and the local console. Works with agents written in any language.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import anyio

from bls_agent.access import Store
from bls_agent.backoff import Backoff
from bls_agent.codec import encode_strictly
from bls_agent.console_log import WINDOW, LogReader, as_wrong_type, pause_after
from bls_agent.endpoint import Reply
from bls_agent.errors import (
    BlsError,
    ConfigurationError,
    NoOutcomeError,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.keys import (
    CONTROL,
    PROJECT_CONSOLE,
    PROJECT_STATUS,
    KeyTemplate,
)
from bls_agent.project.commands.sent import SendNote
from bls_agent.project.messages import Command, LogEntry, Outcome, Status
from bls_agent.redaction import Redactor
from bls_agent.settings import Settings, check_seconds

if TYPE_CHECKING:
    from bls_agent.keyed_wires import KeyedWires
    from bls_agent.project.log.paging import LogPage

__all__ = ["Console", "check_command"]


class Console(Store):
    """Sends commands, reads statuses and logs.

    Works with and without ``async with``; close it with :meth:`aclose` when it was
    used without. Reading never gives "nothing" for "Redis is away": it raises
    :class:`~bls_agent.RedisUnavailableError`.

    Args:
        redis: URL, client of redis-py or a :class:`~bls_agent.ProjectAgent`. Default:
            ``BLS_REDIS_URL``, read at the first request.
        timeout: Deadline of one request in seconds.

    Raises:
        ConfigurationError: The URL or client cannot be used.
    """

    client_name: ClassVar[str] = "bls-console"

    def __init__(self, redis: object = None, *, timeout: float = 5.0) -> None:
        """Remember where Redis is; nothing is opened yet."""
        super().__init__(redis, timeout=timeout)
        self._clock: Callable[[], float] = time.time  # noqa: TID251 - the outermost place

    @property
    def _wires(self) -> KeyedWires:
        return self._access.wires

    @cached_property
    def _redactor(self) -> Redactor:
        return Redactor(Settings.from_env(os.environ).redact_keys)

    async def send(
        self,
        project: str,
        command: str,
        args: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the contract's name
        broadcast: bool = False,
        sent_by: str = "",
    ) -> Command:
        """Put a command into a project's control list (contract 002, section 3.1).

        Args:
            project: Its name.
            command: The command's name.
            args: Its arguments.
            id: Its id; made up if absent.
            broadcast: Every replica is to run it (agents with ``replicas=True``).
            sent_by: Who sends it. A record in the project's console list says so, with
                the arguments without their secrets, before anything is sent; and
                another one if the command then could not be sent, if that can be
                written. ``""`` for no record.

        Returns:
            The command as it was sent.

        Raises:
            ConfigurationError: A name or an argument cannot be sent.
            RedisUnavailableError: Not sent; or perhaps, if ``error.ambiguous``.
            WrongTypeError: The project's control key is no list; or, with ``sent_by``,
                its console key.
        """
        key = CONTROL.build(project=project)
        check_command(command, args)
        message = Command.create(
            command, args, now=self._clock(), id=id, broadcast=broadcast
        )
        encode_strictly("command", command)
        encode_strictly("args", message.args)
        payload = message.encode()
        if not sent_by:
            await self._call(CONTROL, "RPUSH", key, payload)
            return message
        note = SendNote(message, sent_by, self._redactor)
        await self._note_before(project, note)
        try:
            await self._call(CONTROL, "RPUSH", key, payload)
        except BlsError as error:
            await self._note_after(project, note, error)
            raise
        return message

    async def _note_before(self, project: str, note: SendNote) -> None:
        """Write the record that goes first; whatever fails, no command was sent."""
        console = PROJECT_CONSOLE.build(project=project)
        payload = note.before(self._clock())
        try:
            await self._call(PROJECT_CONSOLE, "RPUSH", console, payload)
        except RedisUnavailableError as error:
            error.ambiguous = False
            raise

    async def _note_after(self, project: str, note: SendNote, error: BlsError) -> None:
        """Say that the command was not sent, or perhaps not, if that can be said."""
        console = PROJECT_CONSOLE.build(project=project)
        with suppress(BlsError):
            payload = note.after(error, self._clock())
            await self._call(PROJECT_CONSOLE, "RPUSH", console, payload)

    async def call(
        self,
        project: str,
        command: str,
        args: Mapping[str, Any] | None = None,
        *,
        timeout: float = 10.0,
        broadcast: bool = False,
        sent_by: str = "",
    ) -> Outcome:
        """Send a command and wait for the record that says how it ended.

        Of a broadcast, the first one. ``sent_by``: as for :meth:`send`.

        Raises:
            ConfigurationError: As :meth:`send`, or ``timeout`` is no time; not sent.
            NoOutcomeError: No such record within ``timeout`` seconds; the command may
                still be waiting, running, or done.
            RedisUnavailableError: As :meth:`send`; once it is sent, an outage is
                waited out.
        """
        how = {"broadcast": broadcast, "sent_by": sent_by}
        outcomes = await self._collect(project, command, args, (), timeout, **how)
        return next(iter(outcomes.values()))

    async def call_all(
        self,
        project: str,
        command: str,
        args: Mapping[str, Any] | None = None,
        *,
        timeout: float = 10.0,
        sent_by: str = "",
    ) -> dict[str, Outcome]:
        """Send a broadcast and wait until every living instance has said how it ended.

        ``sent_by``: as for :meth:`send`.

        Returns:
            Instance → its outcome. Who is missing has not answered in time.

        Raises:
            NoOutcomeError, RedisUnavailableError: As :meth:`call`.
        """
        everybody = await self.instances(project)
        how = {"broadcast": True, "sent_by": sent_by}
        outcomes = await self._collect(
            project, command, args, everybody, timeout, **how
        )
        return dict(sorted(outcomes.items()))

    async def _collect(
        self,
        project: str,
        command: str,
        args: Mapping[str, Any] | None,
        expected: Collection[str],
        timeout: float,
        **how: Any,
    ) -> dict[str, Outcome]:
        """Send a command and collect its outcomes until all of them are there."""
        from bls_agent.project.log.following import Follower  # noqa: PLC0415 - few do it
        from bls_agent.project.state.roster import RollCall  # noqa: PLC0415 - as above

        check_seconds("timeout", timeout)
        roll = RollCall(frozenset(expected))
        follower = Follower()
        follower.start(*await self._log(project).newest(WINDOW))
        message = await self.send(project, command, args, **how)
        roll.command_id = message.id
        await roll.collect(lambda: self._log(project).look(follower), timeout)
        if not roll.outcomes:
            raise NoOutcomeError(command, message.id, timeout)
        return roll.outcomes

    async def instances(self, project: str) -> dict[str, Status]:
        """Read which replicas of a project live, and what each says of itself.

        Returns:
            Instance → its status; empty without agents with ``replicas=True``.

        Raises:
            WrongTypeError: The key of the roster is no hash.
            RedisUnavailableError: Redis cannot answer.
        """
        from bls_agent.project.state.roster import read_roster  # noqa: PLC0415 - few do it

        key = PROJECT_STATUS.locate(project=project)
        async with self._wires.to(key) as wire:
            return await read_roster(wire, project)

    async def status(self, project: str) -> Status | None:
        """Read a project's status.

        Returns:
            ``None`` if it has none: it never had one, or it was not refreshed.

        Raises:
            DecodeError: The value is none of the contract's four.
            WrongTypeError: The key is no string.
            RedisUnavailableError: Redis cannot answer.
        """
        value = await self._read(
            PROJECT_STATUS, "GET", PROJECT_STATUS.locate(project=project)
        )
        return None if value is None else Status.decode(value)

    async def projects(self) -> dict[str, Status | None]:
        """Find every project that has a status, a log or waiting commands.

        Uses SCAN, never KEYS. Projects whose status may not be read are left out.

        Returns:
            Name → status, sorted by name; ``None`` for no valid status.

        Raises:
            RedisUnavailableError: Redis cannot answer, or refuses every status.
        """
        from bls_agent.console_projects import find_projects  # noqa: PLC0415 - few do it

        return await find_projects(self._wires)

    async def logs(self, project: str, limit: int = 200) -> list[LogEntry]:
        """Read the newest records, newest last.

        Args:
            project: Its name.
            limit: Records at most; fewer where they are very long (16 MiB together).

        Raises:
            WrongTypeError: The key is no list.
            RedisUnavailableError: Redis cannot answer.
        """
        if limit < 1:
            raise ConfigurationError("limit", limit, "at least 1")
        window, _ = await self._log(project).newest(limit)
        return [LogEntry.decode(item) for item in window]

    async def log_page(
        self, project: str, *, before: str = "", limit: int = 200
    ) -> LogPage:
        """Read records page by page, backwards from the newest.

        Exact while the list grows and is cut from its front: no record twice and none
        left out between a page and the one before it. Equal records in a row, without
        ids, are taken for one another.

        Args:
            project: Its name.
            before: ``page.before`` of the page behind the one that is wanted; ``""``
                for the newest.
            limit: Records at most; fewer where they are very long.

        Raises:
            ConfigurationError: ``before`` or ``limit`` makes no sense.
            WrongTypeError: The key is no list.
            RedisUnavailableError: Redis cannot answer.
        """
        if limit < 1:
            raise ConfigurationError("limit", limit, "at least 1")
        return await self._log(project).page(before, limit)

    async def follow_logs(
        self, project: str, *, last: int = 0, interval: float = 0.25
    ) -> AsyncIterator[LogEntry]:
        """Give records as they are written, until the iteration is left or cancelled.

        Exact for records that carry an id (``metadata.agent``), across trimming and
        reconnects: none missed unnoticed, none twice. For others best effort. Where
        records are missing an entry with ``is_gap`` stands in their place. While
        Redis is away it waits; what is refused for good it raises.

        Args:
            project: Its name.
            last: Begin with so many records that are there already.
            interval: Seconds between two looks; more where records are very long.
        """
        from bls_agent.project.log.following import Follower  # noqa: PLC0415 - few do it

        follower = Follower()
        backoff = Backoff()
        while True:
            try:
                if not follower.started:
                    window, length = await self._log(project).newest(max(last, WINDOW))
                    follower.start(window, length)
                    entries = [LogEntry.decode(item) for item in window[-last:]]
                    entries = entries if last else []
                else:
                    entries = await self._log(project).look(follower)
            except RedisRefusedError:
                raise
            except RedisUnavailableError:
                await anyio.sleep(backoff.failed())
                continue
            backoff.succeeded()
            for entry in entries:
                yield entry
            await anyio.sleep(max(interval, pause_after(follower.window_bytes)))

    def _log(self, project: str) -> LogReader:
        return LogReader(self._wires, project)

    async def _read(
        self, template: KeyTemplate, name: str, key: str, *rest: int
    ) -> Reply:
        try:
            return await self._wires.read(key, name, *rest)
        except RedisUnavailableError as error:
            raise as_wrong_type(error, template, key) from error

    async def _call(
        self, template: KeyTemplate, name: str, key: str, value: bytes
    ) -> Reply:
        try:
            return await self._wires.call(key, name, value)
        except RedisUnavailableError as error:
            raise as_wrong_type(error, template, key) from error


def check_command(command: object, args: object = None) -> None:
    """Refuse what is no command before anything is asked of Redis.

    Raises:
        ConfigurationError: Naming what is wrong.
    """
    if not isinstance(command, str) or not command.strip():
        raise ConfigurationError("command", command, "a text that is not blank")
    if not isinstance(args, Mapping | None):
        raise ConfigurationError("args", args, "a mapping of names to values")
