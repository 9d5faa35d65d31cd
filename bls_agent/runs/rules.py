"""What a doctor holds against the events of a run (contract 003)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final, TypeAlias

from bls_agent.codec import decode_object, parse_timestamp
from bls_agent.diagnosis import Check, Rule, Sample, Severity, Values, count_bad, show
from bls_agent.errors import DecodeError

__all__ = ["RULES"]

_Event: TypeAlias = Mapping[bytes, bytes]

FIELDS: Final = (b"timestamp", b"sequence", b"event_category", b"event_action", b"data")
ENDS: Final = frozenset({b"completed", b"failed", b"cancelled"})
LIVES: Final = 86_400  # seconds a run's events are kept after its end
LONGEST: Final = 20_000  # events; the contract keeps about 10,000
DIGITS: Final = 20  # of a number of 64 bit
ROW: Final = "run_events"


def _bad_events(is_bad: Callable[[_Event], bool]) -> Check:
    def check(sample: Sample) -> Values | None:
        found = [number.decode() for number, event in sample.entries if is_bad(event)]
        return count_bad(found, sample)

    return check


def _lacks_fields(sample: Sample) -> Values | None:
    for number, event in sample.entries:
        lacking = [name.decode() for name in FIELDS if name not in event]
        if lacking:
            return {"shown": show(number), "fields": ", ".join(lacking)}
    return None


def _has_odd_time(event: _Event) -> bool:
    written = event.get(b"timestamp")
    return written is not None and parse_timestamp(_text(written)) is None


def _has_odd_data(event: _Event) -> bool:
    data = event.get(b"data")
    if data is None:
        return False
    try:
        decode_object(data)
    except DecodeError as error:
        return error.reason != "too_large"
    return False


def _has_odd_sequence(event: _Event) -> bool:
    written = event.get(b"sequence")
    return written is not None and not _is_number(written)


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) <= DIGITS


def _text(payload: bytes) -> str:
    return payload.decode("utf-8", "replace")


def _sequences(sample: Sample) -> list[int]:
    """Give the sequence numbers, oldest first, as far as they are numbers."""
    written = [event.get(b"sequence", b"") for _, event in reversed(sample.entries)]
    return [int(one) for one in written if _is_number(one)]


def _repeated(sample: Sample) -> Values | None:
    numbers = _sequences(sample)
    found = [one for one, after in pairwise(numbers) if after <= one]
    return count_bad(found, sample)


def _holes(sample: Sample) -> Values | None:
    numbers = _sequences(sample)
    found = [f"{one} → {after}" for one, after in pairwise(numbers) if after > one + 1]
    return count_bad(found, sample)


def _kept_for_ever(sample: Sample) -> Values | None:
    """Find a run that is over and does not expire: the TTL is set at its end."""
    if sample.ttl is not None or not sample.entries:
        return None
    number, event = sample.entries[0]
    age = sample.now - int(number.partition(b"-")[0]) / 1000
    category, action = event.get(b"event_category"), event.get(b"event_action")
    ended = category == b"lifecycle" and action in ENDS
    closed = category == b"system" and action == b"close"
    if not ended and not closed and age <= LIVES:
        return None
    return {"hours": f"{max(age, 0) / 3600:,.1f}"}


def _too_long(sample: Sample) -> Values | None:
    return {"length": f"{sample.size:,}"} if sample.size > LONGEST else None


_E, _W = Severity.ERROR, Severity.WARNING

RULES: Final = (
    Rule("run-fields", ROW, _E, "003 §2.1", _lacks_fields),
    Rule("run-timestamp", ROW, _W, "003 §2.1", _bad_events(_has_odd_time)),
    Rule("run-sequence", ROW, _E, "003 §2.1", _bad_events(_has_odd_sequence)),
    Rule("run-repeats", ROW, _W, "003 §2.1", _repeated),
    Rule("run-holes", ROW, _W, "003 §2.1", _holes),
    Rule("run-data", ROW, _E, "003 §2.1", _bad_events(_has_odd_data)),
    Rule("run-kept", ROW, _W, "003 §4.2", _kept_for_ever),
    Rule("run-too-long", ROW, _W, "003 §4.1", _too_long),
)
