"""How batches of events reach a run, each exactly once."""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from bls_agent.connection.complaints import Complaints
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.core.codec import format_timestamp
from bls_agent.core.errors import BlsError
from bls_agent.runs.adding import add_arguments, note_mended
from bls_agent.runs.floors import Floors
from bls_agent.runs.new_events import NO_SOURCE, Source
from bls_agent.runs.reading import RunKeys
from bls_agent.runs.writing.coalescing import merge
from bls_agent.runs.writing.emitted import Emitted, take
from bls_agent.runs.writing.hold import Hold
from bls_agent.runtime.lease import boot_seconds

__all__ = ["Batch", "Bounds", "RunSink", "Way"]

logger = logging.getLogger(__name__)

TOLD: Final = ("buffer_full", "fault")  # reasons of drops that readers are told


class Way(Protocol):
    """The way to Redis that all writers of a store share."""

    async def add_events(
        self,
        keys: RunKeys,
        arguments: Sequence[Argument],
        meanwhile: Callable[[], None],
    ) -> Reply:
        """Run ``add_events.lua``."""
        ...


class Bounds(Protocol):
    """What a store says about each of its runs."""

    maxlen: int
    ttl: int
    event_size_limit: int


class Batch(list[Emitted]):
    """Events that are written in one step.

    Attributes:
        rows: What is written: nine arguments for each event.
        pieces: How many were merged into the event of another one.
        ends: Whether the run ends with it.
        number: By which the server knows it when it is sent again; 0 before that.
    """

    def __init__(self, events: Sequence[Emitted]) -> None:
        """Take the events; what is written of them follows."""
        super().__init__(events)
        self.rows: list[Sequence[Argument]] = []
        self.pieces = 0
        self.ends = False
        self.number = 0


class RunSink:
    """Writes batches of events into one run.

    A batch has a number, which it keeps for good. The script tells by it whether the batch
    stands already: so what has got no answer is sent again, and one of the two does
    nothing, in whatever order they arrive.

    Attributes:
        late: Events that came behind the end of the run; they are not written.
        merged: Pieces of texts that were written within the event of another one.
        cut: Events whose data were too long.
    """

    def __init__(
        self,
        way: Way,
        keys: RunKeys,
        token: str,
        *,
        hold: Hold | None,
        floors: Floors,
        bounds: Bounds,
        merges: bool,
        count_drops: Callable[[], Counter[str]],
        now: Callable[[], float],
    ) -> None:
        """Remember where to.

        Args:
            way: The way to Redis.
            keys: Of the run.
            token: What tells this writer from all others.
            hold: Its lease; ``None`` if the run is somebody else's.
            floors: What is known of all runs of the store.
            bounds: What the store says about each run.
            merges: Whether pieces of a text are merged.
            count_drops: Gives reason → events dropped so far.
            now: Gives Unix seconds.
        """
        self._way = way
        self._keys = keys
        self._token = token
        self._hold = hold
        self._floors = floors
        self._bounds = bounds
        self._merges = merges
        self._count_drops = count_drops
        self._now = now
        self._told: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._complaints = Complaints()
        self._ended = False
        self.late = self.merged = self.cut = 0

    def prepare(self, items: Sequence[Emitted]) -> Batch:
        """Make a batch: what was dropped is told, pieces are merged, all is encoded."""
        ends = [item for item in items if item.ends]
        kept = [] if self._ended else [item for item in items if not item.ends]
        told = [] if self._ended else self.tell_drops()
        limit, cut = self._bounds.event_size_limit, 0
        merged = merge(kept, limit) if self._merges else kept
        batch = Batch([*told, *merged, *ends])
        for event in batch:
            payload, was_cut = event.encode(limit)
            cut += was_cut
            when = format_timestamp(event.at)
            batch.rows.append(
                ("", when, *event.source, event.category, event.action, payload)
            )
        batch.pieces, batch.ends = len(kept) - len(merged), bool(ends)
        self.cut += cut
        self.late += len(items) if self._ended else 0
        self._ended |= batch.ends
        return batch

    def tell_drops(self) -> list[Emitted]:
        """Make an event for readers about what was dropped since the last one."""
        dropped = self._count_drops()
        fresh, self._told = dropped - self._told, dropped
        told: list[Emitted] = []
        for reason in TOLD:
            if count := fresh[reason]:
                data = {"dropped": count, "reason": reason}
                told.append(self.own_event("system", "warning", data))
        if told:
            self._say_drops(dropped)
        return told

    def say_losses(self, lost: int) -> None:
        """Tell the host's log, at the end, what is written nowhere.

        Args:
            lost: How many events could not be written before the end.
        """
        if lost:
            text = "run %d: %d events could not be written before the end"
            logger.warning(text, self._keys.run_id, lost)
        self._say_drops(self._count_drops())

    def _say_drops(self, dropped: Counter[str]) -> None:
        """Tell the host's log, at most once a minute, that the buffer was too small."""
        counts = [f"{dropped[why]:,} ({why})" for why in TOLD if dropped[why]]
        if counts:
            told = BlsError(f"so far {', '.join(counts)}; stats() counts on")
            consequence = f"events of run {self._keys.run_id} were dropped"
            self._complaints.say(consequence, told)

    def own_event(
        self, category: str, action: str, data: object, source: Source = NO_SOURCE
    ) -> Emitted:
        """Make an event that nobody has emitted."""
        limit = self._bounds.event_size_limit
        event, cut = take(
            category, action, data, source,
            at=self._now(), limit=limit, merges=False,
        )  # fmt: skip
        self.cut += cut
        return event

    async def write(
        self, batch: Sequence[Emitted], meanwhile: Callable[[], None]
    ) -> None:
        """Write the whole batch in one step.

        Raises:
            RedisUnavailableError: It was not written, or (``ambiguous``) perhaps.
        """
        assert isinstance(batch, Batch)  # noqa: S101 - what prepare() gave
        if not batch:
            return
        batch.number = batch.number or next(self._numbers)
        arguments = add_arguments(
            batch.rows,
            maxlen=self._bounds.maxlen,
            ttl=self._bounds.ttl,
            floor=self._floors.of(self._keys.run_id, boot_seconds()),
            token=self._token,
            number=batch.number,
            lease=self._hold.lease if self._hold is not None else 0.0,
            ends=batch.ends,
        )
        # As long as its writer lives a run does not expire, however long it is silent.
        lives = self._hold is not None and not batch.ends
        until = math.inf if lives else boot_seconds() + self._bounds.ttl
        sent_at = boot_seconds()
        reply = await self._way.add_events(self._keys, arguments, meanwhile)
        reply = note_mended(reply, self._keys)
        if reply[-1] == b"ours":
            reply = reply[:-1]
            if self._hold is not None:
                self._hold.hear_renewed(sent_at=sent_at)
        self._hear(batch, reply, until)
        self.merged += batch.pieces

    def _hear(self, batch: Batch, reply: Reply, until: float) -> None:
        """Note what was written, and when the run expires."""
        sequence, *ids = reply
        again = ids[1:2] == [b"again"]
        if again:
            del ids[1:]
        if ids:
            last = ids[-1].decode()
            self._floors.raise_to(self._keys.run_id, sequence, last, until)
        if batch.ends and self._hold is not None:
            if not again and len(ids) < len(batch):
                self._hold.tell_lost()
            self._hold.finish()

    async def was_written(self, batch: Sequence[Emitted]) -> bool | None:
        """Say that nobody has to look: writing it once more is harmless."""
        del batch
        return False
