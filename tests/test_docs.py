"""What the documents say is so: settings, code, links, tests that hold promises."""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import logging
import os
import re
import shlex
import subprocess
import sys
import textwrap
import types
from collections.abc import Generator
from inspect import signature
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from redis.asyncio import Redis
from ruamel.yaml import YAML

from bls_agent import Console, ProjectAgent
from bls_agent.core.settings import Settings, rules
from bls_agent.ops.cli.commands.console import console
from tests.documents import (
    blocks,
    is_program,
    load,
    run_block,
    run_commands,
    typed,
    unfinished_paste,
)
from tests.harness import eventually, records

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "README.zh-CN.md", *ROOT.glob("docs/*.md")]
READMES = DOCUMENTS[:2]
TWO_LANGUAGES = (
    "README",
    "docs/assets",
    "docs/configuration",
    "docs/console-python",
    "docs/crawl",
    "docs/doctor",
    "docs/embedding",
    "docs/engines",
    "docs/errors",
    "docs/health",
    "docs/production",
    "docs/replicas",
    "docs/rights",
    "docs/runs",
    "docs/servers",
    "docs/service",
    "docs/testing",
    "docs/tracing",
    "docs/troubleshooting",
    "docs/tutorial",
    "docs/workers",
)
COMMENTS = {"python": r"\s+#.*", "yaml": r"\s+#.*", "js": r"\s+//.*"}


def both(page: str) -> tuple[Path, Path]:
    """The English and the Chinese form of a page."""
    return ROOT / f"{page}.md", ROOT / f"{page}.zh-CN.md"


def without_comments(code: str) -> str:
    return re.sub(r"\s+#.*", "", code)


def test_every_setting_is_documented() -> None:
    """Both pages have one row for each setting: variable, default, unit, meaning."""
    english, chinese = (settings_table(page) for page in both("docs/configuration"))
    assert set(english) == set(chinese) == set(rules())
    for name, row in english.items():
        rule, default = rules()[name], getattr(Settings(), name)
        written = default if isinstance(default, str) else str(default).lower()
        expected = [f"`BLS_{name.upper()}`", f"`{written}`", rule.unit]
        assert row[1:5] == [*expected, rule.meaning]
        assert chinese[name][1:4] == expected
        assert re.search("[\u4e00-\u9fff]", chinese[name][4])


def settings_table(page: Path) -> dict[str, list[str]]:
    """The cells of the row of each setting."""
    rows: dict[str, list[str]] = {}
    for line in page.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and cells[1].startswith("`BLS_"):
            rows[cells[0].strip("`")] = cells
    return rows


@pytest.mark.parametrize("page", TWO_LANGUAGES)
def test_both_languages_show_the_same_code(page: str) -> None:
    """Comments and one name aside: what is run below is the English page's."""
    for language, comment in COMMENTS.items():
        english, chinese = (
            [re.sub(comment, "", code) for code in blocks(one, language)]
            for one in both(page)
        )
        assert [c.replace("order-service", "订单系统") for c in english] == chinese
    assert blocks(both(page)[0])
    assert typed(both(page)[0]) == typed(both(page)[1])


@pytest.mark.parametrize("page", ["assets", "crawl", "runs", "workers"])
def test_the_blocks_may_be_pasted(page: str) -> None:
    """Into ``python -m asyncio``, unless they are programs."""
    shown = [b for b in blocks(both(f"docs/{page}")[0]) if not is_program(b)]
    assert shown
    assert [unfinished_paste(block) for block in shown] == [""] * len(shown)


def test_the_recipes_for_the_console() -> None:
    """Both languages show the same files; YAML parses; every option exists."""
    english, chinese = (p.read_text("utf-8") for p in both("docs/console-deploy"))
    fenced = re.compile(r"^ *```\w+\n.*?^ *```$", re.DOTALL | re.MULTILINE)
    recipes = [without_comments(code) for code in fenced.findall(english)]
    assert [without_comments(code) for code in fenced.findall(chinese)] == recipes
    manifests = blocks(both("docs/console-deploy")[0], "yaml")
    yaml: Any = YAML()
    kinds = [one.get("kind") for text in manifests for one in yaml.load_all(text)]
    assert kinds == [None, "ConfigMap", "Deployment", "Service", "Ingress"]
    lines = "\n".join(recipes).replace("\\\n", " ")
    starts = re.findall(r"(?:agent console |command: \[|args: \[)(-.*)", lines)
    known = {f"--{name.replace('_', '-')}" for name in signature(console).parameters}
    assert [{*re.findall(r"--[a-z-]+", start)} - known for start in starts] == [
        set()
    ] * 3


async def test_the_code_of_the_readme_runs(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service and the other end talk to each other, as they stand."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    service, console = blocks(both("README")[0])
    names = load(service, "agent")
    async with names["agent"] as agent:
        await agent.ready(5)
        said = await anyio.to_thread.run_sync(run_as_script, console)
        assert "'rules': 42" in said


async def test_the_code_about_services_runs(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks run as they stand: the service, what continues it, and the others."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    page = both("docs/service")[0]
    service, *rest = blocks(page)
    module = types.ModuleType("agent")  # where data classes look up their annotations
    monkeypatch.setitem(sys.modules, "agent", module)
    names = vars(module)
    exec(compile(service, "agent.py", "exec"), names)
    for block in rest:
        if "ProjectAgent(" not in block:
            exec(compile(block, page.name, "exec"), names)
    async with names["agent"] as agent:
        await agent.ready(5)
        assert not agent.stats().faults
    for block in rest:
        if "ProjectAgent(" in block:
            said = await anyio.to_thread.run_sync(run_as_script, block)
            printed = re.search(r"\d records|'pong': True", said)
            assert printed or "print(" not in block


async def test_the_page_about_health_runs(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's checks are called, its statuses are set, and its command finds them."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    page = both("docs/health")[0]
    service, *rest = blocks(page)
    names = load(service, "orders")
    results = await names["agent"].run_checks()
    assert results.keys() == {"database", "disk"}
    for block in rest:
        run_as_script(block)
    async with names["agent"] as agent:
        await agent.ready(5)
        assert await run_commands(page, redis_url, monkeypatch) == 1


async def test_the_page_about_logging_runs(
    redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both records of the page's first program are in the list, and its command reads them."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    page = both("docs/logging")[0]
    with keep_logging():
        await anyio.to_thread.run_sync(run_as_script, blocks(page)[0])
        assert await run_commands(page, redis_url, monkeypatch) == 1
    first, second = (await records(redis, "订单系统"))[-2:]
    assert (first["level"], first["message"]) == ("info", "order accepted")
    assert (second["level"], second["message"]) == ("warn", "order 17 is late")


async def test_the_page_about_replicas_runs(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both replicas of the page run its broadcast, and its second program drains both."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    page = both("docs/replicas")[0]
    service, broadcast, deployment = blocks(page)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            names = load(service, "orders")
            agent = await stack.enter_async_context(names["agent"])
            await agent.ready(5)
        assert await run_commands(page, redis_url, monkeypatch) == 3
        printed = await anyio.to_thread.run_sync(run_as_script, broadcast)
        assert printed.count("在线") == 2
        assert printed.count("succeeded {'rules': 42}") == 2
        printed = await anyio.to_thread.run_sync(run_as_script, deployment)
        assert printed.count("succeeded") == 2

        async def both_are_drained() -> bool:
            async with Console() as console:
                intakes = (await console.intakes(["订单系统"])).get("订单系统", {})
            return str(intakes).count("DRAINED") == 2

        await eventually(both_are_drained)  # a replica writes its state each second


def run_as_script(code: str) -> str:
    """Run a block as a program of its own and give what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "script.py", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def test_links_lead_somewhere() -> None:
    """Every relative link names a file of the repository."""
    links = [
        (page.name, page.parent, link)
        for page in DOCUMENTS
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8"))
        if "://" not in link
    ]
    assert len(links) > len(DOCUMENTS)
    lost = [
        (page, link) for page, folder, link in links if not (folder / link).exists()
    ]
    assert lost == []


# Texts of links that do not say what the reader finds: names of files, and places.
EMPTY_TEXT = re.compile(
    r"`?[\w./-]+\.(?:md|py|json|toml|ya?ml)`?|here|above|below|this page|这里|上文|下文"
)
PAGES = [
    *DOCUMENTS,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CODE_OF_CONDUCT.md",
    ROOT / "SECURITY.md",
    ROOT / "examples/README.md",
]


def test_a_link_says_what_it_leads_to() -> None:
    """A text such as ``testing.md`` or "here" tells the reader nothing."""
    found = [
        (page.name, text)
        for page in PAGES
        for text in re.findall(r"(?<!!)\[([^][]+)\]\([^)]+\)", page.read_text("utf-8"))
    ]
    assert len(found) > len(PAGES)
    assert [one for one in found if EMPTY_TEXT.fullmatch(one[1])] == []


def test_a_chinese_page_links_to_chinese_pages() -> None:
    """On a code host, a reader of Chinese stays in Chinese; the switch is the exception."""
    link = re.compile(r"\[([^][]+)\]\(([\w./-]+)\.md[#)]")
    pages = sorted(ROOT.glob("docs/*.zh-CN.md"))
    found = [
        (page, text, path)
        for page in pages
        for text, path in link.findall(page.read_text("utf-8"))
    ]
    assert len(found) > len(pages)
    astray = [
        (page.name, path)
        for page, text, path in found
        if text != "English" and (page.parent / f"{path}.zh-CN.md").exists()
    ]
    assert astray == []


def test_no_document_holds_both_sides_of_a_merge() -> None:
    """A conflict was resolved, not committed."""
    marks = re.compile(r"^(<{7} |={7}$|>{7} )", re.MULTILINE)
    assert [one for one in DOCUMENTS if marks.search(one.read_text("utf-8"))] == []


def test_every_promise_names_tests_that_exist() -> None:
    """The tests that the pages about promises name are there, in both languages."""
    texts = [page.read_text("utf-8") for page in both("docs/promises")]
    named, chinese = (re.findall(r"`(tests/[\w/]+\.py)`", text) for text in texts)
    assert len(set(named)) > 8
    for name in named:
        assert (ROOT / name).is_file(), name
    assert chinese == named


@pytest.mark.parametrize("page", ["errors", "production", "promises", "why"])
def test_both_languages_have_the_same_headings_and_rows(page: str) -> None:
    """A row, a point or a heading that one language lacks is found."""
    beginnings = re.compile(r"^(?:#+|\*|\d\.) |^\|", re.MULTILINE)
    texts = [one.read_text("utf-8") for one in both(f"docs/{page}")]
    english, chinese = (beginnings.findall(text) for text in texts)
    assert english == chinese
    assert len(english) > 20


async def test_the_tutorial_runs(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The tutorial's service answers its commands, and its test passes, as they stand."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    page = both("docs/tutorial")[0]
    service, *rest, test, probe = blocks(page)
    names = load(service, "stock")
    with keep_logging():
        for block in [*rest, probe.replace("/tmp/alive", str(tmp_path / "alive"))]:
            exec(compile(block, page.name, "exec"), names)
        async with names["agent"] as agent:
            await agent.ready(5)
            assert await run_commands(page, redis_url, monkeypatch) > 4
            async with Console(redis_url) as console:
                outcome = await console.call("库存系统", "take", {"goods": "咖啡"})
        assert outcome.kind == "rejected"
        assert (tmp_path / "alive").exists()
    await run_tests(tmp_path, {"stock.py": service, "test_stock.py": test})


async def test_the_page_about_testing_runs(tmp_path: Path) -> None:
    """The service and the tests of the page, in a folder with the page's configuration."""
    page = both("docs/testing")[0]
    service, *tests = blocks(page)
    [configuration] = blocks(page, "ini")
    files = {"test_stock.py": "\n".join(tests), "pytest.ini": configuration}
    await run_tests(tmp_path, {"stock.py": service, **files})


async def run_tests(folder: Path, files: dict[str, str]) -> None:
    """Write files into a folder, and run its tests as somebody who has followed a page."""
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    environment.pop("BLS_REDIS_URL", None)  # which another test may have exported
    done = await anyio.run_process(
        command, cwd=folder, env=environment, check=False, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout.decode()


@contextlib.contextmanager
def keep_logging() -> Generator[None]:
    """Give the root logger back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


async def test_the_page_of_the_console_runs(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls on the page give what the page says."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    asynchronous, letters, synchronous = blocks(both("docs/console-python")[0])
    agent = ProjectAgent("订单系统", redis=redis_url)

    @agent.command
    async def reload(force: bool) -> dict[str, int]:
        return {"rules": 42 if force else 0}

    async with agent:
        await agent.ready(5)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            names = {"__name__": "page"}
            await run_block(asynchronous, names)
            async with Redis.from_url(redis_url) as redis:
                dead = "bls_agent:{订单系统_控制}:dead"
                requeued = '{"id":"cmd-1736498500004-a1b2c3","command":"ping"}'
                await redis.rpush(dead, requeued, '{"id":"x","command":"reload"}')
                await run_block(letters, names)
                assert not await redis.exists(dead)
        said = await anyio.to_thread.run_sync(run_as_script, synchronous)
    assert "'订单系统': <Status.ONLINE: '在线'>" in printed.getvalue()
    assert "True {'rules': 42}" in printed.getvalue()
    assert "x reload {}\ncmd-1736498500004-a1b2c3 ping {}" in printed.getvalue()
    assert "在线" in said


async def test_the_page_of_the_doctor_runs(
    redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program and the commands find what is wrong in a project."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    page = both("docs/doctor")[0]
    [block] = blocks(page)
    await redis.set("订单系统_控制", "x")
    printed = await anyio.to_thread.run_sync(run_as_script, block)
    assert "error wrong-type 订单系统_控制" in printed
    assert await run_commands(page, redis_url, monkeypatch) == 3


def test_the_pages_about_servers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL of Sentinel is shown without its password; an absent server is no refusal."""
    monkeypatch.setenv("BLS_REDIS_URL", "redis://127.0.0.1:1")
    [absent], [sentinel] = (
        blocks(both(f"docs/{p}")[0]) for p in ("servers", "engines")
    )
    assert run_as_script(absent) == "try again later: connection\n"
    shown = run_as_script(sentinel)
    assert shown.startswith("redis+sentinel://10.0.0.5:26379,")
    assert shown.endswith("/mymaster/0\n")


async def test_the_page_of_rights_runs(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The block prints the rules of the page, and so do the commands."""
    page = both("docs/rights")[0]
    [block] = blocks(page)
    rules = blocks(page, "text")[0].strip()  # those of mode blocking
    assert rules in run_as_script(block).splitlines()
    assert await run_commands(page, redis_url, monkeypatch) == 3
    assert rules in capsys.readouterr().out.splitlines()


def test_the_readme_begins_short() -> None:
    """The first seventy lines hold the whole way in: install, service, console."""
    for readme in READMES:
        beginning = "\n".join(readme.read_text("utf-8").splitlines()[:70])
        for needed in (
            "pip install --no-compile '.[all]'",
            "devserver",
            "Console",
            "make demo",
        ):
            assert needed in beginning


def undefined_names(page: Path) -> dict[str, int]:
    """Names that no block of the page imports or defines, with the block that uses them."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    known = {*dir(builtins), "__name__"}
    missing: dict[str, int] = {}
    fenced = re.compile(r"^( *)```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
    found = fenced.findall(page.read_text("utf-8"))  # those inside of lists, too
    for number, block in enumerate(textwrap.dedent(code) for _, code in found):
        nodes = [*ast.walk(compile(block, page.name, "exec", flags=flags))]
        for node in nodes:
            match node:
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    known |= {(a.asname or a.name).partition(".")[0] for a in names}
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    known.add(node.name)
                case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                    known.add(name)
                case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                    known.add(name)
                case _:
                    pass
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        missing |= dict.fromkeys(used - known, number)
    return missing


def test_every_block_of_code_has_its_imports() -> None:
    """Each block compiles, and uses what it or an earlier block of the page defines."""
    undefined = [(page, undefined_names(page)) for page in DOCUMENTS]
    assert [one for one in undefined if one[1]] == []


TRANSCRIPT = (
    (ROOT / "docs/protocol.md")
    .read_text("utf-8")
    .partition("## What redis-cli shows\n")[2]
    .partition("\n## ")[0]
)


async def test_the_protocols_transcript(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The records are those that an agent writes, but for times and the project's name."""
    agent = ProjectAgent(project, redis=redis_url, instance="order-1")

    @agent.command
    async def reload(force: bool = False) -> dict[str, int]:
        agent.log.info("configuration reloaded", force=force)
        return {"rules": 42}

    for messages in re.findall(r"RPUSH \S+_控制 (.*)", TRANSCRIPT):
        await redis.rpush(f"{project}_控制", *shlex.split(messages))
    async with agent:
        await eventually(lambda: agent.stats().outcomes.get("discarded") == 2)
        await agent.flush()
    found = await records(redis, project)
    lines = re.findall(r"^{.*}$", TRANSCRIPT, re.MULTILINE)
    shown = [orjson.loads(line) for line in lines]
    for record in (*found, *shown):
        del record["timestamp"]
        record["metadata"].pop("durationMs", None)
    assert len(shown) == 6
    assert found == shown
