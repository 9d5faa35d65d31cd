"""The pages with all cards of one kind, and the pages of one run, asset or queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bls_agent.core.codec import JSONObject, encode
from bls_agent.core.errors import BlsError, ConfigurationError, RedisUnavailableError
from bls_agent.core.redaction import redact
from bls_agent.crawl.overview import FailedRequest
from bls_agent.ops.terminal import visible
from bls_agent.ops.texts import Texts
from bls_agent.ops.web.feeds import assets, crawl, fleet, runs, workers
from bls_agent.ops.web.feeds.watch import Currency, SharedWatch, clock, shorten
from bls_agent.ops.web.pages.action_list import (
    ActionList,
    Row,
    describe_failure,
    is_forbidden,
    make_action,
    render_lists,
)
from bls_agent.ops.web.pages.rendering import render, render_if_new, say_age, texts_of
from bls_agent.ops.web.requests import ANY_ASSET, ANY_QUEUE, quote_name, run_in_path
from bls_agent.ops.web.state import crawl_queue, requeue_failed, web_state
from bls_agent.runs import EventCategory, RunState, RunSummary
from bls_agent.workers import Task, TaskState
from bls_agent.workers.task_list import MOST

FAILED: Final = 100  # entries of the failed list that are shown
SHOWN: Final = 100  # tasks of one state that are shown
LONGEST_TEXT: Final = 2_000  # characters of a task's message
_KINDS: Final = {kind: kind for kind in fleet.KINDS}


def _cards_at(
    path: str, template: str, name: str, states: Mapping[str, str], **values: Any
) -> Route:
    async def show(request: Request) -> Response:
        watch: SharedWatch[Any] = getattr(web_state(request), name)
        await watch.ready()
        return render(
            request,
            template,
            here=path,
            feed=watch,
            picture=watch.only(watch.picture(), request.state.grants).decode(),
            states=states,
            away=watch.away,
            known=watch.currency is Currency.CURRENT,
            **values,
        )

    return Route(path, show)


async def _show_run(request: Request) -> Response:
    run_id = run_in_path(request)
    found = await web_state(request).store.describe(run_id)
    run = found or RunSummary(run_id, RunState.OPEN, 0)
    card = runs.make_run_card(run, clock(), whole=True)
    return render(
        request,
        "run.html",
        card=card,
        card_json=encode(card).decode(),
        there=found is not None,
        states=runs.STATES,
        categories=[category.value for category in EventCategory],
        away="",
    )


def _again_at(
    path: str,
    template: str,
    describe: Callable[[Request], Awaitable[dict[str, Any]]],
) -> Route:
    async def show(request: Request) -> Response:
        return render_if_new(request, template, **await describe(request))

    return Route(f"/fragments/{path}", show)


async def _describe_sync(request: Request) -> dict[str, Any]:
    feed = web_state(request).assets
    await feed.ready()
    return {"feed": feed, "away": feed.away}


async def _show_asset(request: Request) -> Response:
    values = await _describe_asset(request)
    status = 200 if values["asset"] else 503 if values["away"] else 404
    return render(request, "asset.html", status, here="/assets", **values)


async def _describe_asset(request: Request) -> dict[str, Any]:
    asset_id: str = request.path_params["asset"]
    feed = web_state(request).assets
    sheet: JSONObject | None = None
    away = ""
    try:
        asset = await feed.library.get(asset_id)
        sheet = None if asset is None else assets.make_asset_sheet(asset)
        if asset is None:
            await feed.ready()  # because the index may contain the asset
    except ConfigurationError:
        pass  # no asset can have this id
    except RedisUnavailableError as error:
        away = error.kind
    key = quote_name(asset_id)
    return {
        "asset": sheet,
        "asset_id": visible(asset_id),
        "key": key,
        "listed": key in feed.found,
        "columns": assets.COLUMNS,
        "away": away,
    }


async def _show_queue(request: Request) -> Response:
    values = await _describe_queue(request)
    is_known = values["state"] is Currency.CURRENT
    status = 200 if values["card"] else 404 if is_known else 503
    values |= {"lists": [await _list_failed(request)], "note": ""}
    return render(request, "crawl_queue.html", status, here="/crawl", **values)


async def _describe_queue(request: Request) -> dict[str, Any]:
    feed = web_state(request).crawl
    await feed.ready()
    name: str = request.path_params["queue"]
    return {
        "card": feed.card_of(quote_name(name)),
        "name": visible(name),
        "key": quote_name(name),
        "figures": crawl.FIGURES,
        "totals": crawl.TOTALS,
        "state": feed.currency,
        "away": feed.away,
    }


async def _show_failed(request: Request, note: str = "") -> Response:
    return render_lists(request, [await _list_failed(request)], note)


async def _requeue(request: Request) -> Response:
    texts = texts_of(request)
    try:
        count = await requeue_failed(request, request.path_params["queue"])
        note = texts["requeued"].format(count=f"{count:,}")
    except BlsError as error:
        note = describe_failure(texts, "not_requeued", error, "requeue_forbidden")
    return await _show_failed(request, note)


async def _list_failed(request: Request) -> ActionList:
    texts, name = texts_of(request), request.path_params["queue"]
    found: list[FailedRequest] = []
    problem = ""
    try:
        async with crawl_queue(request, name) as queue:
            found = await queue.failed(FAILED + 1)
    except RedisUnavailableError as error:
        problem = f"{texts['js_not_known']} {visible(error.kind)}"
        if is_forbidden(error):
            problem = texts["failed_forbidden"]
    except BlsError as error:  # a key of a wrong type, or an impossible name
        problem = visible(str(error))
    path = f"/fragments/requeue/{quote_name(name)}"
    again = make_action(texts, "requeue", path, name=visible(name))
    return ActionList(
        key="failed",
        title=texts["failed_requests"],
        rows=[_failed_row(texts, one) for one in found],
        limit=FAILED,
        empty=texts["failed_none"],
        problem=problem,
        head=[again] if found else [],
    )


def _failed_row(texts: Texts, one: FailedRequest) -> Row:
    failure = crawl.make_failure(one)
    readable = failure["request"] if failure["readable"] else texts["failed_unreadable"]
    facts = texts["failed_tries"].format(**failure)
    return Row(name=readable, facts=facts, text=failure["reason"], is_bad=True)


async def _show_tasks(request: Request) -> Response:
    lists, query = await _list_tasks(request), request.query_params
    return render(
        request,
        "tasks.html",
        here="/tasks",
        lists=lists,
        note="",
        worker=query.get("worker", ""),
        sought=query.get("q", ""),
    )


async def _show_task_lists(request: Request) -> Response:
    return render_lists(request, await _list_tasks(request))


async def _list_tasks(request: Request) -> list[ActionList]:
    """Make a list of tasks for each state, after a list without rows as the page's head.

    1. Redis was not read yet: the head contains a note about this, and there is no task.
    2. Redis does not answer or refuses: the head contains the reason, and the lists
       contain the tasks of the last read.
    3. Otherwise the head contains the number of tasks, and whether there are more.
    """
    feed, texts = web_state(request).workers, texts_of(request)
    await feed.ready()
    worker, sought = map(request.query_params.get, ("worker", "q"))
    currency = feed.tasks_currency
    tasks = [] if currency is Currency.READING else feed.tasks.tasks
    known = feed.tasks_of(worker) if tasks and worker else tasks
    if words := (sought or "").strip().casefold():
        known = [one for one in known if words in _task_words(one)]
    lists: list[ActionList] = []
    counts: list[str] = []
    for state in workers.TASK_STATES:
        found = [one for one in known if one.state is state]
        title = texts[f"js_task_{state}"]
        rows = [_task_row(texts, one) for one in found[: SHOWN + 1]]
        if found:
            counts.append(f"{title} {len(found):,}")
            lists.append(ActionList(key=state, title=title, rows=rows, limit=SHOWN))
    if not feed.tasks.complete:
        counts.append(texts["tasks_cut"].format(count=f"{MOST:,}"))
    nothing = texts["no_task_matches" if words else "no_tasks"]
    if currency is not Currency.CURRENT:
        nothing = texts["looking_for_tasks"]
    text = " · ".join(counts) or nothing
    fault = feed.unavailable or feed.tasks_fault
    problem = ""
    if fault and currency is Currency.AWAY:
        problem = f"{texts['js_not_known']} {visible(fault.kind)}"
    elif currency is Currency.FORBIDDEN:
        problem = texts["tasks_forbidden"]
    title = texts["tasks"]
    head = ActionList(key="tasks", title=title, limit=0, empty=text, problem=problem)
    return [head, *lists]


def _task_words(task: Task) -> str:
    words = task.id, task.worker, task.status, task.message
    return "\n".join(filter(None, words)).casefold()


def _task_row(texts: Texts, task: Task) -> Row:
    age, problem = task.age(clock()), texts.get(f"js_problem_{task.problem}", "")
    percent = "" if task.progress is None else f"{task.progress:g} %"
    since = "" if age is None else say_age(texts, age)
    about = filter(None, (task.status, percent, task.worker, since))
    parts = filter(None, (problem, task.message or task.raw))
    return Row(
        name=shorten(task.id),
        about=" · ".join(map(shorten, about)),
        text=shorten(redact(": ".join(parts)), LONGEST_TEXT),
        is_bad=bool(problem) or task.state is TaskState.FAILED,
        kind=workers.TASK_STATES[task.state],
        progress=task.part,
    )


listing_routes: Final = [
    _cards_at("/", "wallboard.html", "fleet", _KINDS),
    _cards_at(
        "/workers", "workers.html", "workers", workers.STATES, groups=workers.GROUPS
    ),
    Route("/tasks", _show_tasks),
    Route("/fragments/tasks", _show_task_lists),
    _cards_at("/runs", "runs.html", "runs", runs.STATES),
    _cards_at("/assets", "assets.html", "assets", assets.STATES),
    _cards_at("/crawl", "queues.html", "crawl", crawl.STATES, names=crawl.FIGURES),
    Route("/runs/{run}", _show_run),
    Route(f"/assets/{ANY_ASSET}", _show_asset),
    _again_at("assets", "asset_sync.html", _describe_sync),
    _again_at(f"assets/{ANY_ASSET}", "asset_sheet.html", _describe_asset),
    Route(f"/crawl/{ANY_QUEUE}", _show_queue),
    _again_at(f"crawl/{ANY_QUEUE}", "crawl_sheet.html", _describe_queue),
    Route(f"/fragments/failed/{ANY_QUEUE}", _show_failed),
    Route(f"/fragments/requeue/{ANY_QUEUE}", _requeue, methods=["POST"]),
]
