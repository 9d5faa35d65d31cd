"""Values from untrusted YAML texts. No I/O.

YAML is read by the core schema of YAML 1.2 and nothing beyond it: ``no`` and ``12:30``
are texts, there are no tags, no merge keys, no dates, so that every value is one that
JSON has. An alias counts with everything that it stands for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn, TypeAlias, cast

from bls_agent.core.errors import MissingExtraError

try:
    from ruamel.yaml import YAML, events
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.scanner import Scanner
except ModuleNotFoundError:
    raise MissingExtraError("assets", "reading YAML") from None

__all__ = ["MAX_BYTES", "UNFIT", "Place", "YamlFault", "YamlReader"]

Place: TypeAlias = tuple[str | int, ...]

MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 64
MAX_NODES: Final = 10_000
MAX_ALIASES: Final = 100
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
    """Ends the reading of a text: the rule, the remedy, the line from 1, or 0."""

    def __init__(self, reason: str, remedy: str, line: int) -> None:
        super().__init__(reason)
        self.reason, self.remedy, self.line = reason, remedy, line


def _reject(
    reason: str, remedy: str = "", *, line: int = 0, at: Any = None
) -> NoReturn:
    """Raise the fault of a text, with the line of an event, if any."""
    raise YamlFault(reason, remedy, _line(at) if at else line)


class _Scanner(Scanner):
    """Refuses too many brackets: it goes through all open ones at each token."""

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803 - ruamel's
        if self.flow_level > MAX_DEPTH:
            _reject(_TOO_DEEP, line=cast("Any", self).reader.line + 1)
        super().fetch_flow_collection_start(TokenClass, to_push)  # pyright: ignore[reportUnknownMemberType] - untyped


class _Node:
    """A value with the number of its values and levels, itself counted in."""

    __slots__ = ("height", "size", "value")

    def __init__(self, value: Any, size: int = 1, height: int = 1) -> None:
        self.value, self.size, self.height = value, size, height


class YamlReader:
    """Makes values of a YAML text, by the core schema of YAML 1.2.

    It consumes the parser's events: a limit ends the work where it is reached, before
    anything large is built.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._anchors: dict[str, _Node] = {}
        self._aliases = self._nodes = 0
        # Where each value begins, by its place; the root is ``()``.
        self.lines: dict[Place, int] = {}

    def read(self) -> Any:
        """Read the only document; YamlFault if it is none, or breaks a limit."""
        if len(self._content) > MAX_BYTES:
            _reject(f"a manifest has at most {MAX_BYTES // 1024} KB")
        try:
            text = self._content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = self._content.count(b"\n", 0, error.start) + 1
            _reject("it is no UTF-8", "Save it as UTF-8.", line=line)
        try:
            yaml: Any = YAML(typ="safe", pure=True)
            yaml.Scanner = _Scanner
            self._events = iter(yaml.parse(text))
            return self._document()
        except YamlFault:
            raise
        except MarkedYAMLError as error:
            found: Any = error
            mark = found.problem_mark or found.context_mark
            remedy = "Indent with blanks, and quote texts with special characters."
            said = f"it is no YAML: {found.problem or found.context}"
            _reject(said, remedy, line=mark.line + 1 if mark else 0)
        except Exception as error:  # noqa: BLE001 - whatever the parser meets in there
            said = str(error).partition("\n")[0][:200]
            _reject(f"it is no YAML: {said}")

    def _document(self) -> Any:
        next(self._events)  # the stream begins
        if isinstance(next(self._events), events.StreamEndEvent):
            _reject("the file is empty")
        value = self._node(next(self._events), ()).value
        next(self._events)  # the document ends
        event = next(self._events)
        if not isinstance(event, events.StreamEndEvent):
            _reject("a file holds one manifest", "Split it.", at=event)
        return value

    def _node(self, event: Any, place: Place) -> _Node:
        self.lines.setdefault(place, _line(event))
        if _is(event, events.AliasEvent):
            return self._alias(event, place)
        if event.tag is not None:
            _reject("tags are not allowed", "Remove it.", at=event)
        self._count(1, len(place) + 1, event)
        if _is(event, events.ScalarEvent):
            node = _Node(_scalar(event))
        elif _is(event, events.SequenceStartEvent):
            node = self._sequence(place)
        else:
            node = self._mapping(place)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _count(self, nodes: int, depth: int, event: Any) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            rule = f"a manifest holds at most {MAX_NODES:,} values, aliases written out"
            _reject(rule, at=event)
        if depth > MAX_DEPTH:
            _reject(_TOO_DEEP, at=event)

    def _alias(self, event: Any, place: Place) -> _Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            rule = f"*{event.anchor} stands for nothing that ends before it"
            _reject(rule, at=event)
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            rule = f"a manifest holds at most {MAX_ALIASES} aliases"
            _reject(rule, at=event)
        self._count(node.size, len(place) + node.height, event)
        return node

    def _sequence(self, place: Place) -> _Node:
        items: list[_Node] = []
        while not isinstance(event := next(self._events), events.SequenceEndEvent):
            items.append(self._node(event, (*place, len(items))))
        return _joined([item.value for item in items], items)

    def _mapping(self, place: Place) -> _Node:
        items: dict[str, _Node] = {}
        while not isinstance(event := next(self._events), events.MappingEndEvent):
            name = self._name(event)
            if name in items:
                remedy = f"The first one is in line {self.lines[*place, name]}."
                _reject(f"{name!r} is there twice", remedy, at=event)
            self.lines[*place, name] = _line(event)
            items[name] = self._node(next(self._events), (*place, name))
        values = {name: item.value for name, item in items.items()}
        return _joined(values, list(items.values()))

    def _name(self, event: Any) -> str:
        found = _scalar(event) if _is(event, events.ScalarEvent) else None
        if found is not None and event.tag is not None:
            _reject("tags are not allowed", "Remove it.", at=event)
        if found == "<<" and not event.style:
            rule = "YAML 1.2 has no merge keys"
            _reject(rule, "Write the fields out.", at=event)
        if not isinstance(found, str):
            _reject("a name is text", "Write it in quotes.", at=event)
        return found


def _joined(value: Any, items: Sequence[_Node]) -> _Node:
    size = 1 + sum(item.size for item in items)
    return _Node(value, size, 1 + max((item.height for item in items), default=0))


def _is(event: object, kind: type) -> bool:
    """Check without narrowing: the library's types are only half known."""
    return isinstance(event, kind)


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1


def _scalar(event: Any) -> str | int | float | bool | None:
    """Give the value of a scalar as the core schema has it."""
    text: str = event.value
    if UNFIT.search(text):
        _reject("texts hold no control characters but tabs and line ends", at=event)
    if event.style:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    return _number(text, event) if _NUMBER.fullmatch(text) else text


def _number(text: str, event: Any) -> int | float:
    """Read a number that JSON can hold and every reader gets back unchanged."""
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    with suppress(ValueError):  # no integer, or thousands of digits
        number = int(text, base)
        if INT64[0] <= number <= INT64[1]:
            return number
        _reject("it has more than 64 bits", "Write it in quotes.", at=event)
    real = float(text) if text[-1:].isdigit() or text.endswith(".") else math.nan
    if not math.isfinite(real):
        _reject("JSON has no such number", "Write it in quotes.", at=event)
    return real
