"""Tests of what is built with bls-agent: handlers alone, and whole agents.

The names below are loaded when they are first used. ``bls_agent.testing.plugin`` is the
plugin of pytest, which pytest finds by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bls_agent.core import lazy

if TYPE_CHECKING:
    from bls_agent.project.invocation import CheckResult, Invocation, make_context
    from bls_agent.testing.running import RunCommand

__all__ = ["CheckResult", "Invocation", "RunCommand", "make_context"]

_HOMES = {"RunCommand": "running"}

__getattr__, __dir__ = lazy.names(__name__, __all__, _HOMES, ".project.invocation")
