"""What the command line says: both languages, every command, every sentence used."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

import pytest

import bls_agent
from bls_agent.core.keys import KEYS, Contract
from bls_agent.ops.cli import main
from bls_agent.ops.cli.app import COMMANDS
from bls_agent.ops.terminal import count_columns
from bls_agent.project.messages import OutcomeKind, Status

PACKAGE = Path(bls_agent.__file__).parent
TABLES: dict[str, dict[str, str]] = tomllib.loads(
    (PACKAGE / "ops/locale/cli.toml").read_text("utf-8")
)
PAGES = [*([name] for name in COMMANDS), ["keys", "explain"], []]


def test_every_sentence_that_is_used_is_there() -> None:
    """No key in the code is misspelt."""
    pattern = re.compile(
        r'(?:\.(?:say|hint|warn|waiting)\(|texts\[|(?:Failure|misspelt)\(|hint=|help=|empty=)\s*"(\w+)"'
    )
    used = {
        (path.name, key)
        for path in (PACKAGE / "ops/cli").rglob("*.py")
        if path.stem not in ("doctor", "console")
        for key in pattern.findall(path.read_text("utf-8"))
    }
    assert len(used) > 80
    assert {one for one in used if one[1] not in TABLES["en"]} == set()


def test_every_value_has_a_word() -> None:
    """What is looked up by a value: rows of keys, contracts, outcomes, statuses."""
    needed = {f"key_{name}" for name in KEYS}
    needed |= {f"contract_{one.value}" for one in Contract}
    needed |= {f"outcome_{one.value}" for one in OutcomeKind}
    needed |= {f"status_{one.name}" for one in Status}
    assert needed <= TABLES["en"].keys()


@pytest.mark.parametrize("words", PAGES, ids=lambda words: " ".join(words) or "all")
def test_every_command_has_a_page(
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """--help in both languages, without a key in the place of a text, at any width.

    Among its options are those of every command.
    """
    key = "_".join(["help", *(words or ["program"])])
    for language, columns in itertools.product(["zh", "en"], [20, 40, 100]):
        case = (language, columns)
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main([*words, "--help", "--lang", language]) == 0, case
        page = capsys.readouterr().out
        assert TABLES[language]["usage"] in page, case
        assert not re.search(r"\b(opt|arg|help)_\w+", page), case
        common = page.partition(TABLES[language]["options_common"])[2]
        assert {"--redis", "--json", "--lang"} <= set(re.findall(r"--\w+", common)), (
            case
        )
        if columns > 20:  # below that a name alone may be longer
            assert max(map(count_columns, page.splitlines())) <= columns, case
        first = TABLES[language][key].partition("\n")[0]
        assert first[:8] in page, case


def test_the_page_of_all_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the table, with the first line of each."""
    assert main(["--help", "--lang", "en"]) == 0
    page = capsys.readouterr().out
    shown = re.findall(r"^  (\w+)  +\S", page, re.MULTILINE)
    assert [name for name in shown if name in COMMANDS] == [*COMMANDS]


def test_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The page on standard error, and exit code 2."""
    assert main([]) == 2
    printed = capsys.readouterr()
    assert "--version" in printed.err
    assert printed.out == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """With and without other options."""
    for words in (["--version"], ["--lang", "zh", "--version"]):
        assert main(words) == 0
        assert capsys.readouterr().out == f"bls-agent {bls_agent.__version__}\n"


def test_a_count_of_one_reads_well() -> None:
    """No count stands before a plural: it would read `1 faults`."""
    plural = re.compile(
        r"(?<!of )\{(count|faults|broken|records|errors|bad)\} [a-z]+s\b"
    )
    wrong = [name for name, text in TABLES["en"].items() if plural.search(text)]
    assert wrong == []
