"""``bls-agent assets``: a source named on the command line, for people and programs."""

from __future__ import annotations

import signal
from pathlib import Path

import anyio.to_thread
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent.assets import AssetLibrary, AssetManifest, manifest_schema
from bls_agent.assets.sync import SyncStep
from bls_agent.devserver import DevServer
from bls_agent.ops.cli.commands.assets import shown_step
from bls_agent.ops.texts import load_texts
from tests.assets.memory_source import manifest
from tests.harness import eventually
from tests.ops.cli.conftest import Bls
from tests.ops.cli.terminal import start_piped

BROKEN = b"id: writer\nversion: 1.0\ncategory: promt\nname: Writer\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two prompts and a skill."""
    files = {
        "prompts/summary.yaml": manifest("summary", description="总结长文本"),
        "prompts/writer.yaml": manifest("writer"),
        "skills/report/manifest.yaml": manifest("report", category="skill"),
    }
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    return tmp_path


async def test_from_a_folder(bls: Bls, own_server: DevServer, folder: Path) -> None:
    """The plan, the sync, nothing more to do, then what changed and what is broken."""
    url, source = own_server.url, str(folder)
    created = "created\treport\ncreated\tsummary\ncreated\twriter\n"
    plan = await bls("assets", "sync", source, "--dry-run", url=url)
    assert (plan.code, plan.text) == (0, created)
    assert "3 created" in plan.said
    assert (await bls("assets", url=url)).text == ""
    done = await bls("assets", "sync", source, url=url)
    assert (done.code, done.text) == (0, created)
    again = await bls("assets", "sync", source, url=url, lang="zh")
    assert (again.code, again.text) == (0, "")
    assert "没有变化" in again.said
    (folder / "prompts/writer.yaml").write_bytes(BROKEN)
    (folder / "prompts/summary.yaml").write_bytes(manifest("summary", "2.0.0"))
    plan = await bls("assets", "sync", source, "--dry-run", url=url)
    ran = await bls("assets", "sync", source, "--wait", "5", url=url)
    assert (plan.code, ran.code) == (3, 1)
    assert "would end as failed" in plan.said
    assert plan.text == ran.text
    lines = ran.text.splitlines()
    assert lines[:1] == ["updated\tsummary"]
    assert lines[1] == "kept\twriter"
    assert lines[2].startswith("broken\tprompts/writer.yaml:2\tversion\t")
    assert "could not be used" in ran.said
    report = orjson.loads((await bls("assets", "sync", source, "--json", url=url)).out)
    assert report["status"] == "failed"
    assert report["kept"] == ["writer"]
    assert {fault["line"] for fault in report["broken"]} == {2, 3}
    listed = await bls("assets", "list", url=url)
    assert (listed.code, len(listed.text.splitlines())) == (0, 3)
    assert "last synchronisation failed" in listed.said


async def test_list_search_and_get(
    bls: Bls, own_server: DevServer, folder: Path, admin: Redis
) -> None:
    """By category, by words, whole; one that is not there is answered with its like."""
    url = own_server.url
    assert (await bls("assets", "sync", str(folder), url=url)).code == 0
    rows = await bls("assets", "list", "--category", "skill", url=url)
    assert rows.text == "report\tskill\t1.0.0\treport\t\n"
    await admin.hset("asset:index", "spoilt", "{")
    rest = await bls("assets", "list", url=url)
    assert (rest.code, len(rest.text.splitlines())) == (0, 3)
    assert "'spoilt' in asset:index is left out" in rest.said
    found = await bls("assets", "list", "--search", "总结", "--json", url=url)
    assert orjson.loads(found.out)["id"] == "summary"
    assert (await bls("assets", "list", "--category", "widget", url=url)).code == 2
    await admin.hdel("asset:index", "report")  # as an asset of another program
    words = ["assets", "list", "--category", "skill", "--search", "report"]
    assert (await bls(*words, url=url)).text == rows.text
    none = await bls("assets", "list", "--search", "nowhere", url=url)
    assert "No asset matches." in none.said
    shown = await bls("assets", "get", "summary", url=url)
    assert "description\t总结长文本\n" in shown.text
    whole = orjson.loads((await bls("assets", "get", "summary", "--json", url=url)).out)
    async with AssetLibrary(url) as library:
        asset = await library.get("summary")
    assert asset is not None
    assert whole["github_sha"] == asset.github_sha
    gone = await bls("assets", "get", "summery", url=url)
    assert (gone.code, gone.text) == (1, "")
    assert "Did you mean summary?" in gone.said
    await admin.hdel("asset:metadata:summary", "version")
    unreadable = await bls("assets", "get", "summary", url=url)
    assert (unreadable.code, unreadable.text) == (1, "")
    assert "cannot be read" in unreadable.said
    assert "bls-agent doctor" in unreadable.said
    assert "Did you mean" not in unreadable.said
    await admin.hset("asset:metadata:report", "runtime", "[]")
    odd = await bls("assets", "get", "report", url=url)
    assert odd.code == 0
    assert "faults\t{" in odd.text


async def test_validate_needs_no_redis(bls: Bls, folder: Path) -> None:
    """Every fault with file, line, field, rule and remedy; two files with one id, too."""
    nowhere = "redis://127.0.0.1:1"
    good = await bls("assets", "validate", str(folder), url=nowhere)
    assert (good.code, good.text, good.said.count("Faults: 0.")) == (0, "", 1)
    path = folder / "prompts/writer.yaml"
    path.write_bytes(BROKEN)
    (folder / "twice.yaml").write_bytes(manifest("report"))
    bad = await bls("assets", "validate", str(folder), url=nowhere)
    assert bad.code == 3
    rows = [line.split("\t") for line in bad.text.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [
        ("prompts/writer.yaml:2", "version"),
        ("prompts/writer.yaml:3", "category"),
        ("skills/report/manifest.yaml", "id"),
        ("twice.yaml", "id"),
    ]
    assert all(row[2] and row[3] for row in rows)
    one = await bls("assets", "validate", str(path), "--json", url=nowhere)
    faults = [orjson.loads(line) for line in one.out.splitlines()]
    assert [fault["field"] for fault in faults] == ["version", "category"]
    assert one.code == 3
    away = await bls("assets", "sync", str(folder), url=nowhere)
    assert away.code == 4


async def test_the_schema_for_editors(bls: Bls) -> None:
    """As the package gives it."""
    assert orjson.loads((await bls("assets", "schema")).out) == manifest_schema()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("/nowhere/at/all",), "a folder that exists"),
        ((".", "--branch", "main"), "is a folder"),
        (("github:nothing",), "owner/name"),
        ((), "SOURCE"),
    ],
)
async def test_a_source_that_is_none(
    bls: Bls, words: tuple[str, ...], said: str
) -> None:
    """Wrong usage, said before anything is asked."""
    ran = await bls("assets", "sync", *words, url="redis://127.0.0.1:1")
    assert (ran.code, ran.text) == (2, "")
    assert said in ran.said


async def test_watch(own_server: DevServer, admin: Redis) -> None:
    """A line for each change, until it is ended."""
    made = AssetManifest(id="a1", version="1.0.0", category="prompt", name="总结")
    process = start_piped("assets", "watch", "--redis", own_server.url, BLS_LANG="en")
    assert process.stdout is not None
    async with AssetLibrary(own_server.url) as library:

        async def has_read() -> bool:
            return "cmdstat_lrange" in await admin.info("commandstats")

        await eventually(has_read, 20)
        await library.save(made, path="a1.yaml", sha="0" * 40)
        line = await anyio.to_thread.run_sync(process.stdout.readline)
        assert line.decode() == "a1\tprompt\t1.0.0\t总结\n"
        assert await library.delete("a1")
        line = await anyio.to_thread.run_sync(process.stdout.readline)
        assert line == b"a1\t-\t-\t\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130


def test_how_far_it_has_come() -> None:
    """A bar with files and bytes, in both languages."""
    for language, unit in (("en", "files"), ("zh", "个文件")):
        texts = load_texts("cli", language)
        told = shown_step(texts, SyncStep("download", 50, 200, 3 * 2**20))
        for part in (unit, "50/200", f"{'█' * 5}{'░' * 15}", "3.0 MB"):
            assert part in told
        assert shown_step(texts, SyncStep("read"))
        assert shown_step(texts, SyncStep("write"))
