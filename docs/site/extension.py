"""What mkdocstrings shows of the package; loaded by griffe while the site is built.

* Sphinx roles become cross-references. The docstrings keep their roles, because `help()`
  and editors show ``:meth:`Console.call``` shorter and clearer than a Markdown
  reference with the whole path. A role that names nothing ends the build.
* The methods of SyncConsole get the signatures of Console's.
* Attributes are shown once: by the docstring of their class if it lists them. Special
  methods are not shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

ROLE = re.compile(
    r":(?:attr|class|data|exc|func|meth|mod):`(?P<short>~?)(?P<target>[\w.]+)`"
)
BLOCKING = re.compile(r"_blocking\(Console\.(\w+)\)")  # the decorator
LISTED = re.compile(r"^ *Attributes:$", re.MULTILINE)


class Package(griffe.Extension):
    """Rewrites the docstrings of the package, when all of the package is loaded."""

    def __init__(self) -> None:
        self._on_pages: set[str] = set()

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Visit every object that the package defines itself."""
        write_blocking_methods(pkg)
        self._on_pages = {thing.path for thing in public_objects(pkg)}
        self._visit(pkg)

    def _visit(self, thing: griffe.Object) -> None:
        if thing.docstring:
            text = thing.docstring.value
            thing.docstring.value = ROLE.sub(
                lambda role: self._refer(thing, role["target"], bool(role["short"])),
                text,
            )
        listed = bool(thing.docstring and LISTED.search(thing.docstring.value))
        for member in thing.members.values():
            if not member.is_alias:
                self._visit(member)
                repeated = listed and member.is_attribute and not member.docstring
                if repeated or member.is_special:
                    member.public = False

    def _refer(self, thing: griffe.Object, target: str, short: bool) -> str:  # noqa: FBT001
        """Return the Markdown for a role in the docstring of an object.

        1. The object stands on a page: a link to its heading.
        2. It is an attribute or a member that only its class lists: a link to the class.
        3. It is internal: its name.
        """
        title = target.rpartition(".")[2] if short else target
        found = find(thing, target)
        if found is None and self._is_on_page(thing):
            message = f"the docstring of {thing.path} names {target}, which is nothing"
            raise LookupError(message)
        if found is None or not self._is_on_page(found):
            return f"`{title}`"
        shown = found if found.docstring or not found.is_attribute else found.parent
        return f"[`{title}`][{shown.path}]"

    def _is_on_page(self, thing: griffe.Object) -> bool:
        """Return whether the object, or the class that it belongs to, is public."""
        owner: griffe.Object | None = thing
        while owner is not None and owner.path not in self._on_pages:
            owner = None if owner.name.startswith("_") else owner.parent
        return owner is not None and not (owner.is_module and owner is not thing)


def find(thing: griffe.Object, target: str) -> griffe.Object | None:
    """Return the object of a name, which may be relative to the object or its parents."""
    first, *rest = target.split(".")
    if first == thing.package.name:
        return look_up(thing.package, rest)
    scope: griffe.Object | None = thing
    while scope is not None:
        if first in scope.all_members:
            return look_up(scope, [first, *rest])
        scope = scope.parent
    return None


def look_up(scope: griffe.Object, names: list[str]) -> griffe.Object | None:
    """Return the object at the end of a path; ``None`` if the path leads nowhere."""
    for name in names:
        member = scope.all_members.get(name)
        if member is None:
            return None
        scope = member.final_target if member.is_alias else member
    return scope


def public_objects(module: griffe.Module) -> Iterator[griffe.Object]:
    """Yield each public module, and the objects that its ``__all__`` names."""
    if module.exports:
        yield module
        for name in module.exports:
            member = module.members[str(name)]
            yield member.final_target if member.is_alias else member
    for submodule in module.modules.values():
        if not submodule.is_alias:
            yield from public_objects(submodule)


def write_blocking_methods(package: griffe.Module) -> None:
    """Give the methods of SyncConsole the parameters of Console's methods."""
    console, blocking = package["console.Console"], package["sync_console.SyncConsole"]
    for method in blocking.functions.values():
        for decorator in method.decorators:
            if made := BLOCKING.fullmatch(str(decorator.value)):
                original = console[made[1]]
                method.parameters = original.parameters
                method.returns = original.returns
                method.decorators = []
