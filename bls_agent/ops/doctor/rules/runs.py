"""The rules about run events, and about the metadata of runs that this package writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final, TypeAlias

from bls_agent.core.codec import decode_object
from bls_agent.core.errors import DecodeError
from bls_agent.core.keys import encode_key, key_beside
from bls_agent.ops.doctor.rule import (
    Check,
    Rule,
    Sample,
    Severity,
    Source,
    Values,
    count_bad,
    is_no_time,
    is_number,
    longer_than,
    show,
    shown_if,
    text_of,
)
from bls_agent.runs.events import StreamEvent, find_id
from bls_agent.runs.reading import RunKeys, run_id_of

_Event: TypeAlias = Mapping[bytes, bytes]

FIELDS: Final = (b"timestamp", b"sequence", b"event_category", b"event_action", b"data")
ENDS: Final = tuple(
    (b"lifecycle", action) for action in (b"completed", b"failed", b"cancelled")
)
CLOSE: Final = (b"system", b"close")
LIVES: Final = 86_400  # seconds for which a run's events are kept after its end
LONGEST: Final = 20_000  # most events of a run; the protocol keeps about 10,000
LARGE: Final = 256 * 1024  # bytes of one event; readers fetch hundreds at once
HEAVY: Final = 64 * 1024 * 1024  # bytes of a run, such as 10,000 events of 6 KiB
AHEAD: Final = 300.0  # most seconds that an id may be ahead of the server's clock
WAITING: Final = 3_600.0  # most seconds from the last event of a run to its close
SEQUENCE_DIGITS: Final = 15  # sequences are at most 10^15 - 1
ROW: Final = "run_events"
BOOKS: Final = "run_books"


def _bad_field(name: bytes, is_bad: Callable[[bytes], bool]) -> Check:
    """Make a check that counts events in which the field ``name`` is bad."""

    def check(sample: Sample) -> Values | None:
        found = [
            number.decode()
            for number, event in sample.entries
            if name in event and is_bad(event[name])
        ]
        return count_bad(found, sample)

    return check


def _lacks_fields(sample: Sample) -> Values | None:
    for number, event in sample.entries:
        lacking = [name.decode() for name in FIELDS if name not in event]
        if lacking:
            return {"shown": show(number), "fields": ", ".join(lacking)}
    return None


def _is_odd_data(data: bytes) -> bool:
    try:
        decode_object(data)
    except DecodeError as error:
        return error.reason != "too_large"
    return False


def _sequences(sample: Sample) -> list[int]:
    """Return the sequence numbers, oldest first; ignore values that are no numbers."""
    written = [event.get(b"sequence", b"") for _, event in reversed(sample.entries)]
    return [int(one) for one in written if is_number(one)]


def _other_id(sample: Sample) -> Values | None:
    return shown_if(_keys(sample) is None, sample.fields.get("run_id"))


def _keys(sample: Sample) -> RunKeys | None:
    place = sample.fields.get("place")
    key = sample.key if place is None else key_beside(place)
    run_id = run_id_of(encode_key(key))
    return None if run_id is None else RunKeys(run_id)


def _repeated(sample: Sample) -> Values | None:
    numbers = _sequences(sample)
    found = [one for one, after in pairwise(numbers) if after <= one]
    return count_bad(found, sample)


def _holes(sample: Sample) -> Values | None:
    """Find gaps between sequence numbers; another rule reports numbers that go back."""
    numbers = _sequences(sample)
    if _repeated(sample):
        return None
    found = [f"{one} → {after}" for one, after in pairwise(numbers) if after > one + 1]
    return count_bad(found, sample)


def _kept_for_ever(sample: Sample) -> Values | None:
    """Find a run that has ended but has no TTL; the writer sets one at the end."""
    _, event, age = _newest(sample)
    over = _act(event) in (*ENDS, CLOSE) or age > LIVES
    if sample.ttl is not None or not over:
        return None
    return {"hours": f"{max(age, 0) / 3600:,.1f}"}


def _newest(sample: Sample) -> tuple[bytes, _Event, float]:
    """Return the newest event's id, its fields, and its age in seconds by the id."""
    if not sample.entries:
        return b"", {}, 0.0
    number, event = sample.entries[0]
    return number, event, sample.now - int(number.partition(b"-")[0]) / 1000


def _act(event: _Event) -> tuple[bytes | None, bytes | None]:
    return event.get(b"event_category"), event.get(b"event_action")


def _not_closed(sample: Sample) -> Values | None:
    """Find a run that has ended but is not closed, so that its followers still wait."""
    _, event, age = _newest(sample)
    if _act(event) not in ENDS or age < WAITING:
        return None
    action = event.get(b"event_action", b"").decode()
    return {"action": action, "hours": f"{age / 3600:,.1f}"}


def _behind_close(sample: Sample) -> Values | None:
    """Find events after ``system.close``, because no follower reads such events."""
    for behind, (number, event) in enumerate(sample.entries):
        if _act(event) == CLOSE:
            return {"count": str(behind), "shown": show(number)} if behind else None
    return None


def _ahead(sample: Sample) -> Values | None:
    """Find ids in the future, because the ids of later events then show wrong times."""
    number, _, age = _newest(sample)
    if age >= -AHEAD:
        return None
    return {"shown": show(number), "hours": f"{-age / 3600:,.1f}"}


def _untimed(sample: Sample) -> Values | None:
    """Find a run that this package has written and that has no TTL."""
    keys = _keys(sample)
    if sample.ttl is not None or keys is None or _kept_for_ever(sample) is not None:
        return None
    return {} if sample.ask("EXISTS", keys.books) == 1 else None


def _too_large(sample: Sample) -> Values | None:
    sizes = {number: len(event.get(b"data", b"")) for number, event in sample.entries}
    number = max(sizes, key=sizes.__getitem__, default=b"")
    size = max(sizes.get(number, 0), int(sample.mean_bytes))
    if size <= LARGE:
        return None
    return {"size": f"{size / 1024:,.0f}", "shown": show(number or None)}


def _too_heavy(sample: Sample) -> Values | None:
    size = sample.mean_bytes * sample.size
    return {"size": f"{size / 2**20:,.0f}"} if size > HEAVY else None


def _ask_about(keys: RunKeys, sample: Sample) -> tuple[bool, list[Any] | None]:
    """Return whether the writer's lease is missing, and the stream's last entry.

    The entry is a list of one or no entry, or ``None`` if Redis refuses the read.
    """
    last = ("XREVRANGE", keys.events, "+", "-", "COUNT", "1")
    owners, entries = sample.ask_all([("EXISTS", keys.owner), last])
    return owners == 0, entries


def _lost(sample: Sample) -> Values | None:
    """Find a run that is not closed although its writer has lost its lease."""
    keys = _keys(sample)
    if keys is None or b"owner" not in sample.pairs:
        return None
    missing, entries = _ask_about(keys, sample)
    last = StreamEvent.decode(keys.run_id, *entries[0]) if entries else None
    if not missing or last is None or last.closes:
        return None
    return {"run": str(keys.run_id), "shown": show(last.id)}


def _gone(sample: Sample) -> Values | None:
    """Find metadata of a run without events and without a writer that may add some."""
    keys = _keys(sample)
    if keys is None or _ask_about(keys, sample) != (True, []):
        return None
    return {"run": str(keys.run_id), "shown": show(sample.pairs.get(b"sequence"))}


def _odd_books(sample: Sample) -> Values | None:
    """Find metadata that the Lua script for run events cannot parse."""
    sequence, last = sample.pairs.get(b"sequence"), sample.pairs.get(b"id")
    if sequence is not None and not is_number(sequence, SEQUENCE_DIGITS):
        return {"field": "sequence", "shown": show(sequence)}
    if last is not None and find_id(last.decode("ascii", "replace")) is None:
        return {"field": "id", "shown": show(last)}
    return None


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

RULES: Final = (
    Rule("run-id", ROW, _W, Source.RUNS, _other_id),
    Rule("run-fields", ROW, _E, Source.RUNS, _lacks_fields),
    Rule(
        "run-timestamp",
        ROW,
        _W,
        Source.RUNS,
        _bad_field(b"timestamp", lambda time: is_no_time(text_of(time))),
    ),
    Rule(
        "run-sequence",
        ROW,
        _E,
        Source.RUNS,
        _bad_field(b"sequence", lambda number: not is_number(number)),
    ),
    Rule("run-repeats", ROW, _W, Source.RUNS, _repeated),
    Rule("run-holes", ROW, _W, Source.RUNS, _holes),
    Rule("run-data", ROW, _E, Source.RUNS, _bad_field(b"data", _is_odd_data)),
    Rule("run-clock", ROW, _W, Source.RUNS, _ahead),
    Rule("run-unclosed", ROW, _N, Source.RUNS, _not_closed),
    Rule("run-after-close", ROW, _W, Source.RUNS, _behind_close),
    Rule("run-kept", ROW, _W, Source.RUNS, _kept_for_ever),
    Rule("run-untimed", ROW, _W, Source.RUNS, _untimed),
    Rule("run-too-long", ROW, _W, Source.RUNS, longer_than(LONGEST)),
    Rule("run-large", ROW, _W, Source.RUNS, _too_large),
    Rule("run-heavy", ROW, _W, Source.RUNS, _too_heavy),
    Rule("run-lost", BOOKS, _W, Source.OWN, _lost),
    Rule("run-gone", BOOKS, _W, Source.OWN, _gone),
    Rule("run-books", BOOKS, _E, Source.OWN, _odd_books),
)
