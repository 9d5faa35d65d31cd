"""Compares the public names of the package with those of the last release.

1. No tag `v*` is behind this commit: there is nothing to compare.
2. Something that programs use has gone or changed, and CHANGELOG.md names it under
   *Breaking* of its first version: it is printed.
3. The changelog does not name it: it is printed, and the program fails.

griffe reads both versions, and imports neither. It sees names, parameters, defaults, base
classes and values; not types, behaviour, or what travels through Redis.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
PACKAGE = "bls_agent"
BREAKING = re.compile(r"^### Breaking\n(.*?)(?=^##|\Z)", re.DOTALL | re.MULTILINE)

COLOURS = re.compile(r"\x1b\[\d+m")


def last_tag() -> str | None:
    """Return the newest tag of a release that is behind this commit."""
    words = ("tag", "--list", "v*", "--merged", "HEAD", "--no-contains", "HEAD")
    done = subprocess.run(  # noqa: S603 - the words are ours
        ("git", *words, "--sort=-version:refname"),  # noqa: S607 - git is the user's
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return next(iter(done.stdout.split()), None)


def public_modules(module: griffe.Module) -> Iterator[griffe.Module]:
    """Yield the modules that have an ``__all__``."""
    if module.exports:
        yield module
    for submodule in module.modules.values():
        if not submodule.is_alias:
            yield from public_modules(submodule)


def explain(change: griffe.Breakage) -> str:
    """Return one line about a change, without colours."""
    if change.kind is griffe.BreakageKind.OBJECT_REMOVED:
        parent = change.obj.parent
        owner = f"{parent.name}." if parent and parent.is_class else ""
        return f"{owner}{change.obj.name}: {change.kind.value}"
    return COLOURS.sub("", change.explain(griffe.ExplanationStyle.ONE_LINE))


def public_part(module: griffe.Module) -> griffe.Module:
    """Return a module of the names in ``__all__`` alone."""
    part = griffe.Module(module.name)
    part.members = {
        str(name): module.members[str(name)] for name in module.exports or ()
    }
    return part


def find_changes(old: griffe.Module, new: griffe.Module) -> Iterator[tuple[str, str]]:
    """Yield the name that breaks programs, and what has happened to it."""
    now = {module.path: module for module in public_modules(new)}
    for module in public_modules(old):
        if module.path not in now:
            yield module.name, f"{module.path}: the module is not public any more"
            continue
        parts = public_part(module), public_part(now[module.path])
        for change in griffe.find_breaking_changes(*parts):
            yield change.obj.name, f"{module.path}: {explain(change)}"


def main() -> int:
    """Print what has changed since the last release."""
    tag = last_tag()
    if tag is None:
        print("public names: there is no release before this commit")
        return 0
    old = griffe.load_git(PACKAGE, ref=tag, repo=ROOT)
    new = griffe.load(PACKAGE, search_paths=[ROOT])
    first = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ", 2)[1]
    breaking = BREAKING.search(first)
    known = breaking[1] if breaking else ""
    changes = dict.fromkeys(find_changes(old, new))
    missing = 0
    for name, text in changes:
        is_listed = re.search(rf"`[^`\n]*\b{re.escape(name)}\b[^`\n]*`", known)
        missing += not is_listed
        print(f"{'listed' if is_listed else 'NOT LISTED'}: {text}")
    print(
        f"public names: {len(changes)} breaks since {tag}, {missing} not in CHANGELOG.md"
    )
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
