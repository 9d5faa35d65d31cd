"""What may become part of a key, and how it is written there."""

from __future__ import annotations

import re
import unicodedata
from binascii import crc_hqx
from collections.abc import Callable, Iterable
from typing import Final

from bls_agent.core.errors import ConfigurationError

__all__ = [
    "ask_whether",
    "check_name",
    "encode_key",
    "escape_glob",
    "hash_tag",
    "key_beside",
    "name_of",
    "place_beside",
    "shares_slot",
    "slot_of",
]

MAX_NAME_BYTES: Final = 512
SLOTS: Final = 16_384  # of a cluster


def name_of(value: object) -> object:
    """Write an integer or a UUID as text; give all else as it is."""
    if isinstance(value, str | bool):
        return value
    if hasattr(value, "__index__"):
        return str(value)
    from uuid import UUID  # noqa: PLC0415 - 1 ms, and rare

    return str(value) if isinstance(value, UUID) else value


def encode_key(key: str) -> bytes:
    """Write a key as Redis has it, also where it is no UTF-8."""
    return key.encode("utf-8", "surrogateescape")


def ask_whether(name: str, known: Iterable[str]) -> str:
    """Ask whether the most similar known name is meant; ``""`` if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - 4 ms, for a mistake

    alike = get_close_matches(name, [*known], 1, 0.7)
    return f"Did you mean {alike[0]}?" if alike else ""


def check_name(field: str, value: str) -> str:
    """Give back a name that may become part of a key that we write.

    A ConfigurationError names ``field`` if it is empty, longer than 512 bytes of UTF-8
    or not NFC, begins or ends with a blank, or holds a control character or a lone
    surrogate.
    """
    rule, remedy = _name_fault(value)
    if rule:
        raise ConfigurationError(field, value, rule, remedy)
    return value


def _name_fault(value: str) -> tuple[str, str]:
    """Give the rule that a name breaks and what to do; two empty texts if none."""
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        return f"a name is text, not {type(value).__name__}", ""  # type: ignore[unreachable]
    for broken, rule, remedy in _NAME_RULES:
        if broken(value):
            return rule, remedy
    return "", ""


def _has_lone_surrogate(name: str) -> bool:
    return any(unicodedata.category(character) == "Cs" for character in name)


def _has_control_character(name: str) -> bool:
    return any(unicodedata.category(character) == "Cc" for character in name)


_NAME_RULES: Final[tuple[tuple[Callable[[str], bool], str, str], ...]] = (
    (lambda name: not name, "a name must not be empty", ""),
    (_has_lone_surrogate, "a name must be valid Unicode", "Remove lone surrogates."),
    (
        lambda name: len(name.encode()) > MAX_NAME_BYTES,
        f"a name has at most {MAX_NAME_BYTES} bytes of UTF-8",
        "Shorten it.",
    ),
    (
        lambda name: name != name.strip(),
        "a name neither begins nor ends with a blank",
        "Strip it.",
    ),
    (
        _has_control_character,
        "a name holds no control characters",
        "Remove newlines, tabs and NULs.",
    ),
    (
        lambda name: not unicodedata.is_normalized("NFC", name),
        "a name is in Unicode form NFC, or peers would use another key",
        "Pass unicodedata.normalize('NFC', name).",
    ),
)


def escape_glob(text: str) -> str:
    """Escape what SCAN, KEYS and ACL patterns would read as a wildcard."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", text)


def hash_tag(key: str) -> str:
    """Give the part of a key by which a cluster chooses its slot: ``{…}``, or all."""
    start = key.find("{")
    end = key.find("}", start + 1) if start != -1 else -1
    return key[start + 1 : end] if end > start + 1 else key


def place_beside(key: str) -> str:
    """Write a key as a part of others that must lie in its slot.

    ``订单系统_控制`` becomes ``{订单系统_控制}``; a key with a hash tag of its own stays as it is.
    """
    return key if hash_tag(key) != key else f"{{{key}}}"


def key_beside(place: str) -> str:
    """Give the key that :func:`place_beside` was given."""
    inner = place.removeprefix("{").removesuffix("}")
    return inner if place_beside(inner) == place else place


def shares_slot(key: str) -> bool:
    """Tell whether keys beside this one lie in its slot: not behind a stray ``}``."""
    return hash_tag(place_beside(key)) == hash_tag(key)


def slot_of(key: str) -> int:
    """Give a key's slot on a cluster: CRC16 (XMODEM) of its hash tag."""
    return crc_hqx(hash_tag(key).encode("utf-8", "surrogateescape"), 0) % SLOTS
