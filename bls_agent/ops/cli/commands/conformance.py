"""``bls-agent conformance``: judge any program by the vectors of the protocol."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, NamedTuple
from xml.etree.ElementTree import Element, SubElement, tostring

import anyio
from typer import Option

from bls_agent.connection.pool import ConnectionPool, find_endpoint
from bls_agent.core.keys import check_name
from bls_agent.core.settings import Settings
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit, Failure
from bls_agent.ops.cli.output import Invocation
from bls_agent.ops.conformance.agent import AgentJudge, open_judge
from bls_agent.ops.conformance.console import ConsoleJudge
from bls_agent.ops.conformance.judge import Result, Verdict, Wire
from bls_agent.ops.conformance.vectors import (
    Level,
    Side,
    Vector,
    find_document,
    load_vectors,
)
from bls_agent.ops.terminal import Cell, visible
from bls_agent.ops.texts import Texts, load_texts

NAME: Final = "bls-conformance"
TIMEOUT: Final = 5.0  # seconds for one round trip of the judge
STYLES: Final = {Level.MUST: "bold red", Level.SHOULD: "yellow", Level.MAY: "dim"}

Program = Annotated[str, Option("--cmd", metavar="COMMAND", show_default=False)]
Project = Annotated[str, Option(metavar="NAME", show_default=False)]
Cases = Annotated[list[str] | None, Option("--case", metavar="ID", show_default=False)]
Listing = Annotated[bool, Option("--list")]
Patience = Annotated[float, Option(metavar="SECONDS", min=0.1)]
Junit = Annotated[str, Option("--junit", metavar="FILE", show_default=False)]


@command("conformance agent", default=True)
async def agent(
    invocation: Invocation,
    cmd: Program = "",
    project: Project = "",
    case: Cases = None,
    listing: Listing = False,
    junit: Junit = "",
    patience: Patience = 5.0,
) -> Exit:
    """Start an agent in any language, and judge it."""
    choice = Choice(Side.AGENT, cmd, project, patience)
    return await _judge(invocation, choice, case or (), junit, listing=listing)


@command("conformance console")
async def console(
    invocation: Invocation,
    cmd: Program = "",
    project: Project = "",
    case: Cases = None,
    listing: Listing = False,
    junit: Junit = "",
) -> Exit:
    """Start a program that sends commands, and judge it."""
    choice = Choice(Side.CONSOLE, cmd, project)
    return await _judge(invocation, choice, case or (), junit, listing=listing)


@command("brief")
def brief(invocation: Invocation) -> Exit:
    """Print the page for code generators."""
    name = "for-ai.zh-CN.md" if invocation.language == "zh" else "for-ai.md"
    page = find_document(name).read_text("utf-8")
    if invocation.json:
        invocation.out.json({"page": page})
    else:
        invocation.out.file(page.rstrip())
    return Exit.DONE


class Choice(NamedTuple):
    """What the command line chose."""

    side: Side
    cmd: str  # starts the program
    project: str  # empty for a new one
    patience: float = 0.0  # seconds within which an agent has to react


async def _judge(
    invocation: Invocation,
    choice: Choice,
    patterns: Sequence[str],
    junit: str,
    *,
    listing: bool,
) -> Exit:
    texts = load_texts("conformance", invocation.language)
    vectors = _choose(load_vectors(), choice.side, patterns)
    if listing:
        _list(invocation, vectors)
        return Exit.DONE
    if not _is_command(choice.cmd):
        raise Failure("no_program", Exit.USAGE, hint=f"hint_{choice.side}_program")
    verdicts: list[Verdict] = []
    async with _open(invocation, choice) as judge:
        with invocation.waiting("judging") as progress:
            async for verdict in judge.judge(vectors):
                verdicts.append(verdict)
                progress.tell(f"{len(verdicts)}/{len(vectors)} {verdict.vector.id}")
                if invocation.json or verdict.fault:
                    _write(invocation, verdict, texts)
    if junit:
        report = write_junit(verdicts, texts, invocation.language)
        await anyio.Path(junit).write_bytes(report)
    if not invocation.json:
        _summarise(invocation, verdicts)
    return Exit.UNHEALTHY if any(one.breaks for one in verdicts) else Exit.DONE


def _is_command(line: str) -> bool:
    """Return whether a command line has a word, and an end for each quotation mark."""
    try:
        return bool(shlex.split(line))
    except ValueError:
        return False


@asynccontextmanager
async def _open(
    invocation: Invocation, choice: Choice
) -> AsyncGenerator[AgentJudge | ConsoleJudge]:
    given = invocation.redis
    endpoint = find_endpoint(given)
    url = given or Settings.from_env(os.environ).redis_url
    if not url.startswith("redis://"):
        raise Failure("needs_plain_redis", Exit.USAGE, url=endpoint.address)
    fresh = f"{invocation.say('conformance_project')}_{secrets.token_hex(4)}"
    name = choice.project or fresh
    pool = ConnectionPool(endpoint, NAME, timeout=TIMEOUT)
    wire = Wire(pool, check_name("project", name), choice.patience)
    async with aclosing(pool):
        if await wire.exists():
            raise Failure("project_in_use", Exit.USAGE, project=name)
        try:
            if choice.side is Side.CONSOLE:
                yield ConsoleJudge(wire, url, choice.cmd)
            else:
                async with open_judge(wire, url, choice.cmd) as judge:
                    yield judge
        finally:
            with anyio.CancelScope(shield=True):
                await wire.clear()


def _choose(
    vectors: Sequence[Vector], side: Side, patterns: Sequence[str]
) -> list[Vector]:
    ours = [one for one in vectors if one.side is side]
    if not patterns:
        return ours
    for pattern in patterns:
        if not any(fnmatchcase(one.id, pattern) for one in ours):
            raise Failure("no_such_case", Exit.USAGE, hint="hint_cases", case=pattern)
    return [one for one in ours if any(fnmatchcase(one.id, p) for p in patterns)]


def _list(invocation: Invocation, vectors: Sequence[Vector]) -> None:
    rows: list[Sequence[Cell]] = []
    for one in vectors:
        title = one.title(invocation.language)
        if invocation.json:
            invocation.out.json(_describe(one, invocation.language))
        rows.append([one.level.upper(), one.id, title])
    if not invocation.json:
        invocation.out.table(rows)


def _describe(vector: Vector, language: str) -> dict[str, Any]:
    return {
        "id": vector.id,
        "level": vector.level,
        "title": vector.title(language),
        "heading": f"docs/{vector.page}#{vector.heading}",
    }


def _write(invocation: Invocation, verdict: Verdict, texts: Texts) -> None:
    vector, language = verdict.vector, invocation.language
    reason = explain(verdict, texts)
    if invocation.json:
        record = _describe(vector, language)
        invocation.out.json(record | {"result": verdict.result, "reason": reason})
        return
    head = (f"{vector.level.upper():<6} {vector.id}", STYLES[vector.level])
    invocation.out.line(head, f"  {vector.title(language)}")
    invocation.out.paragraph(f"       {reason}")


def explain(verdict: Verdict, texts: Texts) -> str:
    """Return the reason of a fault as a sentence; ``""`` if there is none."""
    fault = verdict.fault
    if fault is None:
        return ""
    return texts[fault.text].format_map(dict(fault.values))


def _summarise(invocation: Invocation, verdicts: Sequence[Verdict]) -> None:
    for level in Level:
        of_level = [one for one in verdicts if one.vector.level is level]
        if of_level:
            passed = sum(one.result is Result.PASSED for one in of_level)
            style = "bold green" if passed == len(of_level) else STYLES[level]
            sentence = invocation.say(
                "judged", level=level.upper(), passed=passed, count=len(of_level)
            )
            invocation.out.line((sentence, style))


def write_junit(verdicts: Sequence[Verdict], texts: Texts, language: str) -> bytes:
    """Write the verdicts as a JUnit report, which CI services read."""
    suite = Element("testsuite", name=NAME, tests=str(len(verdicts)))
    for one in verdicts:
        vector = one.vector
        attributes = {"classname": f"{vector.level}", "name": vector.id}
        case = SubElement(suite, "testcase", attributes)
        if one.fault:
            fails = one.result is Result.FAILED and vector.level is not Level.MAY
            kind = "failure" if fails else "skipped"
            # XML cannot hold the control characters that a program may have printed.
            SubElement(case, kind, message=visible(explain(one, texts)))
        SubElement(case, "system-out").text = vector.title(language)
    report: bytes = tostring(suite, encoding="utf-8", xml_declaration=True)
    return report
