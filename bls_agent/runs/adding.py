"""How events are put together for ``add_events.lua``; no I/O here."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final, cast

from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.core.errors import ConfigurationError
from bls_agent.runs.new_events import NewEvent, Prepared, encode_new
from bls_agent.runs.reading import RunKeys

__all__ = ["add_arguments", "as_new", "encode_all", "note_mended", "portions"]

logger = logging.getLogger(__name__)

TOGETHER: Final = 500  # events that one script adds
TOGETHER_BYTES: Final = 512 * 1024


def as_new(event: Any) -> NewEvent:
    """Give an event that was told as one, or as a tuple of its first fields.

    Raises:
        ConfigurationError: It is neither.
    """
    if isinstance(event, NewEvent):
        return event
    parts = list(cast("Any", event)) if isinstance(event, tuple) else []
    if 2 <= len(parts) <= len(NewEvent._fields):  # noqa: PLR2004
        return NewEvent(*parts)
    rule = "an event is a NewEvent, or a tuple (category, action, data)"
    raise ConfigurationError("events", cast("object", event), rule)


def encode_all(events: Iterable[object], now: float, limit: int) -> list[Prepared]:
    """Write events exactly as they are, or refuse them all.

    Args:
        events: What is to be added: see :func:`as_new`.
        now: Seconds since 1970.
        limit: Longest data of each in bytes.

    Raises:
        ConfigurationError: One breaks a rule; which one is said if there are several.
    """
    prepared: list[Prepared] = []
    given = list(events)
    for at, event in enumerate(given):
        try:
            prepared.append(encode_new(as_new(event), now, limit))
        except ConfigurationError as error:
            if len(given) == 1:
                raise
            name = f"events[{at}].{error.name}".replace(".events", "")
            remedy = f"{error.remedy} No event was added.".strip()
            raise ConfigurationError(name, error.value, error.rule, remedy) from None
    return prepared


def portions(events: Sequence[Prepared]) -> list[list[Prepared]]:
    """Divide events into portions of which each is added in one step."""
    found: list[list[Prepared]] = []
    size = 0
    for one in events:
        size += one.size
        if not found or len(found[-1]) == TOGETHER or size > TOGETHER_BYTES:
            found.append([])
            size = one.size
        found[-1].append(one)
    return found


def add_arguments(
    events: Iterable[Sequence[Argument]],
    *,
    maxlen: int,
    ttl: int,
    floor: tuple[int, str],
    token: str = "",
    number: int = 0,
    lease: float = 0.0,
    ends: bool = False,
) -> list[Argument]:
    """Write the arguments of ``add_events.lua``.

    Args:
        events: Nine arguments each.
        maxlen: About how many events are kept.
        ttl: Seconds that the run lives from then on.
        floor: Sequence and id that the events come after.
        token: What tells the writer from all others, if batches are to be recognised.
        number: Of this batch.
        lease: Seconds of the lease of a writer that may end the run.
        ends: Whether the run ends with the last of the events.
    """
    sequence, last = floor
    milliseconds, _, count = last.partition("-")
    head: tuple[Argument, ...] = (
        maxlen, ttl, sequence, milliseconds, count, token, number,
        int(lease * 1000), int(ends),
    )  # fmt: skip
    return [*head, *chain.from_iterable(events)]


def note_mended(reply: Reply, keys: RunKeys) -> Reply:
    """Give what ``add_events.lua`` says, without the word that the books were mended.

    The host's log is told: it happens once, because the script has written them anew.
    """
    if reply[-1] != b"mended":
        return reply
    text = "%r held what no writer of events writes: counting goes on from the events"
    logger.warning(text, keys.books)
    return reply[:-1]
