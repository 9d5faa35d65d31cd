"""The lists of a project's commands: waiting, in hand, dead letters."""

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
    is_forbidden,
    render_lists,
)
from bls_agent.ops.web.pages.rendering import texts_of
from bls_agent.ops.web.requests import FIELD, project_in_query, quote_name, read_form
from bls_agent.ops.web.rights import may_post
from bls_agent.ops.web.state import (
    forget_project,
    settle_dead_letters,
    web_state,
    withdraw_command,
)
from bls_agent.project.console.queue import CommandsInHand
from bls_agent.project.messages import Command, Status

SHOWN: Final = 20  # commands of a list
ALL: Final = "&all=true"  # at the end of a path
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


async def _requeue(request: Request) -> Response:
    return await _settle(request, requeues=True)


async def _discard(request: Request) -> Response:
    return await _settle(request, requeues=False)


async def _settle(request: Request, *, requeues: bool) -> Response:
    """Queue dead letters again or discard them: by the form's ``id``, or all of them."""
    project, texts = project_in_query(request.scope), texts_of(request)
    number = None  # for all
    if request.query_params.get("all") != "true":
        number = (await read_form(request)).get("id", "")
    done, failed = "requeued", "not_requeued"
    if not requeues:
        done, failed = "discarded", "not_discarded"
    try:
        settled = await settle_dead_letters(request, project, number, requeues=requeues)
    except BlsError as error:
        note = describe_failure(texts, failed, error)
    else:
        note = texts[done].format(count=f"{len(settled):,}")
        if number and not settled:
            note = texts["not_dead"].format(id=visible(number))
    return await _render_queue(request, project, note)


async def _render_queue(request: Request, project: str, note: str = "") -> Response:
    console = web_state(request).console
    try:
        waiting = await console.queue(project, SHOWN + 1)
        status = await console.status(project)
    except BlsError:  # the card shows a wrong type, a refusal or an outage
        return Response(status_code=204)
    offline = status in (None, Status.OFFLINE)
    lists = [
        _list_waiting(request, waiting, offline=offline),
        await _list_in_hand(request, project),
        await _list_dead_letters(request, project),
    ]
    shown = [one for one in lists if one.rows or one.head or one.problem]
    return render_lists(request, shown, note)


def _list_waiting(
    request: Request, waiting: Sequence[Command], *, offline: bool
) -> ActionList:
    texts = texts_of(request)
    withdraw = _action(request, "withdraw", "withdraw")
    forget = _action(request, "forget", "forget", texts["forget_sure"])
    return ActionList(
        key="waiting",
        title=texts["waiting_commands"],
        rows=[_command_row(request, command) for command in waiting],
        limit=SHOWN,
        actions=[withdraw],
        head=[forget] if offline and may_post(request, forget.path) else [],
    )


async def _list_in_hand(request: Request, project: str) -> ActionList:
    texts = texts_of(request)
    found: Sequence[CommandsInHand] = ()
    problem = ""
    try:
        found = await web_state(request).console.in_hand(project, SHOWN + 1)
    except BlsError as error:
        problem = "" if is_forbidden(error) else visible(str(error))
    rows = [
        _command_row(request, command, texts[state].format(name=shorten(one.instance)))
        for one in found
        for state in ("in_hand_of" if one.alive else "in_hand_of_dead",)
        for command in one.commands
    ]
    return ActionList(
        key="in-hand",
        title=texts["commands_in_hand"],
        rows=rows,
        limit=SHOWN,
        problem=problem,
    )


async def _list_dead_letters(request: Request, project: str) -> ActionList:
    texts = texts_of(request)
    letters: Sequence[Command] = ()
    problem = ""
    try:
        letters = await web_state(request).console.dead_letters(project, SHOWN + 1)
    except BlsError as error:
        problem = texts["dead_letters_forbidden"]
        if not is_forbidden(error):
            problem = visible(str(error))
    again, discard = "dead/requeue", "dead/discard"
    one = [
        _action(request, "rerun_one", again),
        _action(request, "discard_one", discard, texts["discard_one_sure"]),
    ]
    every = [
        _action(request, "rerun_all", again, texts["rerun_all_sure"], ALL),
        _action(request, "discard_all", discard, texts["discard_all_sure"], ALL),
    ]
    return ActionList(
        key="dead",
        title=texts["dead_letters"],
        rows=[_command_row(request, letter) for letter in letters],
        limit=SHOWN,
        problem=problem,
        actions=one,
        head=every if letters else [],
    )


def _action(
    request: Request, name: str, path: str, question: str = "", rest: str = ""
) -> Action:
    """Make an action on the project that the request is about; ``name`` is a text."""
    texts, project = texts_of(request), project_in_query(request.scope)
    return Action(
        name=name,
        label=texts[name],
        path=f"/fragments/{path}?{FIELD}={quote_name(project)}{rest}",
        question=question.format(project=visible(project)),
    )


def _command_row(request: Request, command: Command, fact: str = "") -> Row:
    """Make the row of a command; its arguments contain no secrets."""
    args = web_state(request).console.redactor.tree(command.args)
    facts = (command.timestamp, command.source)
    return Row(
        name=shorten(command.command) or texts_of(request)["no_command"],
        id=command.id,
        about=shorten(command.id),
        facts=" · ".join(filter(None, (fact, *map(shorten, facts)))),
        text=shorten(encode(args).decode(), LONGEST_ARGS) if args else "",
    )


queue_routes: Final = [
    Route("/fragments/queue", _show_queue),
    Route("/fragments/withdraw", _withdraw, methods=["POST"]),
    Route("/fragments/dead/requeue", _requeue, methods=["POST"]),
    Route("/fragments/dead/discard", _discard, methods=["POST"]),
    Route("/fragments/forget", _forget, methods=["POST"]),
]
