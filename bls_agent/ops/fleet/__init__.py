"""An overview of all projects at one Redis: status, queue, log, errors, and changes.

``project_state.py`` and ``log_tail.py`` evaluate a project's keys without I/O;
``fleet.py`` contains the loop and its reads; ``project_view.py`` is what callers get.
"""

from __future__ import annotations

from bls_agent.ops.fleet.fleet import Fleet
from bls_agent.ops.fleet.project_view import (
    Condition,
    FleetChange,
    Presence,
    ProjectView,
)

__all__ = ["Condition", "Fleet", "FleetChange", "Presence", "ProjectView"]
