"""Print the lowest version of every dependency that the package declares.

The output is a constraints file for pip: the tests run once on exactly these
versions. The markers of extras are kept; names of extras have no place in it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:\[[^]]*\])?\s*(?P<versions>[^;]*)(?P<marker>;.*)?"
)
LOWER_BOUND = re.compile(r"[>~=]=\s*(?P<version>[^\s,]+)")


def pin(requirement: str) -> str:
    """Turn a requirement into a pin of its lowest version."""
    parts = REQUIREMENT.fullmatch(requirement.strip())
    bound = parts and LOWER_BOUND.search(parts["versions"])
    if not parts or not bound:
        sys.exit(f"{requirement!r} declares no lowest version")
    return f"{parts['name']}=={bound['version']}{parts['marker'] or ''}"


def read_requirements(project: Mapping[str, Any]) -> Iterator[str]:
    """List the core's and the extras' requirements, but not the package itself."""
    yield from project["dependencies"]
    for extra in project.get("optional-dependencies", {}).values():
        for requirement in extra:
            if not requirement.startswith(project["name"]):
                yield requirement


def main() -> None:
    """Print one pin a line."""
    project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
    print("\n".join(sorted({pin(line) for line in read_requirements(project)})))


if __name__ == "__main__":
    main()
