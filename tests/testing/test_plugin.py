"""The plugin of pytest, as a project that has installed bls-agent meets it."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SERVICE = """
from bls_agent import ProjectAgent

agent = ProjectAgent("库存系统", redis="redis://127.0.0.1:1/0")


@agent.command
async def take(goods: str, count: int = 1) -> dict[str, object]:
    if count > 12:
        raise KeyError(goods)
    agent.log.info("taken", goods=goods)
    return {goods: 12 - count}
"""


@pytest.fixture
def service(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with a service and a strict configuration."""
    pytester.makepyfile(stock=SERVICE)
    pytester.makepyprojecttoml(
        '[tool.pytest]\nstrict = true\nfilterwarnings = ["error"]\npythonpath = ["."]'
    )
    return pytester


PLAIN = """
import pytest
from stock import agent

@pytest.mark.bls(allow_failed=True)
def test_take(bls_run):
    outcome = bls_run(agent, "take", goods="茶", count=2)
    assert outcome.unwrap() == {"茶": 10}
    assert [entry.message for entry in outcome.logs] == ["taken"]
    assert bls_run(agent, "take", {"goods": "茶"}).succeeded
"""


def test_a_plain_test_runs_a_command(service: pytest.Pytester) -> None:
    """The fixture and the marker are there, also for a strict configuration."""
    service.makepyfile(PLAIN)
    service.runpytest().assert_outcomes(passed=1)
