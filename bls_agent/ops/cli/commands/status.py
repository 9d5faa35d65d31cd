"""``bls-agent status``: how one project is, and whether that can be believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from bls_agent.ops.cli.command import command, new_app
from bls_agent.ops.cli.exits import Exit
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.naming import ProjectArgument, normalise, unknown_project

if TYPE_CHECKING:
    from bls_agent.console import Console
    from bls_agent.ops.cli.screen import Cell
    from bls_agent.ops.fleet import Fleet, ProjectView
    from bls_agent.project.messages import Status

__all__ = ["status"]

INTERVAL: Final = 0.5  # seconds between two looks

app = new_app()


@command(app, "status")
async def status(
    invocation: Invocation,
    project: ProjectArgument,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="opt_watch")] = False,
) -> Exit:
    """Show a project's status, queue, log and replicas; 3 if it is not well."""
    from bls_agent.ops.cli.views import exists, is_healthy
    from bls_agent.ops.fleet import Fleet

    project = normalise(invocation, project)
    async with Fleet(invocation.redis) as fleet, invocation.console() as console:
        if watch:
            await _watch(invocation, fleet, project)
        with invocation.waiting("waiting_redis"):
            view = await fleet.look_at(project)
            instances = await _instances(console, project)
            if not exists(view) and not instances:
                raise await unknown_project(console, project)
    _show(invocation, view, instances)
    return Exit.DONE if is_healthy(view) else Exit.UNHEALTHY


async def _instances(console: Console, project: str) -> dict[str, Status]:
    """Read the replicas; none where that is refused, or where somebody else's key is."""
    from bls_agent.core.errors import (
        ConfigurationError,
        ContractError,
        RedisRefusedError,
    )

    try:
        return await console.instances(project)
    except (ConfigurationError, ContractError, RedisRefusedError):
        return {}


def _show(
    invocation: Invocation, view: ProjectView, instances: dict[str, Status]
) -> None:
    from bls_agent.ops.cli.screen import Column
    from bls_agent.ops.cli.views import describe_view

    if invocation.json:
        invocation.out.json(describe_view(view, instances=instances))
        return
    columns = [Column(""), Column("", 20)]
    rows = _rows(invocation, view, instances)
    invocation.out.table(columns, rows, header=False)


def _rows(
    invocation: Invocation, view: ProjectView, instances: dict[str, Status]
) -> list[list[Cell]]:
    from bls_agent.ops.cli.views import freshness, shown_status, span
    from bls_agent.ops.cli.words import status_cell

    texts, people = invocation.texts, invocation.out.terminal
    other = texts["other_type"]
    log = texts["log_summary"].format(
        records=other if view.records is None else view.records,
        rate=f"{view.rate:.1f}",
        errors=view.errors,
    )
    rows: list[list[Cell]] = [
        [texts["project"], view.project],
        [texts["status"], shown_status(view, texts, meaning_too=people)],
        [texts["freshness"], freshness(view, texts)],
        [texts["queue"], other if view.queue is None else str(view.queue)],
        [texts["log"], log],
    ]
    for name, entry in (("last", view.last_record), ("error", view.last_error)):
        if entry is not None and (name == "last" or entry != view.last_record):
            age = f" ({span(view.last_record_age)})" if name == "last" else ""
            said = f"{entry.level.value} {entry.message}{age}"
            rows.append([texts[f"record_{name}"], said])
    for instance, state in instances.items():
        rows.append([texts["instance"], f"{instance} {status_cell(state, texts)[0]}"])
    return rows


async def _watch(invocation: Invocation, fleet: Fleet, project: str) -> None:
    """Print each change until somebody ends it; outages are told and waited out."""
    import anyio

    from bls_agent.core.backoff import Backoff
    from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

    told: tuple[object, ...] | None = None
    backoff = Backoff()
    away = False
    while True:
        try:
            view = await fleet.look_at(project)
        except RedisRefusedError:
            raise
        except RedisUnavailableError as error:
            if not away:
                invocation.warn("away", kind=error.kind)
            away = True
            await anyio.sleep(backoff.failed())
            continue
        if away:
            invocation.hint("back")
        away = False
        backoff.succeeded()
        now = (view.status, view.status_text, view.presence)
        if now != told:
            told = now
            _show_change(invocation, view)
        await anyio.sleep(INTERVAL)


def _show_change(invocation: Invocation, view: ProjectView) -> None:
    from bls_agent.ops.cli.views import describe_view, freshness, shown_status
    from bls_agent.ops.cli.words import now_clock

    if invocation.json:
        invocation.out.json(describe_view(view, seenAt=now_clock(iso=True)))
        return
    texts = invocation.texts
    between = "  " if invocation.out.terminal else "\t"
    invocation.out.line(
        (now_clock(iso=not invocation.out.terminal), "dim"),
        shown_status(view, texts, meaning_too=invocation.out.terminal),
        freshness(view, texts),
        between=between,
    )
