"""What the documents say is so: settings, code, links, tests that hold promises."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from bls_agent.settings import Settings, rules
from tests.documents import blocks

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "README.zh-CN.md", *ROOT.glob("docs/*.md")]
READMES = DOCUMENTS[:2]


def without_comments(code: str) -> str:
    return re.sub(r"\s+#.*", "", code)


def test_every_setting_is_documented() -> None:
    """docs/configuration.md has one row for each setting, with variable and unit."""
    rows: dict[str, list[str]] = {}
    for line in (ROOT / "docs/configuration.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and cells[1].startswith("`BLS_"):
            rows[cells[0].strip("`")] = cells
    assert set(rows) == set(rules())
    for name, row in rows.items():
        rule, default = rules()[name], getattr(Settings(), name)
        written = default if isinstance(default, str) else str(default).lower()
        assert row[1:5] == [
            f"`BLS_{name.upper()}`",
            f"`{written}`",
            rule.unit,
            rule.meaning,
        ]


def test_the_readmes_have_the_same_code() -> None:
    """Both languages show the same code, comments aside."""
    english, chinese = ([without_comments(b) for b in blocks(r)] for r in READMES)
    assert english == chinese
    assert len(english) > 5


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
async def test_the_code_of_the_readme_runs(
    readme: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks run as they stand: the service, the other end, and the rest behind."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    service, console, *rest = blocks(readme)
    names: dict[str, Any] = {"__name__": "agent"}
    exec(compile(service, "agent.py", "exec"), names)
    for block in rest:
        if "ProjectAgent(" not in block:
            exec(compile(block, readme.name, "exec"), names)
    async with names["agent"] as agent:
        await agent.ready(5)
        said = await anyio.to_thread.run_sync(run_as_script, console)
        assert "'rules': 42" in said
        assert not agent.stats().faults
    for block in rest:
        if "ProjectAgent(" in block:
            said = await anyio.to_thread.run_sync(run_as_script, block)
            printed = re.search(r"\d records|'pong': True", said)
            assert printed or "print(" not in block


def run_as_script(code: str) -> str:
    """Run a block as a program of its own and give what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "script.py", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link names a file of the repository."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text("utf-8"))
    for link in links:
        if "://" not in link:
            assert (document.parent / link).exists(), link


def test_every_promise_names_tests_that_exist() -> None:
    """The tests that docs/promises.md names are there."""
    named = re.findall(
        r"`(tests/[\w/]+\.py)`", (ROOT / "docs/promises.md").read_text("utf-8")
    )
    assert len(set(named)) > 8
    for name in named:
        assert (ROOT / name).is_file(), name


def test_the_readme_begins_short() -> None:
    """The first forty-five lines hold the whole way in, up to the links."""
    for readme in READMES:
        beginning = "\n".join(readme.read_text("utf-8").splitlines()[:45])
        for needed in ("ProjectAgent", "Console", "make demo", "docs/protocol.md"):
            assert needed in beginning
