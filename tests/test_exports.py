"""What is public: the lists, what they leave out, and that all of it is documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bls_agent
from tests.structure import module_name

PACKAGE = Path(bls_agent.__file__).parent


Trees = dict[str, ast.Module]  # module → what stands in it


@pytest.fixture(scope="module")
def trees() -> Trees:
    """Parse every module, once; not at import, and not for longer than they are used."""
    return {
        module_name(path): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


# A package whose __init__ lists what its modules define, so that users import from there.
FACES = {
    "bls_agent.assets",
    "bls_agent.crawl",
    "bls_agent.ops.fleet",
    "bls_agent.workers",
    "bls_agent.runs",
    "bls_agent.testing",
}
# The documents import from these modules, too.
MODULES = {
    "bls_agent.core.acl",
    "bls_agent.devserver",
    "bls_agent.integrations.asset_webhook",
    "bls_agent.integrations.loguru",
    "bls_agent.integrations.otel",
    "bls_agent.integrations.prometheus",
    "bls_agent.integrations.run_events",
    "bls_agent.integrations.scrapy",
    "bls_agent.integrations.structlog",
    "bls_agent.ops.doctor.examine",
}
DOCUMENTS = Path(__file__).parents[1]


def exported(tree: ast.Module) -> list[str]:
    """Read a module's __all__; empty if it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def definitions(tree: ast.Module) -> dict[str, ast.stmt]:
    """Give the names that a module binds at its top level, imports left out."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                found[node.name] = node
            case ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = node
            case ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = node
            case _:
                pass
    return found


def homes(trees: Trees) -> dict[str, str]:
    """Read where the root says that its names come from: name → module."""
    return {name: module for module, name in imports(trees, "bls_agent")}


def test_the_root_lists_exactly_what_it_offers(trees: Trees) -> None:
    """The list is sorted and names what type checkers see, no more and no less."""
    assert bls_agent.__all__ == sorted(homes(trees))
    assert set(bls_agent.__all__) <= set(dir(bls_agent))


@pytest.mark.parametrize("name", bls_agent.__all__)
def test_a_name_of_the_root_is_what_it_says(trees: Trees, name: str) -> None:
    """What is loaded at run time is what type checkers see, defined in that module."""
    home = homes(trees)[name]
    assert name in definitions(trees[home])
    assert getattr(bls_agent, name) is getattr(importlib.import_module(home), name)


def test_the_root_has_no_other_names() -> None:
    """A misspelt name is an AttributeError, as in every module."""
    with pytest.raises(AttributeError, match=r"bls_agent.*'ProjectAgnet'"):
        _ = bls_agent.ProjectAgnet  # type: ignore[attr-defined]  # checkers see it, too


def test_every_error_is_at_the_root(trees: Trees) -> None:
    """What the package raises can be caught without knowing its modules."""
    defined = definitions(trees["bls_agent.core.errors"])
    classes = {name for name, node in defined.items() if isinstance(node, ast.ClassDef)}
    assert classes <= set(bls_agent.__all__)


def test_only_public_modules_have_a_list(trees: Trees) -> None:
    """An ``__all__`` stands in the faces and in the modules that documents import from."""
    listing = {module for module, tree in trees.items() if exported(tree)}
    assert listing == {"bls_agent", *FACES, *MODULES}


@pytest.mark.parametrize("face", sorted(FACES))
def test_a_face_lists_what_its_modules_define(trees: Trees, face: str) -> None:
    """The list is sorted and names what type checkers see, no more and no less."""
    assert exported(trees[face]) == sorted(name for _, name in imports(trees, face))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_public_module_lists_what_it_defines(trees: Trees, module: str) -> None:
    """Classes and functions are in ``__all__`` or have an underscore."""
    defined, listed = definitions(trees[module]), exported(trees[module])
    public = {
        name
        for name, node in defined.items()
        if not name.startswith("_") and not isinstance(node, ast.Assign | ast.AnnAssign)
    }
    assert public <= set(listed) <= set(defined)


def test_the_documents_import_what_is_public(trees: Trees) -> None:
    """Documents and examples import from modules with a list, and listed names only."""
    pages = [
        *DOCUMENTS.glob("*.md"),
        *DOCUMENTS.glob("docs/*.md"),
        *DOCUMENTS.glob("examples/**/*.py"),
    ]
    found = {
        (module, name)
        for page in pages
        for module, names in re.findall(
            r"^ *from (bls_agent[\w.]*) import \(?([\w, \n]+)",
            page.read_text("utf-8"),
            re.MULTILINE,
        )
        for name in re.findall(r"\w+", names.partition("\n\n")[0].split("\n")[0])
    }
    assert len(found) > 40
    assert {
        (module, name)
        for module, name in found
        if name not in exported(trees[module]) and f"{module}.{name}" not in trees
    } == set()


def imports(trees: Trees, module: str) -> Iterator[tuple[str, str]]:
    """Give (module, name) for each name that is taken from another of our modules."""
    for node in ast.walk(trees[module]):
        if isinstance(node, ast.ImportFrom) and node.module in trees:
            for alias in node.names:
                if f"{node.module}.{alias.name}" not in trees:
                    yield node.module, alias.name


def test_private_names_stay_in_their_module(trees: Trees) -> None:
    """No module takes a name with an underscore from another one."""
    assert [
        f"{module} takes {source}.{name}"
        for module in trees
        for source, name in imports(trees, module)
        if name.startswith("_")
    ] == []


def test_every_module_is_documented(trees: Trees) -> None:
    """Each module says what it is for."""
    assert [name for name, tree in trees.items() if not ast.get_docstring(tree)] == []


def public_objects(trees: Trees) -> dict[str, object]:
    """Return every class and function that a public list names: name → object."""
    return {
        f"{module}.{name}": value
        for module in ("bls_agent", *sorted(FACES | MODULES))
        for name in exported(trees[module])
        if inspect.isroutine(value := getattr(importlib.import_module(module), name))
        or inspect.isclass(value)
    }


def test_everything_a_user_can_call_is_documented(trees: Trees) -> None:
    """Public classes and functions, and the public methods and properties of the classes."""
    found = public_objects(trees)
    members = {
        f"{name}.{member}": value
        for name, kind in found.items()
        for member, value in vars(kind).items()
        if inspect.isclass(kind)
        and not member.startswith("_")
        and (inspect.isroutine(value) or isinstance(value, property | classmethod))
    }
    assert len(members) > 100
    assert [name for name, it in {**found, **members}.items() if not it.__doc__] == []
