"""The lists of a project's commands: those that wait for an agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bls_agent.core.codec import encode
from bls_agent.core.errors import BlsError, LeaseHeldError
from bls_agent.ops.terminal import visible
from bls_agent.ops.web.feeds.watch import shorten
from bls_agent.ops.web.pages.action_list import (
    Action,
    ActionList,
    Row,
    describe_failure,
    render_lists,
)
from bls_agent.ops.web.pages.rendering import texts_of
from bls_agent.ops.web.requests import FIELD, project_in_query, quote_name, read_form
from bls_agent.ops.web.rights import may_post
from bls_agent.ops.web.state import forget_project, web_state, withdraw_command
from bls_agent.project.messages import Command, Status

SHOWN: Final = 20  # commands of a list
LONGEST_ARGS: Final = 2_000  # characters


async def _show_queue(request: Request) -> Response:
    return await _render_queue(request, project_in_query(request.scope))


async def _withdraw(request: Request) -> Response:
    project = project_in_query(request.scope)
    texts = texts_of(request)
    number = (await read_form(request)).get("id", "")
    try:
        withdrawn = await withdraw_command(request, project, number)
    except BlsError as error:
        note = describe_failure(texts, "not_withdrawn", error)
    else:
        text = texts["withdrawn" if withdrawn else "not_waiting"]
        note = text.format(id=visible(number))
    return await _render_queue(request, project, note)


async def _forget(request: Request) -> Response:
    project = project_in_query(request.scope)
    texts = texts_of(request)
    try:
        await forget_project(request, project)
    except LeaseHeldError:
        return await _render_queue(request, project, texts["still_online"])
    except BlsError as error:
        note = describe_failure(texts, "not_forgotten", error, "hint_rights_forget")
        return await _render_queue(request, project, note)
    root: str = request.scope.get("root_path", "")
    return Response(headers={"hx-redirect": f"{root}/"})


async def _render_queue(request: Request, project: str, note: str = "") -> Response:
    console = web_state(request).console
    try:
        waiting = await console.queue(project, SHOWN + 1)
        status = await console.status(project)
    except BlsError:  # the card shows a wrong type, a refusal or an outage
        return Response(status_code=204)
    offline = status in (None, Status.OFFLINE)
    lists = [_list_waiting(request, project, waiting, offline=offline)]
    return render_lists(request, [one for one in lists if one.rows or one.head], note)


def _list_waiting(
    request: Request, project: str, waiting: Sequence[Command], *, offline: bool
) -> ActionList:
    texts, query = texts_of(request), f"{FIELD}={quote_name(project)}"
    withdraw = Action(
        name="withdraw",
        label=texts["withdraw"],
        path=f"/fragments/withdraw?{query}",
    )
    forget = Action(
        name="forget",
        label=texts["forget"],
        path=f"/fragments/forget?{query}",
        question=texts["forget_sure"].format(project=visible(project)),
    )
    return ActionList(
        key="waiting",
        title=texts["waiting_commands"],
        rows=[_command_row(request, command) for command in waiting],
        limit=SHOWN,
        actions=[withdraw],
        head=[forget] if offline and may_post(request, forget.path) else [],
    )


def _command_row(request: Request, command: Command) -> Row:
    """Make the row of a command; its arguments contain no secrets."""
    args = web_state(request).console.redactor.tree(command.args)
    facts = (command.timestamp, command.source)
    return Row(
        name=shorten(command.command) or "—",
        id=command.id,
        about=shorten(command.id),
        facts=" · ".join(shorten(fact) for fact in facts if fact),
        text=shorten(encode(args).decode(), LONGEST_ARGS) if args else "",
    )


queue_routes: Final = [
    Route("/fragments/queue", _show_queue),
    Route("/fragments/withdraw", _withdraw, methods=["POST"]),
    Route("/fragments/forget", _forget, methods=["POST"]),
]
