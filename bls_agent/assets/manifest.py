"""The manifest of an asset: its fields, its rules and its form in Redis. No I/O."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, NoReturn, cast

from bls_agent.assets.yaml_reader import UNFIT, Place, YamlFault, YamlReader
from bls_agent.core.codec import JSONObject, encode_strictly
from bls_agent.core.errors import ManifestError, ManifestFault, MissingExtraError

try:
    import semver
    from pydantic import (
        AfterValidator,
        BaseModel,
        ConfigDict,
        Field,
        JsonValue,
        ValidationError,
        ValidationInfo,
        WithJsonSchema,
        field_validator,
    )
    from pydantic_core import ErrorDetails, PydanticCustomError
except ModuleNotFoundError:
    raise MissingExtraError("assets", "the manifest of an asset") from None

MAX_PATH: Final = 512
SHORT: Final = 100  # longest description in the index, in code points
ID: Final = r"[A-Za-z0-9_-]{1,64}"

_ID: Final = re.compile(ID)


def path_fault(path: str) -> str:
    """Return the rule that a path in a repository breaks, ``""`` for a valid path."""
    fault = ""
    if not path or len(path) > MAX_PATH:
        fault = f"a path has 1 to {MAX_PATH} characters"
    elif UNFIT.search(path) or {"\n", "\r", "\t"} & set(path):
        fault = "a path holds no control characters"
    elif "\\" in path:
        fault = "a path is written with '/', without '\\'"
    elif path.startswith("/") or re.match("[A-Za-z]:", path):
        fault = "a path is relative"
    elif {"", ".", ".."} & set(path.split("/")):
        fault = "a path holds no '..', no '.' and no empty part"
    elif not unicodedata.is_normalized("NFC", path):
        fault = "a path is in Unicode form NFC"
    return fault


def _refuse(reason: str, remedy: str = "") -> NoReturn:
    context = {"reason": reason, "remedy": remedy}
    raise PydanticCustomError("rule", "{reason}", context)


def _check_version(version: str) -> str:
    try:
        semver.Version.parse(version)
    except ValueError:
        _refuse("it is no semantic version")
    return version


def _check_path(path: str) -> str:
    if reason := path_fault(path):
        _refuse(reason)
    return path


def _check_scalar(value: object) -> object:
    if not isinstance(value, str | int | float):
        _refuse("it is neither text nor number nor true nor false")
    return value


def _check_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    if parameters.get("type") != "object":
        _refuse("it is no JSON Schema of an object", "Begin it with `type: object`.")
    properties = parameters.get("properties", {})
    if not isinstance(properties, dict):
        _refuse("its `properties` are no mapping")
    names = parameters.get("required", [])
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):  # pyright: ignore[reportUnknownVariableType] - the list may hold anything
        _refuse("its `required` is no list of names")
    return parameters


_KINDS: Final[Mapping[str | None, Any]] = {
    "string": str,
    "secret": str,
    "boolean": bool,
    "number": (int, float),
    "select": (str, int, float),
}

_Scalar = Annotated[
    Any,
    AfterValidator(_check_scalar),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
_Text = Annotated[str, Field(min_length=1, max_length=500)]


class _Part(BaseModel):
    """A part of a manifest. Unknown fields are kept unchanged."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        strict=True, frozen=True, extra="allow"
    )


class SelectOption(_Part):
    """One choice that a user has for a setting of type ``select``."""

    label: Annotated[_Text, Field(description="What people read.")]
    value: Annotated[_Scalar, Field(description="What the asset gets.")]


class ConfigItem(_Part):
    """One setting that a user of the asset fills in."""

    name: Annotated[_Text, Field(description="The setting's name.")]
    label: Annotated[_Text, Field(description="What people read.")]
    type: Annotated[
        Literal["string", "number", "select", "secret", "boolean"],
        Field(description="Use string, number, select, secret or boolean."),
    ]
    required: Annotated[bool, Field(description="Use true or false.")] = False
    default: Annotated[
        JsonValue, Field(description="A value that fits the type."), Field()
    ] = None
    placeholder: Annotated[str, Field(description="Shown while it is empty.")] = ""
    options: Annotated[
        list[SelectOption],
        Field(description="Give each choice a label and a value."),
        Field(validate_default=True),
    ] = []

    @field_validator("default")
    @classmethod
    def _default_fits(cls, value: JsonValue, info: ValidationInfo) -> JsonValue:
        kind = info.data.get("type")
        if value is not None and not isinstance(value, _KINDS.get(kind, object)):
            _refuse(f"the default of a {kind} is a {kind}")
        if kind == "number" and isinstance(value, bool):
            _refuse("the default of a number is a number")
        return value

    @field_validator("options")
    @classmethod
    def _options_fit(
        cls, options: list[SelectOption], info: ValidationInfo
    ) -> list[SelectOption]:
        if info.data.get("type") != "select":
            return options
        if not options:
            _refuse("a select needs options")
        default = info.data.get("default")
        if default is not None and default not in [one.value for one in options]:
            _refuse("the default is none of the options")
        return options


class AgentSpecs(_Part):
    """What a language model reads about the asset. A tool needs all three fields."""

    function_name: Annotated[
        str | None,
        Field(
            pattern=f"^{ID}$", description="Use letters, digits, _ and -; 64 of them."
        ),
    ] = None
    description: Annotated[str | None, Field(description="When to use it.")] = None
    parameters: Annotated[
        dict[str, JsonValue] | None,
        Field(description="A JSON Schema that begins with `type: object`."),
    ] = None

    @field_validator("parameters")
    @classmethod
    def _is_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return value if value is None else _check_parameters(value)


class Runtime(_Part):
    """What runs a tool. The library stores this data and never executes anything."""

    language: Annotated[_Text, Field(description="Such as python.")]
    entry: Annotated[
        str,
        AfterValidator(_check_path),
        Field(description="A path below the manifest's folder, such as main.py."),
    ]
    handler: Annotated[str | None, Field(description="The function's name.")] = None
    dependencies: Annotated[
        list[str], Field(description="A list of texts, such as [requests].")
    ] = []


class AssetManifest(BaseModel):
    """The manifest of a tool, a prompt or a skill.

    Types are strict: a number is not accepted as a text. An unknown field is an error,
    except inside of ``config_schema``, ``agent_specs`` and ``runtime``. Unknown fields
    of these parts are stored unchanged.

    Raises:
        pydantic.ValidationError: A value breaks a rule.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        strict=True, frozen=True, extra="forbid"
    )

    id: Annotated[
        str,
        Field(
            pattern=f"^{ID}$", description="Use letters, digits, _ and -; 64 of them."
        ),
    ]
    version: Annotated[
        str,
        AfterValidator(_check_version),
        Field(max_length=64, description='Such as "1.0.0".'),
    ]
    category: Annotated[
        Literal["tool", "prompt", "skill"],
        Field(description="Use tool, prompt or skill."),
    ]
    name: Annotated[_Text, Field(description="What people read.")]
    description: Annotated[str, Field(description="What it does.")] = ""
    author: Annotated[str, Field(description="Who maintains it.")] = ""
    config_schema: Annotated[
        list[ConfigItem], Field(description="A list of settings.")
    ] = []
    agent_specs: Annotated[
        AgentSpecs | None,
        Field(
            validate_default=True,
            description="A tool needs function_name, description and parameters.",
        ),
    ] = None
    runtime: Annotated[
        Runtime | None,
        Field(validate_default=True, description="A tool needs language and entry."),
    ] = None

    @field_validator("config_schema")
    @classmethod
    def _names_differ(cls, items: list[ConfigItem]) -> list[ConfigItem]:
        names = [item.name for item in items]
        if twice := [name for name in names if names.count(name) > 1]:
            _refuse(f"two settings are called {twice[0]!r}", "Rename one of them.")
        return items

    @field_validator("agent_specs")
    @classmethod
    def _specs_of_tool(
        cls, specs: AgentSpecs | None, info: ValidationInfo
    ) -> AgentSpecs | None:
        if info.data.get("category") == "tool":
            given = specs or AgentSpecs()
            needed = ("function_name", "description", "parameters")
            lacking = [name for name in needed if not getattr(given, name)]
            if lacking:
                _refuse(f"a tool needs {', '.join(lacking)} here")
        return specs

    @field_validator("runtime")
    @classmethod
    def _runtime_of_tool(
        cls, runtime: Runtime | None, info: ValidationInfo
    ) -> Runtime | None:
        if runtime is None and info.data.get("category") == "tool":
            _refuse("a tool needs it")
        return runtime


_PARTS: Final[Mapping[str, type[BaseModel]]] = {
    "config_schema": ConfigItem,
    "options": SelectOption,
    "agent_specs": AgentSpecs,
    "runtime": Runtime,
}


def metadata_fields(manifest: AssetManifest, path: str, sha: str) -> dict[str, bytes]:
    """Return the fields of ``asset:metadata:{id}``, except for the two times.

    Empty fields are left out. In JSON values, known names come first, in a fixed order,
    and unknown names follow. The JSON has no blanks, and non-ASCII text is not escaped.
    Raises ConfigurationError if a value cannot be written as JSON.
    """
    parts = manifest.model_dump(
        include={"config_schema", "agent_specs", "runtime"}, exclude_unset=True
    )
    texts = {
        name: getattr(manifest, name).encode()
        for name in ("id", "version", "category", "name", "description", "author")
    }
    texts |= {
        name: encode_strictly(name, value) for name, value in parts.items() if value
    }
    texts |= {"github_path": path.encode(), "github_sha": sha.encode()}
    return {name: value for name, value in texts.items() if value}


def index_entry(manifest: AssetManifest) -> bytes:
    """Encode an entry of the index, with at most 100 characters of the description."""
    summary = {
        "id": manifest.id,
        "name": manifest.name,
        "category": manifest.category,
        "version": manifest.version,
        "description": manifest.description[:SHORT],
    }
    return encode_strictly("index", summary)


def manifest_schema() -> JSONObject:
    """Return the JSON Schema of a manifest, for completion and checks in editors."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **AssetManifest.model_json_schema()}


def parse_manifest(content: bytes, path: str) -> AssetManifest:
    """Read and check a manifest.

    Args:
        content: Content of the file, in UTF-8. The file may have at most 256 KB, 64
            levels and 10,000 values. An alias counts as all values that it refers to.
        path: Path of the file in the repository. Each fault names this path.

    Raises:
        ManifestError: The file has faults. The error lists all of them, or only the
            first one if the YAML cannot be read.
    """
    try:
        reader = YamlReader(content)
        data = reader.read()
    except YamlFault as fault:
        one = ManifestFault(path, fault.reason, fault.remedy, line=fault.line)
        raise ManifestError([one]) from None
    try:
        return AssetManifest.model_validate(data)
    except ValidationError as error:
        found = cast("JSONObject", data).get("id") if isinstance(data, dict) else None
        known = found if isinstance(found, str) and _ID.fullmatch(found) else ""
        faults = _translate(error.errors(include_url=False), reader.lines, path, known)
        raise ManifestError(sorted(faults, key=lambda fault: fault.line)) from None


def _translate(
    errors: Iterable[ErrorDetails], lines: Mapping[Place, int], path: str, known: str
) -> Iterator[ManifestFault]:
    for error in errors:
        place = error["loc"]
        line = next(
            lines[place[:n]] for n in range(len(place), -1, -1) if place[:n] in lines
        )
        field = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in place
        )
        reason, remedy = _explain(error)
        yield ManifestFault(path, reason, remedy, field.lstrip("."), line, known)


def _explain(error: ErrorDetails) -> tuple[str, str]:
    """Return the rule that pydantic found broken, and the remedy."""
    names = [part for part in error["loc"] if isinstance(part, str)]
    owner = next(
        (_PARTS[n] for n in reversed(names[:-1]) if n in _PARTS), AssetManifest
    )
    name = names[-1] if names else ""
    field = owner.model_fields.get(name)
    remedy = field.description or "" if field else ""
    given, message = error.get("input"), error["msg"]
    reason = message[:1].lower() + message[1:]
    match error["type"]:
        case "rule":
            reason, remedy = message, error.get("ctx", {}).get("remedy") or remedy
        case "extra_forbidden":
            near = difflib.get_close_matches(name, owner.model_fields, 1)
            other = "Put what is your own under agent_specs or runtime."
            reason = "there is no such field"
            remedy = f"Did you mean {near[0]}?" if near else other
        case "missing":
            reason, remedy = "it is missing", f"Add it. {remedy}"
        case "string_type" if isinstance(given, int | float):
            reason = f"it is no text but the value {given}"
            remedy = f"Write it in quotes. {remedy}"
        case "string_pattern_mismatch":
            reason = f"{str(given)[:80]!r} is not allowed"
        case "model_type" | "model_attributes_type":
            reason = "it is no mapping of names to values"
        case _:
            pass
    return reason, remedy
