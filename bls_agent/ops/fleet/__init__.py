"""An overview of all projects at one Redis: status, queue, log, errors, and changes.

``project_state.py`` and ``log_tail.py`` evaluate a project's keys without I/O;
``fleet.py`` contains the loop and its reads.
"""

from __future__ import annotations

from bls_agent.ops.fleet.fleet import Fleet
from bls_agent.ops.fleet.project_state import (
    Condition,
    FleetChange,
    Presence,
    ProjectView,
)

__all__ = ["Condition", "Fleet", "FleetChange", "Presence", "ProjectView"]
