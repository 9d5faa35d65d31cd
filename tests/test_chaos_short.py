"""The campaign in small: with few rounds, and each fault where it finds most (see ``make chaos``).

All rows are played together, before the first test that asks for one.
"""

from __future__ import annotations

import secrets
from functools import partial

import anyio
import pytest

from tests.chaos.campaign import ALL_MODES, Row, play_all, rows_of
from tests.chaos.table import FAULTS

AT_ONCE = 10
ROWS = [row.name for row in rows_of(FAULTS, ALL_MODES, seed=0, short=True)]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> dict[str, Row]:
    """Play the rows that this run has chosen; the seed is printed if one fails."""
    seed = secrets.randbits(32)
    print(f"python -m tests.chaos --short --seed {seed}")  # noqa: T201 - to play it again
    chosen = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and hasattr(item, "callspec")
    }
    rows = rows_of(FAULTS, ALL_MODES, seed=seed, short=True)
    rows = [row for row in rows if row.name in chosen]
    errors = anyio.run(partial(play_all, rows, short=True, at_once=AT_ONCE))
    assert errors == []
    return {row.name: row for row in rows}


@pytest.mark.parametrize("name", ROWS)
def test_the_promise_is_kept(played: dict[str, Row], name: str) -> None:
    """Every invariant holds, under damage that did happen."""
    row = played[name]
    assert not row.violations, f"seed {row.seed}: {row.violations}"
    assert row.handled > 0
    assert row.recovery is not None
