"""The events of a run as the HTTP interface gives them: in pages of bounded size."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import anyio.lowlevel
from starlette.exceptions import HTTPException
from starlette.requests import Request

from bls_agent.codec import encode_within
from bls_agent.errors import ConfigurationError
from bls_agent.runs import EventPage, EventStore, StreamEvent
from bls_agent.runs.event_ids import check_run_id

__all__ = [
    "PAGE_BYTES",
    "encode_event",
    "encode_events",
    "read_back",
    "read_on",
    "run_in_path",
]

LONGEST: Final = 65_536  # bytes of one event; longer ones are shortened
SLICE: Final = 50  # events without letting others run
PORTION: Final = 500  # events that are read at once
FIRST_PORTION: Final = 50  # before it is known how large they are
PAGE_BYTES: Final = 4 * 1024 * 1024  # of events on one page


def run_in_path(request: Request) -> int:
    """Read the id of a run from an address.

    Raises:
        HTTPException: It is none; 404.
    """
    text: str = request.path_params["run"]
    plain = text.isascii() and text.isdigit() and text == (text.lstrip("0") or "0")
    try:
        return check_run_id(int(text) if plain else None)
    except (ConfigurationError, ValueError):
        raise HTTPException(404, "the id of a run is a number") from None


def encode_event(event: StreamEvent) -> bytes:
    """Write an event; one that is too long is shortened, and says so in ``cut``.

    One that breaks the contract says what is wrong with it in ``faults``, and what
    stands there in ``raw``.
    """
    if not event.faults and len(event.json) <= LONGEST:
        return event.json
    fields: dict[str, Any] = event.to_dict()
    if event.faults:
        raw = {
            name.decode("utf-8", "backslashreplace"): value.decode(
                "utf-8", "backslashreplace"
            )
            for name, value in (event.raw or {}).items()
        }
        fields |= {"faults": list(event.faults), "raw": raw}
    payload, cut = encode_within(fields, LONGEST)
    if cut:
        payload, _ = encode_within({"cut": True, **fields}, LONGEST)
    return payload


async def encode_events(events: Sequence[StreamEvent]) -> list[bytes]:
    """Write many events, and let others run in between."""
    written: list[bytes] = []
    for number, event in enumerate(events, 1):
        written.append(encode_event(event))
        if number % SLICE == 0:
            await anyio.lowlevel.checkpoint()
    return written


async def read_on(
    store: EventStore, run_id: int, after: str | None, limit: int
) -> tuple[list[bytes], str | None]:
    """Read what stands behind a place.

    Returns:
        The events, fewer than wanted where they are large; and the place where they go
        on, ``None`` if this is the end.

    Raises:
        ConfigurationError: ``after`` is no place.
        WrongTypeError: The key is no stream.
        RedisUnavailableError: Redis cannot answer.
    """
    written: list[bytes] = []
    size, portion = 0, FIRST_PORTION
    while True:
        page = await store.page(
            run_id, after=after, limit=min(portion, limit - len(written))
        )
        found = await encode_events(page.events)
        written += found
        size += sum(map(len, found))
        if page.next is None or len(written) >= limit or size >= PAGE_BYTES:
            return written, page.next
        after, portion = page.next, _next_portion(page)


async def read_back(
    store: EventStore, run_id: int, before: str | None, limit: int
) -> AsyncGenerator[EventPage]:
    """Give what stands before a place, page by page, the newest page first.

    Raises:
        ConfigurationError: ``before`` is no place.
        WrongTypeError: The key is no stream.
        RedisUnavailableError: Redis cannot answer.
    """
    left, portion = limit, FIRST_PORTION
    while left > 0:
        page = await store.page_back(run_id, before=before, limit=min(portion, left))
        yield page
        if page.next is None:
            return
        left -= len(page.events)
        before, portion = page.next, _next_portion(page)


def _next_portion(page: EventPage) -> int:
    """Say how many events to read next, so that large ones do not make it slow."""
    size = sum(len(event.json) for event in page.events)
    each = max(1, size // max(1, len(page.events)))
    return max(1, min(PORTION, 4 * len(page.events), PAGE_BYTES // 4 // each))
