"""The pages of one project with its command form, and of the changes of all statuses.

Each step of the command form is one request by htmx:

1. The user chooses a command, and the response is the form for its arguments.
2. The user submits the form, and the response shows the command that would be sent.
3. The user confirms, and the console sends exactly this command.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bls_agent.core.codec import (
    JSONObject,
    JSONValue,
    decode_object,
    encode,
    encode_strictly,
    json_or_text,
)
from bls_agent.core.errors import (
    BlsError,
    CommandError,
    ContractError,
    RedisUnavailableError,
)
from bls_agent.ops.fields import Field, FieldKind
from bls_agent.ops.terminal import visible
from bls_agent.ops.texts import Texts
from bls_agent.ops.web.feeds.fleet import KINDS
from bls_agent.ops.web.feeds.watch import Currency, shorten
from bls_agent.ops.web.forms import (
    Entry,
    Manual,
    change_rows,
    list_rows,
    path_of,
    read_manual,
    read_submission,
)
from bls_agent.ops.web.pages.rendering import error_page, render, say_age, texts_of
from bls_agent.ops.web.requests import (
    ANY_NAME,
    FIELD,
    CommandRequest,
    json_answer,
    project_in_path,
    project_in_query,
    quote_name,
    read_form,
)
from bls_agent.ops.web.state import ask_help, existing_project, send_command, web_state
from bls_agent.project.messages import Command

HELP_TIMEOUT: Final = 3.0  # seconds
LONGEST_COMMAND: Final = 1_000  # characters
LONGEST_DEFAULT: Final = 60  # characters in a placeholder
OTHER: Final = "other"


async def _show_project(request: Request) -> Response:
    project = project_in_path(request.scope)
    look = await _look(request, project)
    if not look["cards"] and look["state"] is not Currency.READING:
        return error_page(
            request,
            503 if look["away"] else 404,
            name=project,
            detail=look["away"] or "",
            refused=look["state"] is Currency.FORBIDDEN,
        )
    return render(
        request,
        "project.html",
        name=visible(project),
        told=encode(look).decode(),
        query=f"{FIELD}={quote_name(project)}",
        kinds=KINDS,
        away=look["away"],
        trace_url=web_state(request).config.trace_url,
    )


async def _look(request: Request, project: str) -> JSONObject:
    """Return the card of a project, and whether it is current.

    ``state`` is also ``reading`` if the project exists but the watch has not found it
    yet.
    """
    state = web_state(request)
    await state.fleet.ready()
    card, about = state.fleet.card_of(project), state.fleet.describe()
    if card is None and project and about["state"] is Currency.CURRENT:
        with suppress(ContractError):
            await state.console.status(project)  # raises an error if Redis refuses it
        if await state.console.exists(project):
            about["state"] = Currency.READING
    return {"cards": [card] if card else [], **about}


async def _show_changes(request: Request) -> Response:
    away = web_state(request).fleet.away
    return render(request, "changes.html", here="/changes", kinds=KINDS, away=away)


async def _show_card(request: Request) -> Response:
    return json_answer(await _look(request, project_in_query(request.scope)))


_NOT_ASKED: Final = Manual(entries=(), answered_at=0.0, asked=False)


async def _show_commands(request: Request) -> Response:
    project = project_in_query(request.scope)
    texts = texts_of(request)
    manual = _find_manual(request, project)
    chosen = request.query_params.get("chosen", "")
    return _render_form(request, project, manual, chosen, note=_note(manual, texts))


def _find_manual(request: Request, project: str) -> Manual:
    manuals = web_state(request).manuals
    return manuals.get(project, time.monotonic()) or _NOT_ASKED


def _note(manual: Manual, texts: Texts) -> str:
    if not manual.entries:
        return ""
    ago = say_age(texts, time.monotonic() - manual.answered_at)
    return texts["help_known"].format(age=ago)


def _find_chosen(manual: Manual, chosen: str) -> Entry | None:
    return next((one for one in manual.entries if one.value == chosen), None)


async def _ask_help(request: Request) -> Response:
    project = await existing_project(request, project_in_query(request.scope))
    texts = texts_of(request)
    note = ""
    entries: tuple[Entry, ...] = ()
    try:
        outcome = await ask_help(request, project, HELP_TIMEOUT)
        entries = read_manual(outcome.result)
        note = (
            "" if entries else texts["help_odd" if outcome.succeeded else "help_silent"]
        )
    except CommandError:
        note = texts["help_silent"]
    except BlsError as error:
        note = texts["not_sent"].format(reason=visible(str(error)))
    manual = web_state(request).manuals.put(project, entries, time.monotonic())
    note = note or _note(manual, texts)
    focus = "chosen" if manual.entries else "command"
    return _render_form(request, project, manual, note=note, focus=focus)


async def _review(request: Request) -> Response:
    """Read the form; return what would be sent, or the form with its errors.

    For a button that adds or removes a row, return the changed form.
    """
    project = project_in_query(request.scope)
    texts = texts_of(request)
    typed = await read_form(request)
    manual = _find_manual(request, project)
    chosen = typed.get("chosen", OTHER)
    entry = _find_chosen(manual, chosen)
    query = request.query_params
    if change := {word: query[word] for word in ("add", "remove") if word in query}:
        typed, focus = change_rows(typed, **change)
        return _render_form(request, project, manual, chosen, typed=typed, focus=focus)
    command = entry.name if entry else typed.get("command", "")
    submission = read_submission(entry.fields if entry else None, typed)
    errors: dict[str, str] = {}  # in the order of the form
    if not command.strip() or len(command) > LONGEST_COMMAND:
        errors["command"] = texts["field_command"]
    errors |= {
        name: texts[f"field_{error.code}"] for name, error in submission.errors.items()
    }
    if errors:
        focus = next(iter(errors))
        return _render_form(
            request, project, manual, chosen, typed=typed, errors=errors, focus=focus
        )
    return _show_review(request, project, command, submission.arguments)


def _show_review(
    request: Request, project: str, command: str, arguments: Mapping[str, JSONValue]
) -> Response:
    before, _, after = texts_of(request)["will_send"].partition("{project}")
    payload: dict[str, Any] = {"command": command, "args": dict(arguments)}
    shown = encode_strictly("args", payload).decode()
    return render(
        request,
        "review.html",
        query=f"{FIELD}={quote_name(project)}",
        before=before,
        name=visible(project),
        after=after,
        shown=visible(shown),
        payload=shown,
    )


async def _send(request: Request) -> Response:
    """Send exactly the command that the user has confirmed."""
    project = await existing_project(request, project_in_query(request.scope))
    texts = texts_of(request)
    typed = await read_form(request)
    sent = ""
    try:
        payload = decode_object(typed.get("payload", "").encode())
        name: Any = payload.get("command", "")
        args: dict[str, Any] = payload.get("args") or {}
        wanted = CommandRequest(project=project, command=name, args=args)
        command = await send_command(request, wanted)
        sent = _as_sent(command, request)
        note = texts["sent"].format(id=visible(command.id))
    except BlsError as error:
        note = texts["not_sent"].format(reason=visible(str(error)))
        if isinstance(error, RedisUnavailableError) and error.ambiguous:
            note = texts["perhaps_sent"]
    return render(request, "note.html", sent=sent, note=note)


def _as_sent(command: Command, request: Request) -> str:
    """Return a sent command as JSON; the page's scripts wait for its outcome."""
    redactor = web_state(request).console.redactor
    return encode(
        {
            "id": command.id,
            "timestamp": command.timestamp,
            "command": command.command,
            "args": redactor.tree(command.args),  # stays on the page, so no secrets
            "by": request.state.sent_by,
        }
    ).decode()


def _render_form(
    request: Request,
    project: str,
    manual: Manual,
    chosen: str = "",
    *,
    typed: Mapping[str, str] = MappingProxyType({}),
    errors: Mapping[str, str] = MappingProxyType({}),
    note: str = "",
    focus: str = "",
) -> Response:
    """Render the form; without known commands, the user types the command's name.

    ``typed`` has the text of each input, and ``errors`` the error of each invalid input.
    ``note`` is a sentence below the form. ``focus`` is the name of the input that gets
    the focus.
    """
    entry = _find_chosen(manual, chosen)
    values = defaultdict(str, typed)
    headers = {"hx-retarget": "#command"} if errors else None
    return render(
        request,
        "commands.html",
        200,
        headers,
        query=f"{FIELD}={quote_name(project)}",
        manual=manual.entries,
        by_hand=not manual.entries or chosen == OTHER,
        entry=entry,
        arguments=entry.fields if entry else None,
        folded=not manual.asked and not errors,
        typed=values,
        errors=errors,
        focus=focus,
        command=values["command"],
        note=note,
        shorten=partial(shorten, longest=LONGEST_DEFAULT),
        options=_options,
        rows=partial(list_rows, typed),
        path_of=path_of,
        shapes={"array": "[]", "object": "{}"},
    )


def _options(one: Field) -> list[tuple[str, str]]:
    if one.kind is FieldKind.BOOLEAN:
        return [("true", "true"), ("false", "false")]
    return [(str(at), json_or_text(choice)) for at, choice in enumerate(one.choices)]


async def _show_instances(request: Request) -> Response:
    project = project_in_query(request.scope)
    try:
        found = await web_state(request).console.instances(project)
    except BlsError:
        return Response(status_code=204)
    instances = [(one, status.name.lower()) for one, status in sorted(found.items())]
    return render(request, "instances.html", instances=instances)


project_routes: Final = [
    Route(f"/projects/{ANY_NAME}", _show_project),
    Route("/changes", _show_changes),
    Route("/fragments/card", _show_card),
    Route("/fragments/commands", _show_commands),
    Route("/fragments/help", _ask_help, methods=["POST"]),
    Route("/fragments/review", _review, methods=["POST"]),
    Route("/fragments/send", _send, methods=["POST"]),
    Route("/fragments/instances", _show_instances),
]
