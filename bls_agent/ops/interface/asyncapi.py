"""Writes the interface of a project as an AsyncAPI document. No I/O.

The version is 3.0.0, because 3.1.0 adds nothing that the document needs, and more tools
read 3.0.0. A text of a foreign process stays data: where AsyncAPI reads Markdown, its
``<`` and ``[`` are escaped, so that a page made of the document has no foreign tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast
from urllib.parse import quote

from bls_agent.core.codec import JSONObject
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, PROJECT_STATUS, KeyTemplate
from bls_agent.ops.interface.project import (
    CommandInterface,
    Names,
    ProjectInterface,
)
from bls_agent.ops.interface.schema import REFERENCE, UNSAFE_NAMES
from bls_agent.ops.texts import Texts
from bls_agent.project.messages import Level, OutcomeKind, Status

VERSION: Final = "3.0.0"
UNVERSIONED: Final = "unversioned"  # because an agent has no version of its commands
SERVER: Final = "redis"
LONGEST_SUMMARY: Final = 200  # characters
# The fields by which a reader recognises the outcome of a command.
OUTCOME_FIELDS: Final = ("commandId", "command", "outcome", "durationMs")

_COMPONENTS: Final = "#/components/schemas/"
_MARKUP: Final = re.compile(r"[\\<\[]")
_TEXT: Final[JSONObject] = {"type": "string"}
_TIME: Final[JSONObject] = {"type": "string", "format": "date-time"}


def write_asyncapi(interface: ProjectInterface, texts: Texts) -> JSONObject:
    """Return the document; ``texts`` is the catalogue ``interface``."""
    return _Writer(interface, texts).write()


class _Writer:
    """Writes one document, and gathers the definitions of all commands for it."""

    def __init__(self, interface: ProjectInterface, texts: Texts) -> None:
        self._interface = interface
        self._texts = texts
        self._schemas: JSONObject = {}
        self._schema_names = Names(_component_name)

    def write(self) -> JSONObject:
        interface, texts = self._interface, self._texts
        names = Names(_message_name)
        commands = {
            names.add(one.name): self._write_command(one) for one in interface.commands
        }
        log_text = texts["log"].format(limit=f"{interface.log_limit:,}")
        status_text = texts["status"].format(ttl=interface.status_ttl)
        records = {"record": self._write_record(), "outcome": self._write_outcome()}
        status = {"status": self._write_status()}
        log = self._write_channel(PROJECT_CONSOLE, log_text, records)
        log["x-max-records"] = interface.log_limit
        state = self._write_channel(PROJECT_STATUS, status_text, status)
        state["x-ttl-seconds"] = interface.status_ttl
        receive = _operation("receive", "control", commands, texts["receive"])
        receive["reply"] = {
            "channel": {"$ref": "#/channels/log"},
            "messages": _references("log", ["outcome"]),
        }
        document: JSONObject = {
            "asyncapi": VERSION,
            "info": {
                "title": interface.project,
                "version": UNVERSIONED,
                "description": texts["info"],
            },
            "defaultContentType": "application/json",
            "servers": {SERVER: self._write_server()},
            "channels": {
                "control": self._write_channel(CONTROL, texts["control"], commands),
                "log": log,
                "status": state,
            },
            "operations": {
                "receiveCommand": receive,
                "sendRecord": _operation("send", "log", records, texts["send_record"]),
                "sendStatus": _operation("send", "status", status, status_text),
            },
        }
        if self._schemas:
            document["components"] = {"schemas": self._schemas}
        return document

    def _write_server(self) -> JSONObject:
        protocol, _, place = self._interface.address.partition("://")
        host, slash, path = place.partition("/")
        return {
            "host": host or "localhost",  # a socket has a path alone
            **({"pathname": f"/{path}"} if slash else {}),
            "protocol": protocol,
            "description": self._texts["server"],
        }

    def _write_channel(
        self, key: KeyTemplate, text: str, messages: JSONObject
    ) -> JSONObject:
        """Describe one key of the project.

        1. The address is the key.
        2. Braces in an address are around a parameter. If the project's name has one,
           the address has a parameter whose only value is this name.
        """
        project = self._interface.project
        address = key.locate(project=project)
        channel: JSONObject = {
            "address": address,
            "title": address,
            "description": text,
            "servers": [{"$ref": f"#/servers/{SERVER}"}],
            "messages": messages,
            "x-redis-type": str(key.type),
        }
        if {"{", "}"} & {*project}:
            channel["address"] = key.template
            channel["parameters"] = {"project": {"enum": [project], "default": project}}
        return channel

    def _write_command(self, command: CommandInterface) -> JSONObject:
        """Describe the JSON object that a console sends for this command."""
        args = self._write_arguments(command)
        needed = ["command", "args"] if args.get("required") else ["command"]
        texts = self._texts
        properties: JSONObject = {
            "id": _TEXT | {"description": texts["field_id"]},
            "timestamp": _TIME | {"description": texts["field_timestamp"]},
            "source": _TEXT | {"description": texts["field_source"]},
            "command": {"const": command.name},
            "args": args,
            "broadcast": {"type": "boolean", "description": texts["field_broadcast"]},
            "traceparent": _TEXT | {"description": texts["field_traceparent"]},
            "tracestate": _TEXT | {"description": texts["field_tracestate"]},
        }
        first = command.description.strip().partition("\n")[0][:LONGEST_SUMMARY]
        return {
            "name": command.name,
            "title": command.name,
            **({"summary": first} if first else {}),
            **({"description": escape_markup(command.description)} if first else {}),
            "correlationId": {"location": "$message.payload#/id"},
            "payload": {
                "type": "object",
                "properties": properties,
                "required": needed,
            },
        }

    def _write_arguments(self, command: CommandInterface) -> JSONObject:
        arguments = command.arguments
        if arguments is None:
            return {"type": "object"}
        names = {
            f"{REFERENCE}{name}": self._schema_names.add(name)
            for name in arguments.definitions
        }
        for name, schema in arguments.definitions.items():
            self._schemas[names[REFERENCE + name]] = _rewrite(schema, names)
        written: JSONObject = _rewrite(arguments.args, names)
        return written

    def _write_record(self) -> JSONObject:
        metadata = {"type": "object", "not": {"required": [*OUTCOME_FIELDS]}}
        return self._write_entry("record", metadata, [])

    def _write_outcome(self) -> JSONObject:
        texts = self._texts
        failed = [kind for kind in OutcomeKind if kind is not OutcomeKind.SUCCEEDED]
        error = {
            "type": "object",
            "properties": {"type": _TEXT, "message": _TEXT},
            "required": ["type", "message"],
        }
        metadata: JSONObject = {
            "type": "object",
            "properties": {
                "agent": _TEXT | {"description": texts["field_agent"]},
                "commandId": _TEXT | {"description": texts["field_command_id"]},
                "command": _TEXT,
                "source": _TEXT,
                "outcome": {"enum": [*OutcomeKind]},
                "durationMs": {"type": "number"},
                "result": {"description": texts["field_result"]},
                "error": error,
            },
            "required": [*OUTCOME_FIELDS],
            "anyOf": [
                _ends_with(["succeeded"], "result"),
                _ends_with([*failed], "error"),
            ],
        }
        message = self._write_entry("outcome", metadata, ["metadata"])
        location = "$message.payload#/metadata/commandId"
        return {**message, "correlationId": {"location": location}}

    def _write_entry(
        self, name: str, metadata: JSONObject, needed: list[str]
    ) -> JSONObject:
        properties: JSONObject = {
            "timestamp": _TIME,
            "level": {"enum": [*Level]},
            "message": _TEXT,
            "metadata": metadata,
        }
        return {
            "name": name,
            "title": name,
            "description": self._texts[f"message_{name}"],
            "payload": {
                "type": "object",
                "properties": properties,
                "required": ["timestamp", "level", "message", *needed],
            },
        }

    def _write_status(self) -> JSONObject:
        text = self._texts["message_status"]
        return {
            "name": "status",
            "title": "status",
            "description": text,
            "contentType": "text/plain; charset=utf-8",
            "payload": {"type": "string", "enum": [*Status]},
        }


def escape_markup(text: str) -> str:
    r"""Escape what begins a tag or a link in Markdown, as ``\<`` and ``\[``."""
    return _MARKUP.sub(r"\\\g<0>", text)


def _ends_with(kinds: list[str], field: str) -> JSONObject:
    return {"properties": {"outcome": {"enum": kinds}}, "required": [field]}


def _operation(
    action: str, channel: str, messages: Iterable[str], text: str
) -> JSONObject:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "description": text,
        "messages": _references(channel, messages),
    }


def _references(channel: str, names: Iterable[str]) -> list[JSONObject]:
    place = f"#/channels/{channel}/messages/"
    return [{"$ref": place + quote(name, safe="")} for name in names]


def _make_name(text: str, *, other: re.Pattern[str], fallback: str) -> str:
    """Replace other characters by ``_``; return the fallback if nothing useful is left."""
    name = other.sub("_", text)
    return fallback if name in UNSAFE_NAMES or not name.strip("_") else name


_message_name: Final = partial(
    _make_name, other=re.compile(r"[^\w.-]"), fallback="command"
)
# The specification allows only ASCII in the names of components.
_component_name: Final = partial(
    _make_name, other=re.compile(r"[^\w.-]", re.ASCII), fallback="schema"
)


def _rewrite(schema: Any, names: Mapping[str, str]) -> Any:
    """Point references to the components, and escape the Markdown of descriptions.

    Keywords only are changed: the names of properties and data stay as they are.
    """
    if not isinstance(schema, Mapping):
        return schema
    written: JSONObject = {}
    for word, value in cast("Mapping[str, Any]", schema).items():
        if word == "$ref":
            written[word] = _COMPONENTS + names[value]
        elif word == "description":
            written[word] = escape_markup(value)
        elif word == "properties":
            written[word] = {name: _rewrite(one, names) for name, one in value.items()}
        elif word in ("const", "default", "enum", "required", "type"):
            written[word] = value
        elif isinstance(value, list):
            items = cast("Sequence[Any]", value)
            written[word] = [_rewrite(one, names) for one in items]
        else:
            written[word] = _rewrite(value, names)
    return written
