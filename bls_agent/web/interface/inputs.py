"""What a request says, as values: each wrong field named with what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

from bls_agent.codec import decode, parse_timestamp
from bls_agent.errors import DecodeError

__all__ = [
    "CommandRequest",
    "FieldError",
    "media_type",
    "read_command",
    "read_form",
    "read_limit",
    "read_number",
]

MOST_LOGS: Final = 1_000
DIGITS: Final = 4
LONGEST_NUMBER: Final = 15  # digits
DEFAULT_LOGS: Final = 200
LONGEST_WAIT: Final = 30.0  # seconds
LONGEST_ID: Final = 200  # characters
LONGEST_PROJECT: Final = 512
LONGEST_COMMAND: Final = 1_000
FORM_FIELDS: Final = 500


class FieldError(Exception):
    """Fields of a request are wrong.

    Attributes:
        fields: Name → what is wrong with it.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        """Name them."""
        self.fields = dict(fields)
        super().__init__("; ".join(f"{name}: {said}" for name, said in fields.items()))


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """The body of ``POST /api/commands``.

    Attributes:
        project: Whose command it is.
        command: Its name.
        args: Its arguments.
        id: Its id, ``None`` for a new one.
        wait: Seconds to wait for the outcome.
        source: Who sends it, as the command says; ``""`` for the console.
        timestamp: When it was sent, as the command says; ``""`` for now.
        record: Whether a record of who sends it is written.
    """

    project: str
    command: str
    args: dict[str, Any] = field(default_factory=dict[str, Any])
    id: str | None = None
    wait: float = 0.0
    source: str = ""
    timestamp: str = ""
    record: bool = True


_PROJECT: Final = ("targetProjectName", "projectName")
_COMMAND_FIELDS: Final = frozenset(
    {*_PROJECT, "command", "args", "id", "wait", "source", "timestamp", "record"}
)


def read_command(body: bytes) -> CommandRequest:
    """Read the body of ``POST /api/commands``.

    Raises:
        FieldError: With every field that is wrong; ``body`` for the whole.
    """
    try:
        told = decode(body)
    except DecodeError as error:
        raise FieldError({"body": f"it is no JSON ({error.reason})"}) from None
    if not isinstance(told, dict):
        raise FieldError({"body": "it has to be a JSON object"})
    wrong = {name[:60]: "unknown" for name in told.keys() - _COMMAND_FIELDS}
    wrong |= _wrong_names(told)
    if not isinstance(told.get("args"), dict | None):
        wrong["args"] = "it has to be an object"
    given = told.get("id")
    if given is not None and not _is_text(given, LONGEST_ID):
        wrong["id"] = f"it has to be a text of 1 to {LONGEST_ID} characters"
    wrong |= _wrong_origin(told)
    wait = 0 if told.get("wait") is None else told["wait"]
    if isinstance(wait, bool) or not isinstance(wait, int | float):
        wrong["wait"] = "it has to be a number of seconds"
    elif not 0 <= wait <= LONGEST_WAIT:
        wrong["wait"] = f"it has to be between 0 and {LONGEST_WAIT:g} seconds"
    if wrong:
        raise FieldError(wrong)
    fields: dict[str, Any] = dict(told)
    return CommandRequest(
        project=next(fields[name] for name in _PROJECT if name in fields),
        command=fields["command"],
        args=fields.get("args") or {},
        id=fields.get("id"),
        wait=float(fields.get("wait") or 0),
        source=fields.get("source") or "",
        timestamp=fields.get("timestamp") or "",
        record=fields.get("record") is not False,
    )


def _wrong_names(told: Mapping[str, Any]) -> dict[str, str]:
    """Check the project's name, under either name of it, and the command's."""
    wrong: dict[str, str] = {}
    names = [name for name in _PROJECT if name in told]
    if not names:
        wrong["targetProjectName"] = "it is missing"
    elif len(names) > 1:
        wrong["projectName"] = "it is another name of targetProjectName: give one"
    elif not _is_text(told[names[0]], LONGEST_PROJECT):
        rule = f"it has to be a text of 1 to {LONGEST_PROJECT} characters"
        wrong[names[0]] = rule
    command = told.get("command")
    if not _is_text(command, LONGEST_COMMAND):
        missing = "command" not in told
        rule = f"it has to be a text of 1 to {LONGEST_COMMAND} characters"
        wrong["command"] = "it is missing" if missing else rule
    return wrong


def _wrong_origin(told: Mapping[str, Any]) -> dict[str, str]:
    """Check who sends the command, when, and whether that is recorded."""
    wrong: dict[str, str] = {}
    source, timestamp = told.get("source"), told.get("timestamp")
    if source is not None and not _is_text(source, LONGEST_ID):
        wrong["source"] = f"it has to be a text of 1 to {LONGEST_ID} characters"
    if timestamp is not None and parse_timestamp(timestamp) is None:
        wrong["timestamp"] = "it has to be a time like 2026-01-12T12:35:00.000Z"
    if not isinstance(told.get("record"), bool | None):
        wrong["record"] = "it has to be true or false"
    return wrong


def _is_text(value: object, longest: int) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= longest


def read_limit(value: str | None) -> int:
    """Read how many records are wanted.

    Raises:
        FieldError: It is no number, or too large.
    """
    if value is None:
        return DEFAULT_LOGS
    if (
        value.isascii()
        and value.isdigit()
        and len(value) <= DIGITS
        and 1 <= int(value) <= MOST_LOGS
    ):
        return int(value)
    rule = f"it has to be a whole number from 1 to {MOST_LOGS}"
    raise FieldError({"limit": rule})


def read_number(value: str | None) -> int:
    """Read the number of a change, 0 if there is none.

    Raises:
        FieldError: It is no number.
    """
    if not value:
        return 0
    if value.isascii() and value.isdigit() and len(value) <= LONGEST_NUMBER:
        return int(value)
    raise FieldError({"after": "it has to be the id of a change"})


def media_type(request: Request) -> str:
    """Tell what a body says that it is, without parameters; ``""`` if it says nothing."""
    kind = request.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


async def read_form(request: Request) -> dict[str, str]:
    """Read the fields of a form; of a name that comes twice, the last one.

    Raises:
        HTTPException: 415 for another content type, 400 for what is no form.
    """
    if media_type(request) != "application/x-www-form-urlencoded":
        raise HTTPException(415)
    try:
        pairs = parse_qsl(
            (await request.body()).decode("ascii"),
            keep_blank_values=True,
            max_num_fields=FORM_FIELDS,
            errors="strict",
        )
    except ValueError:
        raise HTTPException(400) from None
    return dict(pairs)
