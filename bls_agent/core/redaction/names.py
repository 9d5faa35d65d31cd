"""Which names hold secrets, and a quick check whether a text may hold any.

A name is compared without capitals, separators and punctuation: ``X-API-Key``,
``api_key`` and ``apiKey`` are one name. Most texts need only the quick check, which
costs next to nothing; ``patterns.py`` is loaded for the first text that does not pass
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

__all__ = [
    "MARKS",
    "REDACTED",
    "SHAPE_MARKS",
    "SecretNames",
    "Verdict",
    "holds_mark",
    "holds_odd_url",
    "may_name",
    "squeeze",
]

# A name that holds one of these anywhere names a secret.
_LONG: Final = (
    "password", "passwd", "passphrase", "passcode", "secret", "token",
    "apikey", "accesskey", "accountkey", "encryptionkey", "masterkey", "privatekey",
    "sharedkey", "signingkey", "sshkey",
    "authkey", "authorization", "authorisation", "bearer", "cookie", "credential",
    "jwt", "mnemonic", "seedphrase", "sessid", "session",
    "密码", "密钥", "密匙", "秘钥", "私钥", "口令", "令牌", "凭据", "凭证", "验证码",
)  # fmt: skip
# These hide in too many words (shipping, author): they count as a whole word alone.
_SHORT: Final = ("auth", "cvc", "cvv", "otp", "pass", "pin", "psw", "pw", "pwd", "totp")
LONG_ENOUGH: Final = 5  # letters of an own name that may stand anywhere in another one

# Words that hold one of those by chance.
_INNOCENT: Final = "tokeni[sz](?:er|ation|ing|ed)?|secretar|secretion|(?:pos|ob)session"
_TELLS_ABOUT: Final = ("error", "exception", "warning")  # of a secret: prose, no secret
# A number under such a name counts or measures something (max_tokens, session_count).
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

_REMEMBERED: Final = 2_048  # names whose verdict is kept
_REMEMBERED_LENGTH: Final = 100

# For bytes: lower case, letters and digits only.
_LOWER: Final = bytes(range(256)).lower()
_WIDE: Final = re.compile(
    "\xef(?:\xbc[\xa1-\xba]|\xbd[\x81-\x9a])"
)  # U+FF21-3A, FF41-5A
_PUNCTUATION: Final = bytes(c for c in range(128) if not chr(c).isalnum())


class Verdict(IntEnum):
    """What a name means for its value."""

    HARMLESS = 0
    SECRET = 1
    COUNTED = 2  # secret, but a number under it counts something


def _plain(text: str) -> str:
    """Write fullwidth letters (U+FF21 …) and their like as those of ASCII."""
    from unicodedata import normalize  # noqa: PLC0415 - for texts that hold such letters

    return normalize("NFKC", text)


def squeeze(name: str) -> str:
    """Reduce a name to its letters and digits, without capitals."""
    return "".join(filter(str.isalnum, name.casefold()))


class SecretNames:
    """Decides which names hold secrets."""

    def __init__(self, extra: Iterable[str] = ()) -> None:
        names = extra.split(",") if isinstance(extra, str) else extra
        # The user's own names, as they were given.
        self.extra = tuple(name.strip() for name in names if name.strip())
        own = {squeeze(name) for name in self.extra if not name.startswith("-")}
        own.discard("")
        self._own = own
        self._exempt = {squeeze(n) for n in self.extra if n.startswith("-")} - own
        self._own_long = tuple(name for name in own if _may_stand_anywhere(name))
        self._own_short = own.difference(self._own_long)
        self._remembered: dict[str, Verdict] = {}

    @cached_property
    def _search(self) -> _Search:
        """What :meth:`occur_in` looks for: few stems first, then the full names."""
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
        """Decide what a name means for its value; remembers the answer."""
        found = self._remembered.get(name)
        if found is not None:
            return found
        verdict = self._judge(name)
        if len(name) <= _REMEMBERED_LENGTH:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[name] = verdict
        return verdict

    def _judge(self, name: str) -> Verdict:
        if not name.isascii():
            name = _plain(name)
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
        """Tell quickly whether a secret's name may stand anywhere in UTF-8 bytes.

        Never ``False`` where :meth:`judge` would find one; seldom ``True`` for nothing.
        """
        search = self._search
        # Searched as text, a character for each byte: that is five times as fast.
        squeezed = data.translate(_LOWER, _PUNCTUATION).decode("latin-1")
        if not squeezed.isascii():
            if _WIDE.search(squeezed):
                data = _plain(data.decode("utf-8", "replace")).encode()
                squeezed = data.translate(_LOWER, _PUNCTUATION).decode("latin-1")
            if search.has_capitals:  # the table above knows those of A to Z alone
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
    """Tell whether a number under this name may be a count or a measure."""
    return (
        squeezed.startswith(_COUNT_STARTS)
        or squeezed.endswith(_COUNT_ENDS)
        or _holds_one(_FAR_COUNTS, squeezed)
        or not words.isdisjoint(_MEASURES)
        or any(word.endswith(_PLURALS) for word in words)
    )


def _holds_one(words: Iterable[str], text: str) -> bool:
    for word in words:  # noqa: SIM110 - half the time of any()
        if word in text:
            return True
    return False


def _as_bytes(text: str) -> str:
    """Write a text with one character for each byte of its UTF-8 form."""
    return text.encode().decode("latin-1")


def _may_stand_anywhere(name: str) -> bool:
    return len(name) >= LONG_ENOUGH or not name.isascii()


def _as_a_word(word: str) -> str:
    """Write a pattern for a short name standing alone: a_pin, PIN, userPin, p-i-n."""
    first, rest = word[0], r"[\W_]*+".join(["", *word[1:]])
    start = f"(?:(?:(?<![A-Za-z])|(?<=\\\\[nrt]))(?i:{first})|{first.upper()})"
    return f"{start}(?i:{rest})(?![a-z])"


# --- the quick check of a text

REDACTED: Final = "[redacted]"

_Marks: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
# How tokens begin, by a character that is seldom in a text.
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
    ("%", ("%3A%2F%2F", "%3a%2f%2f", "%3D", "%3d")),  # of a URL within a URL
    ("_", ("input_value=",)),
    (",", ("Value error,", "Assertion failed,")),
)
_FAR_SIGN: Final = re.compile(r"[\uff1a\uff1d]")
_DASH: Final = re.compile(r"(?<![\w.\-])--?[A-Za-z]")
# The beginning of a URL that is not simply a host and a port.
_ODD_URL: Final = re.compile(
    r"://(?![^\s\"'</?#\\@:,\[\]]*+(?::[0-9]{1,5})?+(?:[\s\"'</?#\\]|\Z))",
    re.ASCII,  # a character is a byte here
)


def holds_mark(text: str, marks: _Marks) -> bool:
    """Tell whether one of the marks stands in a text."""
    for gate, beginnings in marks:
        if gate in text:
            for beginning in beginnings:
                if beginning in text:
                    return True
    return False


def holds_odd_url(text: str) -> bool:
    """Tell whether a text (a character per byte) may hold a URL with credentials."""
    return "://" in text and ("@" in text or _ODD_URL.search(text) is not None)


def may_name(text: str) -> bool:
    """Tell whether a text may hold a name and its value at all."""
    return (
        ":" in text
        or "=" in text
        or "<" in text
        or "'," in text  # ('password', …)
        or '",' in text
        or not (text.isascii() or _FAR_SIGN.search(text) is None)
        or ("-" in text and _DASH.search(text) is not None)
    )
