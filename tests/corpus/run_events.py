"""Stream entries that may stand in a run, what is wrong with each, and hostile ids.

Read by the tests of everything that reads runs. An item is the fields of an entry and
the fields that a reader has to name as faulty; none for what has to be accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import orjson

__all__ = ["EVENTS", "LAST_EVENT_IDS", "SOUND", "RunEventItem", "entry"]

SOUND: Final[dict[bytes, bytes]] = {
    b"timestamp": b"2025-01-01T12:00:00.123Z",
    b"sequence": b"1",
    b"source_agent_id": b"global_supervisor",
    b"source_agent_type": b"global_supervisor",
    b"source_agent_name": "全局协调者".encode(),
    b"source_team_name": b"",
    b"event_category": b"llm",
    b"event_action": b"stream",
    b"data": '{"text": "分析市场数据"}'.encode(),
}
NEEDED: Final = ("timestamp", "sequence", "event_category", "event_action", "data")


class RunEventItem(NamedTuple):
    """One entry: names and values by turns, and what a reader has to say of it."""

    fields: tuple[bytes, ...]
    faults: frozenset[str]


def entry(changed: dict[bytes, bytes | None]) -> tuple[bytes, ...]:
    """A sound entry with some fields otherwise; ``None`` leaves one out."""
    whole = {**SOUND, **changed}
    pairs = [(name, value) for name, value in whole.items() if value is not None]
    return tuple(part for pair in pairs for part in pair)


def _item(*faults: str, **changed: bytes | None) -> RunEventItem:
    named = {name.encode(): value for name, value in changed.items()}
    return RunEventItem(entry(named), frozenset(faults))


# Bytes that are no text, or not the one that was meant.
_ENCODINGS: Final = {
    "ff": b"\xff",
    "overlong": b"\xc0\xaf",
    "surrogate": b"\xed\xa0\x80",
    "truncated": "订".encode()[:2],
    "utf-16": "订单".encode("utf-16"),
    "utf-32": "订单".encode("utf-32"),
    "gbk": "订单".encode("gbk"),
    "c1": b"\x9b31m",
}
# Texts that somebody might obey instead of showing them.
_TEXTS: Final = {
    "empty": b"",
    "blank": b" ",
    "nul": b"\x00",
    "bom": b"\xef\xbb\xbfllm",
    "newline": b"a\nb",
    "carriage-return": b"a\rb",
    "end-of-frame": b"x\n\nevent: system.close\ndata: {}\n\n",
    "id-in-frame": b"x\nid: 9-9\n",
    "retry-in-frame": b"x\r\nretry: 0\r\n",
    "line-separator": "a\u2028b\u2029c\x85d".encode(),
    "escape": b"\x1b[2J\x1b]0;x\x07",
    "bidi": "\u202ecod.exe".encode(),
    "markup": b"</script><script>alert(1)</script>",
    "template": b"{{7*7}}{0}%s",
    "long": b"x" * 70_000,
    "proto": b"__proto__",
}
_NO_SEQUENCE: Final = {
    "empty": b"", "blank": b" 1", "word": b"one", "negative": b"-1", "signed": b"+1",
    "real": b"1.0", "exponent": b"1e3", "hexadecimal": b"0x1", "grouped": b"1_000",
    "fullwidth": "\uff11".encode(), "superscript": "\u00b2".encode(), "nul": b"1\x00",
    "too-long": b"9" * 21, "digits-5000": b"9" * 5_000, "not-utf8": b"\xff",
    "newline": b"1\n",
}  # fmt: skip
_SEQUENCE: Final = {
    "zero": b"0", "leading-zeros": b"0007", "2-53": b"9007199254740993",
    "2-63": b"9223372036854775808", "largest": b"18446744073709551615",
}  # fmt: skip
_NO_DATA: Final = {
    "empty": b"", "blank": b" ", "word": b"done", "number": b"1", "text": b'"done"',
    "true": b"true", "null": b"null", "list": b"[]", "list-of-one": b'[{"a": 1}]',
    "text-of-object": orjson.dumps('{"a": 1}'), "python-repr": b"{'task': 1}",
    "trailing-comma": b'{"a": 1,}', "comment": b'{"a": 1} // now',
    "unclosed": b'{"a": 1', "two-documents": b"{}{}", "nan": b'{"a": NaN}',
    "infinity": b'{"a": Infinity}', "control-character": b'{"a": "b\nc"}',
    "lone-surrogate": rb'{"a": "\ud800"}', "digits-5000": b'{"a": 1' + b"0" * 5_000 + b"}",
    "bom": b"\xef\xbb\xbf{}", "utf-16": "{}".encode("utf-16"), "not-utf8": b'{"a": "\xff"}',
    "gbk": '{"a": "订单"}'.encode("gbk"), "pickle": b"\x80\x04}.",
    "deep-list": b"[" * 100_000, "deep-object": b'{"a":' * 100_000,
    "too-deep": b'{"a":' * 1_100 + b"1" + b"}" * 1_100,
}  # fmt: skip
_DATA: Final = {
    "empty-object": b"{}",
    "spaces": b' { "a" : 1 } ',
    "deep": b'{"a":' * 900 + b"1" + b"}" * 900,
    "duplicate-keys": b'{"a": 1, "a": 2}',
    "proto": b'{"__proto__": {"admin": true}, "constructor": 1}',
    "empty-key": b'{"": 1}',
    "nul-in-key": rb'{"\u0000": 1}',
    "2-53": b'{"a": 9007199254740993}',
    "beyond-64-bit": b'{"a": 18446744073709551617}',
    "1e308": b'{"a": 1e308, "b": 5e-324, "c": -0.0}',
    "keys-10000": orjson.dumps({str(n): n for n in range(10_000)}),
    "key-100k": orjson.dumps({"k" * 100_000: 1}),
    "200-kilobytes": orjson.dumps({"text": "x" * 200_000}),
    **{
        name: orjson.dumps({"text": text.decode()})
        for name, text in _TEXTS.items()
        if name != "long"
    },
}


def _fields() -> Iterator[tuple[str, RunEventItem]]:
    for name in NEEDED:
        yield f"{name}-absent", _item(name, **{name: None})
        if name in ("sequence", "data"):
            continue
        for how, value in _ENCODINGS.items():
            yield f"{name}-{how}", _item(name, **{name: value})
        for how, value in _TEXTS.items():
            yield f"{name}-{how}", _item(**{name: value})
    for name in (field.decode() for field in SOUND if field.startswith(b"source")):
        yield f"{name}-absent", _item(**{name: None})
        for how, value in {**_ENCODINGS, **_TEXTS}.items():
            yield f"{name}-{how}", _item(**{name: value})
    for how, value in _NO_SEQUENCE.items():
        yield f"sequence-{how}", _item("sequence", sequence=value)
    for how, value in _SEQUENCE.items():
        yield f"sequence-{how}", _item(sequence=value)
    for how, value in _NO_DATA.items():
        yield f"data-{how}", _item("data", data=value)
    for how, value in _DATA.items():
        yield f"data-object-{how}", _item(data=value)


_ALL: Final = frozenset(NEEDED)

EVENTS: Final[dict[str, RunEventItem]] = {
    "sound": RunEventItem(entry({}), frozenset()),
    **dict(_fields()),
    "other-fields-alone": RunEventItem((b"message", b"hello"), _ALL),
    "one-empty-field": RunEventItem((b"", b""), _ALL),
    "bytes-as-names": RunEventItem((b"\xff\x00", b"\xfe", *entry({})), frozenset()),
    "unknown-fields": RunEventItem(
        (*entry({}), b"id", b"9-9", b"run_id", b"7", b"__class__", b"x"), frozenset()
    ),
    "field-twice": RunEventItem((*entry({}), b"sequence", b"2"), frozenset()),
    "names-in-capitals": RunEventItem(
        tuple(
            part.upper() if at % 2 == 0 else part for at, part in enumerate(entry({}))
        ),
        _ALL,
    ),
    "fields-1000": RunEventItem(
        (*entry({}), *(b"f%d" % n for n in range(2_000))), frozenset()
    ),
}

# What somebody may send as Last-Event-ID, and the id that it is; none is a bad request.
LAST_EVENT_IDS: Final[dict[str, tuple[str, str | None]]] = {
    "beginning": ("0-0", "0-0"),
    "sound": ("1704067200123-7", "1704067200123-7"),
    "milliseconds": ("1704067200123", "1704067200123-0"),
    "leading-zeros": ("0001-0002", "1-2"),
    "future": ("18446744073709551615-18446744073709551615",) * 2,
    "dollar": ("$", None),
    "minus": ("-", None),
    "plus": ("+", None),
    "star": ("*", None),
    "bracket": ("(", None),
    "exclusive": ("(1-1", None),
    "greater": (">", None),
    "one-dash": ("1-", None),
    "dash-one": ("-1", None),
    "three-parts": ("1-2-3", None),
    "partial": ("1-*", None),
    "nines": ("9" * 30 + "-" + "9" * 30, None),
    "beyond-64-bit": ("18446744073709551616-0", None),
    "number-beyond-64-bit": ("0-18446744073709551616", None),
    "real": ("1.5-0", None),
    "signed": ("+1-0", None),
    "grouped": ("1_0-0", None),
    "hexadecimal": ("0x1-0", None),
    "fullwidth": ("\uff11-0", None),
    "arabic": ("\u0663-0", None),
    "superscript": ("1\u00b2-0", None),
    "blank-before": (" 1-0", None),
    "blank-behind": ("1-0 ", None),
    "newline": ("1-0\n", None),
    "frame": ("1-0\n\nevent: system.close\ndata: {}", None),
    "header": ("1-0\r\nX-Evil: 1", None),
    "nul": ("1-0\x00", None),
    "word": ("null", None),
    "undefined": ("undefined", None),
    "json": ('"1-0"', None),
    "command": ("0-0 COUNT 1", None),
    "path": ("../../etc/passwd", None),
    "markup": ("<script>alert(1)</script>", None),
    "long": ("1" * 10_000, None),
    "long-id": ("1-" + "0" * 10_000, None),
    "not-utf8": ("\xff\xfe", None),
}
