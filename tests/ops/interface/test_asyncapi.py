"""The AsyncAPI document: the facts of the protocol, and nothing that a text injects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import orjson
import pytest
from pydantic import BaseModel

from bls_agent import OutcomeKind, ProjectAgent, Status
from bls_agent.connection.endpoint import Endpoint
from bls_agent.core.codec import decode_object
from bls_agent.ops.interface.asyncapi import write_asyncapi
from bls_agent.ops.interface.project import ProjectInterface, read_interface
from bls_agent.ops.texts import load_texts
from bls_agent.project.messages import Command, LogEntry, Outcome
from tests.corpus.hostile_texts import HOSTILE_TEXTS
from tests.ops.interface.node import needs_parser, parse_documents

ENGLISH: Final = load_texts("interface", "en")


class Line(BaseModel):
    """A line of an order."""

    sku: str
    count: int = 1


class Node(BaseModel):
    """A node of a tree."""

    children: list[Node] = []
    place: tuple[int, str] = (1, "a")


def shop() -> ProjectAgent:
    """An agent with arguments of many kinds."""
    agent = ProjectAgent("订单系统", redis="redis://:pass@127.0.0.1:6379/3")

    @agent.command
    async def reload(force: bool = False) -> None:
        """Reload the rules.

        What follows is for programmers.
        """

    @agent.command("下单")
    async def order(lines: list[Line], note: str | None = None) -> None:
        """下单。"""

    @agent.command("import/all #1")
    async def load(tree: Node, line: Line) -> None:
        """Import ``<b>`` a [tree](x)."""

    return agent


def describe(agent: ProjectAgent) -> ProjectInterface:
    return ProjectInterface(
        project=agent.project,
        address=agent.endpoint.address,
        commands=read_interface(agent.describe_commands()),
        status_ttl=45,
        log_limit=700,
    )


def write(
    project: str = "订单系统",
    answer: Any = (),
    address: str = "redis://127.0.0.1:6379/0",
) -> dict[str, Any]:
    """Write the document of a project that has answered ``help``."""
    commands = read_interface(list(answer))
    interface = ProjectInterface(
        project=project,
        address=address,
        commands=commands,
        status_ttl=60,
        log_limit=10_000,
    )
    document: dict[str, Any] = orjson.loads(
        orjson.dumps(write_asyncapi(interface, ENGLISH))
    )
    return document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(
        orjson.dumps(write_asyncapi(describe(shop()), ENGLISH))
    )
    return found


def fits(document: dict[str, Any], channel: str, message: str, value: Any) -> bool:
    """Whether a value is this message, by its schema in the document."""
    import jsonschema  # noqa: PLC0415 - it takes a second to import

    payload = document["channels"][channel]["messages"][message]["payload"]
    schema = {"components": document.get("components", {}), "allOf": [payload]}
    return jsonschema.Draft7Validator(schema).is_valid(value)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list):
        for one in value:
            yield from references(one)


def resolve(document: Any, reference: str) -> Any:
    assert reference.startswith("#/")
    for word in reference.removeprefix("#/").split("/"):
        document = document[unquote(word)]
    return document


def test_the_channels(document: dict[str, Any]) -> None:
    """The addresses are the keys, and the server has no password."""
    channels = document["channels"]
    assert {name: one["address"] for name, one in channels.items()} == {
        "control": "订单系统_控制",
        "log": "订单系统_项目控制台",
        "status": "订单系统_项目状态",
    }
    assert [one["x-redis-type"] for one in channels.values()] == ["list", "list", "string"]  # fmt: skip
    assert channels["status"]["x-ttl-seconds"] == 45
    assert channels["log"]["x-max-records"] == 700
    server = document["servers"]["redis"]
    assert (server["host"], server["pathname"]) == ("127.0.0.1:6379", "/3")
    assert server["protocol"] == "redis"
    assert "pass" not in orjson.dumps(server).decode()


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("rediss://u:p@[::1]/0", ("rediss", "[::1]:6379", "/0")),
        ("unix://u:p@/run/r.sock", ("unix", "localhost", "/run/r.sock?db=0")),
        ("redis+sentinel://u:p@a:1,b:2/m/4", ("redis+sentinel", "a:1,b:2", "/m/4")),
        ("redis+cluster://u:p@a:1,b:2", ("redis+cluster", "a:1,b:2", None)),
    ],
)
def test_other_servers(url: str, server: tuple[str | None, ...]) -> None:
    found = write(address=Endpoint.of(url).address)["servers"]["redis"]
    assert tuple(found.get(name) for name in ("protocol", "host", "pathname")) == server


def test_the_operations(document: dict[str, Any]) -> None:
    """The service receives commands, and sends records, outcomes and its status."""
    operations = document["operations"]
    facts = {
        name: (one["action"], one["channel"]["$ref"])
        for name, one in operations.items()
    }
    assert facts == {
        "receiveCommand": ("receive", "#/channels/control"),
        "sendRecord": ("send", "#/channels/log"),
        "sendStatus": ("send", "#/channels/status"),
    }
    reply = operations["receiveCommand"]["reply"]
    assert reply["channel"] == {"$ref": "#/channels/log"}
    [outcome] = reply["messages"]
    place = resolve(document, outcome["$ref"])["correlationId"]["location"]
    assert place == "$message.payload#/metadata/commandId"


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    """Also those into components, which a model that contains itself needs."""
    found = set(references(document))
    assert "#/components/schemas/Node" in found
    for reference in found:
        assert isinstance(resolve(document, reference), dict)
    names = document["operations"]["receiveCommand"]["messages"]
    messages = [resolve(document, one["$ref"])["name"] for one in names]
    assert messages[-3:] == ["reload", "下单", "import/all #1"]
    assert messages[0] == "ping"


def test_a_command(document: dict[str, Any]) -> None:
    """Name, both texts, and the arguments with their types and defaults."""
    messages = document["channels"]["control"]["messages"]
    reload = messages["reload"]
    assert reload["summary"] == reload["description"] == "Reload the rules."
    args = reload["payload"]["properties"]["args"]
    assert args["properties"] == {"force": {"type": "boolean", "default": False}}
    assert args["additionalProperties"] is False
    assert messages["import_all__1"]["description"] == r"Import ``\<b>`` a \[tree](x)."


SENT: Final = [
    ("reload", {}, True),
    ("reload", {"force": True}, True),
    ("reload", {"force": 1}, False),
    ("reload", {"other": 1}, False),
    ("下单", {"lines": [{"sku": "茶"}], "note": None}, True),
    ("下单", {"lines": [{"count": 1}]}, False),
    ("下单", {}, False),
    ("import/all #1", {"tree": {"children": [{}], "place": [1, "b"]}, "line": {"sku": "a"}}, True),
    ("import/all #1", {"tree": {"children": [{"children": 1}]}, "line": {"sku": "a"}}, False),
    ("import/all #1", {"tree": {"place": ["b", 1]}, "line": {"sku": "a"}}, False),
]  # fmt: skip


@pytest.mark.parametrize(("command", "args", "valid"), SENT)
def test_the_wire(
    document: dict[str, Any], command: str, args: dict[str, Any], valid: bool
) -> None:
    """What the console writes is exactly one message, if the agent accepts it."""
    written = decode_object(Command.create(command, args, now=1_736_498_500).encode())
    messages = document["channels"]["control"]["messages"]
    found = [one for one in messages if fits(document, "control", one, written)]
    assert [messages[one]["name"] for one in found] == ([command] if valid else [])


@pytest.mark.parametrize(("command", "args", "valid"), SENT)
async def test_the_agent_agrees(command: str, args: Any, valid: bool) -> None:
    """The table above is no invention: the agent accepts and rejects the same."""
    result = await shop().invoke(command, args)
    assert result.succeeded is valid


@pytest.mark.parametrize("kind", OutcomeKind)
def test_outcomes(document: dict[str, Any], kind: OutcomeKind) -> None:
    """Each kind of outcome is an outcome record, and no other record."""
    outcome = Outcome(
        kind=kind,
        command="reload",
        command_id="c-1",
        error={} if kind == "succeeded" else {"type": "E", "message": "m"},
    )
    record = {
        "timestamp": "2026-01-12T12:34:56.789Z",
        "level": str(kind.level),
        "message": outcome.message,
        "metadata": {"agent": "a#1", **outcome.metadata},
    }
    assert LogEntry.decode(orjson.dumps(record)).outcome is not None
    assert fits(document, "log", "outcome", record)
    assert not fits(document, "log", "record", record)
    del record["metadata"]["durationMs"]  # type: ignore[attr-defined]
    assert not fits(document, "log", "outcome", record)
    assert fits(document, "log", "record", record)


@pytest.mark.parametrize("status", Status)
def test_statuses(document: dict[str, Any], status: Status) -> None:
    assert fits(document, "status", "status", status.value)
    assert not fits(document, "status", "status", status.name)


def test_braces_in_a_name() -> None:
    """In an address they are around a parameter, so the name becomes its value."""
    control = write("{订单}")["channels"]["control"]
    assert control["title"] == "{订单}_控制"
    [(name, parameter)] = control["parameters"].items()
    address = control["address"].replace(f"{{{name}}}", parameter["default"])
    assert address == control["title"]
    assert parameter["enum"] == ["{订单}"]


def hostile_documents() -> list[dict[str, Any]]:
    """Each text in each place that a foreign process fills."""
    texts = [*HOSTILE_TEXTS.values(), "__proto__", "$ref", "constructor", "toString", "a/b~c%d", "项目", "..", "x" * 300]  # fmt: skip
    evil = {"$ref": "file:///etc/passwd"}
    answers: list[Any] = [
        [
            {
                "name": text,
                "description": text,
                "parameters": {
                    "title": text,
                    "properties": {
                        text: {"description": text, "default": text, "enum": [text], "format": text, "pattern": text, "title": text, "const": text},
                        "ref": {"$ref": f"#/$defs/{text}"},
                    },
                    "required": [text],
                    "$defs": {text: {"type": "string", "description": text}, "a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                },
            }
            for text in texts
        ],
        [
            {"name": "a", "parameters": {"properties": {"x": evil, "y": {"default": evil, "const": {"z": [evil]}, "enum": [evil]}}}},
            {"name": "a-", "parameters": evil},
            {"name": "A", "parameters": {"properties": {"$ref": evil, "__proto__": evil}, "$defs": {"__proto__": evil, "$ref": evil}}},
            {"name": "a_", "description": evil, "parameters": {"type": 5, "properties": 5, "required": "x", "items": [5], "minLength": -1}},
            {"name": "a/", "parameters": "x"},
            {"name": "a ", "parameters": {"allOf": [], "anyOf": [{}], "$schema": "http://127.0.0.1:1/", "$id": "http://127.0.0.1:1/"}},
        ],
    ]  # fmt: skip
    return [write(f"项目{n}", one) for n, one in enumerate(answers)] + [
        write(text, [{"name": text}])
        for text in (*texts[:8], "{a", "b}", "{}", "a?b#c", "$ref", "__proto__")
    ]


def test_nothing_is_injected() -> None:
    """No reference leads out of the document, and no text is a tag or a link."""
    for found in hostile_documents():
        for reference in references(found):
            assert isinstance(resolve(found, reference), dict)
        for text in descriptions(found):
            assert not re.search(r"(?<!\\)(?:\\\\)*[<\[]", text), text
    names = hostile_documents()[1]["channels"]["control"]["messages"]
    assert [one["name"] for one in names.values()] == ["a", "a-", "A", "a_", "a/", "a "]


def descriptions(value: Any, in_names: bool = False) -> Iterator[str]:
    """Every text that AsyncAPI reads as Markdown."""
    if isinstance(value, dict):
        for name, one in value.items():
            if name == "description" and isinstance(one, str) and not in_names:
                yield one
            yield from descriptions(one, name in ("properties", "messages", "schemas"))
    elif isinstance(value, list):
        for one in value:
            yield from descriptions(one)


@needs_parser
async def test_the_official_parser_accepts_them(
    document: dict[str, Any], tmp_path: Path
) -> None:
    """Good and hostile documents have no error and no warning."""
    chinese = write_asyncapi(describe(shop()), load_texts("interface", "zh"))
    newest = document | {"asyncapi": "3.1.0"}
    broken = document | {"info": {"title": "no version"}}
    documents = [document, chinese, newest, *hostile_documents(), broken]
    *found, last = await parse_documents(documents, tmp_path)
    assert len(found) == len(documents) - 1
    assert [one for one in found if not one["accepted"] or one["faults"]] == []
    assert not last["accepted"]
    assert found[0]["commands"][-3:] == ["reload", "下单", "import/all #1"]
