"""Runs over HTTP, for Starlette, FastAPI and every ASGI server (extra ``web``).

:class:`RunEventsApp` is mounted, :class:`RunEventsResponse` answers one route::

    app.mount("/", RunEventsApp(store, authorize=may_read))
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from inspect import isawaitable
from typing import Any, Final, TypeAlias

import anyio

from bls_agent.core.codec import encode
from bls_agent.core.errors import (
    BlsError,
    ConfigurationError,
    MissingExtraError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.core.settings import check_seconds
from bls_agent.runs.events import BEGINNING, StreamEvent, check_count, check_run_id
from bls_agent.runs.sse import (
    HEARTBEAT,
    EventFrames,
    read_last_event_id,
    stream_status,
    write_retry,
)
from bls_agent.runs.store import EventStore

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

logger = logging.getLogger(__name__)

RETRY_AFTER: Final = "2"  # seconds
CROWDED: Final = 10_000  # milliseconds until a client above the limit comes back
DIGITS: Final = 19  # of the largest run id
# No cache keeps what may need a right to be read; no proxy collects it first.
HEADERS: Final = {"cache-control": "no-cache, no-store"}
STREAM_HEADERS: Final = {**HEADERS, "x-accel-buffering": "no"}
_ABSENT: Final = {404: "there is no such run", 410: "the run is not there any more"}

STALLED: Final = 60.0  # seconds for a client to take what it is sent
GRACE: Final = 1.0  # seconds for a stream to end when the server stops

LIMIT: Final = 100  # events of a page by default
MOST: Final = 1_000
PAGE_SIZE: Final = 4 * 1024 * 1024  # bytes after which a page ends early


def _error_response(
    status: int,
    message: str = "",
    headers: Mapping[str, str] | None = None,
    **more: str,
) -> Response:
    body = encode({"error": message or _ABSENT[status], **more})
    all_headers = {**HEADERS, "x-content-type-options": "nosniff", **(headers or {})}
    return Response(body, status, all_headers, "application/json")


def _response_to(error: BlsError) -> Response:
    """Make the response to an error, without servers' addresses: strangers read it."""
    if isinstance(error, RedisUnavailableError):
        refused = isinstance(error, RedisRefusedError)
        reason = "Redis refuses" if refused else "Redis cannot be reached now"
        return _error_response(
            503, reason, {"retry-after": RETRY_AFTER}, kind=error.kind
        )
    if isinstance(error, WrongTypeError):
        return _error_response(409, "something else stands where the run should")
    if isinstance(error, ConfigurationError):
        return _error_response(400, str(error))
    raise error


def _page_response(events: Sequence[StreamEvent], following: str | None) -> Response:
    """Make a page: ``events``, and ``next`` for the page behind it."""
    payloads = b",".join(event.json for event in events)
    body = b'{"events":[%s],"next":%s}' % (payloads, encode(following))
    headers = {**HEADERS, "x-content-type-options": "nosniff"}
    return Response(body, 200, headers, "application/json")


def _read_number(name: str, text: str) -> int:
    # int() reads more: signs, blanks, underscores, the digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS):
        rule = f"it must be a number of at most {DIGITS} digits"
        raise ConfigurationError(name, text, rule)
    return int(text)


def _run_in_path(request: Request) -> int:
    return check_run_id(_read_number("run_id", request.path_params["run_id"]))


def _cors(allow_origins: Sequence[str]) -> list[Middleware]:
    """Let pages of these origins read with their cookies; ``*``: all, without."""
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
    """Sends frames, and ends the response in order when the server stops."""

    def __init__(self, frames: EventFrames, headers: Mapping[str, str]) -> None:
        self._frames = frames
        self._stopping = anyio.Event()
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - a dict of its own
            self._write(),
            headers=headers,
            ping=0,  # the frames hold comments
            send_timeout=STALLED,
            shutdown_event=self._stopping,
            shutdown_grace_period=GRACE,
        )
        del self.headers["connection"]  # the server's own affair

    def end(self) -> None:
        """End at once, without ``close``: the client is to come back."""
        self._frames.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send frames until the run ends, the client leaves, or the server stops."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_with_server)
            with suppress(OSError):  # the client left, or takes nothing
                await super().__call__(scope, receive, send)
            tasks.cancel_scope.cancel()

    async def _end_with_server(self) -> None:
        await self._stopping.wait()
        self.end()

    async def _write(self) -> AsyncGenerator[bytes]:
        try:
            async for chunk in self._frames:
                yield chunk
        except BlsError as error:  # a client that comes back gets the reason
            logger.warning("a stream ends: %s", error)
        finally:
            await self._frames.aclose()


# Decides whether a request may read a run: true, an answer of its own, else no.
Authorize: TypeAlias = Callable[
    [Request, int], "Awaitable[bool | Response | None] | bool | Response | None"
]


async def allow_all(request: Request, run_id: int) -> bool:  # noqa: ARG001 - an Authorize
    """Let every request read every run: for machines that only their users reach."""
    return True


class RunEventsResponse(Response):
    """The stream of a run, as the answer of one route.

    Reads ``Last-Event-ID`` and ``?last_event_id=`` of the request. With ``?unnamed=1``
    no event has a name: all arrive at ``EventSource.onmessage``. Redis is asked for the
    run when the answer is sent; :func:`~bls_agent.runs.sse.stream_status` gives the
    status. The stream ends with the run, with the client, and within a second when
    uvicorn stops; the client comes back.
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
        """Remember what to send.

        Args:
            store: Where the events are.
            run_id: The run.
            wait: Wait for a run that does not exist yet, instead of 404.
            heartbeat: Seconds without an event until a comment is sent.
            headers: More headers of the stream.

        Raises:
            ConfigurationError: ``heartbeat`` is no time. (A wrong ``run_id`` is the
                client's fault, and answered with 400.)
        """
        super().__init__(headers=headers)
        self._store = store
        self._run_id = run_id
        self._wait = wait
        self._heartbeat = check_seconds("heartbeat", heartbeat)
        self._more = headers
        self._stream: _FrameStream | None = None
        self._is_ending = False
        self._open_streams = set[RunEventsResponse]()  # those of its application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide what to answer, and answer; a client that leaves ends it quietly."""
        self._open_streams.add(self)
        try:
            answer = await self._answer(Request(scope))
            with suppress(OSError):  # what servers raise for a client that has gone
                await answer(scope, receive, send)
        finally:
            self._open_streams.discard(self)
        if self.background is not None:
            await self.background()

    def end(self) -> None:
        """End the stream at once, or as soon as it begins; the client comes back."""
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
            status = 200  # a browser that is answered otherwise never comes back
        if status == 204:  # noqa: PLR2004 - a status
            return Response(status_code=status, headers=STREAM_HEADERS)
        if status == 200 or (status == 404 and self._wait):  # noqa: PLR2004 - statuses
            unnamed = request.query_params.get("unnamed", "") in ("1", "true")
            return self._open(last or BEGINNING, unnamed=unnamed)
        return _error_response(status)

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
    """Runs over HTTP: an ASGI application to be mounted, or to be run alone.

    ``GET /runs/{id}/events``: a page as JSON, ``{"events": […], "next": …}``; with
    ``?after=`` (the ``next`` of the page before) and ``?limit=`` (1 to 1,000).
    ``GET /runs/{id}/events/stream``: server-sent events, see
    :class:`RunEventsResponse`.

    Closed by default: no request may read before ``authorize`` allows it, and no page
    of another origin before ``allow_origins`` names it. Each page and each
    (re)connection asks ``authorize`` anew. An ``EventSource`` sends cookies, no headers
    of its own; keep tokens out of addresses, which are logged everywhere.

    Run alone (``uvicorn --factory``) it closes the store's connections at the end;
    mounted, the host does. Give uvicorn a ``timeout_graceful_shutdown``: streams end by
    themselves when it stops, but it waits for a client that has stopped reading.
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
        """Make the application; Redis is not asked yet.

        Args:
            store: Where the events are.
            authorize: ``async (request, run_id)`` → true if the request may read the
                run; an answer of its own (401, a login page, 429) instead; all else is
                403. :data:`allow_all` allows every request. Default: none may read.
            allow_origins: Origins (``https://page.example``) whose pages may read, with
                their cookies; ``*`` for all, without.
            wait: Wait for a run that does not exist yet, instead of 404.
            heartbeat: Seconds without an event until a comment is sent.
            max_streams: Streams that may be open at once. One more gets 503; if it
                comes back, it is sent away for ten seconds instead, because a browser
                would take a 503 for the end.

        Raises:
            ConfigurationError: An argument breaks its rule.
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
        """How many streams are open now."""
        return len(self._streams)

    def close_streams(self) -> None:
        """End every stream at once; the clients come back.

        uvicorn needs no call; under other servers the program calls it in the event
        loop when it is about to stop.
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
        limit = _read_number("limit", request.query_params.get("limit", str(LIMIT)))
        check_count("limit", limit, most=MOST)
        events, following = await _collect(self._store, run_id, after, limit)
        if not events and not await self._store.exists(run_id):
            return _error_response(404 if after is None else 410)
        return _page_response(events, following)

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
        if allowed is True:  # a value that is merely not false allows nothing
            return None
        return _error_response(403, "this run is not for you")


def _send_away(request: Request) -> Response:
    if _last_event_id(request) is None:
        return _error_response(503, "too many streams", {"retry-after": "10"})
    body = write_retry(CROWDED)
    return Response(body, 200, STREAM_HEADERS, RunEventsResponse.media_type)


async def _collect(
    store: EventStore, run_id: int, after: str | None, limit: int
) -> tuple[list[StreamEvent], str | None]:
    """Read a page in portions, and stop early when it is large already."""
    events: list[StreamEvent] = []
    size = 0
    while True:
        portion = min(LIMIT, limit - len(events))
        page = await store.page(run_id, after=after, limit=portion)
        events += page.events
        size += sum(len(event.json) for event in page.events)
        after = page.next
        if after is None or len(events) >= limit or size >= PAGE_SIZE:
            return events, after


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
