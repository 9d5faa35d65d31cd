"""The rules about crawl queues and their filters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from bls_agent.core.keys import KEYS, key_beside
from bls_agent.crawl.exchange import FAILED_KEPT
from bls_agent.ops.doctor.rule import (
    JSON_LIMIT,
    Rule,
    Sample,
    Severity,
    Source,
    Values,
    bad_items,
    count_bad,
    is_number,
    longer_than,
    read_object,
    show,
    shown_if,
    text_of,
)

ASKED: Final = 20  # members that are compared with the other key at most
OVERDUE: Final = 300.0  # seconds; a worker puts overdue requests back sooner than this
COUNTER_DIGITS: Final = 18
DIGITS: Final = 3  # most digits of a count of retries, because users set the limit

# Sorted set of requests → hash with the bodies of these requests.
QUEUES: Final = {
    "crawl_requests": "crawl_requests_data",
    "crawl_processing": "crawl_processing_data",
}
BODIES: Final = {body: queue for queue, body in QUEUES.items()}
PREFIX: Final = KEYS["crawl_requests"].template.partition("{")[0]


def _odd_key(sample: Sample) -> Values | None:
    return {} if sample.key.startswith(PREFIX) else None


def _ask_both(
    sample: Sample, members: Sequence[bytes], queue: str, bodies: str
) -> Iterator[tuple[bytes, Any, Any]]:
    """Return some members of a queue, each with its score and whether it has a body.

    ``b""`` replaces the answer to a question that Redis refuses. One write sends all
    questions, because a request that a worker takes between two reads looks like a fault.
    """
    some = members[:ASKED]
    scores = [("ZSCORE", queue, text_of(one)) for one in some]
    there = [("HEXISTS", bodies, text_of(one)) for one in some]
    pairs = zip(scores, there, strict=True)
    answers = sample.ask_all([one for pair in pairs for one in pair], refused=b"")
    return zip(some, answers[::2], answers[1::2], strict=True)


def _without_body(sample: Sample) -> Values | None:
    bodies = KEYS[QUEUES[sample.row]].locate(**sample.fields)
    answers = _ask_both(sample, sample.items, sample.key, bodies)
    found = [
        one for one, score, body in answers if body == 0 and score not in (None, b"")
    ]
    return count_bad(found, sample, ASKED)


def _without_request(sample: Sample) -> Values | None:
    """Find fields of a hash that are no members of the queue's sorted set."""
    row, fields = BODIES.get(sample.row, "crawl_processing"), sample.fields
    if "place" in fields:
        fields = KEYS["crawl_requests"].parse(key_beside(fields["place"])) or {}
    if not fields:
        return None
    queue = KEYS[row].locate(**fields)
    answers = _ask_both(sample, list(sample.pairs), queue, sample.key)
    found = [one for one, score, body in answers if score is None and body == 1]
    return count_bad(found, sample, ASKED)


def _pickled(sample: Sample) -> Values | None:
    found = [name for name, body in sample.pairs.items() if _PICKLE.match(body)]
    return count_bad(found, sample)


_PICKLE: Final = re.compile(rb"\x80[\x02-\x05]")
_SALTED: Final = re.compile(rb"-?\d{12,20}")  # hash(): each process has another result


def _odd_retries(sample: Sample) -> Values | None:
    return shown_if(not is_number(sample.value, DIGITS), sample.value)


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
    read = read_object(entry) or {}
    named = isinstance(read.get("request"), dict) or "raw_base64" in read
    whole = len(entry) <= JSON_LIMIT  # a longer entry is not parsed
    return whole and not (named and "reason" in read)


def _odd_counters(sample: Sample) -> Values | None:
    for name, value in sample.pairs.items():
        if not is_number(value, COUNTER_DIGITS):
            return {"field": show(name), "shown": show(value)}
    return None


def _is_salted(member: bytes) -> bool:
    return _SALTED.fullmatch(member) is not None


_E, _W = Severity.ERROR, Severity.WARNING
_FILTERS: Final = ("crawl_filter_fingerprint", "crawl_item_fingerprint")

RULES: Final = (
    Rule("crawl-key", "", _W, Source.CRAWL, _odd_key),
    *(Rule("crawl-no-body", row, _E, Source.CRAWL, _without_body) for row in QUEUES),
    *(
        Rule("crawl-no-request", row, _W, Source.CRAWL, _without_request)
        for row in BODIES
    ),
    *(Rule("crawl-pickled", row, _W, Source.CRAWL, _pickled) for row in BODIES),
    Rule("crawl-overdue", "crawl_processing", _W, Source.CRAWL, _are_overdue),
    *(
        Rule("crawl-not-taken", row, _W, Source.OWN, _without_request)
        for row in ("crawl_leases", "crawl_delayed")
    ),
    Rule("crawl-counters", "crawl_counters", _W, Source.OWN, _odd_counters),
    Rule("crawl-wake", "crawl_wake", _W, Source.OWN, longer_than(1, "size")),
    Rule("crawl-failed-full", "crawl_failed", _W, Source.CRAWL, _is_full),
    Rule(
        "crawl-failed-odd", "crawl_failed", _W, Source.CRAWL, bad_items(_is_odd_failure)
    ),
    Rule("crawl-retries", "crawl_failed_retries", _W, Source.CRAWL, _odd_retries),
    *(
        Rule("crawl-salted", row, _W, Source.CRAWL, bad_items(_is_salted))
        for row in _FILTERS
    ),
)
