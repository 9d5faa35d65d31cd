"""``bls-agent projects``, ``status``, ``top`` and ``forget``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import anyio

from bls_agent.connection.pool import find_endpoint
from bls_agent.console import Console
from bls_agent.core.codec import JSONObject
from bls_agent.core.errors import (
    ConfigurationError,
    ContractError,
    LeaseHeldError,
    RedisRefusedError,
)
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit, Failure, normalise, unknown_project
from bls_agent.ops.cli.options import ProjectArgument, WatchOption
from bls_agent.ops.cli.output import (
    Invocation,
    describe_entry,
    now_clock,
    rounded,
    span,
    status_cell,
    status_name,
)
from bls_agent.ops.cli.tables import Layout, Table, poll, wants_live
from bls_agent.ops.fleet import Condition, Fleet, Presence, ProjectView
from bls_agent.ops.terminal import Cell
from bls_agent.ops.texts import Texts
from bls_agent.project.messages import Status
from bls_agent.project.status.intake import IntakeReport, describe_reports

INTERVAL: Final = 0.5  # seconds between two reads of one project
WELL: Final = frozenset({Status.ONLINE, Status.OFFLINE})
ALARMS: Final = (Condition.FAULT, Condition.ERROR)
TOP: Final = Layout(
    "top",
    {
        "project": 0,
        "status": 0,
        "intake": 70,
        "age": 40,
        "queue": 50,
        "dead": 70,
        "rate": 60,
        "errors": 60,
        "last_error": 90,
    },
)


@command("projects")
async def projects(invocation: Invocation) -> Exit:
    with invocation.waiting("waiting_redis"):
        async with invocation.console() as console:
            found = await console.projects()
            intakes = await console.intakes(found)
    texts, people = invocation.texts, invocation.out.terminal

    def describe(name: str) -> JSONObject:
        paused = describe_reports(intakes.get(name, {}))
        record: JSONObject = {"projectName": name, "status": found[name]}
        return record | {"statusName": status_name(found[name]), "intake": paused}

    def cells(name: str) -> Mapping[str, Cell]:
        return {
            "project": name,
            "status": status_cell(found[name], texts, meaning_too=people),
            "intake": _sum_up(intakes.get(name, {}), texts),
        }

    names = ["project", "status", *(["intake"] if intakes else ())]
    layout = Layout("top", dict.fromkeys(names, 0))
    Table(invocation, layout, describe, cells, [*found]).write()
    if not found:
        where = find_endpoint(invocation.redis)
        invocation.hint("no_projects", address=where.address)
    return Exit.DONE


def _sum_up(reports: Mapping[str, IntakeReport], texts: Texts) -> tuple[str, str]:
    """Return how many processes of a project are paused, draining or drained."""
    words = Counter(texts[f"intake_{one.state.value}"] for one in reports.values())
    shown = (f"{n} {word}" if n > 1 else word for word, n in words.items())
    return ", ".join(shown), "yellow"


@command("status")
async def status(
    invocation: Invocation,
    project: ProjectArgument,
    watch: WatchOption = False,
) -> Exit:
    """Show a project's status, queue, log and replicas; exit 3 if it is unhealthy."""
    project = normalise(invocation, project)
    async with Fleet(invocation.redis) as fleet, invocation.console() as console:
        if watch:
            await _print_changes(invocation, fleet, project)
        with invocation.waiting("waiting_redis"):
            view = await fleet.look_at(project)
            instances = await _instances(console, project)
            if not view.exists and not instances:
                raise await unknown_project(console, project)
    if invocation.json:
        invocation.out.json(describe_view(view, instances=instances))
    else:
        invocation.out.table(_status_rows(invocation, view, instances))
    return Exit.DONE if is_healthy(view) else Exit.UNHEALTHY


async def _instances(console: Console, project: str) -> dict[str, Status]:
    """Read the replicas; return none if Redis refuses or the key is unreadable."""
    try:
        return await console.instances(project)
    except (ConfigurationError, ContractError, RedisRefusedError):
        return {}


def _status_rows(
    invocation: Invocation, view: ProjectView, instances: dict[str, Status]
) -> list[list[Cell]]:
    texts, people = invocation.texts, invocation.out.terminal
    other = texts["other_type"]
    rate, errors = log_figures(view)
    records = other if view.records is None else view.records
    log = texts["log_summary"].format(records=records, rate=rate, errors=errors)
    rows: list[list[Cell]] = [
        [texts["project"], view.project],
        [texts["status"], _shown_status(view, texts, meaning_too=people)],
        *([[texts["status_reason"], view.reason]] if view.reason else ()),
        [texts["freshness"], freshness(view, texts)],
        *_intake_rows(view, texts),
        [texts["queue"], other if view.queue is None else str(view.queue)],
        *([[texts["dead"], _dead_letters(view)]] if view.dead_letters != 0 else ()),
        [texts["log"], log],
    ]
    for name, entry in (("last", view.last_record), ("error", view.last_error)):
        if entry is not None and (name == "last" or entry != view.last_record):
            age = f" ({span(view.last_record_age)})" if name == "last" else ""
            text = f"{entry.level.value} {entry.message}{age}"
            rows.append([texts[f"record_{name}"], text])
    for instance, state in instances.items():
        rows.append([texts["instance"], f"{instance} {status_cell(state, texts)[0]}"])
    return rows


def _intake_rows(view: ProjectView, texts: Texts) -> Iterator[list[Cell]]:
    for one in describe_reports(view.intake):
        values = one | {
            "state": texts[f"intake_{one['state']}"],
            "age": span(one["age"]),
        }
        text = texts["intake_row"].format(**values)
        yield [
            texts["intake"],
            (text + (one["reason"] and f": {one['reason']}"), "yellow"),
        ]


async def _print_changes(invocation: Invocation, fleet: Fleet, project: str) -> None:
    """Print each change until a signal; report outages, and wait until they end."""
    texts, people = invocation.texts, invocation.out.terminal
    printed: tuple[object, ...] | None = None

    def show(view: ProjectView) -> None:
        nonlocal printed
        intake = _sum_up(view.intake, texts)
        shown = view.status, view.status_text, view.presence, view.reason, intake
        before, printed = printed, shown
        if printed == before:
            return
        described = describe_view(view, seenAt=now_clock(iso=True))
        cells: list[Cell] = [(now_clock(iso=not people), "dim")]
        cells += [
            _shown_status(view, texts, meaning_too=people),
            freshness(view, texts),
        ]
        invocation.record(described, *cells, *filter(None, [view.reason, intake[0]]))

    await poll(partial(fleet.look_at, project), show, invocation.tell_outage, INTERVAL)


@command("top")
async def top(invocation: Invocation, *, once: bool = False) -> Exit:
    """Show the fleet until q or Ctrl-C; print it once if the output is no terminal."""
    texts, people = invocation.texts, invocation.out.terminal

    views: dict[str, ProjectView] = {}
    seen_at: dict[str, float] = {}  # project → when the fleet reported its view

    def cells(view: ProjectView) -> Mapping[str, Cell]:
        now = anyio.current_time()
        view = view.aged(now - seen_at.get(view.project, now))
        return project_cells(view, texts, people=people)

    def fill(found: Mapping[str, ProjectView]) -> None:
        table.fill(arrange(found.values()), summary(found.values(), texts))

    async def follow(redraw: Callable[[], None]) -> None:
        async for change in fleet.watch():
            table.record(change.unavailable)
            views.update(change.views)
            seen_at.update(dict.fromkeys(change.views, anyio.current_time()))
            for project in change.removed:
                views.pop(project, None)
                seen_at.pop(project, None)
            fill(views)
            redraw()

    table = Table[ProjectView](invocation, TOP, describe_view, cells)
    async with Fleet(invocation.redis) as fleet:
        if wants_live(invocation) and not once:
            await table.show(follow)
            return Exit.DONE
        with invocation.waiting("waiting_redis"):
            fill(await fleet.look())
    table.write()
    return Exit.DONE


def arrange(views: Iterable[ProjectView]) -> list[ProjectView]:
    """Sort like the wallboard: bad statuses, then dead letters or errors, then others."""

    def place(view: ProjectView) -> tuple[object, ...]:
        is_ill = view.condition not in ALARMS and (view.dead_letters or view.errors)
        severity = Condition.ERROR.place + 0.5 if is_ill else view.condition.place
        queue = view.queue or 0
        return severity, not view.dead_letters, -view.errors, -queue, view.project

    return sorted(views, key=place)


def summary(views: Collection[ProjectView], texts: Texts) -> str:
    bad = sum(view.condition in ALARMS for view in views)
    silent = sum(view.status is None for view in views)
    return texts["top_summary"].format(count=len(views), bad=bad, silent=silent)


def project_cells(
    view: ProjectView, texts: Texts, *, people: bool = True
) -> Mapping[str, Cell]:
    if view.presence is Presence.FRESH:
        known = view.age_exact or view.age is None
        age: Cell = f"{'' if known else '~'}{span(view.age)}"
    else:  # without a fresh status, show the age of the last record
        age = span(view.last_record_age), "dim"
    queue = "?" if view.queue is None else str(view.queue)
    rate, errors = log_figures(view)
    return {
        "project": view.project,
        "status": _shown_status(view, texts, meaning_too=people),
        "intake": _sum_up(view.intake, texts),
        "age": age,
        "queue": (queue, "yellow") if view.queue else queue,
        "dead": _dead_letters(view),
        "rate": f"{rate}/s" if view.records else "-",
        "errors": (errors, "red" if view.errors else ""),
        "last_error": view.reason
        or (view.last_error.message if view.last_error else ""),
    }


def _dead_letters(view: ProjectView) -> Cell:
    count = "?" if view.dead_letters is None else str(view.dead_letters)
    return (count, "red") if view.dead_letters else count


def log_figures(view: ProjectView) -> tuple[str, str]:
    """Return the rate and the number of errors.

    If they are lower bounds, a value has the sign ``≥``, and 0 becomes ``?``.
    """
    shown = f"{view.rate:.1f}", str(view.errors)
    if not view.at_least:
        return shown
    rate, errors = (f"≥ {text}" if float(text) else "?" for text in shown)
    return rate, errors


def is_healthy(view: ProjectView) -> bool:
    return view.status in WELL


def _shown_status(view: ProjectView, texts: Texts, *, meaning_too: bool = True) -> Cell:
    if view.status is None and view.status_text:
        return texts["status_bad"].format(value=view.status_text), "bold red"
    if view.status is None:
        return texts[f"status_{view.presence.value}"], "yellow"
    return status_cell(view.status, texts, meaning_too=meaning_too)


def freshness(view: ProjectView, texts: Texts) -> str:
    """Return a text with the age of the status, and how long it remains valid."""
    if not view.exists:
        return texts["presence_absent"]
    values = {"age": span(view.age), "ttl": span(view.ttl)}
    if view.presence is Presence.FRESH and view.age is None:
        return texts["presence_fresh_since"].format(**values)
    exact = "_exact" if view.presence is Presence.FRESH and view.age_exact else ""
    return texts[f"presence_{view.presence.value}{exact}"].format(**values)


def describe_view(view: ProjectView, **more: object) -> dict[str, Any]:
    """Return a project as a JSON object for programs.

    Times are in seconds. Unknown values are ``null``.
    """
    record: Mapping[str, Any] = {
        "projectName": view.project,
        "status": view.status,
        "statusName": status_name(view.status),
        "statusText": view.status_text,
        "reason": view.reason,
        "healthy": is_healthy(view),
        "presence": view.presence,
        "age": rounded(view.age),
        "ageExact": view.age_exact,
        "ttl": rounded(view.ttl),
        "queue": view.queue,
        "deadLetters": view.dead_letters,
        "intake": describe_reports(view.intake),
        "records": view.records,
        "rate": round(view.rate, 3),
        "errors": view.errors,
        "atLeast": view.at_least,
        "lastRecordAge": rounded(view.last_record_age),
        "lastRecord": describe_entry(view.last_record),
        "lastError": describe_entry(view.last_error),
    }
    return {**record, **more}


@command("forget")
async def forget(
    invocation: Invocation,
    project: ProjectArgument,
    *,
    force: bool = False,
) -> Exit:
    project = normalise(invocation, project)
    async with invocation.console() as console:
        with invocation.waiting("waiting_redis"):
            try:
                deleted = await console.forget(project, force=force)
            except LeaseHeldError as error:
                raise Failure(
                    "still_online", hint="hint_still_online", project=project
                ) from error
            if not deleted:
                raise await unknown_project(console, project)
    if invocation.json:
        invocation.out.json({"projectName": project, "deleted": deleted})
        return Exit.DONE
    for key in deleted:
        invocation.out.line(key)
    invocation.hint("forgotten", count=len(deleted), project=project)
    return Exit.DONE
