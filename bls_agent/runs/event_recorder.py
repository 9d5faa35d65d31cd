"""The half of a store that writes (contract 003, section 5)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from bls_agent.connection.access import Store
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.scripts import ADD_EVENTS
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.runs.adding import add_arguments, encode_all, note_mended, portions
from bls_agent.runs.event_ids import check_run_id
from bls_agent.runs.floors import Floors
from bls_agent.runs.limits import DAY, check_count
from bls_agent.runs.new_events import NewEvent, Prepared
from bls_agent.runs.reading import RunKeys, RunReader, find_wrong_type
from bls_agent.runs.writing.options import WriterOptions
from bls_agent.runs.writing.pool import WriterPools
from bls_agent.runs.writing.writer import RunWriter
from bls_agent.runtime.lease import boot_seconds

__all__ = ["EventRecorder"]


def _now() -> float:
    return time.time()  # noqa: TID251 - the outermost place


class EventRecorder(Store):
    """Writes the events of runs: one by one, many at once, or a run from start to end.

    Attributes:
        maxlen: About how many events of a run are kept.
        ttl: Seconds for which a run is kept after its last sign of life.
        event_size_limit: Longest data of an event, in bytes of JSON.
    """

    maxlen: int
    ttl: int
    event_size_limit: int
    _gives_none: bool  # what add() does when Redis cannot answer
    _floors: Floors
    _pools: WriterPools

    async def add(  # noqa: PLR0917 - the order of the document
        self,
        run_id: int,
        event_category: str,
        event_action: str,
        data: Mapping[str, Any] | None = None,
        source: Mapping[str, str | None] | None = None,
        timestamp: str | datetime | None = None,
        sequence: int | None = None,
    ) -> str | None:
        """Add one event, in one round trip.

        Its sequence is counted in Redis, over all writers of the run; where the server
        has forgotten, it goes on behind what this store has written last. The run's
        TTL begins anew.

        Args:
            run_id: The run.
            event_category: Such as ``llm``; any text.
            event_action: Such as ``stream``; any text.
            data: What it says: what a JSON object can hold.
            source: Who it comes from: ``agent_id``, ``agent_type``, ``agent_name``,
                ``team_name``.
            timestamp: When it happened; default: now.
            sequence: Its number; default: counted.

        Returns:
            The id of the event. With ``on_error="none"`` ``None`` where Redis could not
            answer.

        Raises:
            ConfigurationError: An argument breaks its rule; nothing was written.
            WrongTypeError: The key is no stream; nothing was written.
            RedisUnavailableError: Not added; or perhaps, if ``error.ambiguous``.
        """
        event = NewEvent(
            event_category, event_action, data, source, timestamp, sequence
        )
        try:
            return (await self.add_many(run_id, [event]))[0]
        except RedisUnavailableError:
            if self._gives_none:
                return None
            raise

    async def add_many(
        self,
        run_id: int,
        events: Iterable[
            NewEvent | tuple[str, str] | tuple[str, str, Mapping[str, Any]]
        ],
    ) -> list[str]:
        """Add events, in their order, hundreds in one round trip.

        Args:
            run_id: The run.
            events: :class:`NewEvent`, or tuples of its first fields.

        Returns:
            The ids of the events.

        Raises:
            ConfigurationError: One of them breaks a rule; nothing was written.
            WrongTypeError: The key is no stream; nothing was written.
            RedisUnavailableError: Not all were added. Those of the former portions were.
        """
        keys = RunKeys(check_run_id(run_id))
        now, limit = _now(), self.event_size_limit
        prepared = encode_all(events, now, limit)
        ids: list[str] = []
        for portion in portions(prepared):
            until = boot_seconds() + self.ttl
            sequence, *added = await self._run_script(keys, portion)
            ids += [one.decode() for one in added]
            self._floors.raise_to(run_id, sequence, ids[-1], until)
        return ids

    async def _run_script(self, keys: RunKeys, events: Sequence[Prepared]) -> Reply:
        arguments = add_arguments(
            events,
            maxlen=self.maxlen,
            ttl=self.ttl,
            floor=self._floors.of(keys.run_id, boot_seconds()),
        )
        try:
            async with self._access.wires.to(keys.events) as wire:
                reply = await ADD_EVENTS.run(wire, keys.all, arguments)
                return note_mended(reply, keys)
        except RedisUnavailableError as error:
            if error.kind == "wrong_type":
                raise await find_wrong_type(self._access.wires, keys) from error
            raise

    def run(
        self,
        run_id: int,
        *,
        source: Mapping[str, str | None] | None = None,
        data: Mapping[str, Any] | None = None,
        lifecycle: bool = True,
        lease: float = 15.0,
        coalesce: float = 0.05,
        buffer: int = 10_000,
        buffer_bytes: int = 8 * 1024 * 1024,
        shutdown_timeout: float = 10.0,
    ) -> RunWriter:
        """Write a run from its beginning to its end: ``async with store.run(1) as run:``.

        Opening writes ``lifecycle.started``; leaving ``completed``, ``failed`` with the
        error, or ``cancelled``, then ``system.close``. In between ``run.emit(…)`` writes
        events, from any thread, without ever waiting: each exactly once and in order,
        unless the buffer was full, which readers are told by a ``system.warning``.

        Args:
            run_id: The run. One living writer owns it at a time.
            source: Who its events come from, unless they say so themselves.
            data: Data of ``lifecycle.started``.
            lifecycle: Whether the run is ours. Else only events are contributed to a run
                that somebody else begins and ends.
            lease: Seconds after which followers are told that a writer is lost, if it
                dies without leaving; renewed with each batch, and three times in that
                time without one.
            coalesce: Seconds for which events gather, once one has left. Neighbouring
                ``llm.stream`` events that differ in their text alone (``content``,
                ``delta``, ``text``, ``token`` or ``chunk``) become one then. 0 merges
                none and gathers for 5 ms.
            buffer: Events in memory at most, 1,000 or more; when there are too many,
                pieces of texts go first, the categories ``lifecycle`` and ``system`` last.
            buffer_bytes: Their bytes at most; room for four of the longest events.
            shutdown_timeout: Seconds that leaving takes at most.

        Raises:
            ConfigurationError: An argument breaks its rule.
        """
        options = WriterOptions(
            lifecycle, lease, coalesce, buffer, buffer_bytes, shutdown_timeout
        )
        options.check_room(self.event_size_limit)
        return RunWriter(
            check_run_id(run_id),
            pools=self._pools,
            floors=self._floors,
            bounds=self,
            timeout=self._access.timeout,
            shown=self._access.shown,
            source=source,
            data=data,
            options=options,
        )

    async def set_expire(self, run_id: int, ttl_seconds: int = DAY) -> bool:
        """Say when a run is forgotten if nothing more is written.

        Args:
            run_id: The run.
            ttl_seconds: Seconds from now.

        Returns:
            Whether there is such a run.

        Raises:
            ConfigurationError: An argument breaks its rule.
            WrongTypeError: The key is no stream; it was left alone.
            RedisUnavailableError: Perhaps not said, if ``error.ambiguous``.
        """
        keys = RunKeys(check_run_id(run_id))
        ttl = check_count("ttl_seconds", ttl_seconds)
        until = boot_seconds() + ttl
        reader, both = RunReader(self._access.wires, run_id), [keys.events, keys.books]
        expires = bool(await self._each(reader, both, "EXPIRE", ttl))
        self._floors.expire(run_id, until)
        return expires

    async def delete(self, run_id: int) -> bool:
        """Delete the events of a run.

        Its sequences begin anew; those of a run whose writer lives go on, because that
        writer, wherever it is, knows how far they had come.

        Returns:
            Whether there were any.

        Raises:
            ConfigurationError: ``run_id`` is none.
            WrongTypeError: The key is no stream; it was left alone.
            RedisUnavailableError: Perhaps not deleted, if ``error.ambiguous``.
        """
        keys = RunKeys(check_run_id(run_id))
        reader = RunReader(self._access.wires, run_id)
        if await reader.has_writer():
            return bool(await self._each(reader, [keys.events], "UNLINK"))
        deleted = await self._each(reader, [keys.events, keys.books], "UNLINK")
        self._floors.forget(run_id)
        return bool(deleted)

    async def _each(
        self, reader: RunReader, keys: Sequence[str], name: str, *rest: Argument
    ) -> Reply:
        """Ask the same of some keys of a run, if the first is a stream; give its reply."""
        await reader.ask("XLEN")
        requests = [(name, key, *rest) for key in keys]
        async with self._access.wires.to(reader.keys.events) as wire:
            replies = await wire.call_many(requests)
        for reply in replies:
            if isinstance(reply, RedisUnavailableError):
                raise reply
        return replies[0]
