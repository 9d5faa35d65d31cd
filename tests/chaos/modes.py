"""The ways to receive, and a fleet of crawlers, one row each: settings, and what is promised under damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.kit import Promise

CRAWLERS = 3  # of a fleet, besides those that are killed


@dataclass
class Damage:
    """What was done to a row's agent, as far as a promise depends on it.

    Attributes:
        links: Times that a connection, or the server behind it, died with a reply
            that may have been on its way.
        killed: Processes killed by SIGKILL.
        forced: Ends that cancelled what ran: it stays in the list and runs again, where
            the mode has a list to keep it in.
        server_forgets: Whether the server lost what it had answered.
        recovery: Seconds until all has to be well after a fault.
        vanished: Seconds for which the status may be missing.
        lies: Seconds for which the status may be wrong.
    """

    links: int = 0
    killed: int = 0
    forced: int = 0
    server_forgets: bool = False
    recovery: float = 3.0
    vanished: float = 3.0
    lies: float = 60.0


@dataclass(frozen=True)
class Mode:
    """One row of each fault: how the agent receives."""

    name: str
    options: dict[str, Any]
    base: Callable[[Damage, int, int], Promise] = field(repr=False)
    concurrency: int = 1
    prefetch: int = 1
    after_death: dict[str, Any] = field(default_factory=dict)

    def promise(self, damage: Damage, healed_at: float) -> Promise:
        """Say what may have happened under this damage, which ended at that moment."""
        return replace(
            self.base(damage, self.concurrency, self.prefetch),
            recovery=damage.recovery,
            vanished=damage.vanished,
            status_ttl=damage.lies,
            server_forgets=damage.server_forgets,
            healed_at=healed_at,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The agent's keywords."""
        numbers = {"concurrency": self.concurrency, "prefetch": self.prefetch}
        return {**self.options, **numbers}


def blocking(damage: Damage, concurrency: int, prefetch: int) -> Promise:
    return Promise.blocking(
        swallowed=damage.links,
        killed=damage.killed,
        prefetch=prefetch,
        concurrency=concurrency,
    )


def compat(damage: Damage, concurrency: int, prefetch: int) -> Promise:
    return Promise.compat(deaths=damage.links + damage.killed + damage.forced)


def reliable(damage: Damage, concurrency: int, prefetch: int) -> Promise:
    return Promise.reliable(
        deaths=damage.links + damage.killed + damage.forced,
        concurrency=concurrency,
        prefetch=prefetch,
    )


def crawl(damage: Damage, concurrency: int, prefetch: int) -> Promise:
    hurt = damage.links * CRAWLERS + damage.killed
    return Promise(repeated=hurt * concurrency)


_AGENT_MODES = [
    Mode("blocking", {"mode": "blocking"}, blocking),
    Mode("prefetch", {"mode": "blocking"}, blocking, concurrency=2, prefetch=8),
    Mode("compat", {"mode": "compat"}, compat),
    Mode(
        "reliable",
        {"mode": "reliable"},
        reliable,
        concurrency=2,
        after_death={"lease_ttl": 2},
    ),
    Mode(
        "reliable, prefetch 8",
        {"mode": "reliable"},
        reliable,
        concurrency=2,
        prefetch=8,
        after_death={"lease_ttl": 2},
    ),
]

AGENT_MODES = {mode.name: mode for mode in _AGENT_MODES}

# No agent: a fleet of crawlers that share one queue.
CRAWL = Mode(
    "crawl", {"lease": 2.0, "max_retries": 100, "timeout": 1.0}, crawl, concurrency=2
)

MODES = {**AGENT_MODES, CRAWL.name: CRAWL}
