"""Secrets that are known by their looks: credentials in URLs, key blocks, tokens.

Scanned in linear time, whatever the text holds. Pure.
"""

from __future__ import annotations

import re
from typing import Final

from bls_agent.core.redaction.marks import REDACTED, SHAPE_MARKS, holds_mark

__all__ = [
    "END_MARKS",
    "match_end",
    "redact_encoded_urls",
    "redact_key_blocks",
    "redact_shapes",
    "redact_urls",
]

_CUT: Final = "\u2026"  # the mark of a text that was cut off
# Punctuation that ends a value in Chinese prose, and that mark.
END_MARKS: Final = (
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


def redact_key_blocks(text: str) -> str:
    """Take out private keys in PEM form, also where the end is cut off."""
    return _KEY_BLOCK.sub(REDACTED, text) if "-----BEGIN" in text else text


def redact_shapes(text: str) -> str:
    """Take out tokens that tell by their beginning what they are."""
    return _SHAPES.sub(REDACTED, text) if holds_mark(text, SHAPE_MARKS) else text


# --- URLs

_SLASHES: Final = re.compile(r":(?://|\\/\\/)")
_URL_REST: Final = re.compile(rf"[^\s\"'<{END_MARKS}]*")
_AUTHORITY: Final = re.compile(rf"[^\s\"'</?#\\{END_MARKS}]*")
_HOST: Final = r"(?:[^:@,\[\]]*+|\[[^\[\]@]*+\])(?::[0-9]{0,5}(?![0-9]))?"
_HOSTS: Final = re.compile(rf"{_HOST}(?:,{_HOST})*+[.,;:!)\]}}>`\uff1a]*")
_LATER_AT: Final = re.compile(r"[^\n@]{0,256}@(?=[\w.\[\-])")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*\Z")
_SCHEME_LENGTH: Final = 20
_ENCODED_URL: Final = re.compile(rf"(%3A%2F%2F|%3a%2f%2f)([^\s\"'<{END_MARKS}]*+)")
_ENCODED_PASSWORD: Final = re.compile(r"%3[aA](?![0-9]{1,5}(?:%2[fF]|&|\Z)|%|\Z)")
# Their paths may hold an @ that has nothing to do with credentials.
_WEB: Final = frozenset({"http", "https", "ws", "wss", "file", "data"})


def redact_urls(text: str) -> str:
    """Put ``***`` in the place of every URL's user-info.

    Everything up to the last ``@`` may be a password, whatever is in it. On the web an
    ``@`` may stand in a path, too: there a plain ``host:port`` in front speaks for that.
    """
    kept: list[str] = []
    done = position = rest_end = 0
    last_at = -1
    while (slashes := _SLASHES.search(text, position)) is not None:
        start = slashes.end()
        if start >= rest_end:
            rest_end = match_end(_URL_REST, text, start)
            last_at = text.rfind("@", start, rest_end)
        position = match_end(_AUTHORITY, text, start)
        plain = _HOSTS.fullmatch(text, start, position) is not None
        if text.startswith(_CUT, position) and ":" in text[start:position]:
            plain = False  # what is left of a password may look like a port
        end = -1
        if last_at >= start and not (plain and _is_of_the_web(text, slashes.start())):
            end = last_at
        elif not plain:
            later = _LATER_AT.match(text, rest_end)
            end = later.end() - 1 if later else rest_end
        if end >= 0 and not text[start:end].endswith("***"):
            kept += (text[done:start], "***")
            done = end
        position = max(position, end)
    return "".join((*kept, text[done:])) if kept else text


def redact_encoded_urls(text: str) -> str:
    """Do the same for URLs that stand percent-encoded within another one."""
    shown = _ENCODED_URL.sub(_redact_encoded, text) if "%" in text else text
    return text if shown == text else shown


def _redact_encoded(found: re.Match[str]) -> str:
    rest = found[2]
    end = rest.rfind("%40")
    if end < 0 and _ENCODED_PASSWORD.search(rest):
        end = len(rest)  # cut off
    return found[0] if end <= 0 else f"{found[1]}***{rest[end:]}"


def match_end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Tell where a pattern that matches here ends; ``start`` if it does not match."""
    found = pattern.match(text, start)
    return found.end() if found else start


def _is_of_the_web(text: str, end: int) -> bool:
    found = _SCHEME.search(text[max(0, end - _SCHEME_LENGTH) : end])
    return found is not None and found[0].lower().rpartition("+")[2] in _WEB
