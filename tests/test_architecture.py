"""Folders are floors: imports go down only, and each outside thing has one owner."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bls_agent.core.keys import KEYS
from tests.structure import (
    PACKAGE,
    SOURCES,
    Trees,
    circles,
    crowded_classes,
    folder_circles,
    imported_modules,
    load_graph,
    loaded_modules,
    longest_chain,
    only_children,
    parse,
    read_exceptions,
)

# From the ground up, by the folders and files at the package's top.
ROOMS = ["project", "runs", "workers", "assets", "crawl"]
COMPOSITION = ["console", "sync_console", "agent"]
FACE = ["bls_agent"]
PROGRAMS = [
    "ops.texts",
    "ops.terminal",
    "ops.fields",
    "devserver",
    "testing",
    "ops.conformance",
    "ops.interface",
    "ops.fleet",
    "ops.doctor",
    "ops.web",
    "ops.demo",
    "ops.cli",
    "ops",
    "__main__",
]
FLOORS = [
    ["core"],
    ["connection"],
    ["runtime"],
    ROOMS,
    COMPOSITION,
    FACE,
    ["integrations"],
    PROGRAMS,
]

ENTRIES = 18  # in the package's root
LINES = 600  # of a module
ROOT = PACKAGE.parent
PAGE = ROOT / "docs" / "architecture.md"
CHINESE = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]")


@pytest.fixture(scope="module")
def trees() -> Trees:
    """Parse every module, once; not at import, and not for longer than they are used.

    Every process of the tests collects this module, and would look through half a
    million nodes whenever it collects garbage.
    """
    return parse()


def top_of(module: str) -> str:
    """Give the file or folder at the package's top in which a module stands.

    In ``ops`` it is the program.
    """
    parts = [*module.split("."), module][1:3]
    return ".".join(parts) if parts[0] == "ops" and parts[-1] != module else parts[0]


def place_of(module: str) -> tuple[int, int]:
    """Give the floor of a module and its place on that floor."""
    top = top_of(module)
    for number, floor in enumerate(FLOORS):
        if top in floor:
            return number, floor.index(top)
    pytest.fail(f"{module} stands on no floor: give it a place in this test")


def may_import(importer: str, imported: str) -> bool:
    """Tell whether an import goes down, or stays within a folder of the top."""
    if top_of(importer) == top_of(imported):
        return True
    (floor, place), (other_floor, other_place) = map(place_of, (importer, imported))
    if floor == other_floor:
        return FLOORS[floor] is not ROOMS and other_place < place
    return other_floor < floor


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


def test_imports_go_down(trees: Trees) -> None:
    """A module imports from lower floors, rooms not from each other, programs in their order."""
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
        ("bls_agent.core.codec", "bls_agent.core.errors", True),
        ("bls_agent.connection.agent_connections", "bls_agent.core.keys", True),
        ("bls_agent.core.keys", "bls_agent.connection.agent_connections", False),
        ("bls_agent.project.messages", "bls_agent.project.stats", True),
        ("bls_agent.project.messages", "bls_agent.runs.events", False),
        ("bls_agent.project.messages", "bls_agent.agent", False),
        ("bls_agent.agent", "bls_agent.project.messages", True),
        ("bls_agent.agent", "bls_agent", False),
        ("bls_agent.integrations.scrapy", "bls_agent.ops.texts", False),
        ("bls_agent.ops.doctor.report", "bls_agent.ops.web.app", False),
        ("bls_agent.ops.web.app", "bls_agent.ops.fleet", True),
        ("bls_agent.ops.demo", "bls_agent", True),
    ],
)
def test_the_rule_knows_up_from_down(
    importer: str, imported: str, allowed: bool
) -> None:
    """The rule itself lets through what goes down and stops what does not."""
    assert may_import(importer, imported) is allowed


def test_the_root_has_few_entries() -> None:
    """The package's root holds at most 18 files and folders."""
    entries = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert len(entries) <= ENTRIES, sorted(entries)


def test_modules_import_in_no_circle(trees: Trees) -> None:
    """No module is loaded while one that it needs waits for it."""
    assert circles(load_graph(trees)) == []


def test_the_longest_chain_of_imports(
    trees: Trees, capsys: pytest.CaptureFixture[str]
) -> None:
    """It becomes no longer than it is."""
    chain = longest_chain(load_graph(trees))
    with capsys.disabled():
        print(f"\nimport chain: {len(chain)} modules")  # noqa: T201 - a budget is shown
    assert len(chain) <= read_exceptions()["longest_chain"], " -> ".join(chain)


def test_folders_of_a_room_import_in_no_circle(trees: Trees) -> None:
    """What stands together in a folder is a layer; the exceptions only shrink."""
    assert folder_circles(trees) == read_exceptions()["folder_circles"]


def test_a_base_class_has_more_than_one_child(trees: Trees) -> None:
    """A class that only one other is made of belongs into that one; exceptions only shrink."""
    assert only_children(trees) == read_exceptions()["only_children"]


def test_a_class_has_few_attributes(trees: Trees) -> None:
    """More than 15 need a reason in the docstring of the class; exceptions only shrink."""
    assert crowded_classes(trees) == read_exceptions()["crowded_classes"]


def test_a_library_has_one_owner(trees: Trees) -> None:
    """redis is imported by endpoint.py alone, orjson by codec.py alone."""
    owners = {
        "redis": "bls_agent.connection.endpoint",
        "orjson": "bls_agent.core.codec",
    }
    strangers = {
        (module, imported)
        for module, tree in trees.items()
        for imported in imported_modules(tree)
        if owners.get(imported.split(".")[0], module) != module
    }
    assert strangers == set()


def test_the_core_knows_no_event_loop(trees: Trees) -> None:
    """asyncio may be imported from connection/ up: redis-py runs on nothing else."""
    assert [
        module
        for module, tree in trees.items()
        if top_of(module) == "core" and "asyncio" in imported_modules(tree)
    ] == []


def names_its_extra(statement: ast.stmt) -> bool:
    """Tell whether an import is tried, and the extra named when it is missing."""
    return isinstance(statement, ast.Try) and "raise MissingExtraError(" in ast.unparse(
        statement
    )


def test_importing_costs_only_the_core(trees: Trees) -> None:
    """At import nothing is loaded but the standard library, anyio and orjson.

    What a program on the top floor needs beyond that is its own affair, and what stands
    on an extra names it when it is missing (see test_import.py).
    """
    known = sys.stdlib_module_names | {"bls_agent", "anyio", "orjson"}
    costly = {
        (module, imported)
        for module, tree in trees.items()
        if top_of(module) not in {*PROGRAMS, "integrations"}
        for statement in tree.body
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef)
        and not names_its_extra(statement)
        for imported in loaded_modules(ast.Module([statement], []))
        if imported.split(".")[0] not in known
    }
    assert costly == set()


def test_chinese_stands_in_few_places(trees: Trees) -> None:
    """Contract literals are in keys.py and project/messages.py, people's texts in catalogues.

    In redaction are the words by which a key tells that its value is a secret, in
    workers.tasks those by which writers name the states of a task.
    """
    places = {
        "bls_agent.workers.tasks",
        "bls_agent.core.keys",
        "bls_agent.project.messages",
        "bls_agent.core.redaction",
    }
    elsewhere = {
        (module, text)
        for module, tree in trees.items()
        if module not in places
        for text in strings(tree)
        if CHINESE.search(text)
    }
    assert elsewhere == set()


def test_keys_are_formatted_in_one_place(trees: Trees) -> None:
    """No string outside of keys.py begins like a key of a contract."""
    beginnings = {row.template.partition("{")[0] for row in KEYS.values()} - {""}
    keys = re.compile(f"({'|'.join(map(re.escape, sorted(beginnings)))})(?! )")
    elsewhere = {
        (module, text)
        for module, tree in trees.items()
        if module != "bls_agent.core.keys"
        for text in strings(tree)
        if keys.match(text)
    }
    assert elsewhere == set()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.lua")), ids=lambda p: p.name)
def test_a_script_is_given_its_keys(path: Path) -> None:
    """A script says at its head which keys it touches, and names none in its code."""
    lines = path.read_text(encoding="utf-8").splitlines()
    code = "\n".join(line for line in lines if not line.startswith("--"))
    assert lines[0].startswith("-- KEYS[1]") or "KEYS" not in code
    assert code.isascii()


def test_a_module_has_a_telling_name() -> None:
    """No module is a drawer for whatever fits nowhere else."""
    drawers = {"utils", "util", "helpers", "common", "base"}
    assert [name for name in SOURCES if drawers & set(name.split("."))] == []


def test_a_module_is_short() -> None:
    """A module has at most 600 lines."""
    lines = {module: len(source.splitlines()) for module, source in SOURCES.items()}
    assert {module: count for module, count in lines.items() if count > LINES} == {}


def test_the_page_about_it_names_what_exists() -> None:
    """Files and folders that docs/architecture.md names are there."""
    named = re.findall(
        r"`([\w./]+(?:\.(?:py|lua|toml|md)|/))`", PAGE.read_text("utf-8")
    )
    assert len(set(named)) > 40
    missing = {
        name
        for name in named
        if not any((folder / name).exists() for folder in (PACKAGE, ROOT, PAGE.parent))
    }
    assert missing == set(), f"write their new names in {PAGE}"


def test_the_page_about_it_names_what_a_module_has() -> None:
    """A function, class or number that is named with its file is in that file."""
    page = PAGE.read_text("utf-8")
    named = re.findall(
        r"((?:`[\w.]+`(?:, | and )?)+)[^`|;.:,]{0,40} (?:in|of) `([\w/]+\.py)`", page
    )
    assert len(named) > 80
    missing = {
        (name, path)
        for names, path in named
        if (PACKAGE / path).exists()  # else the test above names it, or it is a test
        for name in re.findall(r"\w+(?=`)", names)
        if not re.search(rf"\b{name}\b", (PACKAGE / path).read_text("utf-8"))
    }
    assert missing == set()


def test_the_page_about_it_lists_every_module() -> None:
    """With the first sentence of its docstring; the words about scripts are the page's own."""
    _, _, section = PAGE.read_text("utf-8").partition("\n## Every module\n")
    listed = dict(re.findall(r"^\| `([\w./]+)` \| (.+) \|$", section, re.MULTILINE))
    modules = {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in PACKAGE.rglob("*.py")
        if path.name not in {"__init__.py", "__main__.py"}
    }
    heads = {
        name: " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
        for name, tree in modules.items()
    }
    told = {name: head.replace("``", "`") for name, head in heads.items()}
    assert {name: text for name, text in listed.items() if name in told} == told
    assert {path.name for path in PACKAGE.rglob("*.lua")} <= {
        Path(name).name for name in listed
    }


def expand(word: str) -> Iterator[str]:
    """Give what bash makes of a word with braces."""
    head, brace, tail = word.partition("{")
    inner, _, rest = tail.partition("}")
    for one in inner.split(","):
        yield from ([head] if not brace else expand(head + one + rest))


def test_the_continuous_integration_names_tests_that_exist() -> None:
    """What .ci/run lists for other servers and interpreters is there."""
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    lists = re.findall(r"_TESTS=\((.*?)\n\)", script, re.DOTALL)
    named = [path for one in lists for word in one.split() for path in expand(word)]
    assert len(lists) == 2
    assert [path for path in named if not (ROOT / path).exists()] == []
