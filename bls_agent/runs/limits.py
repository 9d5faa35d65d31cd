"""What the options of this room may be; no I/O here."""

from __future__ import annotations

from typing import Final

from bls_agent.core.errors import ConfigurationError

__all__ = ["DAY", "check_count"]

DAY: Final = 86_400  # seconds: how long the contract keeps a run

LARGEST: Final = 100_000_000


def check_count(
    name: str, value: object, *, least: int = 1, most: int = LARGEST
) -> int:
    """Give a whole number within bounds, or refuse it.

    Raises:
        ConfigurationError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(name, value, "it must be an integer")
    if not least <= value <= most:
        raise ConfigurationError(name, value, f"it must be from {least:,} to {most:,}")
    return value
