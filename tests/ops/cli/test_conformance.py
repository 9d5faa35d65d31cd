"""Each flaw of an agent is found under its id; good agents pass, ours pass everything."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import anyio
import anyio.to_thread
import pytest
from redis.asyncio import Redis

from bls_agent.ops.conformance.agent import CHECKS as AGENT_CHECKS
from bls_agent.ops.conformance.console import CHECKS as CONSOLE_CHECKS
from bls_agent.ops.conformance.vectors import Level, Side, load_vectors
from tests.harness import execute
from tests.ops.cli.conftest import Bls
from tests.ops.cli.terminal import start_piped

HERE = Path(__file__).parent
FLAWED = (
    f"{shlex.quote(sys.executable)} {shlex.quote(str(HERE / 'agents' / 'flawed.py'))}"
)
OURS = f"{shlex.quote(sys.executable)} {shlex.quote(str(HERE / 'agents' / 'ours.py'))}"
FLAWED_CONSOLE = FLAWED.replace("flawed.py", "flawed_console.py")
LANGUAGES = HERE.parents[2] / "examples" / "other_languages"
MODULES = os.environ.get("TEST_NODE_MODULES", "")
NODE = MODULES if shutil.which("node") and Path(MODULES, "redis").is_dir() else None
# Every MUST and SHOULD, without the MAY of this package alone.
STRICT = [
    word
    for vector in load_vectors()
    if vector.side is Side.AGENT and vector.level is not Level.MAY
    for word in ("--case", vector.id)
]
# Flaw → the cases to try, and the one that finds it.
FLAWS = {
    "no status": "002/status/written",
    "status in English": "002/status/written",
    "status without TTL": "002/status/expires",
    "status once": "002/status/refreshed",
    "newest first": "002/log/list",
    "log as a string": "002/log/list",
    "records that are no JSON": "002/log/record",
    "levels in capitals": "002/log/record",
    "levels in a list": "002/log/record",
    "errors as texts": "002/commands/arguments/1",
    "names of fields as a number": "002/commands/arguments/1",
    "names of fields of two types": "002/commands/arguments/1",
    "odd timestamps": "002/log/record",
    "long records": "002/log/size",
    "takes the newest": "002/commands/order",
    "runs twice": "002/commands/order",
    "loses commands": "002/commands/order",
    "reads and never trims": "002/commands/emptied",
    "stumbles over malformed messages": "002/commands/malformed/1",
    "dies of malformed messages": "002/commands/malformed/1",
    "hides malformed messages": "002/log/malformed",
    "reads ASCII": "002/commands/valid/5",
    "refuses unknown fields": "002/commands/valid/6",
    "dies of unknown commands": "002/commands/unknown/1",
    "dies of a lost connection": "002/network/cut",
    "tries to reconnect once": "002/network/away",
    "waits for ever": "002/network/silent",
    "clears its commands": "002/commands/waits",
    "leaves without a word": "002/status/final",
}


async def judge(bls: Bls, program: str, *words: str) -> dict[str, str]:
    """Return the result of each vector."""
    ran = await bls("conformance", "agent", "--json", "--cmd", program, *words)
    assert ran.code in (0, 3), ran.err
    found = [json.loads(line) for line in ran.out.splitlines()]
    return {one["id"]: one["result"] for one in found}


@pytest.mark.parametrize("flaw", FLAWS)
async def test_a_flaw_is_found(bls: Bls, flaw: str) -> None:
    vector_id = FLAWS[flaw]
    program = f"{FLAWED} {shlex.quote(flaw)}"
    found = await judge(bls, program, "--case", vector_id, "--patience", "0.6")
    assert found == {vector_id: "failed"}


async def test_the_agent_without_a_flaw_passes(bls: Bls) -> None:
    """So no flaw is found for another reason; it has no outcome records, which are a MAY."""
    ids = sorted(set(FLAWS.values()) & set(STRICT))
    cases = [word for vector_id in ids for word in ("--case", vector_id)]
    assert await judge(bls, FLAWED, *cases) == dict.fromkeys(ids, "passed")


async def test_an_agent_may_start_slowly(bls: Bls) -> None:
    """Connections that were lost in the check before do not count as connected."""
    ids = ["002/network/silent", "002/commands/waits"]
    program = shlex.join(["sh", "-c", f"sleep 3; exec {FLAWED}"])
    words = [word for vector_id in ids for word in ("--case", vector_id)]
    found = await judge(bls, program, *words, "--patience", "0.6")
    assert found == dict.fromkeys(ids, "passed")


async def test_ours_passes_everything(bls: Bls, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    words = ["--case", "002/[cls]*", "--junit", str(report)]
    found = await judge(bls, OURS, *words)
    assert len(found) > 250
    assert [one for one, result in found.items() if result != "passed"] == []
    suite = ET.parse(report).getroot()
    assert [case.get("name") for case in suite] == list(found)


async def test_the_agent_in_plain_python_passes(bls: Bls) -> None:
    """The example that needs no package."""
    example = shlex.quote(str(LANGUAGES / "agent.py"))
    found = await judge(bls, f"{shlex.quote(sys.executable)} {example}", *STRICT)
    assert len(found) > 230
    assert [one for one, result in found.items() if result != "passed"] == []


@pytest.mark.skipif(NODE is None, reason="TEST_NODE_MODULES has no package redis")
async def test_the_agent_in_javascript_passes(bls: Bls, tmp_path: Path) -> None:
    shutil.copy(LANGUAGES / "agent.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(str(NODE))
    found = await judge(
        bls, f"node {shlex.quote(str(tmp_path / 'agent.mjs'))}", *STRICT
    )
    assert len(found) > 230
    assert [one for one, result in found.items() if result != "passed"] == []


@pytest.mark.parametrize("lang", ["en", "zh"])
async def test_the_brief_is_printed(bls: Bls, lang: str) -> None:
    name = "for-ai.md" if lang == "en" else "for-ai.zh-CN.md"
    page = (HERE.parents[2] / "docs" / name).read_text("utf-8")
    assert len(page.splitlines()) <= 250
    ran = await bls("brief", lang=lang)
    assert ran.out.decode() == page


@pytest.mark.parametrize("name", ["for-ai.md", "for-ai.zh-CN.md"])
async def test_the_program_of_the_brief_passes(
    bls: Bls, tmp_path: Path, name: str
) -> None:
    """The last block of the page runs ``echo`` with whatever arguments come."""
    page = (HERE.parents[2] / "docs" / name).read_text("utf-8")
    program = tmp_path / "agent.py"
    program.write_text(page.rpartition("```python\n")[2].partition("```")[0], "utf-8")
    words = shlex.join([sys.executable, str(program)])
    found = await judge(bls, words, "--case", "002/commands/valid/*")
    assert len(found) > 5
    assert set(found.values()) == {"passed"}


async def test_a_console_is_judged(bls: Bls) -> None:
    ours = (
        f"{shlex.quote(sys.executable)} -m bls_agent send {{project}} {{command}}"
        " --args {args} --force --redis {redis}"
    )
    cases = ["--case", "002/console/sent/3", "--case", "002/console/[cf]*"]
    ran = await bls("conformance", "console", "--cmd", ours, *cases)
    assert (ran.code, ran.err) == (0, b""), ran.out


@pytest.mark.parametrize("words", ["reload head", "reload tail", "[1] tail"])
async def test_a_console_with_flaws_fails(bls: Bls, words: str) -> None:
    """Whatever bytes it sends, its judge reads them."""
    program = f"{FLAWED_CONSOLE} {words}"
    ran = await bls("conformance", "console", "--cmd", program)
    assert (ran.code, ran.err) == (3, b"")
    assert b"MUST: 0 of 4 passed" in ran.out


@pytest.mark.parametrize(
    ("sent", "case", "code"),
    [
        ('{"command":"reload"}', 1, 0),
        ('{"command":"reload","args":null}', 1, 0),
        ('{"command":"reload","args":[]}', 1, 3),
        ('{"command":"reload","args":""}', 1, 3),
        ('{"command":"reload","args":0}', 1, 3),
        ('{"command":"reload","args":false}', 1, 3),
        ('{"command":"reload","args":{"count":3,"force":true}}', 2, 0),
        ('{"command":"reload","args":{"force":1,"count":3}}', 2, 3),
        ('{"command":"reload","args":{"force":true,"count":3.0}}', 2, 3),
        (f'{{"command":"reload","args":{{"count":{10**30}}}}}', 2, 3),
    ],
)
async def test_arguments_of_another_type_are_other_arguments(
    bls: Bls, sent: str, case: int, code: int
) -> None:
    """Only ``null`` and no field at all mean the same as ``{}``."""
    program = f"{FLAWED_CONSOLE} {shlex.quote(sent)} tail"
    words = ["--cmd", program, "--case", f"002/console/sent/{case}"]
    assert (await bls("conformance", "console", *words)).code == code


@pytest.mark.parametrize("line", [" ", "./agent 'x"])
async def test_a_command_line_without_a_program(bls: Bls, line: str) -> None:
    ran = await bls("conformance", "agent", "--cmd", line)
    assert (ran.code, "names no program" in ran.said) == (2, True)


async def test_a_console_that_leaves_a_daemon(bls: Bls, tmp_path: Path) -> None:
    """The daemon keeps the output open. The report holds the output, with escapes."""
    pipe, report, ready = (tmp_path / name for name in ("pipe", "report.xml", "ready"))
    os.mkfifo(pipe)
    daemon = f"setsid sh -c ': > {ready}; exec cat {pipe}' &"
    script = (
        f"{daemon} until [ -e {ready} ]; do :; done; printf '\\033[31mbroken'; exit 1"
    )
    words = ["--cmd", shlex.join(["sh", "-c", script]), "--junit", str(report)]
    with pipe.open("r+b", buffering=0), anyio.fail_after(30):  # its end ends the daemon
        ran = await bls("conformance", "console", "--case", "*/sent/3", *words)
    assert ran.code == 3
    failure = ET.parse(report).find(".//*[@message]")
    assert failure is not None
    assert "\\x1b[31mbroken" in failure.attrib["message"]


async def test_a_project_in_use_is_left_alone(bls: Bls, project: str) -> None:
    await bls("send", project, "reload", "--force")
    ran = await bls("conformance", "agent", "--cmd", FLAWED, "--project", project)
    assert ran.code == 2
    assert b"exists in this Redis" in ran.err


@pytest.mark.parametrize("side", ["agent", "console"])
async def test_a_program_that_cannot_be_started(
    bls: Bls, project: str, side: str
) -> None:
    """The keys of the project are deleted, so that the next run is not refused."""
    words = ["conformance", side, "--cmd", "/nonexistent", "--project", project]
    first, second = await bls(*words), await bls(*words)
    assert (first.code, first.err) == (second.code, second.err)
    assert b"/nonexistent" in first.err


async def test_own_keys_of_an_agent_are_deleted(
    bls: Bls, redis: Redis, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of mode ``reliable`` and of replicas; the keys of another project stay."""
    other = f"bls_agent:{{{project}二_控制}}:inflight"
    await execute(redis, "HSET", other, "x", "0")
    monkeypatch.setenv("BLS_MODE", "reliable")
    monkeypatch.setenv("BLS_REPLICAS", "true")
    words = ["--case", "002/commands/ping", "--project", project]
    found = await judge(bls, OURS, *words)
    assert found == {"002/commands/ping": "passed"}
    assert await redis.keys(f"*{project}*") == [other.encode()]
    await redis.delete(other)


@pytest.mark.parametrize("program", ["waits", "has ended"])
@pytest.mark.parametrize("side", ["agent", "console"])
async def test_ctrl_c_ends_what_the_program_has_started(
    redis_url: str, redis: Redis, project: str, tmp_path: Path, side: str, program: str
) -> None:
    """Also when the program has only just begun, or has ended; and the keys are deleted."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    to_pipe = f"> {shlex.quote(str(pipe))} 2>&1"
    script = f"(echo begun; exec sleep 600) {to_pipe} & "
    script += f"echo begun {to_pipe}" if program == "has ended" else "wait"
    cmd = shlex.join(["sh", "-c", script])
    words = "conformance", side, "--cmd", cmd, "--project", project
    process = start_piped(*words, BLS_REDIS_URL=redis_url)

    def read_to_the_end() -> list[str]:
        with pipe.open() as stream:
            lines = [stream.readline()]
            process.send_signal(signal.SIGINT)
            return [*lines, *stream]  # ends when all its writers have ended

    with anyio.fail_after(30):
        lines = await anyio.to_thread.run_sync(read_to_the_end, abandon_on_cancel=True)
    assert lines[0] == "begun\n"
    process.communicate(timeout=30)
    assert await redis.keys(f"{project}_*") == []


def headings_of(page: str) -> set[str]:
    """Return the anchors of a page; a line of code is not a heading."""
    text = (HERE.parents[2] / "docs" / page).read_text("utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in titles}


def test_the_vectors_are_sound() -> None:
    """Ids are unique; each vector has a check, a text, and a heading of its page."""
    import jsonschema  # noqa: PLC0415 - it takes a second to import

    folder = HERE.parents[2] / "docs" / "vectors"
    schema = json.loads((folder / "schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for file in folder.glob("*/*/*.json"):
        document = json.loads(file.read_text("utf-8"))
        validator.validate(document)
        of = f"{file.parts[-3]}/{file.parts[-2]}"
        assert f"{document['contract']}/{document['level']}" == of, file
        for case in document["cases"]:
            assert case["id"].startswith(f"{document['contract']}/"), case["id"]
    vectors = load_vectors()
    assert len({vector.id for vector in vectors}) == len(vectors)
    headings = {page: headings_of(page) for page in {one.page for one in vectors}}
    checks = {Side.AGENT: AGENT_CHECKS, Side.CONSOLE: CONSOLE_CHECKS}
    for vector in vectors:
        if vector.side in checks:
            assert vector.check in checks[vector.side], vector.id
        assert vector.name or set(vector.titles) == {"zh", "en"}, vector.id
        assert vector.heading in headings[vector.page], (vector.page, vector.heading)
    assert {vector.level for vector in vectors} == set(Level)
    assert {vector.id[:3] for vector in vectors} == {"000", "001", "002", "003", "004"}


async def test_vectors_are_listed(bls: Bls) -> None:
    """Those that the program would be judged by, with the page and the heading."""
    ran = await bls("conformance", "agent", "--list", "--case", "002/log/*", "--json")
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert {one["id"].rpartition("/")[0] for one in found} == {"002/log"}
    assert found[0]["heading"].startswith("docs/protocol.md#")
    ran = await bls("conformance", "agent", "--list", "--case", "003/ids/*")
    assert ran.code == 2
