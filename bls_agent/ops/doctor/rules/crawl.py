"""The rules about crawl queues and their filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from bls_agent.core.codec import JSONObject
from bls_agent.core.keys import KEYS, key_beside
from bls_agent.crawl.exchange import FAILED_KEPT
from bls_agent.ops.doctor.rule import (
    JSON_LIMIT,
    Question,
    Rule,
    Sample,
    Severity,
    Values,
    bad_items,
    count_bad,
    longer_than,
    read_object,
    show,
    shown_if,
    text_of,
)

__all__ = ["RULES"]

ASKED: Final = 20  # members whose other side is checked
OVERDUE: Final = 300.0  # seconds; a worker that takes requests brings them back sooner
DIGITS: Final = 3  # of a count of retries; how many are allowed is the queue's option

# A sorted set of requests, and the hash with their bodies.
QUEUES: Final = {
    "crawl_requests": "crawl_requests_data",
    "crawl_processing": "crawl_processing_data",
}
BODIES: Final = {body: queue for queue, body in QUEUES.items()}
PREFIX: Final = KEYS["crawl_requests"].template.partition("{")[0]


def _beside(sample: Sample, row: str) -> str:
    return KEYS[row].locate(**sample.fields)


def _odd_key(sample: Sample) -> Values | None:
    return {} if sample.key.startswith(PREFIX) else None


def _ask_both(
    sample: Sample, members: Sequence[bytes], ask: Callable[[str], tuple[Question, ...]]
) -> Iterator[tuple[bytes, Any, Any]]:
    """Ask two questions about each of some members; ``b""`` is a refusal.

    At once: a request that was taken meanwhile is no fault.
    """
    some = members[:ASKED]
    questions = [one for member in some for one in ask(text_of(member))]
    told = sample.ask_all(questions, refused=b"")
    return zip(some, told[::2], told[1::2], strict=True)


def _without_body(sample: Sample) -> Values | None:
    bodies = _beside(sample, QUEUES[sample.row])
    told = _ask_both(
        sample,
        sample.items,
        lambda member: (("HEXISTS", bodies, member), ("ZSCORE", sample.key, member)),
    )
    found = [
        member for member, body, score in told if body == 0 and score not in (None, b"")
    ]
    return _among(count_bad(found, sample), sample)


def _queue_of(sample: Sample) -> str:
    """Name the sorted set that has every member of a hash as well."""
    if sample.row in BODIES:
        return _beside(sample, BODIES[sample.row])
    fields = KEYS["crawl_requests"].parse(key_beside(sample.fields["place"]))
    return KEYS["crawl_processing"].locate(**fields) if fields else ""


def _without_request(sample: Sample) -> Values | None:
    queue = _queue_of(sample)
    if not queue:
        return None
    told = _ask_both(
        sample,
        list(sample.pairs),
        lambda member: (("ZSCORE", queue, member), ("HEXISTS", sample.key, member)),
    )
    found = [member for member, score, here in told if score is None and here == 1]
    return _among(count_bad(found, sample), sample)


def _among(values: Values | None, sample: Sample) -> Values | None:
    if values is None:
        return None
    looked = len(sample.items) or len(sample.pairs)
    return values | {"of": str(min(looked, ASKED))}


def _pickled(sample: Sample) -> Values | None:
    found = [name for name, body in sample.pairs.items() if _PICKLE.match(body)]
    return count_bad(found, sample)


_PICKLE: Final = re.compile(rb"\x80[\x02-\x05]")
_SALTED: Final = re.compile(rb"-?\d{12,20}")  # what hash() gives, new in each process


def _odd_retries(sample: Sample) -> Values | None:
    value = sample.value
    return shown_if(not value.isdigit() or len(value) > DIGITS, value)


def _are_overdue(sample: Sample) -> Values | None:
    long_ago = f"({sample.now - OVERDUE:.0f}"
    count = sample.ask("ZCOUNT", sample.key, "-inf", long_ago)
    if not count:
        return None
    minutes = f"{OVERDUE / 60:.0f}"
    return {"count": f"{count:,}", "of": f"{sample.size:,}", "minutes": minutes}


def _is_full(sample: Sample) -> Values | None:
    if sample.size < FAILED_KEPT:
        return None
    return {"size": f"{sample.size:,}", "cap": f"{FAILED_KEPT:,}"}


def _is_odd_failure(entry: bytes) -> bool:
    if len(entry) > JSON_LIMIT:  # a request may be that large
        return False
    read = read_object(entry)
    return read is None or not _names_request(read) or "reason" not in read


def _names_request(entry: JSONObject) -> bool:
    return isinstance(entry.get("request"), dict) or "raw_base64" in entry


def _odd_counters(sample: Sample) -> Values | None:
    for name, value in sample.pairs.items():
        if not _COUNTER.fullmatch(value):
            return {"field": show(name), "shown": show(value)}
    return None


_COUNTER: Final = re.compile(rb"0|[1-9]\d{0,17}")


def _is_salted(member: bytes) -> bool:
    return _SALTED.fullmatch(member) is not None


_E, _W = Severity.ERROR, Severity.WARNING
_OURS: Final = "bls_agent"
_FILTERS: Final = ("crawl_filter_fingerprint", "crawl_item_fingerprint")

RULES: Final = (
    Rule("crawl-key", "", _W, "004", _odd_key),
    *(Rule("crawl-no-body", row, _E, "004", _without_body) for row in QUEUES),
    *(Rule("crawl-no-request", row, _W, "004", _without_request) for row in BODIES),
    *(Rule("crawl-pickled", row, _W, "004", _pickled) for row in BODIES),
    Rule("crawl-overdue", "crawl_processing", _W, "004", _are_overdue),
    *(
        Rule("crawl-not-taken", row, _W, _OURS, _without_request)
        for row in ("crawl_leases", "crawl_delayed")
    ),
    Rule("crawl-counters", "crawl_counters", _W, _OURS, _odd_counters),
    Rule("crawl-wake", "crawl_wake", _W, _OURS, longer_than(1, "size")),
    Rule("crawl-failed-full", "crawl_failed", _W, "004", _is_full),
    Rule("crawl-failed-odd", "crawl_failed", _W, "004", bad_items(_is_odd_failure)),
    Rule("crawl-retries", "crawl_failed_retries", _W, "004", _odd_retries),
    *(Rule("crawl-salted", row, _W, "004", bad_items(_is_salted)) for row in _FILTERS),
)
