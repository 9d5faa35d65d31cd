"""The events of an open run: captured, merged, and written in batches, each once."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, cast

import anyio
import anyio.lowlevel

from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.reconnect import Complaints
from bls_agent.core.backoff import Backoff
from bls_agent.core.codec import encode_within, format_timestamp
from bls_agent.core.errors import BlsError
from bls_agent.core.redaction import redact_traceback
from bls_agent.runs.new_events import (
    FIELDS_BYTES,
    NO_SOURCE,
    Source,
    add_arguments,
    log_mended,
    sanitize_data,
)
from bls_agent.runs.reading import RunKeys
from bls_agent.runs.writer_pool import HighWaterMarks, RunLease, WriterPool
from bls_agent.runtime.batch_writer import BatchWriter, Flushed
from bls_agent.runtime.lease import boot_seconds
from bls_agent.runtime.tasks import start_background

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "LONGEST",
    "RANKS",
    "TEXTS",
    "Batch",
    "Bounds",
    "PendingEvent",
    "RunWriterTask",
    "Shape",
    "capture",
    "merge",
    "wait_through",
]

T = TypeVar("T")

logger = logging.getLogger(__name__)

TEXTS: Final = frozenset({"content", "delta", "text", "token", "chunk"})
RANKS: Final = 3  # 0 goes first when a buffer is full
_STREAM: Final = 0
_OTHERS: Final = 1
_LAST: Final = 2
_LONGEST: Final = 10_000  # characters of a text that may be merged
_LONGEST_OTHER: Final = 256  # characters of the other ones in its data
_MOST: Final = 8  # fields of data that may be merged
_PLAIN: Final = frozenset({str, int, bool, NoneType})

LONGEST: Final = 65_535  # bytes of a merged text
_WIDEST: Final = 6  # bytes of a character in JSON at most: \u001b, a lone surrogate

REPORTED: Final = (
    "buffer_full",
    "fault",
)  # drops of which readers are warned

CAP: Final = 2.0  # seconds between two tries while Redis is away
RETRY: Final = 1.0  # seconds after a fault of ours
FINAL_WRITE: Final = 1.0  # seconds that the end of an event loop may be held up
GLANCE: Final = 0.01


# Name, type and value of each field; of the text neither type nor value.
Shape: TypeAlias = tuple[tuple[str, type | None, Any], ...]


@dataclass(slots=True, eq=False)
class PendingEvent:
    """An event of a writer, not numbered yet.

    ``emit`` captures its data, because the host may change them at once: as JSON, or,
    for a piece of a text that may be merged, as they are, which is cheaper; such a
    piece is encoded when it is written.
    """

    category: str
    action: str
    source: Source
    at: float  # when, in Unix seconds
    payload: bytes  # its data as JSON; empty for a piece of a text
    shape: Shape | None  # data of a piece beside its text; ``None`` for others
    text: str  # the text of a piece
    rank: int  # a full buffer drops the lowest first
    size: int  # about how many bytes it takes
    ends: bool = False  # whether the run ends with it

    def encode(self, limit: int) -> tuple[bytes, bool]:
        """Give its data as JSON, and whether this call had to cut them."""
        if self.shape is None:
            return self.payload, False
        data = {
            name: self.text if kind is None else value
            for name, kind, value in self.shape
        }
        return encode_within(data, limit)


def capture(
    category: str,
    action: str,
    data: object,
    source: Source,
    *,
    at: float,
    limit: int,
    merges: bool,
) -> tuple[PendingEvent, bool]:
    """Make an event of the arguments of ``emit``; never raises.

    Returns the event, and whether its data had to be cut.
    """
    streams = category == "llm" and action == "stream"
    if streams and merges and type(data) is dict:
        found = _find_text(cast("dict[object, object]", data))
        if found is not None:
            shape, text = found
            size = len(text) * (1 if text.isascii() else 3) + FIELDS_BYTES
            return PendingEvent(
                category, action, source, at, b"", shape, text, _STREAM, size
            ), False
    payload, cut = sanitize_data(data, limit)  # pyright: ignore[reportUnknownArgumentType]
    rank = _STREAM if streams else _OTHERS
    if category in ("lifecycle", "system"):
        rank = _LAST
    size = len(payload) + FIELDS_BYTES
    return PendingEvent(
        category, action, source, at, payload, None, "", rank, size
    ), cut


def _find_text(data: dict[object, object]) -> tuple[Shape, str] | None:
    """Split flat data with one text into shape and text; ``None`` for other data."""
    if len(data) > _MOST:
        return None
    found: str | None = None
    shape: list[tuple[str, type | None, Any]] = []
    for name, value in data.items():
        if type(value) not in _PLAIN or type(name) is not str:
            return None
        if isinstance(value, str):
            if name in TEXTS:
                if found is not None or len(value) > _LONGEST:
                    return None
                found = value
                shape.append((name, None, None))
                continue
            if len(value) > _LONGEST_OTHER:
                return None
        shape.append((name, type(value), value))
    return None if found is None else (tuple(shape), found)


def merge(events: Sequence[PendingEvent], limit: int) -> list[PendingEvent]:
    """Join neighbouring pieces of a text whose sources and other fields are equal.

    A merged event has the time of its first piece; its text stays below 64 KiB, and
    its data below the limit.
    """
    merged: list[PendingEvent] = []
    texts: list[str] = []
    size = room = 0
    for event in events:
        width = _width(event.text)
        if texts and _continues(merged[-1], event):
            if len(texts) == 1:
                room = min(LONGEST, limit - _beside(merged[-1], limit))
            fits = size + width <= room
        else:
            fits = False
        if fits:
            texts.append(event.text)
            size += width
            continue
        _join(merged, texts)
        merged.append(event)
        texts, size = ([event.text], width) if event.shape is not None else ([], 0)
    _join(merged, texts)
    return merged


def _continues(first: PendingEvent, event: PendingEvent) -> bool:
    return first.shape == event.shape and first.source == event.source


def _join(merged: list[PendingEvent], texts: Sequence[str]) -> None:
    if len(texts) > 1:  # in a new event: a batch may be made once more
        merged[-1] = replace(merged[-1], text="".join(texts))


def _beside(event: PendingEvent, limit: int) -> int:
    """Count the bytes of the data without the text."""
    payload, was_cut = replace(event, text="").encode(limit)
    return limit if was_cut else len(payload)


def _width(text: str) -> int:
    """Bound the bytes of a text in JSON."""
    plain = text.isascii() and text.isprintable()
    if plain and '"' not in text and "\\" not in text:
        return len(text)
    return len(text) * _WIDEST


class Bounds(Protocol):
    """The bounds that a store sets for each of its runs."""

    maxlen: int
    ttl: int
    event_size_limit: int


class Batch(list[PendingEvent]):
    """Events that are written in one step."""

    def __init__(self, events: Sequence[PendingEvent]) -> None:
        super().__init__(events)
        self.rows: list[Sequence[Argument]] = []  # nine arguments for each event
        self.pieces = 0  # merged into the event of another one
        self.ends = False  # whether the run ends with it
        self.number = 0  # the same when it is sent again; 0 before it is sent


class RunWriterTask:
    """Writes what one run emits, in a task of its own.

    A batch keeps its number for good, and the script recognises it: a batch without a
    reply is sent again, and whichever arrives second does nothing.
    """

    def __init__(
        self,
        delivery: BatchWriter[PendingEvent],
        pool: WriterPool,
        keys: RunKeys,
        token: str,
        *,
        lease: RunLease | None,
        marks: HighWaterMarks,
        bounds: Bounds,
        merges: bool,
    ) -> None:
        import asyncio  # noqa: PLC0415 - 20 ms, not at import

        self.loop = asyncio.get_running_loop()
        self.ended = anyio.Event()  # set when everything is over
        self.late = 0  # events that came behind the end of the run: not written
        self.merged = 0  # pieces that were written within the event of another one
        self.cut = 0  # events whose data were too long
        self._delivery = delivery
        self._pool = pool
        self._keys = keys
        self._token = token
        self._run_lease = lease
        self._marks = marks
        self._bounds = bounds
        self._merges = merges
        self._reported: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._complaints = Complaints()
        self._has_end = False  # whether a batch has ended the run
        self._ending = False
        self._end: asyncio.Task[None] | None = None
        self._name = f"bls-agent run {keys.run_id}"
        self._task = start_background(self._write_all, self._name)

    def prepare(self, items: Sequence[PendingEvent]) -> Batch:
        """Make a batch: a warning about drops, merged pieces, everything encoded."""
        ends = [item for item in items if item.ends]
        kept = [] if self._has_end else [item for item in items if not item.ends]
        warnings = [] if self._has_end else self.report_drops()
        limit, cut = self._bounds.event_size_limit, 0
        merged = merge(kept, limit) if self._merges else kept
        batch = Batch([*warnings, *merged, *ends])
        for event in batch:
            payload, was_cut = event.encode(limit)
            cut += was_cut
            when = format_timestamp(event.at)
            batch.rows.append(
                ("", when, *event.source, event.category, event.action, payload)
            )
        batch.pieces, batch.ends = len(kept) - len(merged), bool(ends)
        self.cut += cut
        self.late += len(items) if self._has_end else 0
        self._has_end |= batch.ends
        return batch

    def report_drops(self) -> list[PendingEvent]:
        """Make events that warn readers of what was dropped since the last warning."""
        dropped = Counter(self._delivery.buffer.stats().dropped)
        fresh, self._reported = dropped - self._reported, dropped
        warnings: list[PendingEvent] = []
        for reason in REPORTED:
            if count := fresh[reason]:
                data = {"dropped": count, "reason": reason}
                warnings.append(self.own_event("system", "warning", data))
        if warnings:
            self._log_drops(dropped)
        return warnings

    def _log_losses(self, lost: int) -> None:
        """Log, at the end, how many events are written nowhere."""
        if lost:
            text = "run %d: %d events could not be written before the end"
            logger.warning(text, self._keys.run_id, lost)
        self._log_drops(Counter(self._delivery.buffer.stats().dropped))

    def _log_drops(self, dropped: Counter[str]) -> None:
        """Log, at most once a minute, that the buffer was too small."""
        counts = [f"{dropped[why]:,} ({why})" for why in REPORTED if dropped[why]]
        if counts:
            counted = BlsError(f"so far {', '.join(counts)}; stats() counts on")
            consequence = f"events of run {self._keys.run_id} were dropped"
            self._complaints.say(consequence, counted)

    def own_event(
        self, category: str, action: str, data: object, source: Source = NO_SOURCE
    ) -> PendingEvent:
        """Make an event of the writer itself."""
        limit = self._bounds.event_size_limit
        event, cut = capture(
            category, action, data, source,
            at=time.time(),  # noqa: TID251 - the outermost place
            limit=limit, merges=False,
        )  # fmt: skip
        self.cut += cut
        return event

    async def write(self, batch: Sequence[PendingEvent]) -> None:
        """Write the whole batch in one step."""
        assert isinstance(batch, Batch)  # noqa: S101 - what prepare() gave
        if not batch:
            return
        batch.number = batch.number or next(self._numbers)
        arguments = add_arguments(
            batch.rows,
            maxlen=self._bounds.maxlen,
            ttl=self._bounds.ttl,
            floor=self._marks.of(self._keys.run_id, boot_seconds()),
            token=self._token,
            number=batch.number,
            lease=self._run_lease.ttl if self._run_lease is not None else 0.0,
            ends=batch.ends,
        )
        # As long as its writer lives a run does not expire, however long it is silent.
        lives = self._run_lease is not None and not batch.ends
        until = math.inf if lives else boot_seconds() + self._bounds.ttl
        sent_at = boot_seconds()
        reply = await self._pool.add_events(self._keys, arguments)
        reply = log_mended(reply, self._keys)
        if reply[-1] == b"ours":
            reply = reply[:-1]
            if self._run_lease is not None:
                self._run_lease.note_renewed(sent_at=sent_at)
        self._handle_reply(batch, reply, until)
        self.merged += batch.pieces

    def _handle_reply(self, batch: Batch, reply: Reply, until: float) -> None:
        """Record the ids that were written, and when the run expires."""
        sequence, *ids = reply
        again = ids[1:2] == [b"again"]
        if again:
            del ids[1:]
        if ids:
            last = ids[-1].decode()
            self._marks.raise_to(self._keys.run_id, sequence, last, until)
        if batch.ends and self._run_lease is not None:
            if not again and len(ids) < len(batch):
                self._run_lease.log_lost()
            self._run_lease.finish()

    async def was_written(self, batch: Sequence[PendingEvent]) -> bool | None:
        """Answer "no": writing a batch again is harmless, no look-up is needed."""
        del batch
        return False

    @property
    def is_gone(self) -> bool:
        """Whether its event loop was closed before the run was left."""
        return self.loop.is_closed()

    async def _write_all(self) -> None:
        from asyncio import CancelledError  # noqa: PLC0415 - as above

        try:
            while True:
                try:
                    await self._deliver()
                except Exception as error:  # noqa: BLE001 - ours: the run goes on
                    text = "writing the events of a run failed\n%s"
                    logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
                    await anyio.sleep(RETRY)
        except CancelledError:
            if not self._ending:  # the event loop ends before the run was left
                with suppress(Exception), anyio.CancelScope(shield=True):
                    await self._write_rest()
            raise

    async def _deliver(self) -> None:
        await self._delivery.run(self, Backoff(cap=CAP))

    async def _write_rest(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._deliver)
            await anyio.lowlevel.checkpoint()
            await self._delivery.flush(FINAL_WRITE)
            tasks.cancel_scope.cancel()

    async def flush(self, timeout: float) -> Flushed:
        """Wait until what was put so far is written or given up."""
        until = anyio.current_time() + timeout
        delivered, dropped, pause = 0, 0, 0.0
        while True:
            left = max(0.0, until - anyio.current_time())
            flushed = await self._delivery.flush(left)
            delivered += flushed.delivered
            dropped += flushed.dropped
            over = flushed or self._delivery.refused or self._task.done()
            if over or not left:
                return replace(flushed, delivered=delivered, dropped=dropped)
            # The task has just begun, or pauses after a fault.
            await anyio.sleep(min(pause, left))
            pause = GLANCE

    def end(self, within: float) -> None:
        """Begin the end: what was put is written, as far as that is possible."""
        if self._end is None:
            self._ending = True
            self._end = start_background(lambda: self._finish(within), self._name)
            self._end.add_done_callback(lambda _: self.ended.set())

    def abandon(self) -> None:
        """End a run whose writer was collected unclosed; its lease expires."""
        if self._run_lease is not None:
            self._run_lease.finish()
        self.end(FINAL_WRITE)

    async def _finish(self, within: float) -> None:
        from asyncio import CancelledError  # noqa: PLC0415 - as above

        until = anyio.current_time() + within
        for _ in range(2):
            try:
                with anyio.CancelScope(deadline=until, shield=True):
                    await self._settle()
                break
            except CancelledError:  # the event loop ends
                until = min(until, anyio.current_time() + FINAL_WRITE)
        written = anyio.Event()
        self._task.add_done_callback(lambda _: written.set())
        self._task.cancel()
        with anyio.CancelScope(shield=True):
            await written.wait()
        self._log_losses(self._delivery.give_up("shutdown"))

    async def _settle(self) -> None:
        """Wait until all is written, or refused for good."""
        while True:
            if self._task.done():  # cancelled with the event loop
                self._task = start_background(self._write_all, self._name)
                await anyio.lowlevel.checkpoint()
            flushed = await self._delivery.flush(float("inf"))
            if flushed.complete or self._delivery.refused:
                return
            await anyio.sleep(GLANCE)


async def wait_through(event: anyio.Event) -> None:
    """Wait for an event; a cancellation meanwhile is raised afterwards."""
    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while not event.is_set():
            try:
                await event.wait()
            except anyio.get_cancelled_exc_class() as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
