r"""Removes secrets from free text: credentials in URLs, ``name=value`` pairs, tokens.

Scanning takes linear time, because every pattern is possessive or bounded. If the end
of a value is missing, the value reaches to the end of the text, because the text may be
truncated. If a text can be read in two ways, the way that removes more is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from bls_agent.core.redaction import (
    GIT_USER,
    REDACTED,
    SHAPE_MARKS,
    Verdict,
    holds_mark,
)

_Judge: TypeAlias = Callable[[str], Verdict]

_KEPT: Final = re.compile(
    r"(?:[Nn]one|null|nil|[Tt]rue|[Ff]alse|undefined|\*+|\[redacted\])?"
    # Texts of this package about the type of an argument, which contain no value.
    r"|is missing|is not known|must be (?:a|an|null)\b[a-z ,]*"
)
_NUMBERS: Final = re.compile(
    r"[-+]?[0-9][0-9.,_/]*+(?:[eE][-+]?[0-9]+|ms|[smhdkKMGB%])?"
    r"|[\[{(](?:[-+0-9.,\s\[\]{}()]|[\"']\w*+[\"']\s*+:|(?i:true|false|null|none))*+"
)


def is_kept(value: str, verdict: Verdict) -> bool:
    """Return whether a text after a secret's name is harmless, so that it may stay."""
    if _KEPT.fullmatch(value):
        return True
    return verdict is Verdict.COUNTED and _NUMBERS.fullmatch(value) is not None


def redact_text(text: str, judge: _Judge) -> str:
    """Return a text without its secrets; ``judge`` decides which names hold secrets."""
    if "-----BEGIN" in text:
        text = _KEY_BLOCK.sub(REDACTED, text)
    text = _redact_urls(text)
    if "%" in text:
        text = _ENCODED_URL.sub(_redact_encoded, text)
    if "\n  " in text:
        text = _REASON_OF_PLACE.sub(lambda found: _redact_input(found, judge), text)
    text = _redact_values(text, judge)
    if "<" in text:
        text = _TAG.sub(lambda found: _redact_tag(found, judge), text)
    if "<![CDATA[" in text:
        text = _CDATA.sub(lambda found: _redact_tag(found, judge), text)
    return _SHAPES.sub(REDACTED, text) if holds_mark(text, SHAPE_MARKS) else text


# --- secrets that are known by their form: key blocks, tokens

_CUT: Final = "\u2026"  # "…", the last character of a truncated text
# Punctuation that ends a value in Chinese prose, and "…".
_END_MARKS: Final = (
    r"\u3001\u3002\u300b\u300d\u300f\u3011\uff01\uff09\uff0c\uff1b\uff1f\u2026"
)

_KEY_BLOCK: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_SHAPES: Final = re.compile(
    r"""
    (?<![A-Za-z0-9])(?:
        gh[oprsu]_[A-Za-z0-9]{16,} | github_pat_[A-Za-z0-9_]{16,}    # GitHub
      | glpat-[A-Za-z0-9_\-]{16,}                                    # GitLab
      | xox[a-z]-[A-Za-z0-9\-]{10,}                                  # Slack
      | sk-(?=[A-Za-z0-9_\-]{0,60}[0-9])[A-Za-z0-9_\-]{16,}          # language models
      | [rs]k_(?:live|test)_[A-Za-z0-9]{10,}                         # Stripe
      | (?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])                     # Amazon
      | LTAI[A-Za-z0-9]{12,26}(?![A-Za-z0-9])                        # Alibaba
      | AKID[A-Za-z0-9]{32}(?![A-Za-z0-9])                           # Tencent
      | AIza[A-Za-z0-9_\-]{35}                                       # Google
      | npm_[A-Za-z0-9]{36}
      | (?:gh[oprsu]_|github_pat_|glpat-|xox[a-z]-|AKIA|sk-(?=[^\s]{0,16}[0-9]))
        [A-Za-z0-9_\-]{4,20}(?=\u2026?\Z)                             # cut off
    )
    | (?<![A-Za-z0-9_\-])eyJ[A-Za-z0-9_\-]{8,}+
      (?: (?:\.[A-Za-z0-9_\-]{4,}+){1,2}\.? | \.? (?=\u2026?\Z) )     # JSON Web Token
    | (?<=[Bb]earer\ )(?=[^\s]{0,60}[0-9])[A-Za-z0-9._~+/=\-]{8,}
    | (?<=Basic\ )(?=[^\s]{0,60}[0-9=])[A-Za-z0-9+/]{8,}={0,2}
    """,
    re.VERBOSE,
)


# --- URLs

_SLASHES: Final = re.compile(r":(?://|\\/\\/)")
_URL_REST: Final = re.compile(rf"[^\s\"'<{_END_MARKS}]*")
_AUTHORITY: Final = re.compile(rf"[^\s\"'</?#\\{_END_MARKS}]*")
_HOST: Final = r"(?:[^:@,\[\]]*+|\[[^\[\]@]*+\])(?::[0-9]{0,5}(?![0-9]))?"
_HOSTS: Final = re.compile(rf"{_HOST}(?:,{_HOST})*+[.,;:!)\]}}>`\uff1a]*")
_LATER_AT: Final = re.compile(r"[^\n@]{0,256}@(?=[\w.\[\-])")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*\Z")
_SCHEME_LENGTH: Final = 20
_ENCODED_URL: Final = re.compile(rf"(%3A%2F%2F|%3a%2f%2f)([^\s\"'<{_END_MARKS}]*+)")
_ENCODED_PASSWORD: Final = re.compile(r"%3[aA](?![0-9]{1,5}(?:%2[fF]|&|\Z)|%|\Z)")
# Schemes of URLs whose paths may hold an @ that is not the end of credentials.
_WEB: Final = frozenset({"http", "https", "ws", "wss", "file", "data"})


def _redact_urls(text: str) -> str:
    """Replace user and password in every URL by ``***``.

    Everything before the last ``@`` counts as credentials, because a password may hold
    any character. A web URL that begins with a plain ``host:port`` stays unchanged,
    because an ``@`` in such a URL belongs to the path.
    """
    kept: list[str] = []
    done = position = rest_end = 0
    last_at = -1
    while (slashes := _SLASHES.search(text, position)) is not None:
        start = slashes.end()
        if start >= rest_end:
            rest_end = _match_end(_URL_REST, text, start)
            last_at = text.rfind("@", start, rest_end)
        position = _match_end(_AUTHORITY, text, start)
        plain = _HOSTS.fullmatch(text, start, position) is not None
        if text.startswith(_CUT, position) and ":" in text[start:position]:
            plain = False  # "user:12…" is a truncated password that looks like a port
        end = -1
        if last_at >= start and not (plain and _is_of_the_web(text, slashes.start())):
            end = last_at
        elif not plain:
            later = _LATER_AT.match(text, rest_end)
            end = later.end() - 1 if later else rest_end
        is_git = end == start + len(GIT_USER) and text.startswith(GIT_USER, start)
        if end >= 0 and not is_git and not text.endswith("***", start, end):
            kept += (text[done:start], "***")
            done = end
        position = max(position, end)
    return "".join((*kept, text[done:])) if kept else text


def _redact_encoded(found: re.Match[str]) -> str:
    """Replace the credentials of a URL that is percent-encoded in another URL."""
    rest = found[2]
    end = rest.rfind("%40")
    if end < 0 and _ENCODED_PASSWORD.search(rest):
        end = len(rest)  # the text is truncated
    return found[0] if end <= 0 else f"{found[1]}***{rest[end:]}"


def _match_end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Return the end of a match at ``start``; ``start`` if nothing matches."""
    found = pattern.match(text, start)
    return found.end() if found else start


def _is_of_the_web(text: str, end: int) -> bool:
    found = _SCHEME.search(text[max(0, end - _SCHEME_LENGTH) : end])
    return found is not None and found[0].lower().rpartition("+")[2] in _WEB


# --- a name and its value

_ENTRY_HERE: Final = re.compile(
    r"""
    (?: (?P<flag>--?[A-Za-z][\w.\-]*+) (?:\\*+["'],[ \t]*+(?=\\*+["'])|[ \t]++(?=[^\s\-]))
      | (?P<name>[\w.\-\\]++)
        (?: (?P<close>["'`]?+)\]?+[ \t]*+
            (?P<sign>!?={1,3}+>?+|:=?+(?!:|//|\\/)|[\uff1a\uff1d]|%3[Dd])[ \t]*+
          | (?P<pair>["'],)[ \t]*+(?=[^\s])
          | ["'][ ](?=Value\ error,|Assertion\ failed,)
        )
    )
    """,
    re.VERBOSE,
)
_ENTRY: Final = re.compile(r"(?<![\w.\-\\])" + _ENTRY_HERE.pattern, re.VERBOSE)
_ESCAPED_BYTES: Final = re.compile(r"(?:\\++x[0-9a-fA-F]{2})++")
_ESCAPED: Final = re.compile(r"\\++(?:u([0-9a-fA-F]{4})|[nrt](?![a-z]{0,1}\\))")
_SOURCE_FILES: Final = (
    ".py", ".pyx", ".js", ".ts", ".go", ".java", ".kt", ".rb", ".rs", ".c", ".cc",
    ".cpp", ".h", ".cs", ".php", ".lua", ".sh",
)  # fmt: skip
_OF_A_COMMAND: Final = "arguments of '"  # the beginning of an ArgumentError
_ARGUMENT: Final = re.compile(r"'[^'\n]{1,60}' [A-Za-z]")
_PAIR: Final = re.compile(r"[(\[][bBuU]?[\"']\Z")
_PORT: Final = re.compile(r"[0-9]{1,5}(?![\w@])")
_HOST_NAME: Final = re.compile(r"[a-z0-9]+(?:[.\-][a-z0-9]+)+")
_LAST_WORD: Final = re.compile(r".*[.\-]")
# Fields that hold the value of the name in the field before, as in {'name': 'password',
# 'value': …}.
_LABELLED: Final = frozenset({"val", "value", "values"})
_LABEL_LENGTH: Final = 120
_LABEL: Final = re.compile(
    r"""(?<![\w.\-])(?i:name|key|field|header|type)[\\"']{0,4}[ ]?[:=][ ]?[bu]?[\\"']{0,4}"""
    r"""([\w.\-]{1,60}+)[\\"']{0,4}[,;]?[ ]{0,4}[bu]?[\\"']{0,4}\Z"""
)
# Words that may be the second word of a name, as in "api key: …".
_SECOND_WORDS: Final = frozenset(
    {"key", "keys", "phrase", "word", "code", "id", "value", "hash", "string"}
)
_FIRST_WORD: Final = re.compile(r"[A-Za-z]+ \Z")


def _redact_values(text: str, judge: _Judge) -> str:
    """Replace every value that follows the name of a secret by ``[redacted]``."""
    kept: list[str] = []
    done = 0
    entry = _ENTRY.search(text)
    while entry is not None:
        verdict = judge(_name_in(text, entry))
        value = None
        if verdict and not _is_place(text, entry, judge) and _may_be_pair(text, entry):
            value = _find_value(text, entry)
        if value is None:
            entry = _ENTRY.search(text, entry.end())
            continue
        if not is_kept(text[value.start : value.stop].strip(), verdict):
            kept += (text[done : value.start], _stand_in(entry, value))
            done = value.stop
        # The next name may begin where the value ends, after an escaped line break.
        here = _ENTRY_HERE.match(text, value.end)
        entry = here or _ENTRY.search(text, value.end)
    return "".join((*kept, text[done:])) if kept else text


def _name_in(text: str, entry: re.Match[str]) -> str:
    if entry["flag"]:
        flag = entry["flag"].lstrip("-")
        return "" if flag.startswith("no-") else flag
    name = entry["name"]
    if name.strip("\\").lower() in _LABELLED:
        label = _LABEL.search(
            text, max(0, entry.start() - _LABEL_LENGTH), entry.start()
        )
        name = label[1] if label else name
    if "\\" in name:
        name = _ESCAPED.sub(_unescape, _ESCAPED_BYTES.sub(_unescape_bytes, name))
        name = name.rpartition(" ")[2]  # the part after an escaped line break
    if "." in name:
        last = name.rpartition(".")[2]
        return last if last[:1].isupper() else name  # auth.models.User: a class
    if name.lower() in _SECOND_WORDS:
        before = text[max(0, entry.start() - 20) : entry.start()]
        first = _FIRST_WORD.search(before)
        return first[0] + name if first else name
    return name


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else " "


def _unescape_bytes(found: re.Match[str]) -> str:
    digits = found[0].replace("\\", "").replace("x", "")
    return bytes.fromhex(digits).decode("utf-8", "replace")


def _is_place(text: str, entry: re.Match[str], judge: _Judge) -> bool:
    """Return whether name and number are a position: ``app.py:12``, ``a.b:6379``."""
    if text.endswith(_OF_A_COMMAND, 0, entry.start()):
        return _ARGUMENT.match(text, entry.end()) is not None
    if entry["sign"] != ":" or entry["close"] or not _PORT.match(text, entry.end()):
        return False
    name, before = entry["name"], text[max(0, entry.start() - 3) : entry.start()]
    if before.endswith(("://", "@")) or name.endswith(_SOURCE_FILES):
        return True
    return (
        text[entry.end() - 1] == ":"
        and _HOST_NAME.fullmatch(name) is not None
        and not judge(_LAST_WORD.sub("", name))
    )


def _may_be_pair(text: str, entry: re.Match[str]) -> bool:
    """Return ``False`` for two words in a longer list, which are no name and value.

    A name and a value in brackets, ``('password', …)``, are a pair.
    """
    return (
        not entry["pair"]
        or _PAIR.search(text, max(0, entry.start() - 3), entry.start()) is not None
    )


class _Value(NamedTuple):
    """The position of a value: ``start`` to ``stop``, with its quotes to ``end``."""

    start: int
    stop: int
    end: int
    quoted: bool = False


def _stand_in(entry: re.Match[str], value: _Value) -> str:
    """Return ``[redacted]``, with quotes if the name has quotes, as JSON requires."""
    if value.quoted or not entry["close"]:
        return REDACTED
    name: str = entry["name"]
    quote = "\\" * (len(name) - len(name.rstrip("\\"))) + entry["close"]
    return f"{quote}{REDACTED}{quote}"


# --- where a value ends

_OPENING: Final = re.compile(r"""[bBrRuUfF]{0,2}(\\*+)(\"{3}|'{3}|["'])""")
_QUOTES: Final = {mark: re.compile(rf"(?<!\\)(\\*+){mark}") for mark in ('"', "'")}
# The text between a name and a value in the lines below, as in YAML: perhaps "|" or
# ">", then a line break.
_BLOCK: Final = re.compile(r"(?P<mark>[|>][+\-0-9]{0,2}+[ \t]*+)?\n")
_BARE_NAME: Final = re.compile(r"(?:^|\n)[ \t\-\"']*+\Z")
_INDENT: Final = re.compile(r"[ \t]*+")
# Matches between two strings of a joined value: "password=" + "…".
_JOIN: Final = re.compile(r"""["'][ \t]*+\+[ \t]*+(?=[bBfF]?["'])""")
_JOIN_OUTSIDE: Final = re.compile(r"""[ \t]*+\+[ \t]*+(?=[bBfF]?["'])""")
_BRACKET: Final = re.compile(r"""(?<!\\)(\\*+)(["'])|[\[{(]|[\]})]|\n""")
_ANGLE: Final = re.compile(r"<[^<>\n]*+>")
_SENTENCE: Final = re.compile(
    r"(?:Value error|Assertion failed), [^\n]*?(?=; |\n|\Z| \[type=)"
)
_SCHEME_WORD: Final = re.compile(
    r"(?i:(?:bearer|basic|negotiate|ntlm|token|apikey)[ \t]++(?=\S))"
)
_RUN: Final = re.compile(rf"""[^\s,;&()\[\]{{}}<>"'\\{_END_MARKS}]++""")
# Punctuation inside of a value. Before a blank, another punctuation mark or a new name,
# the same punctuation ends the value.
_JOINT: Final = re.compile(
    rf"""[,;&)\]}}>"'](?![\s,;:)\]}}>"'&{_END_MARKS}]|\.?(?:\s|\Z)|\.?\Z|[\w.\-\\]*+["']?[ ]?[=:])"""
    r"|<(?!/)|\\(?!r\\n|n[\w.\-]++[\"']?[ ]?[=:])"  # an escaped line break ends a value
)
_LINES: Final = {
    quote: re.compile(rf"(?:(?!\\[nr])[^\r\n{quote}])++") for quote in ("", '"', "'")
}
_WHOLE_LINE: Final = re.compile(
    r"(?i:(?:cookie[s2]?|passphrase|mnemonic|seed.?phrase)\Z)"
)
_WHOLE_LINE_AFTER_COLON: Final = re.compile(r"(?i:authori[sz]ation\Z)")


def _find_value(text: str, entry: re.Match[str]) -> _Value | None:
    start = _match_end(_JOIN, text, entry.end())
    if start >= len(text):
        return None
    block = _BLOCK.match(text, start) if entry["sign"] == ":" else None
    if block and (
        block["mark"]
        or _BARE_NAME.search(text, max(0, entry.start() - _LABEL_LENGTH), entry.start())
    ):
        value = _indented(text, entry, block)
        if value is not None:
            return value
    opening = _OPENING.match(text, start)
    if opening:
        value = _quoted(text, opening)
        while value.end < len(text) and (more := _JOIN_OUTSIDE.match(text, value.end)):
            opening = _OPENING.match(text, more.end())
            assert opening is not None  # noqa: S101 - _JOIN_OUTSIDE ends before a quote
            further = _quoted(text, opening)
            value = _Value(value.start, further.stop, further.end, quoted=True)
        return value
    if text[start] in "[{(":
        end = _closing(text, start)
        return _Value(start, end, end)
    found = _SENTENCE.match(text, start) or _ANGLE.match(text, start)
    end = found.end() if found else _end_of_words(text, entry)
    return _Value(start, end, end) if end > start else None


def _indented(text: str, entry: re.Match[str], block: re.Match[str]) -> _Value | None:
    """Return the lines of YAML below a name that are indented more than the name."""
    line = text.rfind("\n", 0, entry.start()) + 1
    depth = _match_end(_INDENT, text, line) - line
    start = stop = end = block.end()
    while end < len(text):
        first = _match_end(_INDENT, text, end)
        line_end = text.find("\n", first)
        line_end = len(text) if line_end < 0 else line_end
        if first < line_end:
            if first - end <= depth:
                break
            start = start if stop > start else first
            stop = line_end
        end = line_end + 1
    return _Value(start, stop, stop) if stop > start else None


def _quoted(text: str, opening: re.Match[str]) -> _Value:
    """Return a quoted value: both quotes have the same number of backslashes."""
    start, level, mark = opening.end(), len(opening[1]), opening[2]
    if len(mark) > 1:
        stop = text.find(mark, start)
        stop = len(text) if stop < 0 else stop
        return _Value(start, stop, min(stop + len(mark), len(text)), quoted=True)
    for quote in _QUOTES[mark].finditer(text, start):
        if len(quote[1]) == level:
            return _Value(start, quote.start(), quote.end(), quoted=True)
        if len(quote[1]) < level:  # the end of the string that contains this value
            return _Value(start, quote.start(), quote.start(), quoted=True)
    return _Value(start, len(text), len(text), quoted=True)


def _closing(text: str, start: int) -> int:
    """Return the end of a value in brackets; a value in ``(…)`` ends with its line."""
    depth, position = 0, start
    while (bracket := _BRACKET.search(text, position)) is not None:
        position = bracket.end()
        if bracket[2]:
            position = _quoted(text, bracket).end
        elif bracket[0] == "\n":
            if text[start] == "(":
                return bracket.start()
        else:
            depth += 1 if bracket[0] in "[{(" else -1
            if not depth:
                return position
    return len(text)


def _end_of_words(text: str, entry: re.Match[str]) -> int:
    """Return the end of a value without quotes."""
    start = position = entry.end()
    name = entry["name"] or ""
    before = text[entry.start() - 1 : entry.start()]
    around = before if before in _QUOTES and not entry["close"] else ""
    if _WHOLE_LINE.search(name) or (
        _WHOLE_LINE_AFTER_COLON.search(name) and entry["sign"] != "="
    ):
        return _without_backslashes(
            text, start, _match_end(_LINES[around], text, start)
        )
    position = _match_end(_SCHEME_WORD, text, position)
    while position < len(text):
        end = _match_end(_RUN, text, position)
        if end < len(text) and text[end] in "([{":
            end = _closing(text, end) if end > start else end
        elif _JOINT.match(text, end):
            end += 1
        if end == position:
            break
        position = end
    return _without_backslashes(text, start, position)


def _without_backslashes(text: str, start: int, end: int) -> int:
    while end > start and text[end - 1] == "\\":
        end -= 1
    return end


# --- other forms of a name and a value

_OPEN_TAG: Final = r"<([A-Za-z_][\w:.\-]*+)(?:\s[^<>]*+)?>"
_TAG: Final = re.compile(rf"{_OPEN_TAG}([^<>]++)(?=</|<?\u2026?\Z)")
_CDATA: Final = re.compile(rf"{_OPEN_TAG}\s*+<!\[CDATA\[((?:(?!\]\]>).)*+)", re.DOTALL)


def _redact_tag(found: re.Match[str], judge: _Judge) -> str:
    verdict = judge(found[1])
    if not verdict or is_kept(found[2].strip(), verdict):
        return found[0]
    return found[0][: found.start(2) - found.start()] + REDACTED


# Errors of pydantic: a line with the name of the field, then the reason and the input.
_REASON_OF_PLACE: Final = re.compile(
    r"^(?P<place>\S[^\n]{0,200}+\n)?[ ]{2}(?P<reason>[A-Z][^\n]*+)", re.MULTILINE
)
_INPUT: Final = "input_value="


def _redact_input(found: re.Match[str], judge: _Judge) -> str:
    """Remove the input from an error of pydantic about a secret field.

    A shortened input is removed for every field, because the names in the input may be
    missing.
    """
    reason = found["reason"]
    secret = bool(found["place"]) and judge(found["place"].strip())
    if secret:
        reason = _SENTENCE.sub(REDACTED, reason)
    before, is_there, after = reason.partition(_INPUT)
    value, _, rest = after.rpartition(", input_type=")
    if is_there and (secret or "..." in (value or after)):
        rest = f", input_type={rest}" if value else ""
        reason = f"{before}{_INPUT}{REDACTED}{rest}"
    return (found["place"] or "") + "  " + reason
