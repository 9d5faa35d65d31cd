"""The rules about worker heartbeats, tasks and caches (contract 001)."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from bls_agent.core.codec import JSONObject, JSONValue, decode, parse_timestamp
from bls_agent.core.errors import DecodeError
from bls_agent.core.keys import KEYS, key_beside
from bls_agent.ops.doctor.rule import (
    Question,
    Rule,
    Sample,
    Severity,
    Values,
    count_bad,
    lacks_zone,
    show,
)
from bls_agent.workers.heartbeat_fields import KINDS, WorkerStatus
from bls_agent.workers.progress import read_days
from bls_agent.workers.tasks import WHOLE, Task
from bls_agent.workers.worker import STALE

__all__ = ["RULES"]

APART: Final = 120.0  # seconds between a heartbeat's time and the server's
CACHED: Final = ("result", "timestamp", "func_name")
STATES: Final = frozenset(WorkerStatus)
TOLD: Final = frozenset({"status", "timestamp"})  # rules of their own look at them
LEAVING: Final = 5.0  # seconds before a lease ends: its heartbeat may just have ended
# What a value has to be is left open by the contract: text at least, never a pickle.
TASKS: Final = ("task_status", "backtest_task_progress")
TEXTS: Final = ("component_heartbeat", "process_heartbeat", *TASKS)


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
    names = [one.name for one in fields(KINDS[sample.row]) if one.name not in TOLD]
    lacking = [name for name in names if name not in (beat or {})]
    return {"fields": ", ".join(lacking)} if beat is not None and lacking else None


def _odd_fields(sample: Sample) -> Values | None:
    beat = _heartbeat(sample)
    if beat is None:
        return None
    try:
        KINDS[sample.row].from_json({**beat, "status": WorkerStatus.RUNNING})
    except DecodeError as error:
        return {"shown": show(error.detail)}
    return None


def _other_id(sample: Sample) -> Values | None:
    return _not_the_key(_heartbeat(sample), KINDS[sample.row].id_field, sample)


def _not_the_key(found: JSONObject | None, name: str, sample: Sample) -> Values | None:
    """Find a value whose fields contradict its key."""
    expected = next(iter(sample.fields.values()), "")
    if found is None or name not in found or str(found[name]) == expected:
        return None
    return {"shown": show(found[name]), "expected": show(expected)}


def _stale(sample: Sample) -> Values | None:
    """Find heartbeats not refreshed for half a TTL that claim no other one.

    A worker that sets less than the contract's TTL looks old all the time.
    """
    beat, ttl = _heartbeat(sample) or {}, float(KEYS[sample.row].ttl or 0)
    if sample.ttl is None or sample.ttl > ttl * STALE:
        return None
    moment = parse_timestamp(beat.get("timestamp"))
    recent = moment is not None and sample.now - moment.timestamp() < ttl * STALE
    if recent or beat.get("status") == WorkerStatus.STOPPED:
        return None
    return {"seconds": f"{ttl - sample.ttl:.0f}"}


def _owned(sample: Sample) -> str:
    """Give the heartbeat that a lease is for, ``""`` if it is for something else."""
    key = key_beside(sample.fields.get("place", ""))
    ended = sample.value.endswith(b" ended")  # stays a moment behind a clean stop
    short = sample.ttl is not None and sample.ttl < LEAVING
    of_worker = any(KEYS[row].match(key) for row in KINDS)
    return key if of_worker and not ended and not short else ""


def _ask_for_owned(sample: Sample) -> list[Question]:
    return [("EXISTS", key)] if (key := _owned(sample)) else []


def _removed(sample: Sample) -> Values | None:
    questions = _ask_for_owned(sample)
    if not questions or sample.answers.get(questions[0]) != 0:
        return None
    return {"shown": show(questions[0][1])}


def _no_text(sample: Sample) -> Values | None:
    try:
        sample.value.decode()
    except UnicodeDecodeError as error:
        cut_at_end = not sample.complete and error.end == len(sample.value)
        return None if cut_at_end else {"shown": show(sample.value)}
    return None


def _task(sample: Sample) -> Task | None:
    return Task.decode("", sample.value) if sample.complete else None


def _unreadable_task(sample: Sample) -> Values | None:
    task = _task(sample)
    if task is None or task.status or task.reason in ("", "not_utf8"):
        return None
    return {"shown": show(sample.value)}


def _odd_progress(sample: Sample) -> Values | None:
    task = _task(sample)
    said = None if task is None else task.fields.get("progress")
    if task is None or said is None:
        return None
    if task.progress is not None and 0 <= task.progress <= WHOLE:
        return None
    return {"shown": show(said)}


def _other_task(sample: Sample) -> Values | None:
    task = _task(sample)
    return _not_the_key(task.fields if task else None, "task_id", sample)


def _odd_moment(found: JSONObject | None) -> Values | None:
    """Find a timestamp that cannot be read or has no time zone."""
    said = (found or {}).get("timestamp")
    if said is None or (parse_timestamp(said) is not None and not lacks_zone(said)):
        return None
    return {"shown": show(said)}


def _odd_task_time(sample: Sample) -> Values | None:
    task = _task(sample)
    return _odd_moment(task.fields if task else None)


def _odd_dates(sample: Sample) -> Values | None:
    """Find members that are no dates; a set without any date is a foreign one."""
    odd = [item for item in sample.items if not read_days([item])[0]]
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


def _entry(sample: Sample) -> JSONObject | None:
    return sample.objects[0] if sample.complete else None


def _other_function(sample: Sample) -> Values | None:
    said = (_entry(sample) or {}).get("func_name")
    readings = KEYS[sample.row].readings(sample.key)
    if said is None or any(reading["func"] == said for reading in readings):
        return None
    return {"shown": show(said)}


def _odd_entry_time(sample: Sample) -> Values | None:
    return _odd_moment(_entry(sample))


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

RULES: Final = (
    *(
        Rule(code, row, severity, "001 §5", check)
        for row in KINDS
        for code, severity, check in (
            ("heartbeat-not-json", _E, _no_object),
            ("heartbeat-status", _W, _odd_status),
            ("heartbeat-timestamp", _W, _odd_time),
            ("heartbeat-zone", _N, _no_zone),
            ("heartbeat-clock", _W, _other_time),
            ("heartbeat-fields", _W, _lacks_fields),
            ("heartbeat-values", _W, _odd_fields),
            ("heartbeat-id", _W, _other_id),
            ("heartbeat-stale", _N, _stale),
        )
    ),
    Rule("heartbeat-removed", "owner", _W, "bls_agent", _removed, _ask_for_owned),
    *(Rule("worker-not-text", row, _W, "001 §5", _no_text) for row in TEXTS),
    *(
        Rule(code, row, severity, "001 §3", check)
        for row in TASKS
        for code, severity, check in (
            ("task-unreadable", _W, _unreadable_task),
            ("task-id", _W, _other_task),
            ("task-progress", _W, _odd_progress),
            ("task-timestamp", _N, _odd_task_time),
        )
    ),
    Rule("sync-dates", "sync_progress", _W, "001 §3", _odd_dates),
    Rule("cache-not-json", "func_cache", _W, "001 §3", _no_json),
    Rule("cache-fields", "func_cache", _N, "001 §3", _no_cached_fields),
    Rule("cache-function", "func_cache", _W, "001 §3", _other_function),
    Rule("cache-timestamp", "func_cache", _N, "001 §3", _odd_entry_time),
)
