"""Fails if pyright does not know the type of a name that other packages can import.

Inside the package pyright infers a missing annotation. Users have other type checkers,
which may infer another type, so each attribute and variable has its annotation.
"""

from __future__ import annotations

import json  # noqa: TID251 - a script without the package
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CHECK = ("-m", "pyright", "--verifytypes", "bls_agent", "--ignoreexternal")
OF_DOCUMENTATION = ("No docstring found", "One or more default values")


def verify() -> Any:
    """Return pyright's report on the package, which has the public modules, too."""
    programs = str(Path(sys.executable).parent)  # where pyright looks for Python
    path = os.pathsep.join((programs, os.environ.get("PATH", "")))
    done = subprocess.run(  # noqa: S603 - pyright itself
        (sys.executable, *CHECK, "--outputjson"),
        cwd=ROOT,
        env={**os.environ, "PATH": path, "NODE_NO_WARNINGS": "1"},
        capture_output=True,
        check=False,
        text=True,
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        sys.exit(f"pyright has no report: {done.stdout}{done.stderr}")


def causes(symbols: list[Any]) -> Iterator[str]:
    """Yield why types are not known; not that other types are made of these types."""
    for symbol in symbols:
        for one in () if symbol["isTypeKnown"] else symbol["diagnostics"]:
            message = one["message"]
            if message.startswith(OF_DOCUMENTATION) or "partially unknown" in message:
                continue
            line = one["range"]["start"]["line"] + 1 if "range" in one else 1
            place = (
                f"{os.path.relpath(one['file'], ROOT)}:{line}"
                if one.get("file")
                else ""
            )
            yield f"{place}: {symbol['name']}: {message}"


def main() -> int:
    """Print each symbol whose type is not known, and the score."""
    report = verify()
    for one in report["generalDiagnostics"]:
        print(one["message"])
    found = report.get("typeCompleteness", {"symbols": []})
    for line in causes(found["symbols"]):
        print(line)
    score = found.get("completenessScore", 0)
    print(f"types of public names: {score:.1%} known")
    return int(score < 1)


if __name__ == "__main__":
    sys.exit(main())
