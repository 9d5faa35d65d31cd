"""Finds and removes secrets, because secrets must not leave the process.

Names are compared without capitals, separators and punctuation, so that ``X-API-Key``,
``x_api_key`` and ``xApiKey`` are equal. A quick check finds out that most texts hold no
secret. The first text for which the quick check is not enough loads ``patterns.py``.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from enum import IntEnum
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias, cast
from unicodedata import normalize

# A name that contains one of these words names a secret.
_LONG: Final = (
    "password", "passwd", "passphrase", "passcode", "secret", "token",
    "apikey", "accesskey", "accountkey", "encryptionkey", "masterkey", "privatekey",
    "sharedkey", "signingkey", "sshkey",
    "authkey", "authorization", "authorisation", "bearer", "cookie", "credential",
    "jwt", "mnemonic", "seedphrase", "sessid", "session",
    "密码", "密钥", "密匙", "秘钥", "私钥", "口令", "令牌", "凭据", "凭证", "验证码",
)  # fmt: skip
# These name a secret only as a whole word, because other words contain them (shipping).
_SHORT: Final = ("auth", "cvc", "cvv", "otp", "pass", "pin", "psw", "pw", "pwd", "totp")
# A name of a secret that the user adds also counts inside of longer names, if it has at
# least so many letters.
LONG_ENOUGH: Final = 5

# Harmless words that contain a secret word by chance.
_INNOCENT: Final = "tokeni[sz](?:er|ation|ing|ed)?|secretar|secretion|(?:pos|ob)session"
# Endings of names whose value is a sentence about a secret, but not the secret.
_TELLS_ABOUT: Final = ("error", "exception", "warning")
# A number under a name with one of these words is a count or a measure (max_tokens).
_MEASURES: Final = frozenset(
    {
        "age", "attempts", "avg", "budget", "cost", "count", "counts", "duration",
        "expires", "expiry", "index", "interval", "length", "limit", "max", "mean",
        "min", "ms", "num", "quota", "rate", "remaining", "retries", "seconds", "size",
        "timeout", "total", "ttl", "usage", "used", "version",
    }
)  # fmt: skip
_COUNT_STARTS: Final = ("max", "min", "num", "total")
_COUNT_ENDS: Final = ("count", "length", "limit", "size", "timeout", "ttl")
_FAR_COUNTS: Final = ("数", "量", "长度", "上限")
_PLURALS: Final = (
    "cookies", "credentials", "keys", "passwords", "secrets", "sessions", "tokens",
)  # fmt: skip
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")

_REMEMBERED_NAMES: Final = 2_048  # names whose verdict is cached
_REMEMBERED_LENGTH: Final = 128

# Used to reduce bytes to lower-case letters and digits.
_LOWER: Final = bytes(range(256)).lower()
_WIDE: Final = re.compile(
    "\xef(?:\xbc[\xa1-\xba]|\xbd[\x81-\x9a])"
)  # fullwidth letters in UTF-8: U+FF21-3A, FF41-5A
_PUNCTUATION: Final = bytes(c for c in range(128) if not chr(c).isalnum())
# Two backslashes are one character, so the second one begins no line break.
_ESCAPED_BLANK: Final = re.compile(rb"\\[\\nrtbf]")
# A name in JSON that holds such a character in its last 80 bytes.
_BLANK_IN_NAME: Final = re.compile(rb'\\[nrtbf][^"]{0,80}"\s*:')


class Verdict(IntEnum):
    """Whether the value under a name is a secret."""

    HARMLESS = 0
    SECRET = 1
    COUNTED = 2  # a secret, unless the value is a number: then the value is a count


def squeeze(name: str) -> str:
    """Reduce a name to lower-case letters and digits: ``X-API-Key`` → ``xapikey``."""
    return "".join(filter(str.isalnum, name.casefold()))


def _forms_of(names: Iterable[str]) -> set[str]:
    """Return squeezed names, as given and as :meth:`SecretNames.judge` reads them."""
    forms = ((name, normalize("NFKC", name)) for name in names)
    return {squeeze(form) for pair in forms for form in pair} - {""}


class SecretNames:
    """Decides which names hold secrets, by built-in names and names of the user."""

    def __init__(self, extra: Iterable[str] = ()) -> None:
        names = extra.split(",") if isinstance(extra, str) else extra
        # The names that the user has passed, without surrounding blanks.
        self.extra: tuple[str, ...] = tuple(
            name.strip() for name in names if name.strip()
        )
        own = _forms_of(name for name in self.extra if not name.startswith("-"))
        self._own = own
        self._exempt = _forms_of(n for n in self.extra if n.startswith("-")) - own
        self._own_long = tuple(
            name for name in own if len(name) >= LONG_ENOUGH or not name.isascii()
        )
        self._own_short = own.difference(self._own_long)
        self._remembered = lru_cache(_REMEMBERED_NAMES)(self._judge)

    @cached_property
    def _search(self) -> _Search:
        """The words that :meth:`occur_in` searches; few short ``stems`` come first."""
        short = sorted({*_SHORT, *self._own_short})
        long = {*_LONG, *self._own_long}
        stems = {"key" if word.endswith("key") else word for word in (*long, *short)}
        fewest = {s for s in stems if not any(o != s and o in s for o in stems)}
        far = [word for word in fewest if not word.isascii()]
        return _Search(
            stems=sorted(word for word in fewest if word.isascii()),
            far_stems=[_as_bytes(word) for word in far],
            has_capitals=any(word != word.upper() for word in far),
            long=sorted(word for word in long if word.isascii()),
            short=re.compile("|".join(map(_as_a_word, short)).encode()),
        )

    def judge(self, name: str) -> Verdict:
        """Decide whether the value under a name is a secret."""
        return (self._judge if len(name) > _REMEMBERED_LENGTH else self._remembered)(
            name
        )

    def _judge(self, name: str) -> Verdict:
        if not name.isascii():  # fullwidth letters (U+FF21 …) and similar forms
            name = normalize("NFKC", name)
        squeezed = squeeze(name)
        if not squeezed or squeezed in self._exempt:
            return Verdict.HARMLESS
        if squeezed in self._own or any(own in squeezed for own in self._own_long):
            return Verdict.SECRET
        words = {word.lower() for word in _WORDS.findall(name)}
        if not self._own_short.isdisjoint(words):
            return Verdict.SECRET
        if squeezed.endswith(_TELLS_ABOUT) or not (
            (
                _holds_one(_LONG, squeezed)
                and _holds_one(_LONG, re.sub(_INNOCENT, "", squeezed))
            )
            or squeezed in _SHORT
            or not words.isdisjoint(_SHORT)
        ):
            return Verdict.HARMLESS
        return Verdict.COUNTED if _counts(squeezed, words) else Verdict.SECRET

    def occur_in(self, data: bytes) -> bool:
        """Return ``False`` only if UTF-8 bytes surely hold no name of a secret."""
        search = self._search
        if b"\\" in data and _BLANK_IN_NAME.search(data):
            data += _ESCAPED_BLANK.sub(b" ", data)
        # A search in text with a character for each byte is 5 times as fast as in
        # bytes.
        squeezed = data.translate(_LOWER, _PUNCTUATION).decode("latin-1")
        if not squeezed.isascii():
            if _WIDE.search(squeezed):
                data = normalize("NFKC", data.decode("utf-8", "replace")).encode()
                squeezed = data.translate(_LOWER, _PUNCTUATION).decode("latin-1")
            if search.has_capitals:  # _LOWER converts only the capitals A to Z
                squeezed = _as_bytes(squeeze(data.decode("utf-8", "replace")))
            if _holds_one(search.far_stems, squeezed):
                return True
            squeezed = squeezed.encode("ascii", "ignore").decode()
        if not _holds_one(search.stems, squeezed):
            return False
        return (
            _holds_one(search.long, squeezed) or search.short.search(data) is not None
        )


class _Search(NamedTuple):
    stems: list[str]
    far_stems: list[str]
    has_capitals: bool
    long: list[str]
    short: re.Pattern[bytes]


def _counts(squeezed: str, words: set[str]) -> bool:
    """Return whether a number under this name is a count, as in ``max_tokens``."""
    return (
        squeezed.startswith(_COUNT_STARTS)
        or squeezed.endswith(_COUNT_ENDS)
        or _holds_one(_FAR_COUNTS, squeezed)
        or not words.isdisjoint(_MEASURES)
        or any(word.endswith(_PLURALS) for word in words)
    )


def _holds_one(words: Iterable[str], text: str) -> bool:
    for word in words:  # noqa: SIM110 - takes half the time of any()
        if word in text:
            return True
    return False


def _as_bytes(text: str) -> str:
    """Return a text with one character for each byte of the UTF-8 form."""
    return text.encode().decode("latin-1")


def _as_a_word(word: str) -> str:
    """Return a pattern that finds a short name as a whole word: a_pin, PIN, userPin."""
    first, rest = word[0], r"[\W_]*+".join(["", *word[1:]])
    start = f"(?:(?:(?<![A-Za-z])|(?<=\\\\[nrt]))(?i:{first})|{first.upper()})"
    return f"{start}(?i:{rest})(?![a-z])"


# --- the quick check of a text

GIT_USER: Final = "git"  # the user of SSH URLs, which is no secret
REDACTED: Final = "[redacted]"

_Marks: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
# Beginnings of tokens, grouped by a character that they contain. A text without this
# rare character is not searched for the group.
SHAPE_MARKS: Final[_Marks] = (
    ("_", ("ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_", "k_live_", "k_test_",
           "npm_")),
    ("-", ("glpat-", "xox", "sk-", "-----BEGIN")),
    ("A", ("AKIA", "ASIA", "AKID", "LTAI", "AIza")),
    ("J", ("eyJ",)),
    (" ", ("earer ", "Basic ")),
)  # fmt: skip
MARKS: Final[_Marks] = (
    *SHAPE_MARKS,
    ("\\", ("\\x", "\\u", "\\/")),  # a name or a URL may be written with escapes
    ("%", ("%3A%2F%2F", "%3a%2f%2f", "%3D", "%3d")),  # a URL encoded within another URL
    ("_", ("input_value=",)),
    (",", ("Value error,", "Assertion failed,")),
)
_FAR_SIGN: Final = re.compile(r"[\uff1a\uff1d]")
_DASH: Final = re.compile(r"(?<![\w.\-])--?[A-Za-z]")
# Matches a URL that has more than a host and a port before its path.
_ODD_URL: Final = re.compile(
    r"://(?![^\s\"'</?#\\@:,\[\]]*+(?::[0-9]{1,5})?+(?:[\s\"'</?#\\]|\Z))",
    re.ASCII,  # each character stands for a byte
)


def holds_mark(text: str, marks: _Marks) -> bool:
    for gate, beginnings in marks:
        if gate in text:
            for beginning in beginnings:
                if beginning in text:
                    return True
    return False


def _may_name(text: str) -> bool:
    """Return ``False`` only if a text surely holds no name with a value."""
    return (
        ":" in text
        or "=" in text
        or "<" in text
        or "'," in text  # ('password', …)
        or '",' in text
        or not (text.isascii() or _FAR_SIGN.search(text) is None)
        or ("-" in text and _DASH.search(text) is not None)
    )


# --- removing secrets from texts and JSON values

_Object: TypeAlias = dict[str, object]

LONGEST: Final = 65_536  # characters of a text that are kept and checked
DEEPEST: Final = 100  # levels of a JSON value that are kept and checked

_REMEMBERED: Final = 1_024  # cached texts that hold no secret
_SHORT_TEXT: Final = 14  # shorter texts hold no token, not even a truncated one

_FLAG: Final = r"--?([A-Za-z][\w.\-]*)"
_LABELS: Final = ("name", "key", "field", "header", "Name", "Key")
_LABELLED: Final = ("value", "values", "val", "Value", "input", "ctx", "msg")
# Words of a JSON Schema that only describe a parameter. Any other word, such as
# ``default``, may hold a secret value of the parameter.
_SCHEMA_WORDS: Final = frozenset(
    {
        "type", "anyOf", "allOf", "oneOf", "$ref", "format", "items", "title",
        "description", "minLength", "maxLength", "minimum", "maximum", "pattern",
        "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems", "writeOnly",
    }
)  # fmt: skip


class Redactor:
    """Removes secrets from texts and JSON values; any thread may use it.

    ``extra`` lists more names of secrets, such as ``员工号`` or ``card_number``. An entry
    ``-session_id`` means that a value named exactly ``session_id`` is no secret.
    """

    def __init__(self, extra: Iterable[str] = ()) -> None:
        self._names = SecretNames(extra)
        self._harmless: set[str] = set()

    def __repr__(self) -> str:
        return f"Redactor({self.extra!r})"

    @property
    def extra(self) -> tuple[str, ...]:
        """The names that the user has passed."""
        return self._names.extra

    def is_secret(self, name: str) -> bool:
        """Return whether a value under this name is a secret."""
        return self._names.judge(name) is not Verdict.HARMLESS

    def text(self, text: str) -> str:
        """Return a text without its secrets; if there are none, the same object."""
        if text in self._harmless:
            return text
        names = _may_name(text)
        if not names and len(text) < _SHORT_TEXT:
            return text
        if len(text) > LONGEST:
            text = text[: LONGEST - 1] + "…"
        if holds_mark(text, MARKS) or (
            names and self.suspects(text.encode("utf-8", "surrogatepass"))
        ):
            shown: str = _patterns().redact_text(text, self._names.judge)
            return text if shown == text else shown
        _remember(self._harmless, text)
        return text

    def suspects(self, payload: bytes) -> bool:
        """Return ``False`` only if UTF-8 bytes surely hold no secret."""
        text = payload.decode("latin-1")  # a character for each byte
        if holds_mark(text, MARKS):
            return True
        if "://" in text and ("@" in text or _ODD_URL.search(text)):
            return True
        return self._names.occur_in(payload)

    def tree(self, value: object) -> object:
        """Return a decoded JSON value without the secrets in its values and keys."""
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
        """Return whether one field of an object contains the name of a secret.

        Then another field contains the secret itself, as in ``{"name": "DB_PASSWORD",
        "value": …}``. An error of pydantic has the name in ``loc`` and the secret in
        ``input``.
        """
        labels = [fields.get(label) for label in _LABELS]
        place = fields.get("loc")
        if isinstance(place, list):
            labels += cast("list[object]", place)
        return any(isinstance(label, str) and self.is_secret(label) for label in labels)

    def _properties(self, properties: _Object, depth: int) -> _Object:
        """Redact the parameters of a JSON Schema, but keep their types and limits."""
        kept = cast("_Object", self._tree(properties, depth))
        for name, schema in properties.items():
            if self.is_secret(name) and isinstance(schema, dict):
                form = self._object(cast("_Object", schema), depth + 1)
                values = dict.fromkeys(form.keys() - _SCHEMA_WORDS, REDACTED)
                kept[self.text(name)] = form | values
        return kept

    def _list(self, items: list[object], depth: int) -> list[object]:
        """Redact the items of a list, also an item that follows ``"--password"``."""
        kept: list[object] = []
        verdict = Verdict.HARMLESS  # about the value of the flag before this item
        for item in items:
            text = item if isinstance(item, str) else ""
            if verdict and not text.startswith("-"):
                kept.append(_hide(item, verdict))
            else:
                kept.append(self._tree(item, depth))
            flag = re.fullmatch(_FLAG, text)
            verdict = self._names.judge(flag[1]) if flag else Verdict.HARMLESS
        return kept

    def _pair(self, pair: list[object]) -> list[object] | None:
        """Redact a list of a secret's name and its value; ``None`` for other lists."""
        if len(pair) != 2 or not isinstance(pair[0], str):  # noqa: PLR2004 - a pair has two items
            return None
        verdict = self._names.judge(pair[0])
        return [self.text(pair[0]), _hide(pair[1], verdict)] if verdict else None


def _remember(harmless: set[str], text: str) -> None:
    """Cache a text that holds no secret, because programs log the same texts often."""
    if len(text) <= _REMEMBERED_LENGTH:
        if len(harmless) >= _REMEMBERED:
            harmless.clear()
        harmless.add(text)


def _patterns() -> Any:
    """Load ``patterns`` late, because the import takes 5 ms and would be circular."""
    return import_module(f"{__name__}.patterns")


def _hide(value: object, verdict: Verdict) -> object:
    """Return the value to show instead of a secret: values that reveal nothing stay."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if _patterns().is_kept(value, verdict) else REDACTED
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


DEFAULT: Final = Redactor()  # with the built-in names only


def redact(text: str) -> str:
    """Return a text without its secrets; never raise, because errors call this."""
    return DEFAULT.text(text)


def redact_traceback(error: BaseException) -> str:
    """Return an exception and its traceback as redacted text; never raise."""
    try:
        lines = traceback.format_exception(error)
    except Exception as failure:  # noqa: BLE001 - a __str__ may raise anything
        return f"{type(error).__name__}, whose text raised {type(failure).__name__}"
    return redact("".join(lines)).rstrip()


def mask_url(url: str) -> str:
    """Return a URL, even a malformed one, with ``***`` instead of its credentials.

    Everything before the last ``@`` counts as credentials, because a password may hold
    any character. A user before ``:`` stays, and so does ``git``, the user of all Git
    servers, because these names are no secrets.
    """
    head, at, place = url.rpartition("@")
    place = re.split(r"[?#]", place, maxsplit=1)[0]
    if not at:
        return place
    if head in (GIT_USER, f"ssh://{GIT_USER}"):
        return f"{head}@{place}"
    found = re.match(r"([\w+]+://)?(?:([\w.-]+):)?", head)
    scheme, user = (found[1] or "", found[2] or "") if found else ("", "")
    return f"{scheme}{user}{':' if user else ''}***@{place}"
