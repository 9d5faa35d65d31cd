"""The events of runs: written, read and followed (contract 003, section 5)."""

from __future__ import annotations

from typing import Final, Literal

from bls_agent.core.errors import ConfigurationError
from bls_agent.runs.event_reader import EventReader
from bls_agent.runs.event_recorder import EventRecorder
from bls_agent.runs.floors import Floors
from bls_agent.runs.limits import DAY, check_count
from bls_agent.runs.writing.pool import WriterPools

__all__ = ["EventStore"]

SIZE_LIMIT: Final = 1024 * 1024  # bytes of an event's data
LEAST_LIMIT: Final = 256


class EventStore(EventRecorder, EventReader):
    """Writes, reads and follows the events of runs; usable from any event loop.

    The methods of contract 003, section 5.1, with their names and argument order; each
    that does I/O is awaited. Down is not empty: where Redis cannot answer,
    :class:`~bls_agent.RedisUnavailableError` is raised.
    """

    def __init__(
        self,
        redis: object = None,
        *,
        maxlen: int = 10_000,
        ttl: int = DAY,
        event_size_limit: int = SIZE_LIMIT,
        on_error: Literal["raise", "none"] = "raise",
        timeout: float = 5.0,
    ) -> None:
        """Remember where Redis is; nothing is opened yet.

        Args:
            redis: A URL, a client of redis-py or a ``ProjectAgent``. Default:
                ``BLS_REDIS_URL``, read at the first request.
            maxlen: About how many events of a run are kept.
            ttl: Seconds for which a run is kept after its last sign of life.
            event_size_limit: Longest data of an event, in bytes of JSON.
            on_error: What :meth:`add` does when Redis cannot answer: ``raise``, or give
                ``None`` as the document says.
            timeout: Deadline of one request in seconds.

        Raises:
            ConfigurationError: An argument breaks its rule.
        """
        super().__init__(redis, timeout=timeout)
        self.maxlen = check_count("maxlen", maxlen)
        self.ttl = check_count("ttl", ttl)
        self.event_size_limit = check_count(
            "event_size_limit", event_size_limit, least=LEAST_LIMIT
        )
        if on_error not in ("raise", "none"):
            raise ConfigurationError("on_error", on_error, "'raise' or 'none'")
        self._gives_none = on_error == "none"
        self._floors = Floors()
        self._pools = WriterPools(self._access)
