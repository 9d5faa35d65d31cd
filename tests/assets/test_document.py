"""docs/assets.md and its Chinese sister: files, commands and code work as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bls_agent.assets import AssetManifest
from bls_agent.devserver import DevServer
from tests.documents import (
    blocks,
    run_alone,
    run_commands,
)

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/assets.md", ROOT / "docs/assets.zh-CN.md"]


async def test_from_an_empty_folder(
    own_server: DevServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The files are written, the commands are run, and then the code reads the assets."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(PAGES[0], "yaml"):
        path = tmp_path / block.partition("\n")[0].removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block, "utf-8")
    assert await run_commands(PAGES[0], own_server.url, monkeypatch) == 4
    assert "0 created" not in capfd.readouterr().err
    for block in blocks(PAGES[0], "python"):
        await run_alone(block)
    said = capfd.readouterr().out
    assert "请用三句话总结：茶的价格上涨了三成。" in said
    assert "'function_name': 'stock_level'" in said
    assert "['stock_level', 'summarizer']" in said
    assert "sync_status='idle'" in said
    assert "unchanged unchanged () () ()" in said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_table_of_fields(page: Path) -> None:
    """Every field of the manifest has its row."""
    rows = re.findall(r"^\| (`[^|]+`) \|", page.read_text("utf-8"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert [name for name in named if name in AssetManifest.model_fields] == list(
        AssetManifest.model_fields
    )
