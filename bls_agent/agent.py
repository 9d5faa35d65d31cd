"""The agent, which a service embeds to appear on the BLS Project Console."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import anyio
from anyio.abc import TaskStatus

from bls_agent.connection.endpoint import Endpoint, RedisSource
from bls_agent.connection.reconnect import show_log
from bls_agent.core.checks import check_text, check_wait
from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import check_name
from bls_agent.core.redaction import Redactor
from bls_agent.core.settings import (
    Options,
    Settings,
    SettingsSource,
    check_options,
    warn_of_unknown_variables,
)
from bls_agent.project.agent_state import AgentState
from bls_agent.project.commands.router import (
    UNSET,
    CommandDecorator,
    Middleware,
    Router,
    Unset,
    choose_name,
    refuse_argument,
)
from bls_agent.project.log.log import Log, LogStream
from bls_agent.project.messages import Command, Level, Status
from bls_agent.project.receive.receiver import check_cluster_name
from bls_agent.project.status.health import (
    FAILURES,
    INTERVAL,
    TIMEOUT,
    Check,
    HealthCheck,
    HealthCheckDecorator,
)
from bls_agent.runtime.batch_writer import Flushed
from bls_agent.runtime.threads import is_coroutine_function

if TYPE_CHECKING:
    from bls_agent.project.agent_thread import AgentThread
    from bls_agent.project.invocation import Alone, CheckResult, Invocation
    from bls_agent.project.session import AgentSession
    from bls_agent.project.stats import AgentStats

logger: logging.Logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Middleware)
C = TypeVar("C", bound=Check)


class ProjectAgent:
    """Puts a service on the BLS Project Console.

    While the agent is open, it refreshes the project's status, writes log records to
    Redis and runs the commands that the console sends. Its background work does not
    raise into your program, does not block the program and does not cancel its tasks.
    Its memory is bounded. Redis may be unreachable at any time.

    Use ``async with agent:`` around the application, or ``await agent.run()`` as the
    application. Nothing is opened before that. A closed agent can be opened again.

    Args:
        project: The name by which consoles find the service, in Unicode form NFC.
        redis: A URL (``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://``,
            ``redis+cluster://``) or a client of redis-py, from which the agent takes
            address and credentials. Default: ``BLS_REDIS_URL``, else
            ``redis://127.0.0.1:6379/0``.
        settings: The settings to use instead of the environment.
        validate: ``"pydantic"`` lets pydantic check all arguments of commands.
        options: Any field of :class:`~bls_agent.Settings`. An option overrides
            ``settings`` and the environment (``BLS_STATUS_TTL`` for ``status_ttl``).

    Raises:
        ConfigurationError: An argument or ``BLS_REDACT_KEYS`` is wrong. All other
            variables are checked when the agent is opened.
    """

    def __init__(
        self,
        project: str,
        *,
        redis: RedisSource | None = None,
        settings: Settings | None = None,
        validate: Literal["core", "pydantic"] = "core",
        **options: Unpack[Options],
    ) -> None:
        self.project: str = check_name("project", project)
        options = check_options(options, settings)
        if validate not in ("core", "pydantic"):
            raise ConfigurationError("validate", validate, "'core' or 'pydantic'")
        self._settings = SettingsSource(settings, options, os.environ)
        self._endpoint = None if redis is None else Endpoint.of(redis)
        known = settings or Settings
        check_cluster_name(
            project,
            self._endpoint,
            mode=options.get("mode", known.mode),
            replicas=options.get("replicas", known.replicas),
        )
        stream = LogStream(
            time.time,  # noqa: TID251 - the clock is chosen here and passed on
            max_records=options.get("log_buffer", known.log_buffer),
            max_bytes=options.get("log_buffer_bytes", known.log_buffer_bytes),
        )
        stream.set_level(Level(options.get("log_level", known.log_level)))
        stream.redactor = Redactor(self._settings.read_redact_keys())
        self._state = AgentState(
            project=self.project,
            clock=time.time,  # noqa: TID251 - the clock of LogStream
            router=Router(pydantic=validate == "pydantic"),
            stream=stream,
            instance=options.get("instance") or "",
        )
        self._session: AgentSession | None = None
        self._builtins_added = False
        self.log: Log = Log(stream)

    def __repr__(self) -> str:
        stats = self.stats()
        state = f"open, {stats.mode}" if stats.open else "closed"
        dropped = sum(stats.logs_dropped.values())
        return (
            f"<ProjectAgent {self.project!r} {state}, {stats.status.value}, "
            f"{stats.commands_running} running, {stats.logs_queued} queued, "
            f"{dropped} dropped>"
        )

    @property
    def endpoint(self) -> Endpoint:
        """The address of Redis: the argument ``redis``, or else from the settings."""
        name = "BLS_REDIS_URL" if self._settings.given is None else "redis_url"
        return self._endpoint or Endpoint.of(self._settings.read().redis_url, name)

    @property
    def status(self) -> Status:
        """The status that consoles show: the worst status that any source has set."""
        return self._state.board.status(time.monotonic())

    def set_status(self, status: Status | str, *, reason: str = "") -> None:
        """Set the service's own status, which the agent writes at once and refreshes.

        Any thread may call this method. The method does not wait for the write.

        Args:
            status: A status such as ``Status.FAULT``, or the text of a status, such as
                ``"故障"`` or ``"fault"``.
            reason: The reason, in one sentence. It is logged, and consoles show it
                beside the status.

        Raises:
            ConfigurationError: ``status`` is none of the four statuses, or ``reason``
                is not a text. The status is not changed.
        """
        self._state.set_status(Status.of(status), check_text("reason", reason))
        session = self._open_session()
        if session is not None:
            session.status.changed()

    @overload
    def command(self, function: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def command(
        self, name: str | None = None, /, *, timeout: float | None = ...
    ) -> CommandDecorator: ...

    def command(
        self,
        function: Callable[P, R] | str | None = None,
        /,
        *,
        timeout: float | Unset | None = UNSET,
    ) -> Callable[P, R] | CommandDecorator:
        """Register a handler: ``@agent.command`` or ``@agent.command("name", …)``.

        The function is returned unchanged. A coroutine function runs in the event loop,
        a plain function in a thread. Before the handler runs, arguments are bound by
        name and checked against the annotations. A parameter annotated
        :class:`~bls_agent.CommandContext` gets the context.

        Args:
            function: The handler, or the command's name (default: the function's name).
            timeout: Seconds that the handler may run; ``None`` for no limit.

        Raises:
            DuplicateHandlerError: The command has a handler already.
            ConfigurationError: The name, the timeout or the handler's signature is not
                allowed.
        """

        def register(handler: Callable[P, R], /) -> Callable[P, R]:
            name = choose_name("command", function, handler)
            call = self._as_coroutine(handler)
            self._state.router.add(name, handler, call, timeout=timeout)
            return handler

        if callable(function):
            return register(function)
        refuse_argument("command", function)
        return cast("CommandDecorator", register)

    def _as_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if is_coroutine_function(function):
            return function
        return self._state.threads.wrap(function)

    def fallback(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Register the handler of commands that have no handler of their own.

        The fallback gets one argument, the :class:`~bls_agent.CommandContext`.
        """
        self._state.router.set_fallback(self._as_coroutine(function))
        return function

    def middleware(self, function: M, /) -> M:
        """Register ``async (context, call_next) -> result`` to wrap every command.

        The middleware that is registered first is the outermost.
        """
        if not is_coroutine_function(function):
            rule = "a coroutine function (context, call_next)"
            raise ConfigurationError("middleware", repr(function), rule)
        self._state.router.add_middleware(function)
        return function

    @overload
    def health_check(self, function: C, /) -> C: ...

    @overload
    def health_check(
        self,
        name: str | None = None,
        /,
        *,
        interval: float = ...,
        timeout: float = ...,
        failures: int = ...,
    ) -> HealthCheckDecorator: ...

    def health_check(
        self,
        function: C | str | None = None,
        /,
        *,
        interval: float = INTERVAL,
        timeout: float = TIMEOUT,
        failures: int = FAILURES,
    ) -> C | HealthCheckDecorator:
        """Register a check that runs regularly; a failure sets ``Status.FAULT`` (故障).

        Write ``@agent.health_check`` or ``@agent.health_check("name", …)``, in any
        thread. The function takes no arguments and is returned unchanged. A plain
        function runs in a thread. A check fails if it raises, returns exactly ``False``
        or exceeds its timeout. The first call is made when the agent opens. After a
        success the check no longer sets the status.

        Args:
            function: The check, or the check's name (default: the function's name).
            interval: Seconds from the end of one call to the beginning of the next.
                Each wait is shortened by a random share of up to a fifth.
            timeout: Seconds that a call may take.
            failures: Number of failures in a row that set ``Status.FAULT``.

        Raises:
            ConfigurationError: The name is taken, a number is out of range, or the
                function needs arguments or is a generator.
        """

        def register(check: C, /) -> C:
            name = choose_name("health_check", function, check)
            self._state.checks.add(
                HealthCheck(
                    name=name,
                    function=check,
                    interval=interval,
                    timeout=timeout,
                    failures=failures,
                )
            )
            return check

        if callable(function):
            return register(function)
        refuse_argument("health_check", function)
        return cast("HealthCheckDecorator", register)

    async def invoke(
        self,
        command: str | Command,
        args: Mapping[str, Any] | None = None,
        /,
        *,
        delivery: int | None = None,
        **arguments: Any,
    ) -> Invocation:
        """Run a command as an open agent does, but without a server, for tests.

        The agent may be closed. If the caller is cancelled, the handler is cancelled.

        Args:
            command: The command's name, or a command with id, sender and arguments.
            args: The arguments, if they are not keywords.
            delivery: How often an agent has received the command; 1 by default. To pass
                an argument of this name to the command, use ``args``.
            arguments: The arguments as keywords.

        Raises:
            ConfigurationError: An argument does not fit the console protocol.
        """
        return await self._alone().invoke(command, args, delivery, arguments)

    def describe_commands(self) -> list[dict[str, Any]]:
        """Return the result of the command ``help``, without a server, for tools."""
        return self._alone().describe_commands()

    async def run_checks(self) -> dict[str, CheckResult]:
        """Call every health check once, and return name → result, for tests."""
        return await self._alone().run_checks()

    async def flush(self, timeout: float = 5.0) -> Flushed:
        """Wait until all records that were logged before this call are written.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            The numbers of written and dropped records. The object is true if no record
            that was logged before the call is still waiting.
        """
        self._detach_gone()
        delivery, session = self._state.stream.delivery, self._open_session()
        check_wait("timeout", timeout)
        with anyio.move_on_after(timeout + 0.5):  # the agent's event loop may hang
            if session is None:
                return await delivery.flush(timeout)
            return await session.call(partial(delivery.flush, timeout))
        return Flushed(False, 0, 0, delivery.buffer.stats().queued)  # noqa: FBT003

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until the first status has been written.

        Args:
            timeout: Seconds to wait at most; ``None`` for no limit.

        Raises:
            RedisUnavailableError: The status was not written within that time.
            ConfigurationError: The agent is not open.
        """
        await self._require_session().ready(timeout)

    async def pause(self, reason: str = "") -> None:
        """Stop taking commands until :meth:`resume`; return when none is taken any more.

        Commands that were not started return to the queue. Running handlers continue.
        Built-in commands are still taken. A pause ends when the agent is closed.

        Args:
            reason: The reason, in one sentence. It is logged, and consoles show it.

        Raises:
            ConfigurationError: The agent is not open.
        """
        session = self._require_session()
        await session.call(partial(session.switch.pause, reason))

    def resume(self) -> None:
        """Take commands again; any thread may call this. Errors: as :meth:`pause`."""
        session = self._require_session()
        session.call_in_loop(session.switch.resume)

    async def drain(self, reason: str = "") -> bool:
        """Pause, and wait until every other command that was taken has ended.

        The agent stays paused. ``reason`` and errors are those of :meth:`pause`.

        Returns:
            ``True`` if all have ended; ``False`` after a pause, a resume or a close.
        """
        session = self._require_session()
        return await session.call(partial(session.switch.drain, reason))

    def stats(self) -> AgentStats:
        """Return a snapshot of all counters and states; any thread may call this."""
        from bls_agent.project.stats import collect_stats  # noqa: PLC0415 - the import takes 2 ms

        return collect_stats(self._state, self._open_session())

    async def __aenter__(self) -> Self:
        """Open the agent; do not wait for Redis.

        Raises:
            ConfigurationError: The agent is open already, its former session has not
                ended, or an environment variable has a wrong value.
        """
        from bls_agent.project.session import AgentSession  # noqa: PLC0415 - the import takes 10 ms

        self._detach_gone()
        if (before := self._session) is not None and before.is_open:
            rule, remedy = "it is open already", "Close it first."
            raise ConfigurationError("agent", self.project, rule, remedy)
        if before is not None and not await before.wait_closed():
            rule, remedy = "its former session has not ended", "Wait until it ends."
            raise ConfigurationError("agent", self.project, rule, remedy)
        if self._session not in (None, before):
            raise ConfigurationError("agent", self.project, "it was opened meanwhile")
        settings = self._settings.read()
        if self._settings.given is None:
            warn_of_unknown_variables(os.environ)
        endpoint = self.endpoint
        mode, replicas = settings.mode, settings.replicas
        check_cluster_name(self.project, endpoint, mode=mode, replicas=replicas)
        self._prepare(settings)
        self._session = session = AgentSession(self._state, settings, endpoint)
        session.start()
        try:
            await session.opened.wait()
        except BaseException:
            await self._close(Status.OFFLINE)
            raise
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        """Close the agent; an exception in the block is not changed."""
        from bls_agent.project.session import final_status  # noqa: PLC0415 - the module is loaded already

        status = final_status(error)
        if error is not None and status is Status.FAULT:
            self._state.log_end(error)
        await self._close(status)

    async def aclose(self) -> None:
        """Close the agent, from any task; do nothing if the agent is closed.

        In a command handler this method only starts the closing and returns, because
        the closing waits for that handler.
        """
        session = self._open_session()
        if session is not None and session.dispatcher.caller is not None:
            session.stop(Status.OFFLINE)
            return
        await self._close(Status.OFFLINE)

    async def _close(self, final_status: Status) -> None:
        self._detach_gone()
        session = self._session
        if session is None:
            return
        session.stop(final_status)
        try:
            with anyio.CancelScope(shield=True):
                await session.wait_closed()
        except BaseException:
            session.force()  # a second cancellation: do not wait for handlers
            raise
        if self._session is session and session.closed.is_set():
            self._session = None

    async def run(
        self,
        *,
        handle_signals: bool = True,
        banner: bool | None = None,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> signal.Signals | None:
        """Run the agent until SIGTERM, SIGINT or a cancellation, and close it.

        After a second signal, running handlers get no more time.

        Args:
            handle_signals: Whether the two signals end the agent. In another thread
                than the main thread they never do.
            banner: Whether to log to standard error if the program has not configured
                logging. Default: the setting (``BLS_BANNER``).
            task_status: The agent calls its method ``started()`` after the first status
                was written.

        Returns:
            The signal that ended the agent; ``None`` if no signal did.
        """
        from bls_agent.project.signals import wait_until_closed  # noqa: PLC0415 - only run() needs the module

        shown = self._settings.read().banner if banner is None else banner
        with show_log() if shown else nullcontext():
            async with self:
                session = self._session or self._require_session()
                on_ready = task_status.started
                await wait_until_closed(
                    session, on_ready, handle_signals=handle_signals
                )
        return session.ended_by()

    def in_thread(self) -> AgentThread:
        """Run the agent in a thread, for a program without an event loop.

        For Flask, Django and scripts::

            signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
            with agent.in_thread() as thread:
                thread.ready(5.0)
                serve_my_application()

        If a ``with`` block does not fit, enter the object in an ``ExitStack``. The agent
        is then closed when the interpreter exits. A server that forks must call this
        method in the worker process.
        """
        from bls_agent.project.agent_thread import AgentThread  # noqa: PLC0415 - few programs need the module

        return AgentThread(self, self._settings.read, self._open_session)

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncGenerator[None]:  # noqa: ARG002 - Starlette passes it
        """Keep the agent open as long as a Starlette or FastAPI application runs.

        Write ``FastAPI(lifespan=agent.lifespan)``. In a lifespan of your own, make the
        agent's lifespan the outermost block: ``async with agent.lifespan(app),
        connect() as pool: yield …``. The last status is ``Status.FAULT`` if the
        application fails to start, and ``Status.OFFLINE`` if the server is stopped.

        Raises:
            ConfigurationError: ``async with agent:`` raises this error. The server does
                not start then.
        """
        async with self:
            yield

    def _alone(self) -> Alone:
        from bls_agent.project.invocation import Alone  # noqa: PLC0415 - only tests need the module

        session, settings = self._open_session(), self._settings.read()
        if session is None:
            self._prepare(settings)
        return Alone(self._state, settings, session)

    def _require_session(self) -> AgentSession:
        session = self._open_session()
        if session is None:
            raise ConfigurationError("agent", repr(self), "the agent must be open")
        return session

    def _open_session(self) -> AgentSession | None:
        """Return the session; ``None`` if it has ended, or is a parent process's."""
        session = self._session
        return None if session is None or session.is_over else session

    def _detach_gone(self) -> None:
        """Release a session whose loop was closed, because it cannot close itself."""
        session = self._session
        if session is not None and session.is_gone:
            session.detach()
            self._session = None

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        session: AgentSession | None = getattr(self, "_session", None)
        if session is None or session.closed.is_set() or session.is_inherited:
            return
        if session.is_gone and not sys.is_finalizing():
            session.detach()
        text = f"the agent of {self.project!r} was never closed"
        _warn(text, ResourceWarning, stacklevel=2, source=self)

    def _prepare(self, settings: Settings) -> None:
        """Apply the settings, and add the built-in commands."""
        from bls_agent.project.builtins import add_builtins  # noqa: PLC0415 - imported only when needed

        self._state.apply(settings)
        if settings.builtins and not self._builtins_added:
            add_builtins(self._state, self._open_session)
            self._builtins_added = True
