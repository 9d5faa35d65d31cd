"""Hurt a service on purpose, write down what happens, and check what must be true.

* :class:`FaultProxy`: a bad link, with :class:`Delay`, :class:`Rate`, :class:`Slices`,
  :class:`Swallow`, :class:`Hold`, :class:`Refuse` while they are on, and
  :class:`Cut`, :class:`Lose`, :class:`Flip`, :class:`Late` for single replies.
* :class:`HurtableServer`: a real server to freeze, kill, fill, demote.
* :class:`History`: who did what to which command; :class:`StatusSampler` and
  :class:`Footprint`: what was seen meanwhile.
* :func:`check_invariants`: whether a :class:`Promise` was kept.

Nothing but the core dependencies is needed; ``HurtableServer`` needs a server on this
machine, such as the one of the extra ``server``.
"""

from __future__ import annotations

from bls_agent.testing.chaos.admin import AdminConnection
from bls_agent.testing.chaos.evidence import (
    Evidence,
    Footprint,
    LogCount,
    Recovery,
    StatusSample,
    StatusSampler,
)
from bls_agent.testing.chaos.history import Event, History, Step
from bls_agent.testing.chaos.invariants import (
    Promise,
    Tally,
    Violation,
    check_invariants,
)
from bls_agent.testing.chaos.link import Fired
from bls_agent.testing.chaos.proxy import FaultProxy
from bls_agent.testing.chaos.resp import Direction
from bls_agent.testing.chaos.rules import (
    Armed,
    Condition,
    Cut,
    Delay,
    Flip,
    Hold,
    Late,
    Lose,
    Rate,
    Refuse,
    Rule,
    Slices,
    Swallow,
)
from bls_agent.testing.chaos.server import HurtableServer

__all__ = [
    "AdminConnection",
    "Armed",
    "Condition",
    "Cut",
    "Delay",
    "Direction",
    "Event",
    "Evidence",
    "FaultProxy",
    "Fired",
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
