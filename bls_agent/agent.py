"""The agent: what a service embeds to be on the console. Its life, nothing else."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import asdict, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import anyio
from anyio.abc import TaskStatus

from bls_agent.codec import JSONObject
from bls_agent.delivery import Flushed
from bls_agent.endpoint import Endpoint
from bls_agent.errors import ConfigurationError, RedisUnavailableError
from bls_agent.keys import check_name
from bls_agent.project.builtins import add_builtins
from bls_agent.project.logs import CURRENT_COMMAND, Log, LogStream
from bls_agent.project.messages import Level, Status
from bls_agent.project.registration import Registration
from bls_agent.project.router import Router
from bls_agent.project.status import StatusBoard
from bls_agent.session import Parts, Session, last_word, new_instance
from bls_agent.settings import Options, Settings, check_options
from bls_agent.stats import AgentStats, collect_stats
from bls_agent.supervisor import (
    can_handle_signals,
    obey_signals,
    start_supervisor,
)

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - see supervisor.py

__all__ = ["ProjectAgent"]

logger = logging.getLogger(__name__)


class ProjectAgent(Registration):
    """Puts a service on the BLS Project Console (contract 002).

    While it is open it refreshes the project's status, ships log records and runs the
    commands that the console sends. It is a guest: nothing in it raises into the host,
    makes it wait or cancels it, and it grows no further than its bounds. Redis may be
    away at the start and at any time; everything resumes by itself.

    Use ``async with agent:`` around the application, or ``await agent.run()`` as the
    application. An agent can be opened again after it was closed.

    Args:
        project: The project's name: the reader's key. UTF-8 in form NFC.
        redis: URL (``redis://``, ``rediss://``, ``unix://``) or a client of redis-py,
            from which address and credentials are taken. Default: ``BLS_REDIS_URL``,
            else ``redis://127.0.0.1:6379/0``.
        settings: Takes the place of the environment.
        validate: ``"pydantic"`` lets pydantic check all arguments of commands.
        options: Any field of :class:`~bls_agent.Settings`; beats ``settings`` and the
            environment (``BLS_STATUS_TTL`` for ``status_ttl``, and so on).

    Raises:
        ConfigurationError: An argument is wrong. What the environment says is checked
            when the agent is opened.
    """

    def __init__(
        self,
        project: str,
        *,
        redis: object = None,
        settings: Settings | None = None,
        validate: Literal["core", "pydantic"] = "core",
        **options: Unpack[Options],
    ) -> None:
        """Remember; nothing is opened, read or started."""
        self.project = check_name("project", project)
        check_options(options, settings)
        if validate not in ("core", "pydantic"):
            raise ConfigurationError("validate", validate, "'core' or 'pydantic'")
        self._options = options
        self._given_settings = settings
        self._endpoint = None if redis is None else Endpoint.of(redis)
        stream = LogStream(
            time.time,  # noqa: TID251 - the one clock; everybody else is given it
            max_records=options.get("log_buffer", Settings.log_buffer),
            max_bytes=options.get("log_buffer_bytes", Settings.log_buffer_bytes),
        )
        stream.set_level(Level(options.get("log_level", Settings.log_level)))
        self._parts = Parts(
            project=self.project,
            clock=time.time,  # noqa: TID251 - as above
            router=Router(pydantic=validate == "pydantic"),
            stream=stream,
            instance=options.get("instance") or "",
        )
        super().__init__(self._parts.router, self._parts.threads)
        self._session: Session | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._builtins_added = False
        self.log = Log(stream)

    def __repr__(self) -> str:
        """Give a diagnostic: state and the counters that tell trouble."""
        stats = self.stats()
        state = f"open, {stats.mode}" if stats.open else "closed"
        dropped = sum(stats.logs_dropped.values())
        return (
            f"<ProjectAgent {self.project!r} {state}, {stats.status.value}, "
            f"{stats.commands_running} running, {stats.logs_queued} queued, "
            f"{dropped} dropped>"
        )

    @property
    def status(self) -> Status:
        """The status that is shown: the worst of all sources."""
        return self._parts.board.status

    def set_status(self, status: Status) -> None:
        """Say how this service is; written at once, then refreshed.

        From any thread; never waits, never raises. What is no status is refused: said
        in the host's log, counted in ``stats().status_refused``.
        """
        try:
            checked = Status(status)
        except ValueError:
            self._parts.board.refused += 1
            known = ", ".join(Status)
            logger.warning(
                "%s", ConfigurationError("status", status, f"one of: {known}")
            )
            return
        session = self._session
        if self._parts.board.put(StatusBoard.HOST, checked) and session is not None:
            session.status.changed()

    async def flush(self, timeout: float = 5.0) -> Flushed:
        """Wait until the records put so far have been written.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            What happened; true if nothing of it still waits.
        """
        return await self._parts.stream.delivery.flush(timeout)

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until the first status has been written.

        Args:
            timeout: Seconds to wait at most; ``None`` for ever.

        Raises:
            RedisUnavailableError: Not within that time.
            ConfigurationError: The agent is not open.
        """
        session = self._opened_session()
        with anyio.move_on_after(timeout):
            await session.status.published.wait()
        if session.status.written:
            return
        raise RedisUnavailableError(
            "not_ready",
            f"no status was written in time; {session.connections.gate.last_error}",
            address=session.connections.endpoint.address,
        )

    def stats(self) -> AgentStats:
        """Give a snapshot of every counter and state; from any thread."""
        return collect_stats(self._parts, self._session)

    def _stats_as_json(self) -> JSONObject:
        return asdict(self.stats())

    async def __aenter__(self) -> Self:
        """Open: the loops run, Redis may still be away.

        Raises:
            ConfigurationError: The agent is open already, or the environment holds a
                value that does not fit.
        """
        if self._session is not None and not self._session.stop_requested.is_set():
            raise ConfigurationError(
                "agent", self.project, "it is open already", "Close it first."
            )
        if self._session is not None:
            await self._session.closed.wait()  # of the life before
        settings = self._settings()
        endpoint = self._endpoint or Endpoint.of(settings.redis_url)
        self._prepare(settings)
        session = Session(self._parts, settings, endpoint)
        self._session = session
        self._supervisor = start_supervisor(session, self.project)
        try:
            await session.opened.wait()
        except BaseException:
            await self._close(Status.OFFLINE)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close in order; the exception of the body goes on unchanged."""
        await self._close(last_word(error))

    async def aclose(self) -> None:
        """Close from wherever you are; does nothing if the agent is closed.

        In a handler it only begins the end, which waits for that handler.
        """
        if CURRENT_COMMAND.get() and self._session is not None:
            self._session.stop(Status.OFFLINE)
            return
        await self._close(Status.OFFLINE)

    async def _close(self, last_word: Status) -> None:
        session = self._session
        if session is None:
            return
        session.stop(last_word)
        try:
            with anyio.CancelScope(shield=True):
                await session.closed.wait()
        except BaseException:
            session.force()  # cancelled once more while it ended: hurry
            raise
        if self._session is session:
            self._session = None

    async def run(
        self,
        *,
        handle_signals: bool = True,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until SIGTERM or SIGINT, or until cancelled; then drain and return.

        A second signal cuts the time of running handlers short.

        Args:
            handle_signals: Listen for the two signals (in the main thread only).
            task_status: ``started()`` is called when the first status was written.
        """
        async with self:
            session = self._opened_session()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._announce_ready, session, task_status)
                if handle_signals and can_handle_signals():
                    tasks.start_soon(obey_signals, session)
                await session.closed.wait()
                tasks.cancel_scope.cancel()

    async def _announce_ready(
        self, session: Session, task_status: TaskStatus[None]
    ) -> None:
        await session.status.published.wait()
        task_status.started()

    def _opened_session(self) -> Session:
        if self._session is None:
            raise ConfigurationError("agent", repr(self), "the agent must be open")
        return self._session

    def _settings(self) -> Settings:
        if self._given_settings is not None:
            options: dict[str, Any] = {**self._options}
            return replace(self._given_settings, **options)
        return Settings.from_env(os.environ, **self._options)

    def _prepare(self, settings: Settings) -> None:
        """Apply what only the environment could tell."""
        parts = self._parts
        buffer = parts.stream.delivery.buffer
        buffer.max_items = settings.log_buffer
        buffer.max_bytes = settings.log_buffer_bytes
        parts.stream.set_level(Level(settings.log_level))
        parts.instance = parts.instance or settings.instance or new_instance()
        if settings.builtins and not self._builtins_added:
            add_builtins(parts.router, parts.stream, self._stats_as_json)
            self._builtins_added = True
