"""The HTTP interface to runs, in JSON, and their events in pages of bounded size."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from bls_agent.core.codec import JSONObject
from bls_agent.core.errors import ConfigurationError
from bls_agent.ops.web.requests import (
    FieldError,
    convert,
    encode_cut,
    json_answer,
    list_answer,
    read_limit,
)
from bls_agent.ops.web.state import web_state
from bls_agent.runs import EventPage, EventStore, RunSummary, StreamEvent
from bls_agent.runs.event_ids import check_id, check_run_id

__all__ = [
    "PAGE_BYTES",
    "encode_event",
    "encode_events",
    "read_back",
    "read_on",
    "run_api_routes",
    "run_in_path",
]

LONGEST: Final = 65_536  # bytes of one event; longer ones are shortened
PORTION: Final = 500  # events that are read at once
FIRST_PORTION: Final = 50  # before it is known how large they are
PAGE_BYTES: Final = 4 * 1024 * 1024  # of events on one page


def run_in_path(request: Request) -> int:
    """Read the id of a run from an address, or raise 404."""
    text: str = request.path_params["run"]
    plain = text.isascii() and text.isdigit() and text == (text.lstrip("0") or "0")
    try:
        return check_run_id(int(text) if plain else None)
    except (ConfigurationError, ValueError):
        raise HTTPException(404, "the id of a run is a number") from None


def encode_event(event: StreamEvent) -> bytes:
    """Write an event; one that is too long is shortened, and says so in ``cut``.

    One that breaks the contract says what is wrong with it in ``faults``, and what
    stands there in ``raw``.
    """
    if not event.faults and len(event.json) <= LONGEST:
        return event.json
    fields: dict[str, Any] = event.to_dict()
    if event.faults:
        raw = {
            name.decode("utf-8", "backslashreplace"): value.decode(
                "utf-8", "backslashreplace"
            )
            for name, value in (event.raw or {}).items()
        }
        fields |= {"faults": list(event.faults), "raw": raw}
    return encode_cut(fields, LONGEST)


async def encode_events(events: Sequence[StreamEvent]) -> list[bytes]:
    """Write many events, and let other tasks run in between."""
    return await convert(events, encode_event, 50)


async def read_on(
    store: EventStore, run_id: int, after: str | None, limit: int
) -> tuple[list[bytes], str | None]:
    """Read what stands behind a place, and where that goes on; ``None`` if this is the end.

    Large events are fewer than wanted.
    """
    written: list[bytes] = []
    size, portion = 0, FIRST_PORTION
    while True:
        page = await store.page(
            run_id, after=after, limit=min(portion, limit - len(written))
        )
        found = await encode_events(page.events)
        written += found
        size += sum(map(len, found))
        if page.next is None or len(written) >= limit or size >= PAGE_BYTES:
            return written, page.next
        after, portion = page.next, _next_portion(page)


async def read_back(
    store: EventStore, run_id: int, before: str | None, limit: int
) -> AsyncGenerator[EventPage]:
    """Give what stands before a place, page by page, the newest page first."""
    left, portion = limit, FIRST_PORTION
    while left > 0:
        page = await store.page_back(run_id, before=before, limit=min(portion, left))
        yield page
        if page.next is None:
            return
        left -= len(page.events)
        before, portion = page.next, _next_portion(page)


def _next_portion(page: EventPage) -> int:
    """Say how many events to read next, so that large ones do not make it slow."""
    size = sum(len(event.json) for event in page.events)
    each = max(1, size // max(1, len(page.events)))
    return max(1, min(PORTION, 4 * len(page.events), PAGE_BYTES // 4 // each))


async def _get_runs(request: Request) -> Response:
    """``GET /api/runs``: the runs there are, the one with the newest event first."""
    limit = read_limit(request.query_params.get("limit"))
    watch = web_state(request).runs
    await watch.fresh()
    told = [_describe(run) for run in list(watch.runs.values())[:limit]]
    return json_answer({"runs": told, "total": watch.total, "leftOut": watch.left_out})


def _describe(run: RunSummary) -> JSONObject:
    """Describe a run; seconds, and ``null`` for the unknown."""
    return {
        "runId": run.run_id,
        "state": run.state.value,
        "length": run.length,
        "sequence": run.sequence,
        "firstId": run.first_id,
        "lastId": run.last_id,
        "startedAt": run.started_at,
        "lastAt": run.last_at,
        "ttl": run.ttl,
        "task": run.task,
        "error": run.error,
        "source": run.source,
        "last": run.last,
    }


async def _get_run(request: Request) -> Response:
    """``GET /api/runs/{run}``: one run, and how it stands."""
    found = await web_state(request).store.describe(run_in_path(request))
    if found is None:
        raise HTTPException(404, "there is no such run")
    return json_answer(_describe(found))


async def _get_events(request: Request) -> Response:
    """``GET /api/runs/{run}/events``: a page of events behind or before a place."""
    run_id = run_in_path(request)
    limit = read_limit(request.query_params.get("limit"))
    after, before = map(request.query_params.get, ("after", "before"))
    if after is not None and before is not None:
        raise FieldError({"before": "give it, or after, and not both"})
    store = web_state(request).store
    if before is None:
        last = None if after is None else check_id("after", after)
        written, place = await read_on(store, run_id, last, limit)
    else:
        written, place = await _read_before(
            request, run_id, check_id("before", before), limit
        )
    if not written and not await store.exists(run_id):
        raise HTTPException(404, "there is no such run")
    return list_answer("events", written, {"runId": run_id, "next": place})


async def _read_before(
    request: Request, run_id: int, before: str, limit: int
) -> tuple[list[bytes], str | None]:
    """Read what stands before a place, oldest first, and where that begins."""
    written: list[bytes] = []
    size, place = 0, None
    store = web_state(request).store
    async with aclosing(read_back(store, run_id, before, limit)) as pages:
        async for page in pages:
            found = await encode_events(page.events)
            written = found + written
            place = page.next
            size += sum(map(len, found))
            if size >= PAGE_BYTES:
                break
    return written, place


run_api_routes: Final[list[BaseRoute]] = [
    Route("/api/runs", _get_runs),
    Route("/api/runs/{run}", _get_run),
    Route("/api/runs/{run}/events", _get_events),
]
