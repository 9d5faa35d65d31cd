"""All projects at one Redis at a glance: their status, queue, log and errors, and changes.

``views.py``: what is told; ``track.py`` and the files under it: what a project's keys say
from look to look, without I/O; ``survey.py``: the reads; ``watching.py``: the loop.
"""

from __future__ import annotations

from bls_agent.ops.fleet.views import Condition, FleetChange, Presence, ProjectView
from bls_agent.ops.fleet.watching import Fleet

__all__ = ["Condition", "Fleet", "FleetChange", "Presence", "ProjectView"]
