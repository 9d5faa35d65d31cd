"""Fails if Python code that a page shows does not pass pyright in strict mode.

The blocks of a page are checked as one module, because a block may use the names of the
blocks before it. Each line keeps its number, so that a finding names the line of the page.
"""

from __future__ import annotations

import json  # noqa: TID251 - a script without the package
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^( *)```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
PYRIGHT = (
    *(sys.executable, "-m", "pyright"),
    "--pythonpath",
    sys.executable,
    "--outputjson",
)
OPTIONS = {
    "typeCheckingMode": "strict",
    "reportMissingModuleSource": "none",
    "reportRedeclaration": "none",
}
# What is right on a page, though not in a module:
# 1. A function is shown a second time, in another way (reportRedeclaration).
# 2. A block awaits at its top level, as in `python -m asyncio`.
# 3. A block has its own imports, because it is copied alone.
FITTING = re.compile(
    r'"await" allowed only|Use of "async" not allowed|is imported more than once'
    "|is declared as Final and cannot be reassigned"
)
# Later blocks import from the module that the first block of a page is.
FIRST = re.compile(r"^from (stock|shop|shop\.agent) import", re.MULTILINE)
# Other programs, which the checks do not install; each module accepts any use.
FOREIGN = (
    "celery/__init__.pyi",
    "celery/signals.pyi",
    "uwsgi.pyi",
    "uwsgidecorators.pyi",
)
ANYTHING = "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"


def pages() -> Iterator[Path]:
    """Yield every page that is written for users and contributors."""
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md"):
        yield from sorted(ROOT.glob(pattern))


def code_of(page: str) -> str:
    """Return the page with its Python code alone; other lines are empty."""
    lines = [""] * (page.count("\n") + 1)
    for block in FENCE.finditer(page):
        first = page.count("\n", 0, block.start(2))
        code = textwrap.dedent(block[2]).splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines)


def write_modules(folder: Path, page: str) -> Path | None:
    """Write a page's code into a folder, with the modules that the code imports."""
    code = code_of(page)
    if not code.strip():
        return None
    files = {"page.py": code} | dict.fromkeys(FOREIGN, ANYTHING)
    first = FENCE.search(page)
    for name in FIRST.findall(code) if first else ():
        path = "shop/__init__" if name == "shop" else name.replace(".", "/")
        files[f"{path}.py"] = textwrap.dedent(first[2])
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return folder / "page.py"


def check(folder: Path) -> list[Any]:
    """Run pyright over the modules in a folder, and return what it reports."""
    settings = {
        **OPTIONS,
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT)],
        "executionEnvironments": [
            {"root": str(one), "extraPaths": [str(ROOT), str(one)]}
            for one in folder.iterdir()
        ],
    }
    project = folder / "pyrightconfig.json"
    project.write_text(json.dumps(settings), "utf-8")
    done = subprocess.run(  # noqa: S603 - pyright itself
        (*PYRIGHT, "--project", str(project)),
        env={**os.environ, "NODE_NO_WARNINGS": "1"},
        capture_output=True,
        check=False,
        text=True,
    )
    try:
        found: list[Any] = json.loads(done.stdout)["generalDiagnostics"]
    except (KeyError, ValueError):
        sys.exit(f"pyright has no report: {done.stdout}{done.stderr}")
    return [
        one
        for one in found
        if one["file"].endswith("page.py") and not FITTING.search(one["message"])
    ]


def main() -> int:
    """Print what pyright reports, with the lines of the pages."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        origins: dict[str, Path] = {}
        for number, page in enumerate(pages()):
            module = write_modules(folder / str(number), page.read_text("utf-8"))
            if module:
                origins[str(module)] = page.relative_to(ROOT)
        findings = check(folder)
    for one in findings:
        line = one["range"]["start"]["line"] + 1
        print(f"{origins[one['file']]}:{line}: {one['message']}")
    print(f"code of {len(origins)} pages: {len(findings)} findings")
    return int(bool(findings) or not origins)


if __name__ == "__main__":
    sys.exit(main())
