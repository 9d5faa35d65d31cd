"""What the package is made of, for the tests that hold its structure.

What they still let through stands in ``exceptions.toml`` beside this file. The lists
there only shrink.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import bls_agent

PACKAGE = Path(bls_agent.__file__).parent
EXCEPTIONS = Path(__file__).with_name("exceptions.toml")

# Words of our own that a reader from the field does not know; see CONTRIBUTING.md.
PRIVATE_WORDS = {
    *("bell", "bells", "bury", "buries", "buried", "course", "courses", "epochs"),
    *("floors", "forsake", "forsakes", "forsaken", "hasten", "hastens", "hearing"),
    *("holdings", "home", "homes", "lane", "lanes", "life", "lives", "looks", "owed"),
    *("anew", "complaint", "complaints", "heir", "heirs", "patrol", "sever", "severs"),
    *("parts", "places", "rival", "rivals", "said", "twin", "twins", "voice", "voices"),
}

# Names that hide what a variable holds, and first words of a docstring that hide what a
# function does: it returns, yields, checks, logs or drops.
HIDING_WORDS = {"told", "said", "gone", "late", "whose"}
HIDING_HEADS = {"give", "gives", "tell", "tells", "say", "says"}
ATTRIBUTES = 15  # of a class; more need a reason in its docstring, with this word

Trees = Mapping[str, ast.Module]  # dotted name → what stands in the module
Graph = Mapping[str, Iterable[str]]


def module_name(path: Path) -> str:
    """Give the dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): path.read_text(encoding="utf-8")
    for path in sorted(PACKAGE.rglob("*.py"))
}


def parse() -> Trees:
    """Parse every module."""
    return {module: ast.parse(source) for module, source in SOURCES.items()}


def names_of(statement: ast.AST) -> Iterator[str]:
    """Give the modules that an import statement names; none for any other statement."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom):
        assert not statement.level, "imports are absolute"
        assert statement.module is not None
        for alias in statement.names:
            submodule = f"{statement.module}.{alias.name}"
            yield submodule if submodule in SOURCES else statement.module


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Give every module that is imported anywhere below a node."""
    for node in ast.walk(tree):
        yield from names_of(node)


def loaded_modules(node: ast.AST) -> Iterator[str]:
    """Give the modules that are loaded together with a module.

    Imports for type checkers and those inside of functions are left out.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield from names_of(child)
        yield from loaded_modules(child)


def load_graph(trees: Trees) -> dict[str, list[str]]:
    """Give for each module which others of the package are loaded with it."""
    return {
        module: sorted(
            {name for name in loaded_modules(tree) if name in SOURCES} - {module}
        )
        for module, tree in trees.items()
    }


def longest_chain(graph: Graph) -> list[str]:
    """Give the longest chain of modules in which each one loads the next."""

    @cache
    def chain(module: str) -> tuple[str, ...]:
        return (module, *max(map(chain, graph[module]), key=len, default=()))

    return [*max(map(chain, graph), key=len)]


def circles(graph: Graph) -> list[list[str]]:
    """Give the groups of nodes in which each one leads to every other one."""
    reached = {node: _reach(node, graph) for node in graph}
    groups = {
        tuple(sorted({node} | {one for one in found if node in reached[one]}))
        for node, found in reached.items()
        if node in found
    }
    return [[*group] for group in sorted(groups)]


def _reach(start: str, graph: Graph) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = set(graph[waiting.pop()]) - found
        found |= new
        waiting += new
    return found


def area_of(module: str) -> str:
    """Give the room in which a module stands, or the program: ``runs``, ``ops.web``."""
    parts = module.split(".")[1:]
    return ".".join(parts[: 2 if parts[:1] == ["ops"] else 1])


def folder_circles(trees: Trees) -> list[str]:
    """Find folders of one room that import each other, over however many steps.

    A module that stands in the room itself is a folder of its own.
    """
    graphs: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, tree in trees.items():
        area, importer = area_of(module), _place_in_room(module)
        graphs[area][importer] |= {
            _place_in_room(name)
            for name in imported_modules(tree)
            if name in SOURCES and area_of(name) == area
        } - {importer}
    return [
        " ".join(group)
        for area, graph in sorted(graphs.items())
        for group in circles({place: [*graph[place]] for place in [*graph]})
        if area
    ]


def _place_in_room(module: str) -> str:
    area = area_of(module)
    rest = module.removeprefix(f"bls_agent.{area}").split(".")[1:2]
    return ".".join([area, *rest])


def only_children(trees: Trees) -> list[str]:
    """Find classes that exactly one other class of the package is made of.

    Errors are left out: their tree is for those who catch them.
    """
    children: dict[str, set[str]] = defaultdict(set)
    for tree in trees.values():
        nodes = [*ast.walk(tree)]
        ours = {node.name for node in nodes if isinstance(node, ast.ClassDef)} | {
            alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            and str(node.module).startswith("bls_agent")
            for alias in node.names
        }
        for node in nodes:
            if isinstance(node, ast.ClassDef) and not node.name.endswith("Error"):
                for base in filter(ours.__contains__, map(_base_name, node.bases)):
                    children[base].add(node.name)
    return sorted(
        f"{base} of {found.pop()}"
        for base, found in children.items()
        if len(found) == 1
    )


def _base_name(base: ast.expr) -> str:
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base)


def private_words(trees: Trees) -> dict[str, list[str]]:
    """Find names of modules, classes and functions with a private word: word → names."""
    found: dict[str, set[str]] = defaultdict(set)
    names = {module.rpartition(".")[2] for module in trees} | {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for name in names:
        for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name):
            if word.lower() in PRIVATE_WORDS:
                found[word.lower()].add(name)
    return {word: sorted(names) for word, names in sorted(found.items())}


def hiding_names(tree: ast.Module) -> list[str]:
    """Find variables, arguments and attributes whose names hide what they hold."""
    return [
        name
        for node in ast.walk(tree)
        if (name := _bound_name(node)) and HIDING_WORDS & set(name.lower().split("_"))
    ]


def _bound_name(node: ast.AST) -> str:
    match node:
        case ast.arg(arg=name):
            return name
        case ast.Name(id=name, ctx=ast.Store()):
            return name
        case ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case _:
            return ""


def hiding_heads(tree: ast.Module) -> list[str]:
    """Find docstrings whose first word hides what a function or class does."""
    return [
        text.partition("\n")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node) or "")
        and text.split()[0].lower() in HIDING_HEADS
    ]


def crowded_classes(trees: Trees) -> list[str]:
    """Find classes of too many attributes without the reason in their docstrings."""
    return sorted(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and len(attributes(node)) > ATTRIBUTES
        and "attributes" not in (ast.get_docstring(node) or "")
    )


def attributes(tree: ast.ClassDef) -> set[str]:
    """Find the attributes that a class sets on itself in its methods."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def read_exceptions() -> dict[str, Any]:
    """Read what is let through."""
    return tomllib.loads(EXCEPTIONS.read_text("utf-8"))
