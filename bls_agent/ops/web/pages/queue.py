"""The lists of a project's commands: waiting, taken by a process, and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bls_agent.console import Console
from bls_agent.core.codec import encode
from bls_agent.core.errors import BlsError, ContractError, LeaseHeldError
from bls_agent.ops.terminal import visible
from bls_agent.ops.web.feeds.watch import shorten
from bls_agent.ops.web.pages.action_list import (
    SHOWN,
    Action,
    ActionList,
    Row,
    describe_failure,
    is_forbidden,
    make_action,
    render_lists,
)
from bls_agent.ops.web.pages.rendering import texts_of
from bls_agent.ops.web.requests import FIELD, project_in_query, quote_name, read_form
from bls_agent.ops.web.rights import may_post
from bls_agent.ops.web.state import (
    Settlement,
    forget_project,
    settle_commands,
    web_state,
)
from bls_agent.project.console.queue import CommandsInHand
from bls_agent.project.messages import Command, Status

LONGEST_ARGS: Final = 2_000  # characters


async def _show_queue(request: Request) -> Response:
    return await _render_queue(request, project_in_query(request.scope))


def _settle_at(
    path: str, how: Settlement, done: str, nothing: str, failed: str
) -> Route:
    """Make a route that withdraws, requeues or discards commands.

    The form has the ``id`` of a command, or the query has ``all=true``. ``done``,
    ``nothing`` and ``failed`` are the keys of texts for the note.
    """

    async def settle(request: Request) -> Response:
        project, texts = project_in_query(request.scope), texts_of(request)
        number = None  # all commands
        if request.query_params.get("all") != "true":
            number = (await read_form(request)).get("id", "")
        try:
            settled = await settle_commands(request, project, number, how)
        except BlsError as error:
            note = describe_failure(texts, failed, error)
        else:
            text = texts[done if settled or number is None else nothing]
            note = text.format(count=f"{len(settled):,}", id=visible(number or ""))
        return await _render_queue(request, project, note)

    return Route(path, settle, methods=["POST"])


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
    console, texts = web_state(request).console, texts_of(request)
    in_hand: Sequence[CommandsInHand] = ()
    letters: Sequence[Command] = ()
    problem = ""
    try:
        waiting = await console.queue(project, SHOWN + 1)
        is_offline = await _is_offline(console, project)
    except BlsError:  # the card shows this error
        return render_lists(request, (), note) if note else Response(status_code=204)
    try:
        in_hand = await console.in_hand(project, SHOWN + 1)
        letters = await console.dead_letters(project, SHOWN + 1)
    except BlsError as error:
        problem = visible(str(error))
        if is_forbidden(error):
            problem = texts["dead_letters_forbidden"]

    def action(name: str, path: str, rest: str = "") -> Action:
        target = f"/fragments/{path}?{FIELD}={quote_name(project)}{rest}"
        return make_action(texts, name, target, project=visible(project))

    def row(command: Command, fact: str = "") -> Row:
        args = console.redactor.tree(command.args)
        sent_at = texts["sent_at"].format(time=shorten(command.timestamp))
        facts = (sent_at if command.timestamp else "", shorten(command.source))
        return Row(
            name=shorten(command.command) or texts["no_command"],
            id=command.id,
            about=shorten(command.id),
            facts=" · ".join(filter(None, (fact, *facts))),
            text=shorten(encode(args).decode(), LONGEST_ARGS) if args else "",
        )

    def holder(process: CommandsInHand) -> str:
        text = texts["in_hand_of" if process.alive else "in_hand_of_dead"]
        return text.format(name=shorten(process.instance))

    forget = action("forget", "forget")
    may_forget = is_offline and may_post(request, forget.path)
    every = "&all=true"
    for_all = [
        action("rerun_all", "dead/requeue", every),
        action("discard_all", "dead/discard", every),
    ]
    for_waiting = [action("withdraw_all", "withdraw", every)] if waiting else []
    view = web_state(request).fleet.found.get(project)
    lists = (
        ActionList(
            key="waiting",
            title=texts["waiting_commands"],
            rows=[row(command) for command in waiting],
            total=view.queue if view else None,
            actions=[action("withdraw", "withdraw")],
            head=[*for_waiting, *([forget] if may_forget else ())],
        ),
        ActionList(
            key="in-hand",
            title=texts["commands_in_hand"],
            rows=[
                row(command, holder(process))
                for process in in_hand
                for command in process.commands
            ],
        ),
        ActionList(
            key="dead",
            title=texts["dead_letters"],
            rows=[row(letter) for letter in letters],
            total=view.dead_letters if view else None,
            problem=problem,
            actions=[
                action("rerun_one", "dead/requeue"),
                action("discard_one", "dead/discard"),
            ],
            head=for_all if letters else [],
        ),
    )
    shown = [one for one in lists if one.rows or one.head or one.problem]
    return render_lists(request, shown, note)


async def _is_offline(console: Console, project: str) -> bool:
    try:
        return await console.status(project) in (None, Status.OFFLINE)
    except ContractError:  # the card shows the value that is no status
        return False


queue_routes: Final = [
    Route("/fragments/queue", _show_queue),
    _settle_at(
        "/fragments/withdraw", "withdraw", "withdrawn", "not_waiting", "not_withdrawn"
    ),
    _settle_at(
        "/fragments/dead/requeue", "requeue", "requeued", "not_dead", "not_requeued"
    ),
    _settle_at(
        "/fragments/dead/discard", "discard", "discarded", "not_dead", "not_discarded"
    ),
    Route("/fragments/forget", _forget, methods=["POST"]),
]
