"""The plugin of pytest, as a project that has installed bls-agent meets it."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]
# A process for each run: pytester would remove the modules that were loaded in ours.

SERVICE = """
import asyncio
from bls_agent import ProjectAgent

agent = ProjectAgent("库存系统", redis="redis://127.0.0.1:1/0")
loops = set()


@agent.command
async def take(goods: str, count: int = 1) -> dict[str, object]:
    if count > 12:
        raise KeyError(goods)
    loops.add(asyncio.get_running_loop())
    agent.log.info("taken", goods=goods)
    return {goods: 12 - count}
"""


@pytest.fixture
def service(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with a service and a strict configuration."""
    pytester.makepyfile(stock=SERVICE)
    # The plugin of anyio 4.14 uses a name that pytest 9.2 is about to drop.
    pytester.makepyprojecttoml(
        '[tool.pytest]\nstrict = true\npythonpath = ["."]\n'
        'filterwarnings = ["error", "ignore:_pytest.python.CallSpec2"]'
    )
    return pytester


TESTS = """
import asyncio, unittest
import pytest
from stock import agent, loops

@pytest.mark.bls(allow_failed=True)
def test_plain(bls_run):
    loops.clear()
    outcome = bls_run(agent, "take", goods="茶", count=2)
    assert outcome.unwrap() == {"茶": 10}
    assert [entry.message for entry in outcome.logs] == ["taken"]
    assert bls_run(agent, "take", {"goods": "茶"}).succeeded
    assert len(loops) == 1

async def check(outcome, count):
    assert outcome.result == {"茶": 12 - count}

@MARK
async def test_by_the_fixture(bls_run):
    await check(await bls_run(agent, "take", goods="茶", count=2), 2)

@MARK
async def test_by_the_agent():
    await check(await agent.invoke("take", goods="茶"), 1)

class StockTest(unittest.IsolatedAsyncioTestCase):
    async def test_take(self):
        await check(await agent.invoke("take", goods="茶"), 1)

class PlainTest(unittest.TestCase):
    def test_take(self):
        asyncio.run(agent.invoke("take", goods="茶")).unwrap()
"""


@pytest.mark.parametrize(
    ("mark", "options"),
    [("pytest.mark.anyio", ()), ("pytest.mark.bls", ("-o", "anyio_mode=auto"))],
    ids=["marked", "auto"],
)
def test_every_kind_of_test_runs_a_command(
    service: pytest.Pytester, mark: str, options: tuple[str, ...]
) -> None:
    """Plain tests, both modes of the plugin of anyio, both classes of unittest."""
    service.makepyfile(TESTS.replace("MARK", mark))
    service.runpytest_subprocess(*options).assert_outcomes(passed=5)


FAILING = """
from stock import agent

def test_take(bls_run):
    bls_run(agent, "take", goods="茶", count=13).unwrap()
"""


def test_a_report_shows_the_lines_of_the_handler(service: pytest.Pytester) -> None:
    """The test and the handler are shown, and nothing between them."""
    service.makepyfile(FAILING)
    shown = service.runpytest_subprocess("--tb=short")
    shown.assert_outcomes(failed=1)
    shown.stdout.fnmatch_lines(["*KeyError: '茶'*", "*1 failed*"])
    places = [line.split(":")[0] for line in shown.outlines if ": in " in line]
    assert places == ["test_a_report_shows_the_lines_of_the_handler.py", "stock.py"]


COSTS = """
import sys

def ours():
    return {name for name in sys.modules if name.startswith("bls_agent")}

def test_nothing_is_loaded():
    assert ours() <= {
        "bls_agent", "bls_agent.core", "bls_agent.core.lazy",
        "bls_agent.testing", "bls_agent.testing.plugin",
    }
    assert not {"orjson", "redis", "hiredis"} & {*sys.modules}
"""


def test_a_suite_of_somebody_else_pays_nothing(pytester: pytest.Pytester) -> None:
    """pytest loads the plugin in every run: it brings no room of the package with it."""
    pytester.makepyfile(COSTS)
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
