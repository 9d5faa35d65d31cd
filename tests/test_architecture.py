"""The house rules: imports go down only, each outside thing has one owner."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bls_agent
from bls_agent.keys import KEYS

PACKAGE = Path(bls_agent.__file__).parent

# From the ground up. A module may import what stands on a lower floor and, on its own
# floor, what stands before it. Of the contracts' rooms none sees another one.
WORDS = [
    "redaction",
    "errors",
    "urls",
    "codec",
    "names",
    "keys",
    "rights",
    "diagnosis",
    "settings",
    "backoff",
    "buffer",
]
WIRES = [
    "after_fork",
    "endpoint",
    "complaints",
    "faults",
    "gate",
    "route",
    "transport",
    "link",
    "wire",
    "sentinel",
    "cluster",
    "engines",
    "connection",
    "keyed_wires",
    "loop_local",
    "access",
    "patrol",
    "scripts",
    "tasks",
    "threads",
    "loop_thread",
    "batch_writer",
    "lease",
    "watchdog",
]
CONTRACTS = ["project", "runs", "workers", "assets", "crawl"]
COMPOSITION = [
    "parts",
    "voices",
    "hearing",
    "session",
    "supervisor",
    "stats",
    "agent_thread",
    "agent",
    "console_log",
    "console_projects",
    "console_queue",
    "console",
    "sync_console",
    "fleet",
]
FACE = ["bls_agent"]
PROGRAMS = [
    "texts",
    "terminal",
    "devserver",
    "integrations",
    "doctor",
    "web",
    "demo_screen",
    "demo_story",
    "demo_fleet",
    "demo",
    "cli",
    "__main__",
]
FLOORS = [WORDS, WIRES, CONTRACTS, COMPOSITION, FACE, PROGRAMS]

LINES = 600  # of a module
STATEMENT_LINES = 35  # of a function: a budget that is printed
CHINESE = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]")


def module_name(path: Path) -> str:
    """Give the dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): path.read_text(encoding="utf-8")
    for path in sorted(PACKAGE.rglob("*.py"))
}


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Parse every module, once; not at import, and not for longer than they are used.

    Every process of the tests collects this module, and would look through half a
    million nodes whenever it collects garbage.
    """
    return {module: ast.parse(source) for module, source in SOURCES.items()}


def room_of(module: str) -> str:
    """Give the file or folder at the package's top in which a module stands."""
    return [*module.split("."), module][1]


def place_of(module: str) -> tuple[int, int]:
    """Give the floor of a module and its place on that floor."""
    room = room_of(module)
    for number, floor in enumerate(FLOORS):
        if room in floor:
            return number, floor.index(room)
    pytest.fail(f"{module} stands on no floor: give it a place in this test")


def may_import(importer: str, imported: str) -> bool:
    """Tell whether an import goes down, or stays within a room."""
    if room_of(importer) == room_of(imported):
        return True
    (floor, place), (other_floor, other_place) = map(place_of, (importer, imported))
    if floor == other_floor:
        return FLOORS[floor] is not CONTRACTS and other_place < place
    return other_floor < floor


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Give every module that is imported anywhere below a node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            assert node.module is not None
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in SOURCES else node.module


def strings(tree: ast.AST) -> Iterator[str]:
    """Give the strings of the code, without those that only document."""
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            if isinstance(node.value, str):
                yield node.value
            elif isinstance(node.value, bytes):
                yield node.value.decode("utf-8", "replace")


def test_imports_go_down(trees: dict[str, ast.Module]) -> None:
    """A module imports from lower floors, or from before it on its own floor."""
    upwards = {
        (module, imported)
        for module, tree in trees.items()
        for imported in imported_modules(tree)
        if imported in SOURCES and not may_import(module, imported)
    }
    assert upwards == set()


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("bls_agent.codec", "bls_agent.errors", True),
        ("bls_agent.errors", "bls_agent.codec", False),
        ("bls_agent.wire", "bls_agent.keys", True),
        ("bls_agent.keys", "bls_agent.wire", False),
        ("bls_agent.project.log.log", "bls_agent.project.commands.router", True),
        ("bls_agent.project.log.log", "bls_agent.runs.events", False),
        ("bls_agent.project.log.log", "bls_agent.agent", False),
        ("bls_agent.agent", "bls_agent.project.log.log", True),
        ("bls_agent.agent", "bls_agent", False),
        ("bls_agent.demo", "bls_agent", True),
    ],
)
def test_the_rule_knows_up_from_down(
    importer: str, imported: str, allowed: bool
) -> None:
    """The rule itself lets through what goes down and stops what does not."""
    assert may_import(importer, imported) is allowed


def test_a_library_has_one_owner(trees: dict[str, ast.Module]) -> None:
    """redis is imported by endpoint.py alone, orjson by codec.py alone."""
    owners = {"redis": "bls_agent.endpoint", "orjson": "bls_agent.codec"}
    strangers = {
        (module, imported)
        for module, tree in trees.items()
        for imported in imported_modules(tree)
        if owners.get(imported.split(".")[0], module) != module
    }
    assert strangers == set()


def names_its_extra(statement: ast.stmt) -> bool:
    """Tell whether an import is tried, and the extra named when it is missing."""
    return isinstance(statement, ast.Try) and "raise MissingExtraError(" in ast.unparse(
        statement
    )


def test_importing_costs_only_the_core(trees: dict[str, ast.Module]) -> None:
    """At import nothing is loaded but the standard library, anyio and orjson.

    What a program on the top floor needs beyond that is its own affair, and what stands
    on an extra names it when it is missing (see test_import.py).
    """
    known = sys.stdlib_module_names | {"bls_agent", "anyio", "orjson"}
    costly = {
        (module, imported)
        for module, tree in trees.items()
        if room_of(module) not in PROGRAMS
        for statement in tree.body
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef)
        and not names_its_extra(statement)
        for imported in imported_modules(statement)
        if imported.split(".")[0] not in known
    }
    assert costly == set()


def test_chinese_stands_in_few_places(trees: dict[str, ast.Module]) -> None:
    """Contract literals are in keys.py and project/messages.py, people's texts in catalogues.

    In redaction/names.py are the words by which a key tells that its value is a secret.
    """
    places = {
        "bls_agent.keys",
        "bls_agent.project.messages",
        "bls_agent.redaction.names",
    }
    elsewhere = {
        (module, text)
        for module, tree in trees.items()
        if module not in places
        for text in strings(tree)
        if CHINESE.search(text)
    }
    assert elsewhere == set()


def test_keys_are_formatted_in_one_place(trees: dict[str, ast.Module]) -> None:
    """No string outside of keys.py begins like a key of a contract."""
    beginnings = {row.template.partition("{")[0] for row in KEYS.values()} - {""}
    keys = re.compile(f"({'|'.join(map(re.escape, sorted(beginnings)))})(?! )")
    elsewhere = {
        (module, text)
        for module, tree in trees.items()
        if module != "bls_agent.keys"
        for text in strings(tree)
        if keys.match(text)
    }
    assert elsewhere == set()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.lua")), ids=lambda p: p.name)
def test_a_script_is_given_its_keys(path: Path) -> None:
    """A script says at its head which keys it touches, and names none in its code."""
    lines = path.read_text(encoding="utf-8").splitlines()
    code = "\n".join(line for line in lines if not line.startswith("--"))
    assert lines[0].startswith("-- KEYS[1]")
    assert code.isascii()


def test_a_module_has_a_telling_name() -> None:
    """No module is a drawer for whatever fits nowhere else."""
    drawers = {"utils", "util", "helpers", "common", "base"}
    assert [name for name in SOURCES if drawers & set(name.split("."))] == []


def test_a_module_is_short() -> None:
    """A module has at most 600 lines."""
    lines = {module: len(source.splitlines()) for module, source in SOURCES.items()}
    assert {module: count for module, count in lines.items() if count > LINES} == {}


def statement_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function's body that hold a part of a statement."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return len(
        {
            line
            for statement in body
            for node in ast.walk(statement)
            if isinstance(node, ast.expr | ast.stmt)
            for line in (node.lineno, node.end_lineno)
        }
    )


def test_functions_are_within_their_budget(
    trees: dict[str, ast.Module], capsys: pytest.CaptureFixture[str]
) -> None:
    """Functions beyond 35 lines of statements are shown, to be argued with."""
    beyond = [
        f"{module}.{node.name}: {size} lines, the budget is {STATEMENT_LINES}"
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := statement_lines(node)) > STATEMENT_LINES
    ]
    if beyond:
        with capsys.disabled():
            print("", *beyond, sep="\n")  # noqa: T201 - a budget is shown
