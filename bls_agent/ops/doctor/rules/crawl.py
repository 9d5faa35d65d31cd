"""The rules about the crawl queue (contract 004): queues and filters."""

from __future__ import annotations

import re
from typing import Final

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
    read_object,
    show,
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


def _text(payload: bytes) -> str:
    return payload.decode("utf-8", "surrogateescape")


def _beside(sample: Sample, row: str) -> str:
    return KEYS[row].locate(**sample.fields)


def _odd_key(sample: Sample) -> Values | None:
    return {} if sample.key.startswith(PREFIX) else None


def _has_body(sample: Sample, member: bytes) -> Question:
    return ("HEXISTS", _beside(sample, QUEUES[sample.row]), _text(member))


def _is_queued(sample: Sample, member: bytes) -> Question:
    return ("ZSCORE", _beside(sample, sample.row), _text(member))


def _ask_bodies(sample: Sample) -> list[Question]:
    """Ask for both sides at once: a request that was taken meanwhile is no fault."""
    members = sample.items[:ASKED]
    return [ask(sample, one) for one in members for ask in (_has_body, _is_queued)]


def _without_body(sample: Sample) -> Values | None:
    found = [
        member
        for member in sample.items[:ASKED]
        if sample.answers.get(_has_body(sample, member)) == 0
        and sample.answers.get(_is_queued(sample, member)) is not None
    ]
    return _among(count_bad(found, sample), sample)


def _request_of(sample: Sample, member: bytes) -> Question:
    return ("ZSCORE", _queue_of(sample), _text(member))


def _is_there(sample: Sample, member: bytes) -> Question:
    return ("HEXISTS", sample.key, _text(member))


def _queue_of(sample: Sample) -> str:
    """Name the sorted set that has every member of a hash as well."""
    if sample.row in BODIES:
        return _beside(sample, BODIES[sample.row])
    fields = KEYS["crawl_requests"].parse(key_beside(sample.fields["place"]))
    return KEYS["crawl_processing"].locate(**fields) if fields else ""


def _ask_requests(sample: Sample) -> list[Question]:
    if not _queue_of(sample):
        return []
    members = list(sample.pairs)[:ASKED]
    return [ask(sample, one) for one in members for ask in (_request_of, _is_there)]


def _without_request(sample: Sample) -> Values | None:
    found = [
        member
        for member in list(sample.pairs)[:ASKED]
        if sample.answers.get(_request_of(sample, member), b"") is None
        and sample.answers.get(_is_there(sample, member)) == 1
    ]
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
    if value.isdigit() and len(value) <= DIGITS:
        return None
    return {"shown": show(value)}


def _overdue(sample: Sample) -> Question:
    return ("ZCOUNT", sample.key, "-inf", f"({sample.now - OVERDUE:.0f}")


def _ask_overdue(sample: Sample) -> list[Question]:
    return [_overdue(sample)]


def _are_overdue(sample: Sample) -> Values | None:
    count = sample.answers.get(_overdue(sample))
    if not isinstance(count, int) or not count:
        return None
    return {
        "count": f"{count:,}",
        "of": f"{sample.size:,}",
        "minutes": f"{OVERDUE / 60:.0f}",
    }


def _is_full(sample: Sample) -> Values | None:
    size = sample.size
    return (
        {"size": f"{size:,}", "cap": f"{FAILED_KEPT:,}"}
        if size >= FAILED_KEPT
        else None
    )


def _is_odd_failure(entry: bytes) -> bool:
    if len(entry) > JSON_LIMIT:  # a request may be that large
        return False
    read = read_object(entry)
    return read is None or not _names_request(read) or "reason" not in read


def _names_request(entry: JSONObject) -> bool:
    return isinstance(entry.get("request"), dict) or "raw_base64" in entry


def _wakes_twice(sample: Sample) -> Values | None:
    return {"size": f"{sample.size:,}"} if sample.size > 1 else None


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
    *(
        Rule("crawl-no-body", row, _E, "004", _without_body, _ask_bodies)
        for row in QUEUES
    ),
    *(
        Rule("crawl-no-request", row, _W, "004", _without_request, _ask_requests)
        for row in BODIES
    ),
    *(Rule("crawl-pickled", row, _W, "004", _pickled) for row in BODIES),
    Rule("crawl-overdue", "crawl_processing", _W, "004", _are_overdue, _ask_overdue),
    *(
        Rule("crawl-not-taken", row, _W, _OURS, _without_request, _ask_requests)
        for row in ("crawl_leases", "crawl_delayed")
    ),
    Rule("crawl-counters", "crawl_counters", _W, _OURS, _odd_counters),
    Rule("crawl-wake", "crawl_wake", _W, _OURS, _wakes_twice),
    Rule("crawl-failed-full", "crawl_failed", _W, "004", _is_full),
    Rule("crawl-failed-odd", "crawl_failed", _W, "004", bad_items(_is_odd_failure)),
    Rule("crawl-retries", "crawl_failed_retries", _W, "004", _odd_retries),
    *(Rule("crawl-salted", row, _W, "004", bad_items(_is_salted)) for row in _FILTERS),
)
