"""How long one function's results live, and who computes them: checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from bls_agent.endpoint import Argument
from bls_agent.errors import ConfigurationError
from bls_agent.settings import check_seconds

__all__ = ["Policy"]

LEAST_SIZE: Final = 256  # bytes


@dataclass(frozen=True)
class Policy:
    """The options of one cached function.

    Attributes:
        ttl: Seconds a result is fresh.
        refresh_early: Seconds before that time's end, or below 1 the share of it, in
            which one caller computes anew in the background; 0 for never.
        stale_on_error: Seconds beyond the TTL in which an expired result is served if
            the function raises.
        lock: Whether a missing result is computed once in the fleet.
        lock_timeout: Seconds to wait for what another process computes.
        lock_ttl: Seconds until a process that computes counts as dead if it is silent.
        size_limit: Bytes of a stored value.
    """

    ttl: float
    refresh_early: float = 0.0
    stale_on_error: float = 0.0
    lock: bool = False
    lock_timeout: float = 30.0
    lock_ttl: float = 10.0
    size_limit: int = 1_048_576

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            ConfigurationError: Naming the option, its value and what would be right.
        """
        for name in ("ttl", "lock_timeout", "lock_ttl"):
            check_seconds(name, getattr(self, name))
        for name in ("refresh_early", "stale_on_error"):
            value: object = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and math.isfinite(value) and value >= 0):  # type: ignore[arg-type, operator]  # pyright: ignore[reportArgumentType, reportOperatorIssue]
                raise ConfigurationError(name, value, "seconds, or 0 for never")
        if self.ttl * 1000 < 1:
            rule = "Redis counts in milliseconds"
            raise ConfigurationError("ttl", self.ttl, rule)
        if self.early >= self.ttl:
            rule = f"less than the TTL of {self.ttl:g} s"
            raise ConfigurationError("refresh_early", self.refresh_early, rule)
        if self.size_limit < LEAST_SIZE:
            rule = f"at least {LEAST_SIZE} bytes"
            raise ConfigurationError("size_limit", self.size_limit, rule)

    @cached_property
    def early(self) -> float:
        """Seconds before the end at which an early refresh may begin."""
        share = self.refresh_early
        return share * self.ttl if share < 1 else share

    @cached_property
    def asks_for_end(self) -> bool:
        """Whether a reader has to know how long a value still lives."""
        return self.refresh_early > 0 or self.stale_on_error > 0

    @cached_property
    def life(self) -> tuple[Argument, ...]:
        """How SET says when the key ends."""
        seconds = float(self.ttl + self.stale_on_error)
        if seconds.is_integer():
            return ("EX", int(seconds))
        return ("PX", int(seconds * 1000))
