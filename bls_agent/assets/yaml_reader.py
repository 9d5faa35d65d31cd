"""Reads values from untrusted YAML. No I/O.

Only the core schema of YAML 1.2 is read, so that JSON can hold every value: ``no``,
``12:30`` and dates are texts, and tags and merge keys are refused. When the limits are
checked, an alias counts as all the values that it refers to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn, TypeAlias, cast

from bls_agent.assets.sources import MOST_BYTES
from bls_agent.core.errors import MissingExtraError

try:
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import Composer
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.nodes import ScalarNode, SequenceNode
    from ruamel.yaml.scanner import Scanner
except ModuleNotFoundError:
    raise MissingExtraError("assets", "reading YAML") from None

Place: TypeAlias = tuple[str | int, ...]

MAX_DEPTH: Final = 64
MAX_NODES: Final = 10_000
INT64: Final = (-(2**63), 2**63 - 1)

_TOO_DEEP: Final = f"a manifest has at most {MAX_DEPTH} levels"
UNFIT: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_NUMBER: Final = re.compile(
    r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
    r"|[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_CONSTANTS: Final[Mapping[str, bool | None]] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
}  # fmt: skip


class YamlFault(Exception):  # noqa: N818 - becomes a ManifestError
    """The YAML cannot be used. The first line is 1; 0 means the whole text."""

    def __init__(self, reason: str, remedy: str, line: int) -> None:
        super().__init__(reason)
        self.reason: str = reason
        self.remedy: str = remedy
        self.line: int = line


def _reject(
    reason: str, remedy: str = "", *, line: int = 0, at: Any = None
) -> NoReturn:
    """Raise a YamlFault with ``line``, or with the line of the event or node ``at``."""
    raise YamlFault(reason, remedy, _line(at) if at else line)


class _Scanner(Scanner):
    """Limits open brackets, because ruamel checks all open brackets at each token."""

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803 - ruamel's name
        if self.flow_level > MAX_DEPTH:
            _reject(_TOO_DEEP, line=cast("Any", self).reader.line + 1)
        super().fetch_flow_collection_start(TokenClass, to_push)  # pyright: ignore[reportUnknownMemberType] - untyped


class _Composer(Composer):
    """Refuses tags, and more values or levels than a manifest may have."""

    made = levels = 0
    warn_double_anchors = False

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = cast("Any", self).parser.peek_event()
        if getattr(event, "tag", None) is not None:
            _reject("tags are not allowed", "Remove it.", at=event)
        self.made += 1
        self.levels += 1
        # Names in mappings do not count as values, and may be half of the nodes.
        _check_size(self.made // 2, self.levels, event)
        node: Any = cast("Any", super()).compose_node(parent, index)
        self.levels -= 1
        return node


def _check_size(values: int, levels: int, at: Any) -> None:
    if values > MAX_NODES:
        rule = f"a manifest holds at most {MAX_NODES:,} values, aliases written out"
        _reject(rule, at=at)
    if levels > MAX_DEPTH:
        _reject(_TOO_DEEP, at=at)


class YamlReader:
    """Reads the value of a YAML text by the core schema of YAML 1.2.

    Reading ends as soon as a limit is exceeded, before anything large is built.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._values = 0
        # Line of each value, by its path of names and indexes; the root's is ``()``.
        self.lines: dict[Place, int] = {}

    def read(self) -> Any:
        """Return the value of the text's only document.

        Raises YamlFault if the text is no single YAML document, or breaks a limit.
        """
        if len(self._content) > MOST_BYTES:
            _reject(f"a manifest has at most {MOST_BYTES // 1024} KB")
        try:
            text = self._content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = self._content.count(b"\n", 0, error.start) + 1
            _reject("it is no UTF-8", "Save it as UTF-8.", line=line)
        try:
            yaml: Any = YAML(typ="safe", pure=True)
            yaml.Scanner, yaml.Composer = _Scanner, _Composer
            documents = list(yaml.compose_all(text))
        except YamlFault:
            raise
        except MarkedYAMLError as error:
            found: Any = error
            mark = found.problem_mark or found.context_mark
            remedy = "Indent with blanks, and quote texts with special characters."
            reason = f"it is no YAML: {found.problem or found.context}"
            _reject(reason, remedy, line=mark.line + 1 if mark else 0)
        except Exception as error:  # noqa: BLE001 - the parser may raise any error
            message = str(error).partition("\n")[0][:200]
            _reject(f"it is no YAML: {message}")
        if not documents:
            _reject("the file is empty")
        if len(documents) > 1:
            _reject("a file holds one manifest", "Split it.", at=documents[1])
        return self._value(documents[0], ())

    def _value(self, node: Any, place: Place) -> Any:
        self._values += 1
        _check_size(self._values, len(place) + 1, node)
        self.lines.setdefault(place, _line(node))
        if isinstance(node, ScalarNode):
            return _scalar(node)
        if isinstance(node, SequenceNode):
            items = enumerate(cast("Any", node).value)
            return [self._value(item, (*place, at)) for at, item in items]
        values: dict[str, Any] = {}
        for name_node, item in node.value:
            name = self._name(name_node)
            if name in values:
                remedy = f"The first one is in line {self.lines[*place, name]}."
                _reject(f"{name!r} is there twice", remedy, at=name_node)
            self.lines[*place, name] = _line(name_node)
            values[name] = self._value(item, (*place, name))
        return values

    def _name(self, node: Any) -> str:
        found = _scalar(node) if isinstance(node, ScalarNode) else None
        if found == "<<" and not cast("Any", node).style:
            rule = "YAML 1.2 has no merge keys"
            _reject(rule, "Write the fields out.", at=node)
        if not isinstance(found, str):
            _reject("a name is text", "Write it in quotes.", at=node)
        return found


def _line(node: Any) -> int:
    line: int = node.start_mark.line
    return line + 1


def _scalar(node: Any) -> str | int | float | bool | None:
    text: str = node.value
    if UNFIT.search(text):
        _reject("texts hold no control characters but tabs and line ends", at=node)
    if node.style:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    return _number(text, node) if _NUMBER.fullmatch(text) else text


def _number(text: str, node: Any) -> int | float:
    """Read a number, and refuse one that is not finite or has more than 64 bits."""
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    with suppress(ValueError):  # int() refuses fractions and thousands of digits
        number = int(text, base)
        if INT64[0] <= number <= INT64[1]:
            return number
        _reject("it has more than 64 bits", "Write it in quotes.", at=node)
    real = float(text) if text[-1:].isdigit() or text.endswith(".") else math.nan
    if not math.isfinite(real):
        _reject("JSON has no such number", "Write it in quotes.", at=node)
    return real
