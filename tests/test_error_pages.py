"""docs/errors.md and its Chinese page list every error that the code can report."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

import bls_agent
from bls_agent.core import errors
from bls_agent.ops.cli.errors import Exit
from bls_agent.ops.web.requests import _STATUSES
from bls_agent.project.messages import OutcomeKind
from bls_agent.runs.events import GapReason
from tests.documents import blocks
from tests.test_docs import ROOT, both, run_as_script

PACKAGE = ROOT / "bls_agent"
PAGES: dict[str, Path] = dict(zip(("en", "zh"), both("docs/errors"), strict=True))
LANGUAGES = pytest.mark.parametrize("language", PAGES)


def read(folder: Path = PACKAGE, suffix: str = ".py") -> str:
    files = sorted(folder.rglob(f"*{suffix}"))
    return "\n".join(file.read_text("utf-8") for file in files)


def first_cells(language: str) -> set[str]:
    """The first cell of each row of a table, without the quotes around code."""
    rows = re.findall(r"^\| (.*?) \|", PAGES[language].read_text("utf-8"), re.MULTILINE)
    return {word for row in rows for word in re.split("`, `|`、`", row.strip("`"))}


def fixed_parts(message: str, hole: str) -> list[str]:
    """The parts of a message that do not vary."""
    parts = [part.strip(" (") for part in re.split(hole, message)]
    return [part for part in parts if len(part) > 1]


def missing(wanted: Iterable[object], language: str) -> set[str]:
    return {str(one) for one in wanted} - first_cells(language)


@LANGUAGES
def test_every_exception_has_a_row(language: str) -> None:
    """Each public class, and no class of the module that is not public."""
    found = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert found <= set(bls_agent.__all__)
    assert len(found) > 15
    assert missing(found, language) == set()


@LANGUAGES
def test_every_word_of_an_ending_has_a_row(language: str) -> None:
    """Exit codes, outcomes of commands, and reasons of gaps."""
    assert missing((int(code) for code in Exit), language) == set()
    assert missing(OutcomeKind, language) == set()
    assert missing(GapReason, language) == set()


@LANGUAGES
def test_every_kind_of_redis_error_has_a_row(language: str) -> None:
    """The kinds of the table in faults.py, and those that other modules raise."""
    table = read(PACKAGE / "connection").partition("_KINDS: Final")[2]
    kinds = set(re.findall(r'^    \("\w+", ".*", "(\w+)"\),$', table, re.MULTILINE))
    raised = r'(?:RedisUnavailableError|RedisRefusedError|_sum_up)\(\s*"(\w+)"'
    kinds |= set(re.findall(raised, read()))
    chosen = re.findall(
        r'^ +kind = "(\w+)"$', read(PACKAGE / "connection"), re.MULTILINE
    )
    kinds.update(chosen)
    assert {"no_permission", "no_sentinel", "deaf", "garbled"} <= kinds
    assert missing(kinds, language) == set()


@LANGUAGES
def test_every_reason_of_a_value_has_a_row(language: str) -> None:
    """The reasons of DecodeError that the code writes as a word."""
    reasons = set(re.findall(r'\bDecodeError\(\s*"(\w+)"', read()))
    assert {"not_json", "bad_args"} <= reasons
    assert missing(reasons, language) == set()


@LANGUAGES
def test_every_http_status_has_a_row(language: str) -> None:
    """The statuses in the description of the interface, and those in the code."""
    described = (PACKAGE / "ops/web/openapi.json").read_text("utf-8")
    statuses = {int(one) for one in re.findall(r'"([45]\d\d)": {', described)}
    answers = r"(?:HTTPException|_answer|_error_response)\(\s*([45]\d\d)"
    raised = re.findall(answers, read())
    statuses |= {status for _, status in _STATUSES} | {int(one) for one in raised}
    assert {401, 411, 503} <= statuses
    assert missing(statuses, language) == set()


@LANGUAGES
def test_every_message_of_the_command_line_is_quoted(language: str) -> None:
    """What ends a command is on the page, as the program prints it."""
    source = read(PACKAGE / "ops/cli")
    names = set(re.findall(r'(?:Failure|misspelt)\(\s*"(\w+)"', source))
    texts = tomllib.loads((PACKAGE / "ops/locale/cli.toml").read_text("utf-8"))
    page = re.sub(r"\s+", " ", PAGES[language].read_text("utf-8"))
    assert {"no_such_project", "unseen"} <= names
    names |= {"internal", "unavailable", "refused", "not_dead", "no_outcome"}
    for name in names:
        for part in fixed_parts(texts[language][name], r"\{\w+\}"):
            assert part in page, (name, part)


def test_the_messages_of_the_page_are_those_of_the_code() -> None:
    """Each fixed part of a quoted message stands in the source or in its texts."""
    source = re.sub(r'"\s*\n\s*f?r?"', "", read() + read(PACKAGE, ".toml"))
    source = re.sub(r"\{[^{}]*\}|%[srd]", "…", source).replace("\\", "")
    quoted = re.findall(r"`([^`{]*…[^`]*)`", PAGES["en"].read_text("utf-8"))
    parts = [part for text in quoted for part in fixed_parts(text, "…")]
    assert len(parts) > 80
    assert [part for part in parts if part not in source] == []


def test_the_example_runs(
    redis_url: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program of the page tells what went wrong: here, that the name is unknown."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    [program] = blocks(PAGES["en"])
    printed = run_as_script(program.replace("order-service", project))
    assert f"no project {project}: is the name right?" in printed
