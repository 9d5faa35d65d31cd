"""What the tests of runs over HTTP share with those of runs."""

from __future__ import annotations

from tests.run_fixtures import bare, run_id, store

__all__ = ["bare", "run_id", "store"]
