"""Values that may stand under the key of a heartbeat, and what is wrong with each.

Read by the tests of everything that shows workers. An item is a kind of heartbeat, the
bytes and the problem in one word; ``""`` for what has to be accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import orjson

__all__ = ["BROKEN", "HEARTBEATS", "SOUND", "HeartbeatItem"]


class HeartbeatItem(NamedTuple):
    """One value and what a reader has to say of it."""

    kind: str
    payload: bytes
    problem: str


SAID_AT: Final = "2026-01-12T12:34:56.789Z"
COMMON: Final = {"status": "running", "timestamp": SAID_AT}
# What each kind writes, in the order of its contract.
SOUND: Final[dict[str, dict[str, Any]]] = {
    "data_worker_heartbeat": COMMON | {"node_id": "数据-1", "stats": {"bars": 7}},
    "backtest_worker_heartbeat": COMMON
    | {
        "worker_id": "回测-1", "running_tasks": 3, "max_tasks": 5,
        "started_at": SAID_AT, "last_heartbeat": SAID_AT, "task_uuids": ["a-1"],
    },
    "execution_node_heartbeat": COMMON
    | {"node_id": "执行-1", "host": "10.0.0.1", "port": 8080, "active_strategies": 2},
    "scheduler_heartbeat": COMMON
    | {"node_id": "调度-1", "running_tasks": 1, "pending_tasks": 9},
    "task_timer_heartbeat": COMMON | {"node_id": "定时-1", "jobs_count": 4},
}  # fmt: skip
# Every type that JSON has, and the text of a number.
TYPES: Final[dict[str, Any]] = {
    "text": "x", "digits": "3", "empty": "", "whole": 3, "negative": -3, "zero": 0,
    "real": 1.5, "round": 3.0, "large": 2**63, "true": True, "null": None,
    "list": [], "texts": ["a"], "mixed": ["a", {}], "object": {}, "nested": {"a": [1]},
}  # fmt: skip
_TEXT: Final = {"text", "digits", "empty", "whole", "negative", "zero", "large"}
_COUNT: Final = {"digits", "whole", "zero", "round", "large"}
# What a field accepts besides null, which counts as absent.
ACCEPTED: Final = {
    **dict.fromkeys(
        ("timestamp", "node_id", "worker_id", "host", "started_at", "last_heartbeat"),
        _TEXT,
    ),
    **dict.fromkeys(
        (
            "running_tasks", "max_tasks", "port", "active_strategies", "pending_tasks",
            "jobs_count",
        ),
        _COUNT,
    ),
    "stats": {"object", "nested"},
    "task_uuids": {"list", "texts"},
    "status": set[str](),
}  # fmt: skip


def _dump(value: object) -> bytes:
    return orjson.dumps(value)


def _fields() -> Iterator[tuple[str, HeartbeatItem]]:
    """Each field of each kind, absent and of every type."""
    for kind, sound in SOUND.items():
        yield kind, HeartbeatItem(kind, _dump(sound), "")
        for field in sound:
            rest = {name: value for name, value in sound.items() if name != field}
            lacks = "bad_field" if field == "status" else ""
            yield f"{kind}.{field}-absent", HeartbeatItem(kind, _dump(rest), lacks)
            for name, value in TYPES.items():
                absent = value is None and field != "status"
                fits = absent or name in ACCEPTED[field]
                item = HeartbeatItem(
                    kind, _dump({**sound, field: value}), "" if fits else "bad_field"
                )
                yield f"{kind}.{field}-{name}", item


BACKTEST: Final = "backtest_worker_heartbeat"
_GOOD: Final = SOUND[BACKTEST]
_TEXTS: Final = {
    "empty": (b"", "not_json"),
    "blank": (b" ", "not_json"),
    "word": (b"alive", "not_json"),
    "time": (b"2026-01-12 12:34:56", "not_json"),
    "number": (b"1", "not_an_object"),
    "unix-time": (b"1768221296.789", "not_an_object"),
    "text": (b'"running"', "not_an_object"),
    "true": (b"true", "not_an_object"),
    "null": (b"null", "not_an_object"),
    "list": (b"[]", "not_an_object"),
    "list-of-one": (b"[" + _dump(_GOOD) + b"]", "not_an_object"),
    "text-of-object": (_dump(_dump(_GOOD).decode()), "not_an_object"),
    "empty-object": (b"{}", "bad_field"),
    "other-object": (b'{"a": 1}', "bad_field"),
    "python-repr": (b"{'status': 'running'}", "not_json"),
    "trailing-comma": (b'{"status": "running",}', "not_json"),
    "comment": (b'{"status": "running"} // now', "not_json"),
    "unclosed": (b'{"status": "running"', "not_json"),
    "two-documents": (b'{"status": "running"}{}', "not_json"),
    "nan": (b'{"status": "running", "running_tasks": NaN}', "not_json"),
    "infinity": (b'{"status": "running", "running_tasks": Infinity}', "not_json"),
    "control-character": (b'{"status": "run\nning"}', "not_json"),
    "lone-surrogate": (rb'{"status": "running", "worker_id": "\ud800"}', "not_json"),
    "bom": (b"\xef\xbb\xbf" + _dump(_GOOD), "not_json"),
    "utf-16": (_dump(_GOOD).decode().encode("utf-16"), "not_utf8"),
    "gbk": ('{"status": "running", "worker_id": "回测"}'.encode("gbk"), "not_utf8"),
    "latin-1": (b'{"status": "running", "worker_id": "\xe9"}', "not_utf8"),
    "overlong": (b'{"status": "running", "worker_id": "\xc0\xaf"}', "not_utf8"),
    "pickle": (b"\x80\x04\x95\x1a\x00.", "not_utf8"),
    "zlib": (b"x\x9c\xabV*.I,)-V", "not_utf8"),
    "deep": (b"[" * 100_00 + b"]" * 100_00, "too_deep"),
    "large": (_dump({**_GOOD, "note": "x" * 65_536}), "too_large"),
    "huge": (b"x" * 5_000_000, "too_large"),
    # what has to be accepted
    "spaces": (b' { "status" : "running" } ', ""),
    "status-in-capitals": (_dump({**_GOOD, "status": "RUNNING"}), ""),
    "status-unknown": (_dump({**_GOOD, "status": "busy"}), "bad_field"),
    "status-in-chinese": (_dump({**_GOOD, "status": "运行"}), "bad_field"),
    "status-padded": (_dump({**_GOOD, "status": " running "}), "bad_field"),
    "unknown-fields": (_dump({**_GOOD, "__class__": "x", "pid": [1]}), ""),
    "duplicate-fields": (b'{"status": "?", "status": "error"}', ""),
    "other-id": (_dump({**_GOOD, "worker_id": "somebody else"}), ""),
    "id-with-newline": (_dump({**_GOOD, "worker_id": "a\nb"}), ""),
    "time-without-zone": (_dump({**_GOOD, "timestamp": "2026-01-12T12:34:56"}), ""),
    "no-time": (_dump({**_GOOD, "timestamp": "yesterday"}), ""),
    "many-digits": (_dump({**_GOOD, "running_tasks": "9" * 5_000}), "bad_field"),
    "long-integer": (
        b'{"status": "running", "running_tasks": 1' + b"0" * 5_000 + b"}",
        "not_json",
    ),
    "beyond-64-bit": (
        b'{"status": "running", "running_tasks": 18446744073709551617}',
        "",
    ),
    "fullwidth-digits": (_dump({**_GOOD, "running_tasks": "\uff13"}), "bad_field"),
    "negative-zero": (b'{"status": "running", "running_tasks": -0}', ""),
}

HEARTBEATS: Final[dict[str, HeartbeatItem]] = {
    **dict(_fields()),
    **{name: HeartbeatItem(BACKTEST, *item) for name, item in _TEXTS.items()},
    "stats-deep": HeartbeatItem(
        "data_worker_heartbeat",
        b'{"status":"running","stats":' + b'{"a":' * 900 + b"1" + b"}" * 901,
        "",
    ),
    "stats-too-deep": HeartbeatItem(
        "data_worker_heartbeat",
        b'{"status":"running","stats":' + b'{"a":' * 1_100 + b"1" + b"}" * 1_101,
        "too_deep",
    ),
    "generic-own-fields": HeartbeatItem(
        "generic_heartbeat",
        '{"status":"running","页":[1,{"a":null}],"running_tasks":"x"}'.encode(),
        "",
    ),
    "generic-own-status": HeartbeatItem("generic_heartbeat", b'{"status":7}', ""),
    "generic-anything": HeartbeatItem("generic_heartbeat", b"alive", ""),
    "generic-pickle": HeartbeatItem("generic_heartbeat", b"\x80\x04\x95.", "not_utf8"),
    "component-anything": HeartbeatItem("component_heartbeat", b"alive", ""),
    "component-json": HeartbeatItem("component_heartbeat", b"[1]", ""),
    "component-pickle": HeartbeatItem(
        "component_heartbeat", b"\x80\x04\x95.", "not_utf8"
    ),
    "process-time": HeartbeatItem("process_heartbeat", b"1768221296.789", ""),
    "process-gbk": HeartbeatItem("process_heartbeat", "运行".encode("gbk"), "not_utf8"),
    "process-large": HeartbeatItem("process_heartbeat", b"x" * 65_537, "too_large"),
}
BROKEN: Final = {name: item for name, item in HEARTBEATS.items() if item.problem}
