"""What is public: the lists, what they leave out, and that all of it is documented."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import bls_agent
from bls_agent.core import errors

PACKAGE = Path(bls_agent.__file__).parent


def module_name(path: Path) -> str:
    """Give the dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


Trees = dict[str, ast.Module]  # module → what stands in it


@pytest.fixture(scope="module")
def trees() -> Trees:
    """Parse every module, once; not at import, and not for longer than they are used."""
    return {
        module_name(path): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


# A folder whose face lists what its modules define, so that users import from one place.
FACES = {
    "bls_agent.assets",
    "bls_agent.crawl",
    "bls_agent.ops.fleet",
    "bls_agent.workers",
    "bls_agent.runs",
}
# The demo is a program in two parts: nobody imports more than its entrance.
DEMO = ("bls_agent.demo", "bls_agent.ops.demo_")


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


def is_constant(node: ast.stmt) -> bool:
    """Tell whether a name is neither a class nor a function nor a type alias."""
    if isinstance(node, ast.AnnAssign):
        return "TypeAlias" not in ast.unparse(node.annotation)
    return isinstance(node, ast.Assign)


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
        _ = bls_agent.ProjectAgnet


def test_every_error_is_at_the_root() -> None:
    """What the package raises can be caught without knowing its modules."""
    classes = {
        name for name in errors.__all__ if isinstance(getattr(errors, name), type)
    }
    assert classes <= set(bls_agent.__all__)


def test_a_module_lists_what_it_defines(trees: Trees) -> None:
    """Classes, functions and aliases are in __all__ or have an underscore.

    A constant may stay out of the list as long as nobody else uses it.
    """
    for module, tree in trees.items():
        defined, listed = definitions(tree), exported(tree)
        if module == "bls_agent" or module.startswith(DEMO):
            continue
        assert len(listed) == len(set(listed)), module
        if module in FACES:
            taken = sorted(name for _, name in imports(trees, module))
            assert listed == taken, module
            continue
        assert set(listed) <= set(defined), module
        left_out = {
            name
            for name, node in defined.items()
            if not name.startswith("_") and name not in listed and not is_constant(node)
        }
        assert left_out == set(), module


def imports(trees: Trees, module: str) -> Iterator[tuple[str, str]]:
    """Give (module, name) for each name that is taken from another of our modules."""
    for node in ast.walk(trees[module]):
        if isinstance(node, ast.ImportFrom) and node.module in trees:
            for alias in node.names:
                if f"{node.module}.{alias.name}" not in trees:
                    yield node.module, alias.name


def test_only_listed_names_are_used_elsewhere(trees: Trees) -> None:
    """What one module takes from another is in the other one's __all__."""
    assert [
        f"{module} takes {source}.{name}"
        for module in trees
        for source, name in imports(trees, module)
        if name not in exported(trees[source])
    ] == []


def test_every_public_name_is_documented(trees: Trees) -> None:
    """Modules, and the classes and functions in their lists, have docstrings."""
    assert [name for name, tree in trees.items() if not ast.get_docstring(tree)] == []
    listed = {
        f"{module}.{name}": definitions(tree).get(name)
        for module, tree in trees.items()
        if module != "bls_agent"
        for name in exported(tree)
    }
    assert [
        name
        for name, node in listed.items()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not ast.get_docstring(node)
    ] == []


@pytest.mark.parametrize("name", bls_agent.__all__)
def test_everything_a_user_can_call_is_documented(name: str) -> None:
    """Each public method and property of a class at the root says what it is for."""
    kind = getattr(bls_agent, name)
    undocumented = [
        member
        for member, value in vars(kind).items()
        if not member.startswith("_")
        and (inspect.isroutine(value) or isinstance(value, property))
        and not inspect.getdoc(value)
    ]
    assert undocumented == []
