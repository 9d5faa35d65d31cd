"""The HTTP interface to runs (contract 003), in JSON."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from bls_agent.codec import JSONObject, encode
from bls_agent.runs import RunSummary
from bls_agent.runs.event_ids import check_id
from bls_agent.web.interface.answers import json_answer
from bls_agent.web.interface.inputs import FieldError, read_limit
from bls_agent.web.interface.run_events import (
    PAGE_BYTES,
    encode_events,
    read_back,
    read_on,
    run_in_path,
)
from bls_agent.web.state import web_state

__all__ = ["run_api_routes"]


async def _get_runs(request: Request) -> Response:
    """``GET /api/runs``: the runs there are, the one with the newest event first."""
    limit = read_limit(request.query_params.get("limit"))
    watch = web_state(request).run_list
    await watch.ready()
    watch.check(strictly=True)
    told = [_describe(run) for run in list(watch.runs.values())[:limit]]
    return json_answer({"runs": told, "total": watch.total, "leftOut": watch.left_out})


def _describe(run: RunSummary) -> JSONObject:
    """Describe a run; seconds, and ``null`` for what nobody can tell."""
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
    found = await web_state(request).runs.describe(run_in_path(request))
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
    store = web_state(request).runs
    if before is None:
        last = None if after is None else check_id("after", after)
        written, place = await read_on(store, run_id, last, limit)
    else:
        written, place = await _read_before(
            request, run_id, check_id("before", before), limit
        )
    if not written and not await store.exists(run_id):
        raise HTTPException(404, "there is no such run")
    head = encode({"runId": run_id, "next": place})
    return json_answer(head[:-1] + b',"events":[' + b",".join(written) + b"]}")


async def _read_before(
    request: Request, run_id: int, before: str, limit: int
) -> tuple[list[bytes], str | None]:
    """Read what stands before a place, oldest first, and where that begins."""
    written: list[bytes] = []
    size, place = 0, None
    store = web_state(request).runs
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
