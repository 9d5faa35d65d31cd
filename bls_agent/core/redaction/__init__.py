"""What must not leave the process, and how it is taken out of texts and JSON trees.

``names.py``: which names mean a secret, and the quick check; ``patterns.py``: the
closer one.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Final, TypeAlias, cast

from bls_agent.core.redaction.names import (
    MARKS,
    REDACTED,
    SecretNames,
    Verdict,
    holds_mark,
    holds_odd_url,
    may_name,
)

__all__ = ["DEFAULT", "Redactor", "mask_url", "redact", "redact_traceback"]

_Object: TypeAlias = dict[str, object]

LONGEST: Final = 65_536  # characters of a text that are looked at; the rest goes
DEEPEST: Final = 100  # levels of a tree that are looked at; the rest goes

_REMEMBERED: Final = 1_024  # texts that are known to hold nothing
_REMEMBERED_LENGTH: Final = 128
_TINY: Final = 16  # characters of letters and digits that hold no secret's shape
_SHORT: Final = 14  # characters that neither a shape nor a cut one fits into
_PLAIN: Final = frozenset({int, float, bool, NoneType})

_FLAG: Final = r"--?([A-Za-z][\w.\-]*)"
_LABELS: Final = ("name", "key", "field", "header", "Name", "Key")
_LABELLED: Final = ("value", "values", "val", "Value", "input", "ctx", "msg")
_SCHEMA_WORDS: Final = frozenset(
    {
        "type", "anyOf", "allOf", "oneOf", "$ref", "format", "items", "title",
        "description", "minLength", "maxLength", "minimum", "maximum", "pattern",
        "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems", "writeOnly",
    }
)  # fmt: skip


class Redactor:
    """Takes secrets out of texts and JSON trees; may be used from any thread.

    ``extra`` are more names that hold secrets, such as ``员工号`` or ``card_number``; one
    that begins with ``-`` exempts exactly that name: ``-session_id``.
    """

    def __init__(self, extra: Iterable[str] = ()) -> None:
        self._names = SecretNames(extra)
        self._harmless: set[str] = set()
        self._harmless_names: set[str] = set()

    def __repr__(self) -> str:
        return f"Redactor({self.extra!r})"

    @property
    def extra(self) -> tuple[str, ...]:
        """The names that were given."""
        return self._names.extra

    def is_secret(self, name: str) -> bool:
        """Tell whether a value under this name is a secret."""
        return self._names.judge(name) is not Verdict.HARMLESS

    def text(self, text: str) -> str:
        """Take the secrets out of a text; one without any is given back as it is."""
        if text in self._harmless:
            return text
        names = may_name(text)
        if not names and len(text) < _SHORT:
            return text
        if len(text) > LONGEST:
            text = text[: LONGEST - 1] + "…"
        if holds_mark(text, MARKS) or (names and self.suspects(_bytes_of(text))):
            return _look_closer(text, self._names)
        self._remember(text)
        return text

    def _remember(self, text: str) -> None:
        """Cache a text that holds no secret: messages are mostly the same few."""
        if len(text) <= _REMEMBERED_LENGTH:
            if len(self._harmless) >= _REMEMBERED:
                self._harmless.clear()
            self._harmless.add(text)

    def suspects(self, payload: bytes) -> bool:
        """Tell whether UTF-8 bytes, a text or JSON, need a closer look at all.

        Never ``False`` where there is a secret to take out.
        """
        text = payload.decode("latin-1")  # a character for each byte
        if holds_mark(text, MARKS) or holds_odd_url(text):
            return True
        return self._names.occur_in(payload)

    def finds_nothing_in(self, metadata: Mapping[str, object]) -> bool:
        """Tell quickly that flat metadata holds no secret; ``False``: look closer."""
        harmless = self._harmless_names
        for name, value in metadata.items():
            if type(name) is not str:
                return False
            if type(value) is str:
                if not (len(value) < _TINY and value.isalnum()) and (
                    self.text(value) is not value
                ):
                    return False
            elif type(value) not in _PLAIN:
                return False
            if name not in harmless and not self._is_harmless(name):
                return False
        return True

    def _is_harmless(self, name: str) -> bool:
        if self.is_secret(name) or self.text(name) is not name:
            return False
        if len(name) <= _REMEMBERED_LENGTH:
            if len(self._harmless_names) >= _REMEMBERED:
                self._harmless_names.clear()
            self._harmless_names.add(name)
        return True

    def tree(self, value: object) -> object:
        """Take the secrets out of a decoded JSON value, keys included."""
        return self._tree(value, 0)

    def _tree(self, value: object, depth: int) -> object:
        if isinstance(value, str):
            return self.text(value)
        if not isinstance(value, dict | list):
            return value
        if depth >= DEEPEST:
            return "<too deep>"
        if isinstance(value, list):
            items = cast("list[object]", value)
            return self._pair(items) or self._list(items, depth + 1)
        return self._object(cast("_Object", value), depth + 1)

    def _object(self, fields: _Object, depth: int) -> _Object:
        kept: _Object = {}
        labelled = self._says_of_a_secret(fields)
        is_schema = fields.get("type") == "object"
        for name, value in fields.items():
            verdict = self._names.judge(name)
            if labelled and name in _LABELLED:
                verdict = Verdict.SECRET
            if verdict:
                kept[self.text(name)] = _hide(value, verdict)
            elif is_schema and name == "properties" and isinstance(value, dict):
                kept[name] = self._properties(cast("_Object", value), depth)
            else:
                kept[self.text(name)] = self._tree(value, depth)
        return kept

    def _says_of_a_secret(self, fields: _Object) -> bool:
        """Tell whether ``{"name": "DB_PASSWORD", "value": …}`` has a secret value.

        So have the errors that pydantic lists: the input, and what they say of it.
        """
        labels = [fields.get(label) for label in _LABELS]
        place = fields.get("loc")
        if isinstance(place, list):
            labels += cast("list[object]", place)
        return any(isinstance(label, str) and self.is_secret(label) for label in labels)

    def _properties(self, properties: _Object, depth: int) -> _Object:
        """Keep what a JSON Schema says of parameters named like a secret."""
        kept = cast("_Object", self._tree(properties, depth))
        for name, schema in properties.items():
            if self.is_secret(name) and isinstance(schema, dict):
                kept[self.text(name)] = {
                    self.text(word): self._tree(part, depth + 1)
                    if word in _SCHEMA_WORDS
                    else REDACTED
                    for word, part in cast("_Object", schema).items()
                }
        return kept

    def _list(self, items: list[object], depth: int) -> list[object]:
        """Redact the items, also of ``["--password", …]``."""
        kept: list[object] = []
        after_flag = False
        for item in items:
            if after_flag and isinstance(item, str) and not item.startswith("-"):
                kept.append(REDACTED)
            else:
                kept.append(self._tree(item, depth))
            flag = re.fullmatch(_FLAG, item) if isinstance(item, str) else None
            after_flag = flag is not None and self.is_secret(flag[1])
        return kept

    def _pair(self, pair: list[object]) -> list[object] | None:
        """Redact a name and its value in a list of two."""
        if len(pair) != 2 or not isinstance(pair[0], str):  # noqa: PLR2004 - a pair
            return None
        verdict = self._names.judge(pair[0])
        return [self.text(pair[0]), _hide(pair[1], verdict)] if verdict else None


def _look_closer(text: str, names: SecretNames) -> str:
    from bls_agent.core.redaction.patterns import redact_text  # noqa: PLC0415 - 5 ms of patterns

    return redact_text(text, names.judge)


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hide(value: object, verdict: Verdict) -> object:
    """Give the stand-in of a secret's value; it shows whether there is a value."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        from bls_agent.core.redaction.patterns import is_kept  # noqa: PLC0415 - as above

        return value if is_kept(value, verdict) else REDACTED
    if verdict is Verdict.COUNTED and _counts_only(value, 0):
        return value
    return REDACTED


def _counts_only(value: object, depth: int) -> bool:
    if isinstance(value, dict):
        value = list(cast("_Object", value).values())
    if isinstance(value, list) and depth < DEEPEST:
        items = cast("list[object]", value)
        return all(_counts_only(item, depth + 1) for item in items)
    return value is None or isinstance(value, int | float)


DEFAULT: Final = Redactor()  # the built-in names alone


def redact(text: str) -> str:
    """Take the secrets out of a text that is shown in an error; never raises."""
    return DEFAULT.text(text)


def redact_traceback(error: BaseException) -> str:
    """Write an exception with its traceback for the host's log; never raises."""
    try:
        lines = traceback.format_exception(error)
    except Exception as failure:  # noqa: BLE001 - a foreign __str__
        return f"{type(error).__name__}, whose text raised {type(failure).__name__}"
    return redact("".join(lines)).rstrip()


def mask_url(url: str) -> str:
    """Replace the credentials of a URL by ``***``, also where the URL is broken.

    Everything before the last ``@`` may be a password, whatever is in it.
    """
    head, at, place = url.rpartition("@")
    place = re.split(r"[?#]", place, maxsplit=1)[0]
    if not at:
        return place
    found = re.match(r"([\w+]+://)?(?:([\w.-]+):)?", head)
    scheme, user = (found[1] or "", found[2] or "") if found else ("", "")
    return f"{scheme}{user}{':' if user else ''}***@{place}"
