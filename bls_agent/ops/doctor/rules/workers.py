"""The rules about worker heartbeats, tasks and caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final, TypeAlias

from bls_agent.core.codec import JSONObject, decode, parse_timestamp
from bls_agent.core.errors import DecodeError
from bls_agent.core.keys import KEYS, key_beside
from bls_agent.ops.doctor.rule import (
    Check,
    Rule,
    Sample,
    Severity,
    Source,
    Values,
    count_bad,
    is_no_text,
    is_no_time,
    lacks_zone,
    seconds_ahead,
    show,
    shown_if,
)
from bls_agent.workers.heartbeat_fields import KINDS, WorkerStatus
from bls_agent.workers.progress import read_days
from bls_agent.workers.tasks import WHOLE, Task
from bls_agent.workers.worker import GENERIC, HEARTBEATS, STALE, find_row

APART: Final = 120.0  # most seconds between the times of a heartbeat and the server
CACHED: Final = ("result", "timestamp", "func_name")
STATES: Final = tuple(WorkerStatus)
JUDGED_APART: Final = frozenset({"status", "timestamp"})  # separate rules check these
LEAVING: Final = 5.0  # seconds before the end of a lease when its heartbeat may be gone
# The protocol does not define the values of these keys, but they must be text, no pickle.
TASKS: Final = ("task_status", "backtest_task_progress")
TEXTS: Final = (GENERIC, "component_heartbeat", "process_heartbeat", *TASKS)


_Beat: TypeAlias = Callable[[JSONObject, Sample], Values | None]


def _of_beat(check: _Beat) -> Check:
    """Make a check of heartbeats that ignores values that are no complete JSON object."""

    def check_sample(sample: Sample) -> Values | None:
        beat = sample.document
        return None if beat is None else check(beat, sample)

    return check_sample


def _beat_field(name: str, is_bad: Callable[[Any], bool]) -> Check:
    return _of_beat(lambda beat, _: shown_if(is_bad(beat.get(name)), beat.get(name)))


def _no_object(sample: Sample) -> Values | None:
    return shown_if(sample.complete and sample.document is None, sample.value)


def _other_time(beat: JSONObject, sample: Sample) -> Values | None:
    written = beat.get("timestamp")
    apart = seconds_ahead(written, sample)
    if abs(apart) <= APART:
        return None
    return {"seconds": f"{apart:+,.0f}", "shown": show(written)}


def _lacks_fields(beat: JSONObject, sample: Sample) -> Values | None:
    names = [
        one.name for one in fields(KINDS[sample.row]) if one.name not in JUDGED_APART
    ]
    lacking = [name for name in names if name not in beat]
    return {"fields": ", ".join(lacking)} if lacking else None


def _odd_fields(beat: JSONObject, sample: Sample) -> Values | None:
    try:
        KINDS[sample.row].from_json({**beat, "status": WorkerStatus.RUNNING})
    except DecodeError as error:
        return {"shown": show(error.detail)}
    return None


def _other_id(beat: JSONObject, sample: Sample) -> Values | None:
    return _not_the_key(beat, KINDS[sample.row].id_field, sample)


def _not_the_key(found: JSONObject, name: str, sample: Sample) -> Values | None:
    """Find a value whose field ``name`` differs from the name in its key."""
    expected = next(iter(sample.fields.values()), "")
    if name not in found or str(found[name]) == expected:
        return None
    return {"shown": show(found[name]), "expected": show(expected)}


def _stale(beat: JSONObject, sample: Sample) -> Values | None:
    """Find heartbeats that were not refreshed for half a TTL.

    The timestamp is checked, too. If a worker sets a shorter TTL than the protocol's, its
    heartbeat would always seem old by the remaining TTL alone.
    """
    ttl = float(KEYS[sample.row].ttl or 0)
    if sample.ttl is None or sample.ttl > ttl * STALE:
        return None
    moment = parse_timestamp(beat.get("timestamp"))
    recent = moment is not None and sample.now - moment.timestamp() < ttl * STALE
    if recent or beat.get("status") == WorkerStatus.STOPPED:
        return None
    return {"seconds": f"{ttl - sample.ttl:.0f}"}


def _removed(sample: Sample) -> Values | None:
    """Find a worker whose heartbeat was deleted although its lease still exists."""
    key = key_beside(sample.fields.get("place", ""))
    ended = sample.value.endswith(b" ended")  # remains for a moment after a clean stop
    short = sample.ttl is not None and sample.ttl < LEAVING
    if ended or short or not find_row(key, HEARTBEATS):
        return None
    return shown_if(sample.ask("EXISTS", key) == 0, key)


def _no_text(sample: Sample) -> Values | None:
    bad = is_no_text(sample.value, whole=sample.complete)
    return shown_if(bad, sample.value)


def _unreadable_task(sample: Sample) -> Values | None:
    task = Task.decode("", sample.value)
    bad = not task.status and task.reason not in ("", "not_utf8")
    return shown_if(sample.complete and bad, sample.value)


def _odd_progress(sample: Sample) -> Values | None:
    given = (sample.document or {}).get("progress")
    progress = Task.decode("", sample.value).progress
    known = progress is not None and 0 <= progress <= WHOLE
    return shown_if(given is not None and not known, given)


def _other_task(sample: Sample) -> Values | None:
    return _not_the_key(sample.document or {}, "task_id", sample)


def _odd_moment(sample: Sample) -> Values | None:
    """Find a timestamp that cannot be read or has no time zone."""
    given = (sample.document or {}).get("timestamp")
    return shown_if(
        given is not None and (is_no_time(given) or lacks_zone(given)), given
    )


def _odd_dates(sample: Sample) -> Values | None:
    """Find members that are no dates; ignore a set of another program without dates."""
    odd = [item for item in sample.items if not read_days([item])[0]]
    return count_bad(odd, sample) if len(odd) < len(sample.items) else None


def _no_json(sample: Sample) -> Values | None:
    try:
        decode(sample.value if sample.complete else b"null")
    except DecodeError:
        return {"shown": show(sample.value)}
    return None


def _no_cached_fields(sample: Sample) -> Values | None:
    if not sample.complete or _no_json(sample):
        return None
    lacking = [name for name in CACHED if name not in (sample.document or {})]
    return {"fields": ", ".join(lacking)} if lacking else None


def _other_function(sample: Sample) -> Values | None:
    given = (sample.document or {}).get("func_name")
    readings = KEYS[sample.row].readings(sample.key)
    known = given is None or any(reading["func"] == given for reading in readings)
    return shown_if(not known, given)


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

RULES: Final = (
    *(
        Rule(code, row, severity, Source.WORKERS, check)
        for row in KINDS
        for code, severity, check in (
            ("heartbeat-not-json", _E, _no_object),
            (
                "heartbeat-status",
                _W,
                _beat_field("status", lambda status: status not in STATES),
            ),
            ("heartbeat-timestamp", _W, _beat_field("timestamp", is_no_time)),
            ("heartbeat-zone", _N, _beat_field("timestamp", lacks_zone)),
            ("heartbeat-clock", _W, _of_beat(_other_time)),
            ("heartbeat-fields", _W, _of_beat(_lacks_fields)),
            ("heartbeat-values", _W, _of_beat(_odd_fields)),
            ("heartbeat-id", _W, _of_beat(_other_id)),
            ("heartbeat-stale", _N, _of_beat(_stale)),
        )
    ),
    Rule("heartbeat-clock", GENERIC, _W, Source.WORKERS, _of_beat(_other_time)),
    Rule("heartbeat-stale", GENERIC, _N, Source.WORKERS, _of_beat(_stale)),
    Rule("heartbeat-removed", "owner", _W, Source.OWN, _removed),
    *(Rule("worker-not-text", row, _W, Source.WORKERS, _no_text) for row in TEXTS),
    *(
        Rule(code, row, severity, Source.WORKERS, check)
        for row in TASKS
        for code, severity, check in (
            ("task-unreadable", _W, _unreadable_task),
            ("task-id", _W, _other_task),
            ("task-progress", _W, _odd_progress),
            ("task-timestamp", _N, _odd_moment),
        )
    ),
    Rule("sync-dates", "sync_progress", _W, Source.WORKERS, _odd_dates),
    Rule("cache-not-json", "func_cache", _W, Source.WORKERS, _no_json),
    Rule("cache-fields", "func_cache", _N, Source.WORKERS, _no_cached_fields),
    Rule("cache-function", "func_cache", _W, Source.WORKERS, _other_function),
    Rule("cache-timestamp", "func_cache", _N, Source.WORKERS, _odd_moment),
)
