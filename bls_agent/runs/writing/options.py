"""What the options of a writer may be; no I/O here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from bls_agent.core.errors import ConfigurationError
from bls_agent.core.settings import check_seconds
from bls_agent.runs.limits import check_count

__all__ = ["WriterOptions"]

SHORTEST: Final = 0.1  # seconds of a lease
LONGEST: Final = 10.0  # seconds for which pieces of a text may gather
PACE: Final = 0.005  # seconds from one write to the next where nothing is merged
LEAST: Final = 1_000  # events in a buffer: what is on its way must not fill it
LEAST_BYTES: Final = 1024 * 1024
LONGEST_EVENTS: Final = 4  # of which there is always room


@dataclass(frozen=True)
class WriterOptions:
    """The options of ``EventStore.run``, checked.

    Attributes:
        lifecycle: Whether the run is ours: to be begun, held and ended by us.
        lease: Seconds until a writer that says nothing counts as lost.
        coalesce: Seconds for which pieces of a text gather; 0 for never.
        buffer: Events in memory at most.
        buffer_bytes: Their bytes at most.
        shutdown_timeout: Seconds that leaving takes at most.
    """

    lifecycle: bool
    lease: float
    coalesce: float
    buffer: int
    buffer_bytes: int
    shutdown_timeout: float

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            ConfigurationError: One breaks its rule.
        """
        if not isinstance(self.lifecycle, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
            raise ConfigurationError("lifecycle", self.lifecycle, "True or False")
        rule = f"at least {SHORTEST:g} s"
        if check_seconds("lease", self.lease, rule) < SHORTEST:
            raise ConfigurationError("lease", self.lease, rule)
        _check_coalesce(self.coalesce)
        check_count("buffer", self.buffer, least=LEAST)
        check_count("buffer_bytes", self.buffer_bytes, least=LEAST_BYTES, most=2**40)
        check_seconds("shutdown_timeout", self.shutdown_timeout)

    def check_room(self, event_size_limit: int) -> None:
        """Check that long events do not fill the buffer.

        Raises:
            ConfigurationError: They do.
        """
        least = LONGEST_EVENTS * event_size_limit
        if self.buffer_bytes < least:
            rule = f"room for {LONGEST_EVENTS} of the longest events ({least:,} bytes)"
            remedy = "Raise it, or lower event_size_limit."
            raise ConfigurationError("buffer_bytes", self.buffer_bytes, rule, remedy)

    @property
    def pace(self) -> float:
        """Seconds from one write to the next."""
        return self.coalesce or PACE


def _check_coalesce(coalesce: object) -> None:
    rule = f"from 0, for never, to {LONGEST:g} s"
    if isinstance(coalesce, bool) or not isinstance(coalesce, int | float):
        raise ConfigurationError("coalesce", coalesce, rule)
    if math.isnan(coalesce) or not 0 <= coalesce <= LONGEST:
        raise ConfigurationError("coalesce", coalesce, rule)
