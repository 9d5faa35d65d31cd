"""The chaos kit: hurt a program on purpose, write down what happens, and check what must be true.

* :class:`FaultProxy`: a bad link, with :class:`Delay`, :class:`Rate`, :class:`Slices`,
  :class:`Swallow`, :class:`Hold`, :class:`Refuse` while they are on, and
  :class:`Cut`, :class:`Lose`, :class:`Flip`, :class:`Late` for single replies.
* :class:`HurtableServer`: a real server to freeze, kill, fill, demote.
* :class:`History`: who did what to which command; :class:`StatusSampler` and
  :class:`Footprint`: what was seen meanwhile.
* :func:`check_invariants`: whether a :class:`Promise` was kept.
"""

from __future__ import annotations

from bls_agent.testing.link import (
    Condition,
    Delay,
    Direction,
    Hold,
    Rate,
    Refuse,
    Slices,
    Swallow,
)
from tests.kit.evidence import (
    Evidence,
    Footprint,
    LogCount,
    Recovery,
    StatusSample,
    StatusSampler,
)
from tests.kit.history import Event, History, Step
from tests.kit.invariants import (
    Promise,
    Tally,
    Violation,
    check_invariants,
)
from tests.kit.proxy import FaultProxy
from tests.kit.rules import (
    Armed,
    Cut,
    Flip,
    Late,
    Lose,
    Rule,
)
from tests.kit.server import HurtableServer

__all__ = [
    "Armed",
    "Condition",
    "Cut",
    "Delay",
    "Direction",
    "Event",
    "Evidence",
    "FaultProxy",
    "Flip",
    "Footprint",
    "History",
    "Hold",
    "HurtableServer",
    "Late",
    "LogCount",
    "Lose",
    "Promise",
    "Rate",
    "Recovery",
    "Refuse",
    "Rule",
    "Slices",
    "StatusSample",
    "StatusSampler",
    "Step",
    "Swallow",
    "Tally",
    "Violation",
    "check_invariants",
]
