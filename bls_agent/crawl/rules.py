"""What a doctor holds against the queues and filters of crawlers (contract 004)."""

from __future__ import annotations

import re
from typing import Final

from bls_agent.diagnosis import (
    Question,
    Rule,
    Sample,
    Severity,
    Values,
    bad_items,
    count_bad,
    show,
)
from bls_agent.keys import KEYS

__all__ = ["RULES"]

ASKED: Final = 20  # members of which the other side is looked at
RETRIES: Final = 3

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


def _ask_bodies(sample: Sample) -> list[Question]:
    return [_has_body(sample, member) for member in sample.items[:ASKED]]


def _without_body(sample: Sample) -> Values | None:
    found = [
        member
        for member in sample.items[:ASKED]
        if sample.answers.get(_has_body(sample, member)) == 0
    ]
    return _among(count_bad(found, sample), sample)


def _is_queued(sample: Sample, member: bytes) -> Question:
    return ("ZSCORE", _beside(sample, BODIES[sample.row]), _text(member))


def _ask_queue(sample: Sample) -> list[Question]:
    return [_is_queued(sample, member) for member in list(sample.pairs)[:ASKED]]


def _without_request(sample: Sample) -> Values | None:
    found = [
        member
        for member in list(sample.pairs)[:ASKED]
        if sample.answers.get(_is_queued(sample, member), b"") is None
    ]
    return _among(count_bad(found, sample), sample)


def _among(values: Values | None, sample: Sample) -> Values | None:
    """Say how many were looked at."""
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
    if value.isdigit() and len(value) == 1 and int(value) <= RETRIES:
        return None
    return {"shown": show(value)}


def _is_salted(member: bytes) -> bool:
    return _SALTED.fullmatch(member) is not None


_E, _W = Severity.ERROR, Severity.WARNING
_FILTERS: Final = ("crawl_filter_fingerprint", "crawl_item_fingerprint")

RULES: Final = (
    Rule("crawl-key", "", _W, "004", _odd_key),
    *(
        Rule("crawl-no-body", row, _E, "004", _without_body, _ask_bodies)
        for row in QUEUES
    ),
    *(
        Rule("crawl-no-request", row, _W, "004", _without_request, _ask_queue)
        for row in BODIES
    ),
    *(Rule("crawl-pickled", row, _W, "004", _pickled) for row in BODIES),
    Rule("crawl-retries", "crawl_failed_retries", _W, "004", _odd_retries),
    *(Rule("crawl-salted", row, _W, "004", bad_items(_is_salted)) for row in _FILTERS),
)
