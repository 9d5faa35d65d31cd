"""What Redis is asked about runs besides their events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import anyio

from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.keyed_wires import KeyedWires
from bls_agent.core.errors import BlsError, RedisRefusedError, WrongTypeError
from bls_agent.runs.event_ids import BEGINNING, EventId, find_id, order
from bls_agent.runs.events import StreamEvent
from bls_agent.runs.following.channel import Channel
from bls_agent.runs.following.gaps import Evidence, Start
from bls_agent.runs.following.presence import Seen
from bls_agent.runs.following.rewinds import begins_anew, find_end_of_past
from bls_agent.runs.reading import RunReader, decode_entries
from bls_agent.runs.summaries import NO_KEY
from bls_agent.runtime.lease import length_of

__all__ = ["find_refused", "gather_evidence", "gather_start", "look_at", "read_last"]

DIGITS: Final = 16  # a sequence has fewer
ASKED: Final = 4  # requests of a look at one run


async def gather_evidence(
    reader: RunReader, place: EventId, first: EventId
) -> Evidence:
    """Ask what tells whether events are missing between a place and an event.

    Raises:
        RedisUnavailableError: Redis cannot answer.
    """
    keys = reader.keys
    at, oldest, noted = await reader.ask_many(
        [
            ("XRANGE", keys.events, place, place, "COUNT", 1),
            ("XRANGE", keys.events, "-", "+", "COUNT", 1),
            ("HGET", keys.books, f"lost:{first}"),
        ]
    )
    begins = _told(oldest)
    return Evidence(
        stands=bool(_told(at)),
        oldest=begins[0][0].decode() if begins else None,
        noted=_number(_told(noted)),
    )


async def gather_start(reader: RunReader, place: EventId) -> Start:
    """Ask what tells how to begin at a place.

    Raises:
        WrongTypeError: The key is no stream.
        RedisUnavailableError: Redis cannot answer.
    """
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
        raise _in_our_words(at, keys.events)
    found = decode_entries(keys.run_id, at)
    last, exists = read_last(about)
    booked, sequence = _told(books) or (None, None)
    last_booked = find_id(booked.decode("ascii", "replace")) if booked else None
    return Start(
        at=found[0] if found else None,
        exists=exists or bool(found),
        last=last,
        booked=(last_booked, _number(sequence)) if last_booked else None,
        lives=_told(left) not in (None, NO_KEY),
        newest=_read_entry(keys.run_id, about, b"last-entry"),
    )


def read_last(about: Reply) -> tuple[EventId | None, bool]:
    """Read from XINFO STREAM the last id that was ever given, and whether there is a run.

    Returns:
        ``None`` for the id if nobody may know it.
    """
    if isinstance(about, BlsError):
        if "no such key" in str(about).lower():
            return BEGINNING, False
        return None, True
    named = dict(zip(about[::2], about[1::2], strict=False))
    return cast("bytes", named[b"last-generated-id"]).decode(), True


async def look_at(
    wires: KeyedWires, channels: Sequence[Channel]
) -> tuple[list[Seen], bool]:
    """See whether runs are there and their writers alive, all in one write.

    Returns:
        What was seen of each, and whether one had to be set back because the server has
        forgotten what was read.

    Raises:
        RedisUnavailableError: Redis cannot answer.
    """
    began = anyio.current_time()
    requests: list[Request] = []
    for channel in channels:
        keys = channel.keys
        requests += [
            ("EXISTS", keys.events),
            ("XLEN", keys.events),
            ("HGET", keys.books, "owner"),
            ("PTTL", keys.owner),
        ]
    existed = [channel.presence.existed for channel in channels]
    doubted = [channel for channel in channels if channel.unchecked]
    places = [channel.furthest for channel in doubted]
    requests += [("XINFO", "STREAM", channel.keys.events) for channel in doubted]
    replies = await wires.read_many(requests)
    elapsed = anyio.current_time() - began
    seen = list[Seen]()
    for at, (channel, before) in enumerate(zip(channels, existed, strict=True)):
        exists, length, owner, left = map(_told, replies[at * ASKED : (at + 1) * ASKED])
        channel.note_length(length or 0)
        seen.append(
            Seen(
                exists != 0,
                owner,
                _seconds(left),
                elapsed=elapsed,
                existed=before,
                length=length_of(owner),
            )
        )
    told = zip(doubted, places, replies[len(channels) * ASKED :], strict=True)
    checked = [await _check(wires, *one) for one in told]
    return seen, any(checked)


async def _check(
    wires: KeyedWires, channel: Channel, place: EventId, about: Reply
) -> bool:
    """Set a channel back if the server has forgotten what was read; tell whether it was.

    Args:
        wires: The ways to it.
        channel: Of the run.
        place: How far it was read when the server was asked.
        about: What XINFO STREAM said.
    """
    run_id = channel.keys.run_id
    last, _ = read_last(about)
    first = _read_entry(run_id, about, b"first-entry")
    head = channel.ring.head
    if last is None or order(last) >= order(place):
        channel.unchecked = False
        channel.origin = first.id if first is not None else None
        return False
    reader = RunReader(wires, run_id)
    if first is None and await _was_counted(reader, place):
        channel.unchecked = False  # it was deleted, and nothing is forgotten
        return False
    end = await find_end_of_past(reader, channel.past)
    if end is None:
        end = BEGINNING if begins_anew(first, channel.origin) else last
    if channel.ring.head != head:  # something has come meanwhile: look again
        return False
    channel.unchecked = False
    channel.rewind(end, last)
    return True


async def _was_counted(reader: RunReader, place: EventId) -> bool:
    """Tell whether the books of a run still go as far as it was read."""
    booked = _told((await reader.ask_many([("HGET", reader.keys.books, "id")]))[0])
    last = find_id(booked.decode("ascii", "replace")) if booked else None
    return last is not None and order(last) >= order(place)


def _read_entry(run_id: int, about: Reply, name: bytes) -> StreamEvent | None:
    """Read from XINFO STREAM the oldest or the newest event."""
    if isinstance(about, BlsError):
        return None
    entry = dict(zip(about[::2], about[1::2], strict=False)).get(name)
    return decode_entries(run_id, [entry])[0] if entry else None


async def find_refused(
    wires: KeyedWires, channels: Sequence[Channel]
) -> list[tuple[Channel, BlsError]]:
    """Find the runs of which Redis refuses to tell anything.

    Raises:
        RedisUnavailableError: Redis cannot answer.
    """
    keys = [channel.keys.events for channel in channels]
    requests = [("XREAD", "COUNT", 1, "STREAMS", key, "$") for key in keys]
    replies = await wires.read_many(requests)
    return [
        (channel, _in_our_words(reply, channel.keys.events))
        for channel, reply in zip(channels, replies, strict=True)
        if isinstance(reply, RedisRefusedError)
    ]


def _in_our_words(error: BlsError, key: str) -> BlsError:
    if getattr(error, "kind", "") == "wrong_type":
        return WrongTypeError(key, "stream")
    return error


def _told(reply: Reply, *, otherwise: Any = None) -> Any:
    """Give a reply; what we may not know is not known."""
    return otherwise if isinstance(reply, BlsError) else reply


def _number(text: bytes | None) -> int:
    if text is None or not text.isdigit() or len(text) >= DIGITS:
        return 0
    return int(text)


def _seconds(left: int | None) -> float | None:
    """Read PTTL: ``None`` without a key, very long where it never ends."""
    if left in (None, NO_KEY):
        return None
    return left / 1000 if left >= 0 else float("inf")
