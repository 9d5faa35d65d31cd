"""What a doctor holds against heartbeats, tasks and caches (contract 001)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from bls_agent.codec import JSONObject, JSONValue, decode, parse_timestamp
from bls_agent.diagnosis import (
    Rule,
    Sample,
    Severity,
    Values,
    count_bad,
    lacks_zone,
    show,
)
from bls_agent.errors import DecodeError

__all__ = ["RULES"]

STATES: Final = frozenset({"starting", "running", "stopping", "stopped", "error"})
APART: Final = 120.0  # seconds between a heartbeat's time and the server's
CACHED: Final = ("result", "timestamp", "func_name")

# Kind of heartbeat → the field that repeats the key's id, and the other fields.
HEARTBEATS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "data_worker_heartbeat": ("node_id", ("stats",)),
    "backtest_worker_heartbeat": ("worker_id", ("running_tasks", "max_tasks")),
    "execution_node_heartbeat": ("node_id", ()),
    "scheduler_heartbeat": ("node_id", ("running_tasks", "pending_tasks")),
    "task_timer_heartbeat": ("node_id", ("jobs_count",)),
}
# What a value has to be is left open by the contract: text at least, never a pickle.
TEXTS: Final = (
    "component_heartbeat", "process_heartbeat", "task_status", "backtest_task_progress",
)  # fmt: skip


def _heartbeat(sample: Sample) -> JSONObject | None:
    return sample.objects[0] if sample.objects and sample.complete else None


def _no_object(sample: Sample) -> Values | None:
    if not sample.complete or _heartbeat(sample) is not None:
        return None
    return {"shown": show(sample.value)}


def _odd_status(sample: Sample) -> Values | None:
    beat = _heartbeat(sample)
    status: JSONValue = None if beat is None else beat.get("status")
    if beat is None or (isinstance(status, str) and status in STATES):
        return None
    return {"shown": show(status)}


def _odd_time(sample: Sample) -> Values | None:
    beat = _heartbeat(sample)
    if beat is None or parse_timestamp(beat.get("timestamp")) is not None:
        return None
    return {"shown": show(beat.get("timestamp"))}


def _no_zone(sample: Sample) -> Values | None:
    beat = _heartbeat(sample)
    if beat is None or not lacks_zone(beat.get("timestamp")):
        return None
    return {"shown": show(beat["timestamp"])}


def _other_time(sample: Sample) -> Values | None:
    beat = _heartbeat(sample)
    moment = None if beat is None else parse_timestamp(beat.get("timestamp"))
    if beat is None or moment is None or lacks_zone(beat["timestamp"]):
        return None
    apart = moment.timestamp() - sample.now
    if abs(apart) <= APART:
        return None
    return {"seconds": f"{apart:+,.0f}", "shown": show(beat["timestamp"])}


def _lacks_fields(sample: Sample) -> Values | None:
    beat = _heartbeat(sample)
    number, others = HEARTBEATS[sample.row]
    lacking = [name for name in (number, *others) if name not in (beat or {})]
    return {"fields": ", ".join(lacking)} if beat is not None and lacking else None


def _other_id(sample: Sample) -> Values | None:
    beat, name = _heartbeat(sample) or {}, HEARTBEATS[sample.row][0]
    expected = next(iter(sample.fields.values()), "")
    if name not in beat or str(beat[name]) == expected:
        return None
    return {"shown": show(beat[name]), "expected": show(expected)}


def _no_text(sample: Sample) -> Values | None:
    try:
        sample.value.decode()
    except UnicodeDecodeError as error:
        cut_at_end = not sample.complete and error.end == len(sample.value)
        return None if cut_at_end else {"shown": show(sample.value)}
    return None


_DATE: Final = re.compile(rb"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")


def _odd_dates(sample: Sample) -> Values | None:
    """Find what is no date in a set of dates; a set without any is somebody else's."""
    odd = [item for item in sample.items if not _DATE.fullmatch(item)]
    return count_bad(odd, sample) if len(odd) < len(sample.items) else None


def _no_json(sample: Sample) -> Values | None:
    if not sample.complete:
        return None
    try:
        decode(sample.value)
    except DecodeError:
        return {"shown": show(sample.value)}
    return None


def _no_cached_fields(sample: Sample) -> Values | None:
    if not sample.complete or _no_json(sample):
        return None
    fields = sample.objects[0] or {}
    lacking = [name for name in CACHED if name not in fields]
    return {"fields": ", ".join(lacking)} if lacking else None


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

RULES: Final = (
    *(
        Rule(code, row, severity, "001 §5", check)
        for row in HEARTBEATS
        for code, severity, check in (
            ("heartbeat-not-json", _E, _no_object),
            ("heartbeat-status", _W, _odd_status),
            ("heartbeat-timestamp", _W, _odd_time),
            ("heartbeat-zone", _N, _no_zone),
            ("heartbeat-clock", _W, _other_time),
            ("heartbeat-fields", _W, _lacks_fields),
            ("heartbeat-id", _W, _other_id),
        )
    ),
    *(Rule("worker-not-text", row, _W, "001 §5", _no_text) for row in TEXTS),
    Rule("sync-dates", "sync_progress", _W, "001 §3", _odd_dates),
    Rule("cache-not-json", "func_cache", _W, "001 §3", _no_json),
    Rule("cache-fields", "func_cache", _N, "001 §3", _no_cached_fields),
)
