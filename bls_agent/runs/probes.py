"""What Redis is asked about runs besides their events.

A server that took over from another one may lack the last events, and its clock may be
behind: new events then get ids below those that were read. So all that stands behind
the newest known event that is still there is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import anyio

from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.errors import BlsError, RedisRefusedError, WrongTypeError
from bls_agent.runs.event_ids import BEGINNING, EventId, find_id, order
from bls_agent.runs.events import StreamEvent
from bls_agent.runs.gaps import GapEvidence, Probe, ResumeFacts, sequence_of
from bls_agent.runs.reading import NO_KEY, RunReader, decode_entries
from bls_agent.runs.topic import RunTopic
from bls_agent.runtime.lease import length_of

__all__ = [
    "begins_anew",
    "fetch_evidence",
    "fetch_resume_facts",
    "find_common_past",
    "find_refused",
    "probe_runs",
    "read_last",
]

DIGITS: Final = 16  # a sequence has fewer
ASKED: Final = 4  # requests of a probe of one run


async def fetch_evidence(
    reader: RunReader, place: EventId, first: EventId
) -> GapEvidence:
    """Read what decides whether events are missing between a place and an event."""
    keys = reader.keys
    at, oldest, noted = await reader.ask_many(
        [
            ("XRANGE", keys.events, place, place, "COUNT", 1),
            ("XRANGE", keys.events, "-", "+", "COUNT", 1),
            ("HGET", keys.books, f"lost:{first}"),
        ]
    )
    begins = _known(oldest)
    return GapEvidence(
        stands=bool(_known(at)),
        oldest=begins[0][0].decode() if begins else None,
        noted=_number(_known(noted)),
    )


async def fetch_resume_facts(reader: RunReader, place: EventId) -> ResumeFacts:
    """Read what decides how to begin at a place."""
    keys = reader.keys
    at, about, books, left = await reader.ask_many(
        [
            ("XRANGE", keys.events, place, place, "COUNT", 1),
            ("XINFO", "STREAM", keys.events),
            ("HMGET", keys.books, "id", "sequence"),
            ("PTTL", keys.owner),
        ]
    )
    if isinstance(at, BlsError):
        raise _as_ours(at, keys.events)
    found = decode_entries(keys.run_id, at)
    last, exists = read_last(about)
    booked, sequence = _known(books) or (None, None)
    last_booked = find_id(booked.decode("ascii", "replace")) if booked else None
    return ResumeFacts(
        at=found[0] if found else None,
        exists=exists or bool(found),
        last=last,
        booked=(last_booked, _number(sequence)) if last_booked else None,
        lives=_known(left) not in (None, NO_KEY),
        newest=_read_entry(keys.run_id, about, b"last-entry"),
    )


def read_last(about: Reply) -> tuple[EventId | None, bool]:
    """Read from XINFO STREAM the last id ever given, and whether there is a run.

    The id is ``None`` where the right to know it is missing.
    """
    if isinstance(about, BlsError):
        if "no such key" in str(about).lower():
            return BEGINNING, False
        return None, True
    named = dict(zip(about[::2], about[1::2], strict=False))
    return cast("bytes", named[b"last-generated-id"]).decode(), True


async def probe_runs(
    pool: ConnectionPool, topics: Sequence[RunTopic]
) -> tuple[list[Probe], bool]:
    """Probe runs and their writers, all in one write.

    Returns a probe of each, and whether a topic was rewound because the server has lost
    events that were read.
    """
    began = anyio.current_time()
    requests: list[Request] = []
    for topic in topics:
        keys = topic.keys
        requests += [
            ("EXISTS", keys.events),
            ("XLEN", keys.events),
            ("HGET", keys.books, "owner"),
            ("PTTL", keys.owner),
        ]
    existed = [topic.liveness.existed for topic in topics]
    doubted = [topic for topic in topics if topic.needs_check]
    places = [topic.furthest for topic in doubted]
    requests += [("XINFO", "STREAM", topic.keys.events) for topic in doubted]
    replies = await pool.read_many(requests)
    elapsed = anyio.current_time() - began
    probes = list[Probe]()
    for at, (topic, before) in enumerate(zip(topics, existed, strict=True)):
        exists, length, owner, left = map(
            _known, replies[at * ASKED : (at + 1) * ASKED]
        )
        topic.record_length(length or 0)
        probes.append(
            Probe(
                exists != 0,
                owner,
                _seconds(left),
                elapsed=elapsed,
                existed=before,
                length=length_of(owner),
            )
        )
    infos = zip(doubted, places, replies[len(topics) * ASKED :], strict=True)
    checked = [await _check(pool, *one) for one in infos]
    return probes, any(checked)


async def _check(
    pool: ConnectionPool, topic: RunTopic, place: EventId, about: Reply
) -> bool:
    """Rewind a topic if the server has lost what was read; tell whether it was."""
    run_id = topic.keys.run_id
    last, _ = read_last(about)
    first = _read_entry(run_id, about, b"first-entry")
    head = topic.buffer.head
    if last is None or order(last) >= order(place):
        topic.needs_check = False
        topic.origin = first.id if first is not None else None
        return False
    reader = RunReader(pool, run_id)
    if first is None and await _was_deleted(reader, place):
        topic.needs_check = False  # nothing was lost
        return False
    end = await find_common_past(reader, topic.past)
    if end is None:
        end = BEGINNING if begins_anew(first, topic.origin) else last
    if topic.buffer.head != head:  # something has come meanwhile: probe again
        return False
    topic.needs_check = False
    topic.rewind(end, last)
    return True


async def _was_deleted(reader: RunReader, place: EventId) -> bool:
    """Tell whether the books still go as far as the run was read: it was deleted."""
    booked = _known((await reader.ask_many([("HGET", reader.keys.books, "id")]))[0])
    last = find_id(booked.decode("ascii", "replace")) if booked else None
    return last is not None and order(last) >= order(place)


def _read_entry(run_id: int, about: Reply, name: bytes) -> StreamEvent | None:
    if isinstance(about, BlsError):
        return None
    entry = dict(zip(about[::2], about[1::2], strict=False)).get(name)
    return decode_entries(run_id, [entry])[0] if entry else None


async def find_refused(
    pool: ConnectionPool, topics: Sequence[RunTopic]
) -> list[tuple[RunTopic, BlsError]]:
    """Find the runs that Redis refuses to read."""
    keys = [topic.keys.events for topic in topics]
    requests = [("XREAD", "COUNT", 1, "STREAMS", key, "$") for key in keys]
    replies = await pool.read_many(requests)
    return [
        (topic, _as_ours(reply, topic.keys.events))
        for topic, reply in zip(topics, replies, strict=True)
        if isinstance(reply, RedisRefusedError)
    ]


def _as_ours(error: BlsError, key: str) -> BlsError:
    if getattr(error, "kind", "") == "wrong_type":
        return WrongTypeError(key, "stream")
    return error


def _known(reply: Reply) -> Any:
    """Give a reply; ``None`` for an error, such as a missing right."""
    return None if isinstance(reply, BlsError) else reply


def _number(text: bytes | None) -> int:
    if text is None or not text.isdigit() or len(text) >= DIGITS:
        return 0
    return int(text)


def _seconds(left: int | None) -> float | None:
    """Convert PTTL: ``None`` without a key, infinite where the key never expires."""
    if left in (None, NO_KEY):
        return None
    return left / 1000 if left >= 0 else float("inf")


async def find_common_past(
    reader: RunReader, past: Sequence[Sequence[EventId]]
) -> EventId | None:
    """Find the newest event that was read and is still there; ``None`` without one."""
    for known in past:
        page = await reader.read(known[0], "+", len(known))
        there = {event.id for event in page.events}
        for event_id in reversed(known):
            if event_id in there or event_id == BEGINNING:
                return event_id
    return None


def begins_anew(first: StreamEvent | None, origin: EventId | None) -> bool:
    """Tell whether a run that holds no known event is all new."""
    if first is None:
        return True
    return origin not in (None, first.id) and sequence_of(first) == 1
