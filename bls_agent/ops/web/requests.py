"""Reads the paths, fields and JSON of requests, and writes responses. No I/O.

In a path, each byte of a project's name is quoted, because the name may contain ``/`` or
may not be UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote, unquote

import anyio.lowlevel
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from bls_agent.core.codec import decode, encode, encode_within, parse_timestamp
from bls_agent.core.errors import (
    BlsError,
    CommandTooLargeError,
    ConfigurationError,
    DecodeError,
    LeaseHeldError,
    RedisUnavailableError,
    UnknownProjectError,
    WrongTypeError,
)
from bls_agent.project.console.search import LogFilter, read_moment
from bls_agent.project.messages import Level
from bls_agent.runs.reading import parse_run_id

OPENAPI: Final = Path(__file__).with_name("openapi.json")
PROJECTS: Final = "/projects/"
FIELD: Final = "projectName"
UNSPEAKABLE: Final = frozenset({"", ".", ".."})  # browsers remove these from a path
MOST_FIELDS: Final = 50
MOST_LOGS: Final = 1_000
_NUMBER: Final = re.compile("[0-9]{1,15}")
DEFAULT_LOGS: Final = 200
FILTERS: Final = ("q", "level", "since", "until", "replica", "logger")
LONGEST_FILTER: Final = 512  # characters
FORM_FIELDS: Final = 2_000
LONGEST_WAIT: Final = 30  # seconds
RETRY_AFTER: Final = "2"  # seconds, while Redis is unavailable


def quote_name(name: str) -> str:
    return quote(name.encode("utf-8", "surrogateescape"), safe="")


def project_path(name: str) -> str:
    quoted = quote_name(name)
    if name in UNSPEAKABLE:
        return f"{PROJECTS}?{FIELD}={quoted}"
    return f"{PROJECTS}{quoted}"


def project_of_path(card_key: str) -> str:
    """Return the project of a path that :func:`project_path` has made."""
    quoted = card_key.removeprefix(PROJECTS).removeprefix(f"?{FIELD}=")
    return unquote(quoted, errors="surrogateescape")


def project_in_path(scope: Mapping[str, Any]) -> str:
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    path = raw.partition(b"?")[0].decode("ascii", "replace")
    path = path.removeprefix(scope.get("root_path", ""))
    _, found, quoted = path.partition(PROJECTS)
    if not found or not quoted:
        return project_in_query(scope)
    return unquote(quoted, errors="surrogateescape")


def project_in_query(scope: Mapping[str, Any]) -> str:
    query: bytes = scope.get("query_string", b"")
    try:
        fields = parse_qsl(
            query.decode("ascii", "replace"),
            keep_blank_values=True,
            errors="surrogateescape",
            max_num_fields=MOST_FIELDS,
        )
    except ValueError:
        return ""
    return next((value for name, value in fields if name == FIELD), "")


def run_in_path(request: Request) -> int:
    run_id = parse_run_id(request.path_params["run"])
    if run_id is None:
        raise HTTPException(404, "the id of a run is a number")
    return run_id


ANY_NAME = "{project:any_name}"
ANY_ASSET = "{asset:any_name}"
ANY_QUEUE = "{queue:any_name}"


class _AnyName(Convertor[str]):
    """A part of a path that may contain any character, even slashes and line ends."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any_name", _AnyName())


_One = TypeVar("_One")
_Other = TypeVar("_Other")


class FieldError(Exception):
    """Fields of a request are wrong; ``fields`` has the fault of each wrong field."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields: dict[str, str] = dict(fields)
        super().__init__(
            "; ".join(f"{name}: {fault}" for name, fault in fields.items())
        )


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """The body of ``POST /api/commands``."""

    project: str
    command: str
    args: dict[str, Any] = field(default_factory=dict[str, Any])
    id: str | None = None  # None for a new id
    wait: float = 0.0  # seconds to wait for the outcome
    source: str = ""  # "" for the console
    timestamp: str = ""  # "" for now
    record: bool = True  # whether the project's log gets a record with the user's name


_PROJECT: Final = ("targetProjectName", "projectName")
_Rule: TypeAlias = tuple[Callable[[Any], bool], str]


def _text_of(most: int) -> _Rule:
    def is_good(value: Any) -> bool:
        return isinstance(value, str) and bool(value.strip()) and len(value) <= most

    return is_good, f"it has to be a text of at most {most} characters, and not blank"


def _is_wait(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= LONGEST_WAIT


def _is_time(value: Any) -> bool:
    return isinstance(value, str) and parse_timestamp(value) is not None


_RULES: Final[Mapping[str, _Rule]] = {
    **dict.fromkeys(_PROJECT, _text_of(512)),
    "command": _text_of(1_000),
    "args": (lambda value: isinstance(value, dict), "it has to be an object"),
    "id": _text_of(200),
    "wait": (_is_wait, f"it has to be a number from 0 to {LONGEST_WAIT}"),
    "source": _text_of(200),
    "timestamp": (_is_time, "it has to be a time with its zone"),
    "record": (lambda value: isinstance(value, bool), "it has to be true or false"),
}


def read_command(body: bytes) -> CommandRequest:
    """Read the body of ``POST /api/commands``.

    Raises ``FieldError``, which names every wrong field.
    """
    try:
        decoded = decode(body)
    except DecodeError as error:
        raise FieldError({"body": f"it is no JSON ({error.reason})"}) from None
    if not isinstance(decoded, dict):
        raise FieldError({"body": "it has to be a JSON object"})
    # In any other field, null means that the field is missing.
    needed = {*_PROJECT, "command"}
    fields: dict[str, Any] = {
        name: value
        for name, value in decoded.items()
        if value is not None or name in needed
    }
    wrong = {name[:60]: "unknown" for name in fields.keys() - _RULES.keys()}
    wrong |= {
        name: rule
        for name, (is_good, rule) in _RULES.items()
        if name in fields and not is_good(fields[name])
    }
    if "command" not in fields:
        wrong["command"] = "it is missing"
    names = [name for name in _PROJECT if name in fields]
    if not names:
        wrong["targetProjectName"] = "it is missing"
    elif len(names) > 1:
        wrong["projectName"] = "it is another name of targetProjectName: send one"
    if wrong:
        raise FieldError(wrong)
    return CommandRequest(
        project=fields[names[0]],
        command=fields["command"],
        args=fields.get("args") or {},
        id=fields.get("id"),
        wait=float(fields.get("wait") or 0),
        source=fields.get("source") or "",
        timestamp=fields.get("timestamp") or "",
        record=fields.get("record") is not False,
    )


def read_limit(value: str | None) -> int:
    if value is None:
        return DEFAULT_LOGS
    if _NUMBER.fullmatch(value) and 1 <= int(value) <= MOST_LOGS:
        return int(value)
    rule = f"it has to be a whole number from 1 to {MOST_LOGS}"
    raise FieldError({"limit": rule})


def read_log_filter(query: Mapping[str, str]) -> LogFilter:
    """Read the filter of log records; raise ``FieldError`` if any field is wrong."""
    fields = {name: query.get(name, "") for name in FILTERS}
    rule = f"it has at most {LONGEST_FILTER} characters"
    wrong = {name: rule for name, text in fields.items() if len(text) > LONGEST_FILTER}
    moments = {name: read_moment(fields[name]) for name in ("since", "until")}
    for name, moment in moments.items():
        if fields[name] and moment is None:
            wrong[name] = "it has to be a time as 2026-01-31T08:00:00Z, or 10m, 2h, 1d"
    level = fields["level"] or Level.DEBUG.value
    if level not in {known.value for known in Level}:
        wrong["level"] = f"it has to be one of {', '.join(Level)}"
    if wrong:
        raise FieldError(wrong)
    return LogFilter(
        text=fields["q"],
        level=Level(level),
        replica=fields["replica"],
        logger=fields["logger"],
        **moments,
    )


def read_number(value: str | None, name: str = "after") -> int:
    if not value:
        return 0
    if _NUMBER.fullmatch(value):
        return int(value)
    raise FieldError({name: "it has to be the id of a change"})


def media_type(request: Request) -> str:
    kind = request.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; of fields with the same name, return the last one."""
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


def route_path(request: Request) -> str:
    """Return the path without the ``root_path`` of the proxy."""
    path: str = request.scope["path"]
    root: str = request.scope.get("root_path", "")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def is_data(request: Request) -> bool:
    path = route_path(request)
    return path in ("/api", "/metrics") or path.startswith(("/api/", "/events/"))


async def convert(
    items: Iterable[_One], write: Callable[[_One], _Other], at_once: int
) -> list[_Other]:
    """Convert many items; let other tasks run after every ``at_once`` items."""
    written: list[_Other] = []
    for number, item in enumerate(items, 1):
        written.append(write(item))
        if number % at_once == 0:
            await anyio.lowlevel.checkpoint()
    return written


def encode_cut(fields: dict[str, Any], longest: int) -> bytes:
    """Encode an object; if it is too long, shorten it and add ``"cut": true``."""
    payload, cut = encode_within(fields, longest)
    if cut:
        payload, _ = encode_within({"cut": True, **fields}, longest)
    return payload


def json_answer(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    body = content if isinstance(content, bytes) else encode(content)
    return Response(body, status, headers, "application/json")


def error_answer(
    status: int,
    reason: str,
    *,
    fields: Mapping[str, str] | None = None,
    needs: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    content: dict[str, Any] = {"error": reason}
    if needs:
        content["needs"] = needs
    if fields:
        content["fields"] = dict(fields)
    return json_answer(content, status, headers)


def list_answer(
    name: str, parts: Iterable[bytes], head: Mapping[str, Any] | None = None
) -> Response:
    """Return a response: a JSON object whose last member is a list of ``parts``.

    The parts are encoded already.
    """
    begin = encode(head)[:-1] + b"," if head else b"{"
    return json_answer(b'%s"%s":[%s]}' % (begin, name.encode(), b",".join(parts)))


def status_of(error: BlsError) -> int:
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


_STATUSES: Final[tuple[tuple[type[BlsError], int], ...]] = (
    (RedisUnavailableError, 503),
    (UnknownProjectError, 404),
    (WrongTypeError, 409),
    (LeaseHeldError, 409),
    (CommandTooLargeError, 413),
    (ConfigurationError, 400),
)
