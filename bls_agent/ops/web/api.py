"""The HTTP interface of the console for programs, in JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import bls_agent
from bls_agent.assets.records import AssetSummary
from bls_agent.console import Console
from bls_agent.core.codec import JSONObject, encode, format_timestamp
from bls_agent.core.errors import BlsError
from bls_agent.core.keys import show_name
from bls_agent.ops.fleet import ProjectView
from bls_agent.ops.web.feeds.crawl import CrawlFeed, SeenQueue
from bls_agent.ops.web.feeds.fleet import KINDS
from bls_agent.ops.web.feeds.logs import encode_records
from bls_agent.ops.web.feeds.runs import encode_event
from bls_agent.ops.web.feeds.watch import Currency, SharedWatch, clock, rounded
from bls_agent.ops.web.requests import (
    ANY_ASSET,
    ANY_NAME,
    OPENAPI,
    CommandRequest,
    FieldError,
    convert,
    json_answer,
    list_answer,
    media_type,
    project_in_path,
    project_in_query,
    read_command,
    read_limit,
    read_log_filter,
    read_number,
    run_in_path,
)
from bls_agent.ops.web.state import (
    Settlement,
    check_project,
    is_known,
    requester,
    send_command,
    settle_commands,
    web_state,
)
from bls_agent.project.console.search import LogFilter, LogSearch
from bls_agent.project.log.reading import LogPage
from bls_agent.project.messages import Command, LogEntry, Outcome
from bls_agent.project.status.intake import describe_reports
from bls_agent.runs import RunSummary
from bls_agent.workers import Worker

SLICE: Final = 25  # projects or events that are encoded before other tasks may run
ASSETS: Final = 500  # assets that are encoded before other tasks may run
MORE_SEARCHES: Final = 29  # searches of about 10,000 older records each, for a file
RECENT: Final = 200  # records read at first, because the outcome may already be there


async def _post_command(request: Request) -> Response:
    if media_type(request) != "application/json":
        raise HTTPException(415, "the body has to be application/json")
    asked = read_command(await request.body())
    known = await is_known(request, asked.project)
    if asked.wait:
        sent, outcome = await _send_and_wait(request, asked, known=known)
    else:
        sent, outcome = await send_command(request, asked, create=not known), None
    content = {
        "targetProjectName": asked.project,
        "known": known,
        "id": sent.id,
        "timestamp": sent.timestamp,
        "source": sent.source,
        "command": sent.command,
        "args": sent.args,
        "outcome": outcome and outcome.metadata,
    }
    return json_answer(content, 202 if outcome is None else 200)


async def _send_and_wait(
    request: Request, asked: CommandRequest, *, known: bool
) -> tuple[Command, Outcome | None]:
    """Send a command; read the project's log until the outcome or the deadline."""
    state = web_state(request)
    earlier: list[LogEntry] = []  # may have the outcome of a command with the same id
    with state.streams.hold(requester(request)):
        if asked.id:
            with suppress(BlsError):
                earlier = await state.console.logs(asked.project, RECENT)
        sent = await send_command(request, asked, create=not known)
        with suppress(BlsError), anyio.move_on_after(asked.wait):
            async for entry in state.console.follow_logs(asked.project, last=RECENT):
                outcome = None if entry in earlier else entry.outcome
                if outcome is not None and outcome.command_id == sent.id:
                    return sent, outcome
    return sent, None


def _commands_at(
    path: str, read: Callable[[Console, str, int], Awaitable[list[Command]]]
) -> Route:
    async def show(request: Request) -> Response:
        limit = read_limit(request.query_params.get("limit"))
        project = project_in_query(request.scope)
        check_project(request, project)
        found = await read(web_state(request).console, project, limit)
        return _commands_answer(request, project, found)

    return Route(path, show)


def _commands_answer(
    request: Request, project: str, found: Sequence[Command]
) -> Response:
    redactor = web_state(request).console.redactor
    commands = [command.describe(redactor) for command in found]
    return json_answer({"projectName": show_name(project), "commands": commands})


def _settle_at(path: str, method: str, how: Settlement) -> Route:
    """Make a route that withdraws, requeues or discards commands.

    The query has the ``id`` of a command, or ``all=true`` for all commands of the list.
    """

    async def settle(request: Request) -> Response:
        project, query = project_in_query(request.scope), request.query_params
        check_project(request, project)
        number, every = query.get("id", ""), query.get("all", "false")
        if every not in ("true", "false"):
            raise FieldError({"all": "it has to be true or false"})
        if bool(number) == (every == "true"):
            raise FieldError({"id": "send it, or all=true, and not both"})
        settled = await settle_commands(request, project, number or None, how)
        if number and not settled:
            raise HTTPException(404, "no command of this list has this id")
        return _commands_answer(request, project, settled)

    return Route(path, settle, methods=[method])


async def _get_in_hand(request: Request) -> Response:
    limit = read_limit(request.query_params.get("limit"))
    project = project_in_query(request.scope)
    check_project(request, project)
    console = web_state(request).console
    processes = [
        {
            "instance": show_name(one.instance),
            "alive": one.alive,
            "commands": [
                command.describe(console.redactor) for command in one.commands
            ],
        }
        for one in await console.in_hand(project, limit)
    ]
    return json_answer({"projectName": show_name(project), "processes": processes})


async def _search_on(
    search: Callable[..., Awaitable[LogSearch]],
    before: str,
    records: list[bytes],
    limit: int,
) -> list[bytes]:
    """Return the records after the matches of older searches, at most ``limit``."""
    for _ in range(MORE_SEARCHES):
        rest = limit - len(records)
        if not before or not rest:
            break
        page = await search(before=before, limit=rest)
        before = page.before
        records = [*await encode_records(page.entries), *records]
    return records


async def _get_logs(request: Request) -> Response:
    query = request.query_params
    limit, wanted = read_limit(query.get("limit")), read_log_filter(query)
    file_format = query.get("format", "json")
    if file_format not in ("json", "ndjson"):
        raise FieldError({"format": "it has to be json or ndjson"})
    project = project_in_query(request.scope)
    check_project(request, project)  # does not check that the project exists
    console = web_state(request).console
    before = query.get("before", "")
    head: dict[str, Any] = {"projectName": show_name(project)}
    page: LogPage | LogSearch
    if wanted == LogFilter():
        page = await console.log_page(project, before=before, limit=limit)
    else:
        found = await console.search_logs(project, wanted, before=before, limit=limit)
        head |= {"searched": found.searched, "backTo": found.back_to}
        page = found
    head |= {"before": page.before or None, "trimmed": page.trimmed}
    records = await encode_records(page.entries)
    if file_format == "ndjson":
        if isinstance(page, LogSearch):
            older = partial(console.search_logs, project, wanted)
            records = await _search_on(older, page.before, records, limit)
        headers = {"content-disposition": 'attachment; filename="log.ndjson"'}
        body = b"".join(b"%s\n" % record for record in records)
        return Response(body, 200, headers, "application/x-ndjson")
    return list_answer("logs", records, head)


def _list_at(
    path: str,
    name: str,
    feed: str,
    describe: Callable[[Any, float], JSONObject],
    project_of: Callable[[str], str] | None = None,
) -> Route:
    """Make the route of a list.

    ``project_of`` returns the project of a key, if the items of the list have projects.
    """

    async def show(request: Request) -> Response:
        watch: SharedWatch[Any] = getattr(web_state(request), feed)
        await watch.fresh()
        sees = request.state.grants.sees
        seen = [
            (one, watch.seconds_since(key))
            for key, one in watch.found.items()
            if project_of is None or sees(project_of(key))
        ]
        written = await convert(seen, lambda pair: encode(describe(*pair)), SLICE)
        return list_answer(name, written)

    return Route(path, show)


async def _get_project(request: Request) -> Response:
    name = project_in_path(request.scope)
    if not name:
        raise FieldError({"project": "it is missing"})
    state = web_state(request)
    await state.fleet.fresh()
    view = state.fleet.found.get(name)
    if view is None:
        raise HTTPException(404, "there is no such project")
    return json_answer(_describe_project(view, state.fleet.seconds_since(name)))


def _describe_project(view: ProjectView, elapsed: float) -> JSONObject:
    """Return a project's fields ``elapsed`` seconds after the read.

    Unknown values are ``null``.
    """
    view = view.aged(elapsed)
    return {
        "projectName": show_name(view.project),
        "status": view.status and view.status.value,
        "statusText": view.status_text,
        "reason": view.reason,
        "presence": view.presence.value,
        "age": rounded(view.age, digits=3),
        "ttl": rounded(view.ttl, digits=3),
        "queue": view.queue,
        "deadLetters": view.dead_letters,
        "intake": describe_reports(view.intake),
        "records": view.records,
        "lastRecordAge": rounded(view.last_record_age, digits=3),
        "rate": view.rate,
        "rates": list(view.rates),
        "errors": view.errors,
        "atLeast": view.at_least,
        "lastError": view.last_error and view.last_error.message,
        "lastErrorAge": rounded(view.last_error_age, digits=3),
        "changedAt": view.changed_at,
    }


async def _get_changes(request: Request) -> Response:
    fields = request.query_params
    limit, after = read_limit(fields.get("limit")), read_number(fields.get("after"))
    kind, text = fields.get("kind", ""), fields.get("q", "")
    if kind and kind not in KINDS:
        raise FieldError({"kind": f"it has to be one of {', '.join(KINDS)}"})
    state = web_state(request)
    journal = state.journal
    project, grants = project_in_query(request.scope), request.state.grants
    before = read_number(fields.get("before"), "before") or math.inf
    found = journal.changes(
        project, after, limit + 1, grants, before=before, kind=kind, text=text
    )
    more, found = len(found) > limit, found[-limit:]
    content = {
        "since": format_timestamp(journal.since),
        "unavailable": state.fleet.away or None,
        "unavailableSince": state.fleet.describe()["awaySince"],
        "before": found[0].number if more else None,
        "changes": [change.to_dict() for change in found],
    }
    return json_answer(content)


async def _get_tasks(request: Request) -> Response:
    now = clock()
    tasks, complete = await web_state(request).workers.fresh_tasks()
    written = await convert(tasks, lambda task: encode(task.describe(now)), ASSETS)
    return list_answer("tasks", written, {"complete": complete})


async def _get_runs(request: Request) -> Response:
    limit = read_limit(request.query_params.get("limit"))
    watch = web_state(request).runs
    await watch.fresh()
    runs = [_describe_run(run) for run in list(watch.found.values())[:limit]]
    return json_answer({"runs": runs, "total": watch.total, "leftOut": watch.left_out})


def _describe_run(run: RunSummary) -> JSONObject:
    fields = run.to_dict().items()
    return {re.sub("_(.)", lambda at: at[1].upper(), key): one for key, one in fields}


async def _get_run(request: Request) -> Response:
    found = await web_state(request).store.describe(run_in_path(request))
    if found is None:
        raise HTTPException(404, "there is no such run")
    return json_answer(_describe_run(found))


async def _get_events(request: Request) -> Response:
    run_id = run_in_path(request)
    limit = read_limit(request.query_params.get("limit"))
    after, before = map(request.query_params.get, ("after", "before"))
    if after is not None and before is not None:
        raise FieldError({"before": "send it, or after, and not both"})
    store = web_state(request).store
    if before is not None:
        page = await store.page_back(run_id, before=before, limit=limit)
    else:
        page = await store.page(run_id, after=after, limit=limit)
    if not page.events and not await store.exists(run_id):
        raise HTTPException(404, "there is no such run")
    written = await convert(page.events, encode_event, SLICE)
    return list_answer("events", written, {"runId": run_id, "next": page.next})


async def _get_assets(request: Request) -> Response:
    feed = web_state(request).assets
    await feed.fresh()
    written = await convert(feed.assets, _write_asset, ASSETS)
    broken = [{"id": name, "problem": str(at)} for name, at in feed.broken.items()]
    head = {"broken": broken, "sync": asdict(feed.state)}
    return list_answer("assets", written, head)


def _write_asset(one: AssetSummary) -> bytes:
    return encode({name: getattr(one, name) for name in _SUMMARY})


_SUMMARY: Final = ("id", "name", "category", "version", "description")


async def _get_asset(request: Request) -> Response:
    library = web_state(request).assets.library
    found = await library.get(request.path_params["asset"])
    if found is None:
        raise HTTPException(404, "there is no such asset, or none that can be read")
    return json_answer(asdict(found))


def _describe_queue(queue: SeenQueue, elapsed: float) -> JSONObject:
    """Return a queue's fields; unknown counts and the rates of a first read are null."""
    del elapsed  # no field depends on the time
    view, rates, _ = queue
    return {
        **view.name._asdict(),
        "problem": view.problem,
        "stats": asdict(view.stats) if view.stats else None,
        "rates": rates and {"pushed": round(rates[0], 3), "taken": round(rates[1], 3)},
    }


async def _get_health(request: Request) -> Response:
    state = web_state(request)
    await state.fleet.ready()
    currency = state.fleet.currency
    is_down = currency in {Currency.READING, Currency.AWAY}
    kind = state.fleet.away or currency.value if is_down else None
    content: dict[str, Any] = {"status": "up" if kind is None else "down"}
    if request.state.user or not state.config.users:
        content |= {
            "redis": {"reachable": kind is None, "kind": kind},
            "version": bls_agent.__version__,
            "uptimeSeconds": round(state.now() - state.started, 3),
            "streams": state.streams.open,
            "counts": dict(state.counts),
        }
    headers = {} if kind is None else {"retry-after": "2"}
    return json_answer(content, 200 if kind is None else 503, headers)


async def _get_openapi(_: Request) -> Response:
    return json_answer(OPENAPI.read_bytes())


api_routes: Final[list[BaseRoute]] = [
    Route("/api/commands", _post_command, methods=["POST"]),
    _commands_at("/api/commands", Console.queue),
    _settle_at("/api/commands", "DELETE", "withdraw"),
    Route("/api/in-hand", _get_in_hand),
    _commands_at("/api/dead-letters", Console.dead_letters),
    _settle_at("/api/dead-letters/requeue", "POST", "requeue"),
    _settle_at("/api/dead-letters", "DELETE", "discard"),
    Route("/api/logs", _get_logs),
    _list_at("/api/projects", "projects", "fleet", _describe_project, str),
    Route(f"/api/projects/{ANY_NAME}", _get_project),
    Route("/api/changes", _get_changes),
    _list_at("/api/workers", "workers", "workers", Worker.describe),
    Route("/api/tasks", _get_tasks),
    Route("/api/runs", _get_runs),
    Route("/api/runs/{run}", _get_run),
    Route("/api/runs/{run}/events", _get_events),
    Route("/api/assets", _get_assets),
    Route(f"/api/assets/{ANY_ASSET}", _get_asset),
    _list_at("/api/crawl", "queues", "crawl", _describe_queue, CrawlFeed.project_of),
    Route("/api/health", _get_health),
    Route("/api/openapi.json", _get_openapi),
]
