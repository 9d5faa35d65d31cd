"""Writes a typed client for the commands of a project, as a Python module. No I/O.

The module has real code: one method for each command, which calls
:meth:`bls_agent.Console.call`. Every text of a foreign process is written as a string
literal without quotation marks, line ends and invisible characters, or is turned into
an identifier, so that it cannot become code.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Mapping
from keyword import iskeyword
from typing import Any, Final, cast
from unicodedata import normalize

from bls_agent.core.codec import encode
from bls_agent.ops.interface.project import (
    CommandInterface,
    Names,
    ProjectInterface,
)
from bls_agent.ops.interface.schema import REFERENCE, Schema
from bls_agent.ops.texts import Texts

LONGEST_TYPE: Final = 400  # characters of an annotation; a longer one is ``Any``
MOST_CHOICES: Final = 100  # in one ``Literal``
LONGEST_NAME: Final = 60  # characters of an identifier
CLIENT: Final = "Commands"

_TYPING: Final = ("Any", "Literal", "NotRequired", "TypedDict", "Unpack")
# Names that annotations use: a method of such a name would hide it in the class.
_TAKEN: Final = frozenset({*_TYPING, CLIENT, "Console", "Outcome", "float", "str"})
_PLAIN: Final[Mapping[str, str]] = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}


def write_stubs(interface: ProjectInterface, texts: Texts) -> str:
    """Return the module; ``texts`` is the catalogue ``interface``."""
    methods = Names(_method_name, _TAKEN)
    named = [(methods.add(one.name), one) for one in interface.commands]
    types = _Types({*_TAKEN, *dir(builtins), *(name for name, _ in named)})
    written = [_write_method(name, one, types, texts) for name, one in named]
    about = texts["stubs_module"].format(project=interface.project)
    project = literal(interface.project)
    client = [
        f"class {CLIENT}:",
        *_docstring(texts["stubs_client"].splitlines(), "    "),
        "",
        "    def __init__(",
        f"        self, console: Console, *, project: str = {project}, timeout: float = 10.0",
        "    ) -> None:",
        "        self._console = console",
        "        self._project = project",
        "        self._timeout = timeout",
        *(line for method in written for line in ("", *method)),
    ]
    body = [line for block in types.blocks for line in ("", "", *block)]
    body += ["", "", *client]
    used = [name for name in _TYPING if re.search(rf"\b{name}\b(?!:)", _code(body))]
    imports = [f"from typing import {', '.join(used)}", ""] if used else []
    return "\n".join(
        [
            *_docstring(
                [*about.splitlines(), "", *texts["stubs_use"].splitlines()], ""
            ),
            "",
            "from __future__ import annotations",
            "",
            *imports,
            f"from bls_agent import Console{', Outcome' if named else ''}",
            *body,
        ]
    )


def literal(text: str) -> str:
    """Write a text as a string literal on one line, of printable characters only."""
    return f'"{escape(text)}"'


def escape(text: str) -> str:
    """Escape a text for the inside of a literal between ``"`` or between three of them."""
    return "".join(map(_escape_letter, text))


def _escape_letter(letter: str) -> str:
    if letter in '\\"':
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return letter.encode("unicode_escape").decode("ascii")


def _code(lines: Iterable[str]) -> str:
    """Return the code without its literals, in which names do not count."""
    text = "\n".join(lines)
    text = re.sub(r'"""(?:[^"\\]|\\.)*"""', "", text, flags=re.DOTALL)
    return re.sub(r'"(?:[^"\\\n]|\\.)*"', "", text)


def _docstring(lines: Iterable[str], indent: str) -> list[str]:
    first, *more = [escape(line) for line in lines]
    if not more:
        return [f'{indent}"""{first}"""']
    inner = [f"{indent}{line}".rstrip(" ") for line in more]
    return [f'{indent}"""{first}', *inner, f'{indent}"""']


def _write_method(
    name: str, command: CommandInterface, types: _Types, texts: Texts
) -> list[str]:
    """Write the method of a command.

    1. Unknown arguments, other ones than those that are named, or an argument whose name
       cannot be a field: ``**args: Any``.
    2. No arguments: the method has none.
    3. Otherwise a TypedDict has the arguments. What the caller leaves out is not sent, so
       that the agent's default holds.
    """
    arguments = command.arguments
    known: Schema = {} if arguments is None else arguments.args
    named: Mapping[str, Schema] = known.get("properties", {})
    parameters, args = "self, /, **args: Any", "args, "
    if arguments is not None and not _is_open(arguments.args):
        if named:
            kind = types.add_arguments(name, arguments.args, arguments.definitions)
            parameters = f"self, /, **args: Unpack[{kind}]"
        else:
            parameters, args = "self", ""
    about = command.description.strip() or texts["stubs_method"].format(
        command=command.name
    )
    lines = about.splitlines()
    described = [_describe(one, schema, texts) for one, schema in named.items()]
    details = [line for line in described if line]
    if details:
        lines += ["", "Args:", *details]
    call = f"self._project, {literal(command.name)}, {args}timeout=self._timeout"
    return [
        f"    async def {name}({parameters}) -> Outcome:",
        *_docstring(lines, "        "),
        f"        return await self._console.call({call})",
    ]


def _is_open(schema: Schema) -> bool:
    """Return whether a TypedDict cannot describe an object.

    1. It may have other properties than the named ones. If the schema does not say so,
       it has no others, as people mean who write a schema by hand.
    2. The name of a property cannot be a field.
    """
    other = schema.get("additionalProperties", "properties" not in schema)
    return other is not False or not all(map(_is_field, schema.get("properties", {})))


def _describe(name: str, schema: Schema, texts: Texts) -> str:
    """Write the line of an argument; ``""`` if it has no description and no default."""
    words = [" ".join(str(schema.get("description", "")).split())]
    if "default" in schema:
        value = encode(schema["default"]).decode()
        words.append(texts["stubs_default"].format(value=value))
    text = " ".join(filter(None, words))
    return text and f"    {name}: {text}"


class _Types:
    """Makes annotations of schemas, and a TypedDict for each object in them."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.blocks: list[list[str]] = []  # a TypedDict comes after those that it uses
        self._names = Names(_class_name, taken)
        self._definitions: Mapping[str, Schema] = {}
        self._known: dict[str, str] = {}  # definition → its annotation

    def add_arguments(
        self, method: str, schema: Schema, definitions: Mapping[str, Schema]
    ) -> str:
        """Write the arguments of a command as a TypedDict, and return its name."""
        self._definitions, self._known = definitions, {}
        return self._add_class(f"{method}_args", schema)

    def _add_class(self, wanted: str, schema: Schema, definition: str = "") -> str:
        """Write a TypedDict. A type that a field's name would hide is ``Any``."""
        name = self._names.add(wanted)
        if definition:
            self._known[definition] = name
        required = schema.get("required", [])
        properties: Mapping[str, Schema] = schema["properties"]
        kinds = {
            field: self._annotate(inner, f"{wanted}_{field}")
            for field, inner in properties.items()
        }
        hiding = {one for one, kind in kinds.items() if _words(kind) & kinds.keys()}
        kinds |= dict.fromkeys(hiding, "Any")
        rows = [f"    {one}: {_demand(one, kinds, required)}" for one in kinds]
        self.blocks.append([f"class {name}(TypedDict):", *(rows or ["    pass"])])
        return name

    def _annotate(self, schema: Any, wanted: str) -> str:
        """Return the annotation of a JSON value; one that would be too long is ``Any``."""
        if not isinstance(schema, Mapping):
            return "Any"
        found = self._annotate_schema(cast("Schema", schema), wanted)
        return found if len(found) <= LONGEST_TYPE else "Any"

    def _annotate_schema(self, schema: Schema, wanted: str) -> str:
        """Return the annotation of what a schema describes.

        1. A constant or a choice of texts, integers, booleans and null: ``Literal``.
        2. A reference, alone or in ``allOf``: the type of its definition.
        3. Alternatives: their union.
        4. A type of JSON, or several.
        5. Anything else: ``Any``.
        """
        constant: list[Any] = [schema["const"]] if "const" in schema else []
        choices: list[Any] = constant or schema.get("enum", [])
        only: list[Any] = schema.get("allOf", [])
        alternatives: list[Any] = schema.get("anyOf", [])
        if choices and len(choices) <= MOST_CHOICES and all(map(_is_literal, choices)):
            return f"Literal[{', '.join(map(_write_choice, choices))}]"
        if "$ref" in schema:
            return self._refer(schema["$ref"].removeprefix(REFERENCE))
        if len(only) == 1 and "type" not in schema:
            return self._annotate(only[0], wanted)
        if alternatives and not only:
            return _unite(self._annotate(one, wanted) for one in alternatives)
        kinds: Any = schema.get("type", "object" if "properties" in schema else [])
        each: list[str] = [kinds] if isinstance(kinds, str) else kinds
        return _unite(self._annotate_type(one, schema, wanted) for one in each)

    def _annotate_type(self, kind: str, schema: Schema, wanted: str) -> str:
        if kind == "array":
            return f"list[{self._annotate(schema.get('items'), wanted)}]"
        if kind != "object":
            return _PLAIN[kind]
        if "properties" in schema and not _is_open(schema):
            return self._add_class(str(schema.get("title") or wanted), schema)
        other = schema.get("additionalProperties")
        is_uniform = "properties" not in schema and isinstance(other, Mapping)
        value = self._annotate(other, wanted) if is_uniform else "Any"
        return f"dict[str, {value}]"

    def _refer(self, definition: str) -> str:
        """Return the type of a definition, which is written when it is first used."""
        if definition not in self._known:
            schema = self._definitions[definition]
            # What a definition sees that leads back to itself.
            self._known[definition] = "Any"
            is_class = schema.get("type") == "object" and "properties" in schema
            self._known[definition] = (
                self._add_class(definition, schema, definition)
                if is_class and not _is_open(schema)
                else self._annotate(schema, definition)
            )
        return self._known[definition]


def _unite(each: Iterable[str]) -> str:
    kinds = [*dict.fromkeys(each)]
    return "Any" if not kinds or "Any" in kinds else " | ".join(kinds)


def _demand(name: str, kinds: Mapping[str, str], required: Iterable[str]) -> str:
    return kinds[name] if name in required else f"NotRequired[{kinds[name]}]"


def _words(annotation: str) -> set[str]:
    return set(re.findall(r"\w+", _code([annotation])))


def _is_literal(value: object) -> bool:
    return value is None or isinstance(value, str | bool | int)


def _write_choice(value: object) -> str:
    return literal(value) if isinstance(value, str) else repr(value)


def _is_field(name: str) -> bool:
    """Return whether a class can have this field.

    Two underscores would change the name, and names of ``typing`` would be hidden.
    """
    is_plain = name.isidentifier() and normalize("NFKC", name) == name
    is_free = name not in _TYPING and not iskeyword(name)
    return is_plain and is_free and not name.startswith("__")


def _method_name(text: str) -> str:
    """Turn the name of a command into the name of a method.

    1. Characters that an identifier cannot have become ``_``; none stands at an end.
    2. Nothing is left: ``command``. A digit comes first: ``command_`` stands before it.
    3. A keyword of Python gets ``_`` at its end.
    """
    name = _identifier(text)
    if not name.isidentifier():
        name = f"command_{name}".rstrip("_")
    return f"{name}_" if iskeyword(name) else name


def _class_name(text: str) -> str:
    """Turn a text into the name of a class, by the same rules."""
    words = _identifier(text).split("_")
    name = "".join(word[:1].upper() + word[1:] for word in words)
    name = normalize("NFKC", name)
    return name if name.isidentifier() and not iskeyword(name) else f"Args{name}"


def _identifier(text: str) -> str:
    plain = normalize("NFKC", text)
    # Newer versions of Python allow invisible joiners in an identifier.
    letters = (
        one if one.isprintable() and f"a{one}".isidentifier() else "_" for one in plain
    )
    name = normalize("NFKC", "".join(letters)[:LONGEST_NAME])
    return re.sub("_+", "_", name).strip("_") if name.strip("_") else ""
