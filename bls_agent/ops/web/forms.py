"""Makes forms from an agent's answer to ``help``, and reads the users' input. No I/O.

The console sends ``help`` only when a user asks for it, because agents in other languages
may not have this command. Another process writes the answer, so the answer may contain
anything. Without a usable schema the form is ``None``, and the page shows one field for
all arguments. The form only checks that a text is a value of its field's kind. The agent
checks the values against its schema.

A field has a path, such as ``order.lines.3.count``, where 3 is the number of a row. Its
inputs are ``arg.<path>``, ``null.<path>`` (if ticked, the value is null), ``rows.<path>``
(the numbers of a list's rows) and ``zone.<path>`` (the UTC offset of a moment). Without
fields, the only input is ``args`` (a JSON object of all arguments).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field as part
from decimal import Decimal
from functools import cached_property
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

from bls_agent.core.codec import JSONObject, JSONValue, decode
from bls_agent.core.errors import DecodeError
from bls_agent.core.values import TEXT_FORMS
from bls_agent.ops.fields import (
    LONGEST_NAME,
    Field,
    FieldKind,
    read_commands,
    read_fields,
)

HELP: Final = "help"
MOST_ENTRIES: Final = 300
MOST_MANUALS: Final = 500  # projects whose commands are remembered
KEPT: Final = 3_600.0  # seconds for which an agent's answer is cached
LONGEST_ABOUT: Final = 2_000  # characters of a command's description
MOST_ROWS: Final = 100  # rows of one list
ALL: Final = "args"  # name of the input if one field has all arguments
LONGEST_NUMBER: Final = 400  # digits; a longer number is refused
_ABSENT: Final = object()  # the command is sent without this argument
_ROW: Final = re.compile(r"[0-9]{1,6}")
_MINUTE: Final = re.compile(r"[0-9-]{10}T[0-9]{2}:[0-9]{2}")


def path_of(name: str, around: str = "") -> str:
    """Return the path of a field; the name is quoted, because it may contain dots."""
    quoted = name.replace("~", "~0").replace(".", "~1")
    return f"{around}.{quoted}" if around else quoted


def list_rows(typed: Mapping[str, str], path: str) -> list[str]:
    """Return the numbers of a list's rows, in the order of the page."""
    numbers = typed.get(f"rows.{path}", "").split()
    return [one for one in dict.fromkeys(numbers) if _ROW.fullmatch(one)][:MOST_ROWS]


def change_rows(
    typed: Mapping[str, str], *, add: str = "", remove: str = ""
) -> tuple[dict[str, str], str]:
    """Add a row to the list at the path ``add``, or remove the row ``remove``.

    Returns the inputs, and the first part of the name of the input that gets the focus.
    """
    path, _, removed = (add, "", "") if add else remove.rpartition(".")
    rows = [row for row in list_rows(typed, path) if row != removed]
    focus = f"arg.{path}"
    if add:
        rows.append(str(1 + max(map(int, rows), default=-1)))
        focus = f"{focus}.{rows[-1]}"
    return {**typed, f"rows.{path}": " ".join(rows)}, focus


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One command of an agent."""

    name: str
    description: str = ""
    parameters: object = None  # the arguments' JSON Schema, as the agent has sent it

    @property
    def value(self) -> str:
        """The value of the command's option; no other option's value has the sign."""
        return "=" + quote(self.name, safe="", errors="surrogatepass")

    @cached_property
    def fields(self) -> tuple[Field, ...] | None:
        """The fields of the form; ``None`` if one field has all arguments as JSON."""
        return read_fields(self.parameters)


@dataclass(frozen=True, kw_only=True)
class Manual:
    """The commands of an agent; ``entries`` is empty if the agent did not answer."""

    entries: tuple[Entry, ...]
    answered_at: float  # monotonic time
    asked: bool = True  # whether the console has sent `help`


def read_manual(result: JSONValue) -> tuple[Entry, ...]:
    commands = islice(read_commands(result).items(), MOST_ENTRIES)
    entries = [
        Entry(
            name=name,
            description=str(one.get("description") or "")[:LONGEST_ABOUT],
            parameters=one.get("parameters"),
        )
        for name, one in commands
        if len(name) <= LONGEST_NAME
    ]
    return tuple(sorted(entries, key=lambda entry: entry.name))


class HelpCache:
    """Caches agents' answers to ``help``; an empty entry means that there was none."""

    def __init__(self) -> None:
        self._manuals: dict[str, Manual] = {}  # the oldest first

    def get(self, project: str, now: float) -> Manual | None:
        manual = self._manuals.get(project)
        return manual if manual and now - manual.answered_at <= KEPT else None

    def put(self, project: str, entries: tuple[Entry, ...], now: float) -> Manual:
        """Store an answer; one without commands does not replace known commands."""
        known = self.get(project, now)
        if known and known.entries and not entries:
            return known
        self._manuals.pop(project, None)
        self._manuals[project] = manual = Manual(entries=entries, answered_at=now)
        if len(self._manuals) > MOST_MANUALS:
            del self._manuals[next(iter(self._manuals))]
        return manual


class MisfitError(Exception):
    """An input does not fit its field; ``code`` is the key of the error's text."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The arguments of the valid inputs, and the errors of the other inputs."""

    arguments: JSONObject = part(default_factory=dict[str, JSONValue])
    errors: Mapping[str, MisfitError] = part(default_factory=dict[str, MisfitError])


def read_submission(
    fields: Sequence[Field] | None, typed: Mapping[str, str]
) -> Submission:
    """Read all inputs of a form.

    If ``fields`` is ``None``, one input has all arguments as JSON.
    """
    if fields is None:
        return _read_object(typed.get(ALL, ""))
    reading = _Reading(typed)
    return Submission(arguments=reading.read_all(fields), errors=reading.errors)


class _Reading:
    """Reads the fields of a form, and collects an error for each invalid input."""

    def __init__(self, typed: Mapping[str, str]) -> None:
        self._typed = typed
        self.errors: dict[str, MisfitError] = {}

    def read_all(self, fields: Sequence[Field], around: str = "") -> JSONObject:
        """Return the values of an object's fields; leave out those with an error."""
        values: dict[str, Any] = {}
        for field in fields:
            before = len(self.errors)
            value = self._read(field, path_of(field.name, around))
            if value is not _ABSENT and len(self.errors) == before:
                values[field.name] = value
        return values

    def _read(self, field: Field, path: str) -> Any:
        """Return the value of a field.

        1. The box for null is ticked: ``None``.
        2. A list: a value for each row. A list without rows is sent only if required.
        3. An object: its fields. An object without input is sent only if required.
        4. The input is empty: the argument is not sent, because an empty text is easily
           overlooked. For a required argument this is an error.
        5. Any other input is converted.
        """
        typed = self._typed
        if field.nullable and typed.get(f"null.{path}"):
            return None
        if field.item is not None:
            rows = [f"{path}.{row}" for row in list_rows(typed, path)]
            read = [self._read(field.item, row) for row in rows]
            return read if rows or field.required else _ABSENT
        if field.fields:
            if field.required or self._is_filled(path):
                return self.read_all(field.fields, path)
            return _ABSENT
        text = typed.get(f"arg.{path}", "").replace("\r\n", "\n")
        try:
            if text if field.kind is FieldKind.TEXT else text.strip():
                return _parse(field, text, typed.get(f"zone.{path}", ""))
            if field.required:
                raise MisfitError("required")  # noqa: TRY301 - handled like the errors of _parse()
        except MisfitError as error:
            self.errors[f"arg.{path}"] = error
        return _ABSENT

    def _is_filled(self, path: str) -> bool:
        heads = tuple(f"{word}.{path}." for word in ("arg", "null", "rows"))
        return any(
            text.strip() for name, text in self._typed.items() if name.startswith(heads)
        )


def _read_object(text: str) -> Submission:
    if not text.strip():
        return Submission()
    try:
        value = _parse_json(text)
        if isinstance(value, dict):
            return Submission(arguments=value)
        misfit = MisfitError("object")
    except MisfitError as error:
        misfit = error
    return Submission(errors={ALL: misfit})


def _parse(field: Field, text: str, zone: str) -> JSONValue:
    match field.kind:
        case FieldKind.TEXT:
            return text
        case FieldKind.DATE | FieldKind.MOMENT | FieldKind.UUID | FieldKind.DECIMAL:
            seconds = ":00" if _MINUTE.fullmatch(text) else ""  # browsers omit :00
            return _check_text(field.kind, f"{_half_width(text)}{seconds}{zone}")
        case FieldKind.INTEGER | FieldKind.NUMBER:
            return _parse_number(field, text)
        case FieldKind.BOOLEAN:
            choices: dict[str, JSONValue] = {"true": True, "false": False}
        case FieldKind.CHOICE:
            choices = {str(place): one for place, one in enumerate(field.choices)}
        case _:
            value = _parse_json(text)
            wanted = _SHAPES.get(field.shape)
            if wanted and not isinstance(value, wanted | None):
                raise MisfitError(field.shape)
            return value
    if text not in choices:
        raise MisfitError("choice")
    return choices[text]


def _parse_json(text: str) -> JSONValue:
    try:
        return decode(text.encode("utf-8", "replace"))
    except DecodeError as error:
        code = "too_deep" if error.reason == "too_deep" else "json"
        raise MisfitError(code) from None


_SHAPES: Final[Mapping[str, type]] = {"array": list, "object": dict}
_TEXT_FORMS: Final = {form.format: form for form in TEXT_FORMS.values()}


def _check_text(kind: FieldKind, text: str) -> str:
    with suppress(ValueError):  # a time without a zone is no moment
        if getattr(_TEXT_FORMS[kind].read(text), "tzinfo", "") is not None:
            return text
    raise MisfitError(kind.value)


def _half_width(text: str) -> str:
    """Replace full-width digits, which Chinese keyboards produce, by ASCII digits."""
    return unicodedata.normalize("NFKC", text[: 2 * LONGEST_NUMBER]).strip()


def _parse_number(field: Field, text: str) -> JSONValue:
    half = _half_width(text)
    with suppress(ValueError):
        TEXT_FORMS[Decimal].read(half)
        if half.lstrip("+-").isdecimal():
            return int(half)
        value = float(half)
        if math.isfinite(value) and field.kind is FieldKind.NUMBER:
            return value
    raise MisfitError(field.kind.value)
