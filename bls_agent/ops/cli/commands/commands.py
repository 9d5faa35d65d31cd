"""``bls-agent commands``: the commands of a project, as its agent answers ``help``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from bls_agent.core.errors import NoOutcomeError
from bls_agent.core.settings import check_seconds
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.commands.send import (
    SOURCE,
    no_outcome,
    refusing_unseen,
    show_outcome,
)
from bls_agent.ops.cli.errors import Exit, find_likely, misspelt, normalise
from bls_agent.ops.cli.options import (
    CommandArgument,
    ProjectArgument,
    TimeoutOption,
    told_commands,
)
from bls_agent.ops.cli.output import Cell, Column, Invocation, json_text

if TYPE_CHECKING:
    from bls_agent.project.messages import Outcome

__all__ = ["commands", "signature"]

DEEPEST: Final = 4  # levels of a schema that are shown
_Schema = Mapping[str, Any]


@command("commands")
async def commands(
    invocation: Invocation,
    project: ProjectArgument,
    name: CommandArgument = "",
    timeout: TimeoutOption = 10.0,
) -> Exit:
    """Ask the agent for ``help`` and print the signatures, or one command in full."""
    project = normalise(invocation, project)
    outcome = await _ask(invocation, project, timeout)
    if not outcome.succeeded or outcome.truncated:
        show_outcome(invocation, outcome)
        return Exit.FAILED
    found = told_commands(outcome.result)
    if name and name not in found:
        likely = find_likely(name, found)
        raise misspelt("no_such_command_there", likely, "", word=name)
    chosen = [found[name]] if name else [*found.values()]
    if invocation.json:
        for one in chosen:
            invocation.out.json(one)
    elif name:
        _show_one(invocation, found[name])
    else:
        texts = invocation.texts
        columns = [
            Column(texts["column_command"], 20),
            Column(texts["column_description"], 20),
        ]
        rows = [(signature(one), _first_line(one)) for one in chosen]
        invocation.out.table(columns, rows)
    return Exit.DONE


async def _ask(invocation: Invocation, project: str, timeout: float) -> Outcome:
    seconds = check_seconds("timeout", timeout)
    async with invocation.console() as console:
        with invocation.waiting("waiting_outcome", seconds=f"{seconds:g}"):
            try:
                async with refusing_unseen(console):
                    return await console.call(
                        project, "help", timeout=seconds, source=SOURCE
                    )
            except NoOutcomeError as error:
                raise no_outcome(invocation, project, error, seconds) from None


def _show_one(invocation: Invocation, told: _Schema) -> None:
    texts, out = invocation.texts, invocation.out
    if out.terminal:
        out.line((signature(told), "bold"))
        out.paragraph(str(told.get("description") or ""))
    columns = [
        Column(texts["column_argument"], 12),
        Column(texts["column_type"], 12),
        Column(texts["column_default"]),
        Column(texts["column_description"], 20),
    ]
    rows: list[list[Cell]] = []
    for name, schema in _properties(told).items():
        needed = texts["argument_required"] if name in _required(told) else ""
        default = json_text(schema["default"]) if "default" in schema else needed
        description = str(schema.get("description") or "")
        rows.append([name, _type_of(schema), default, description])
    if rows:
        out.table(columns, rows)


def signature(told: _Schema) -> str:
    """Write a command as a function: ``reload(force: boolean = false)``."""
    words: list[str] = []
    for name, schema in _properties(told).items():
        default = f" = {json_text(schema['default'])}" if "default" in schema else ""
        optional = "" if default or name in _required(told) else "?"
        words.append(f"{name}{optional}: {_type_of(schema)}{default}")
    return f"{told.get('name')}({', '.join(words)})"


def _first_line(told: _Schema) -> str:
    return str(told.get("description") or "").partition("\n")[0]


def _properties(told: _Schema) -> dict[str, _Schema]:
    """Give the schemas of the arguments; other agents may send anything."""
    found = _dict(_dict(told.get("parameters")).get("properties"))
    return {str(name): _dict(schema) for name, schema in found.items()}


def _required(told: _Schema) -> list[Any]:
    found: list[Any] | None = _dict(told.get("parameters")).get("required")
    return found if isinstance(found, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _type_of(schema: _Schema, depth: int = 0) -> str:
    """Name a type in JSON's words: ``string``, ``list of integer``, ``"a" | "b"``."""
    several = schema.get("anyOf") or schema.get("oneOf")
    if depth > DEEPEST:
        return "…"
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(json_text, schema["enum"]))
    if isinstance(several, list):
        each = cast("list[object]", several)
        return " | ".join(_type_of(_dict(one), depth + 1) for one in each)
    if schema.get("type") == "array":
        items = _dict(schema.get("items"))
        return f"list of {_type_of(items, depth + 1)}" if items else "list"
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    return str(schema.get("type") or schema.get("const") or "any")
