"""Serves the events of runs over HTTP, on any ASGI server (extra ``web``).

Mount :class:`RunEventsApp` in Starlette or FastAPI, or answer one route with
:class:`RunEventsResponse`::

    app.mount("/", RunEventsApp(store, authorize=may_read))
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from inspect import isawaitable
from typing import Any, Final, TypeAlias

import anyio

from bls_agent.core.checks import check_count, check_seconds
from bls_agent.core.codec import encode
from bls_agent.core.errors import (
    BlsError,
    ConfigurationError,
    MissingExtraError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.runs.events import BEGINNING
from bls_agent.runs.reading import parse_run_id
from bls_agent.runs.sse import (
    HEARTBEAT,
    EventFrames,
    read_last_event_id,
    run_exists,
    stream_status,
    write_retry,
)
from bls_agent.runs.store import EventPage, EventStore

try:
    from sse_starlette import EventSourceResponse
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ExceptionHandler, Receive, Scope, Send
except ModuleNotFoundError:
    raise MissingExtraError("web", "run events over HTTP") from None

__all__ = ["Authorize", "RunEventsApp", "RunEventsResponse", "allow_all"]

logger: logging.Logger = logging.getLogger(__name__)

RETRY_AFTER: Final = "2"  # seconds
CROWDED: Final = 10_000  # milliseconds until a client above the limit reconnects
# Caches must not keep responses, because a reader may need a permission. Proxies must
# forward a stream at once instead of collecting it.
HEADERS: Final = {"cache-control": "no-cache, no-store"}
STREAM_HEADERS: Final = {**HEADERS, "x-accel-buffering": "no"}
_ABSENT: Final = {404: "there is no such run", 410: "the run is not there any more"}

STALLED: Final = 60.0  # seconds for a client to accept sent data
GRACE: Final = 1.0  # seconds for a stream to end when the server stops

LIMIT: Final = 100  # events of a page by default
MOST: Final = 1_000
DIGITS: Final = len(str(MOST))


def _error_response(
    status: int,
    message: str,
    headers: Mapping[str, str] | None = None,
    **more: str,
) -> Response:
    body = encode({"error": message, **more})
    all_headers = {**HEADERS, "x-content-type-options": "nosniff", **(headers or {})}
    return Response(body, status, all_headers, "application/json")


def _response_to(error: BlsError) -> Response:
    """Make the response to an error, without the addresses of servers."""
    if isinstance(error, RedisUnavailableError):
        refused = isinstance(error, RedisRefusedError)
        reason = "Redis refuses" if refused else "Redis cannot be reached now"
        return _error_response(
            503, reason, {"retry-after": RETRY_AFTER}, kind=error.kind
        )
    if isinstance(error, WrongTypeError):
        return _error_response(409, "the key of the run holds another type")
    if isinstance(error, ConfigurationError):
        return _error_response(400, str(error))
    raise error


def _page_response(page: EventPage) -> Response:
    """Make the JSON of a page: ``events``, and ``next`` to request the next page."""
    payloads = b",".join(event.json for event in page.events)
    body = b'{"events":[%s],"next":%s}' % (payloads, encode(page.next))
    headers = {**HEADERS, "x-content-type-options": "nosniff"}
    return Response(body, 200, headers, "application/json")


def _run_in_path(request: Request) -> int:
    text = request.path_params["run_id"]
    run_id = parse_run_id(text)
    if run_id is None:
        rule = "it must be a number below 2**63, without leading zeros"
        raise ConfigurationError("run_id", text, rule)
    return run_id


def _limit_in_query(request: Request) -> int:
    text = request.query_params.get("limit", str(LIMIT))
    # int() also accepts signs, blanks, underscores and digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS):
        rule = f"it must be a number of at most {DIGITS} digits"
        raise ConfigurationError("limit", text, rule)
    return check_count("limit", int(text), most=MOST)


def _cors(allow_origins: Sequence[str]) -> list[Middleware]:
    """Allow these origins to read with cookies, or all (``*``) without cookies."""
    if isinstance(allow_origins, str):
        rule, remedy = "it is a list of origins", f"Pass [{allow_origins!r}]."
        raise ConfigurationError("allow_origins", allow_origins, rule, remedy)
    for origin in allow_origins:
        scheme, _, rest = origin.partition("://")
        if origin != "*" and (not scheme or not rest or "/" in rest or "*" in rest):
            rule = "an origin is 'https://page.example', without a path, or '*'"
            raise ConfigurationError("allow_origins", origin, rule)
    if not allow_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=allow_origins,
            allow_methods=["GET"],
            allow_headers=["Cache-Control", "Last-Event-ID"],
            allow_credentials="*" not in allow_origins,
        )
    ]


class _FrameStream(EventSourceResponse):
    """Sends frames, and ends the response properly when the server stops."""

    def __init__(self, frames: EventFrames, headers: Mapping[str, str]) -> None:
        self._frames = frames
        self._stopping = anyio.Event()
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - a dict of its own
            self._write(),
            headers=headers,
            ping=0,  # because EventFrames sends comments already
            send_timeout=STALLED,
            shutdown_event=self._stopping,
            shutdown_grace_period=GRACE,
        )
        del self.headers["connection"]  # the server sets this header

    def end(self) -> None:
        """End without the event ``close``, so that the client connects again."""
        self._frames.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send frames until the run ends, the client leaves, or the server stops."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_with_server)
            with suppress(OSError):  # the client has left, or has stopped reading
                await super().__call__(scope, receive, send)
            tasks.cancel_scope.cancel()

    async def _end_with_server(self) -> None:
        await self._stopping.wait()
        self.end()

    async def _write(self) -> AsyncGenerator[bytes]:
        try:
            async for chunk in self._frames:
                yield chunk
        except BlsError as error:  # the client gets the reason when it reconnects
            logger.warning("a stream ends: %s", error)
        finally:
            await self._frames.aclose()


# Decides whether a request may read a run: returns True, or a response to send instead.
# Any other result refuses the request.
Authorize: TypeAlias = Callable[
    [Request, int], "Awaitable[bool | Response | None] | bool | Response | None"
]


async def allow_all(request: Request, run_id: int) -> bool:  # noqa: ARG001 - an Authorize
    """Allow every request to read every run. Use it only in a trusted network."""
    return True


class RunEventsResponse(Response):
    """The event stream of a run, as the response of one route.

    The response reads ``Last-Event-ID`` and ``?last_event_id=`` of the request. With
    ``?unnamed=1`` no event has a name, so that all arrive at ``EventSource.onmessage``.
    When the response is sent, :func:`~bls_agent.runs.sse.stream_status` reads the run
    from Redis and determines the HTTP status. The stream ends when the run ends or the
    client leaves. When uvicorn stops, the stream ends within a second, and the client
    connects again.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        store: EventStore,
        run_id: int,
        *,
        wait: bool = False,
        heartbeat: float = HEARTBEAT,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Make the response without a request to Redis.

        Args:
            store: Store of the events.
            run_id: Id of the run.
            wait: Wait for a run that does not exist yet, instead of answering 404.
            heartbeat: Seconds without an event until a comment is sent.
            headers: Additional headers of the stream.

        Raises:
            ConfigurationError: ``heartbeat`` is not a valid number of seconds. (A wrong
                ``run_id`` is answered with 400 instead.)
        """
        super().__init__(headers=headers)
        self._store = store
        self._run_id = run_id
        self._wait = wait
        self._heartbeat = check_seconds("heartbeat", heartbeat)
        self._more = headers
        self._stream: _FrameStream | None = None
        self._is_ending = False
        self._open_streams = set[RunEventsResponse]()  # RunEventsApp sets its own set

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request. If the client leaves, end without an error."""
        self._open_streams.add(self)
        try:
            answer = await self._answer(Request(scope))
            with suppress(OSError):  # servers raise it if the client has left
                await answer(scope, receive, send)
        finally:
            self._open_streams.discard(self)
        if self.background is not None:
            await self.background()

    def end(self) -> None:
        """End the stream now or when it begins, so that the client connects again."""
        self._is_ending = True
        if self._stream is not None:
            self._stream.end()

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._find_answer(request)
        except BlsError as error:
            return _response_to(error)

    async def _find_answer(self, request: Request) -> Response:
        last = _last_event_id(request)
        try:
            status = await stream_status(self._store, self._run_id, last)
        except RedisRefusedError:
            raise
        except RedisUnavailableError:
            if last is None:
                raise
            status = 200  # after another status a browser never connects again
        if status == 204:  # noqa: PLR2004 - a status
            return Response(status_code=status, headers=STREAM_HEADERS)
        if status == 200 or (status == 404 and self._wait):  # noqa: PLR2004 - statuses
            unnamed = request.query_params.get("unnamed", "") in ("1", "true")
            return self._open(last or BEGINNING, unnamed=unnamed)
        return _error_response(status, _ABSENT[status])

    def _open(self, last_id: str, *, unnamed: bool) -> Response:
        follower = self._store.follow(self._run_id, last_id)
        frames = EventFrames(follower, self._heartbeat, unnamed=unnamed)
        headers = {**STREAM_HEADERS, **(self._more or {})}
        self._stream = _FrameStream(frames, headers)
        if self._is_ending:
            self._stream.end()
        return self._stream


def _last_event_id(request: Request) -> str | None:
    query = request.query_params.get("last_event_id")
    return read_last_event_id(request.headers.get("last-event-id"), query)


class RunEventsApp(Starlette):
    """Events of runs over HTTP: an ASGI application to be mounted, or to be run alone.

    ``GET /runs/{id}/events`` returns a page as JSON, ``{"events": […], "next": …}``.
    The parameters are ``?after=`` (the ``next`` of the page before) and ``?limit=`` (1
    to 1,000). ``GET /runs/{id}/events/stream`` returns server-sent events, see
    :class:`RunEventsResponse`.

    By default nobody may read: ``authorize`` must allow the request, and
    ``allow_origins`` must name each other origin whose web pages may read.
    ``authorize`` is called for each page and each connection of a stream. An
    ``EventSource`` sends cookies, but cannot send headers of its own. Keep tokens out
    of URLs, because URLs are logged in many places.

    If the application runs alone (``uvicorn --factory``), it closes the store's
    connections at the end. An application that mounts it must close the store. Set
    ``timeout_graceful_shutdown`` for uvicorn. Otherwise a client that has stopped
    reading delays the end of the server.
    """

    def __init__(
        self,
        store: EventStore,
        *,
        authorize: Authorize | None = None,
        allow_origins: Sequence[str] = (),
        wait: bool = False,
        heartbeat: float = HEARTBEAT,
        max_streams: int = 2_000,
    ) -> None:
        """Make the application without a request to Redis.

        Args:
            store: Store of the events.
            authorize: ``async (request, run_id)``, which returns ``True`` if the
                request may read the run, or a response to send instead (401, a login
                page, 429). Any other result is answered with 403. :data:`allow_all`
                allows every request. Default: no request may read.
            allow_origins: Origins (``https://page.example``) whose web pages may read,
                with cookies. ``*`` allows all origins, without cookies.
            wait: Wait for a run that does not exist yet, instead of answering 404.
            heartbeat: Seconds without an event until a comment is sent.
            max_streams: Most streams that may be open at once. A new client above the
                limit gets 503. A client that reconnects gets 200 and is asked to wait
                ten seconds, because after 503 a browser never connects again.

        Raises:
            ConfigurationError: An argument is invalid.
        """
        check_count("max_streams", max_streams)
        if authorize is None:
            logger.warning(
                "nobody may read runs here: pass authorize=, an async function of the "
                "request and the run's id, or allow_all to let everybody"
            )
        self._store = store
        self._authorize = authorize
        self._wait = wait
        self._heartbeat = check_seconds("heartbeat", heartbeat)
        self._max_streams = max_streams
        self._streams: set[RunEventsResponse] = set()
        super().__init__(
            routes=[
                Route("/runs/{run_id}/events", self._send_page),
                Route("/runs/{run_id}/events/stream", self._send_stream),
            ],
            middleware=_cors(allow_origins),
            exception_handlers=_HANDLERS,
            lifespan=self._live,
        )

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    def close_streams(self) -> None:
        """End every stream at once, so that the clients connect again.

        With uvicorn no call is needed. With another server, call this method in the
        event loop just before the server stops.
        """
        for stream in self._streams:
            stream.end()

    @asynccontextmanager
    async def _live(self, _app: Starlette) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self.close_streams()
            await self._store.aclose()

    async def _send_page(self, request: Request) -> Response:
        run_id = _run_in_path(request)
        if (refusal := await self._refuse(request, run_id)) is not None:
            return refusal
        after = request.query_params.get("after")
        limit = _limit_in_query(request)
        page = await self._store.page(run_id, after=after, limit=limit)
        if not page.events and not await run_exists(self._store, run_id):
            status = 404 if after is None else 410
            return _error_response(status, _ABSENT[status])
        return _page_response(page)

    async def _send_stream(self, request: Request) -> Response:
        run_id = _run_in_path(request)
        if (refusal := await self._refuse(request, run_id)) is not None:
            return refusal
        if len(self._streams) >= self._max_streams:
            return _send_away(request)
        response = RunEventsResponse(
            self._store, run_id, wait=self._wait, heartbeat=self._heartbeat
        )
        response._open_streams = self._streams  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this module
        return response

    async def _refuse(self, request: Request, run_id: int) -> Response | None:
        if self._authorize is None:
            return _error_response(
                403, "nobody may read runs here: there is no authorize="
            )
        found = self._authorize(request, run_id)
        allowed = await found if isawaitable(found) else found
        if isinstance(allowed, Response):
            return allowed
        if allowed is True:  # other values that count as true do not allow anything
            return None
        return _error_response(403, "this run is not for you")


def _send_away(request: Request) -> Response:
    if _last_event_id(request) is None:
        return _error_response(503, "too many streams", {"retry-after": "10"})
    body = write_retry(CROWDED)
    return Response(body, 200, STREAM_HEADERS, RunEventsResponse.media_type)


async def _answer_error(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _error_response(error.status_code, error.detail, error.headers)
    if isinstance(error, BlsError):
        return _response_to(error)
    raise error


_HANDLERS: Final[Mapping[Any, ExceptionHandler]] = {
    BlsError: _answer_error,
    HTTPException: _answer_error,
}
