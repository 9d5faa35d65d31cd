"""Build wheel and sdist into dist/, try them, and list what they need: `make dist`.

1. The tag of a release (`BLS_TAG=v1.2.3`) is the version of the package.
2. Both are built twice, with the time of the last commit; the bytes are the same.
3. The wheel, which is built from the sdist, runs the demo on every interpreter here.
4. dist/bls-agent.cdx.json lists every package that the extras bring (CycloneDX).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
VERSIONS = ("3.11", "3.12", "3.13")
NEEDS = "ensurepip, venv"


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Run a program, which has to succeed; return what it prints."""
    done = subprocess.run(  # noqa: S603 - the words are ours
        [str(word) for word in words],
        check=False,
        cwd=cwd,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}")
    return done.stdout.strip()


def check_tag() -> None:
    """End the program if the tag is another version than the package's."""
    text = (ROOT / "bls_agent/__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    version, tag = found[1] if found else "none", os.environ.get("BLS_TAG")
    if tag and tag != f"v{version}":
        sys.exit(
            f"the tag {tag} is not v{version}, the version of bls_agent/__init__.py"
        )


def build(folder: Path) -> list[Path]:
    """Build sdist and wheel with hatchling of this environment."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
    return sorted(folder.iterdir())


def interpreters() -> Iterator[str]:
    """Yield an interpreter of each version that is here."""
    for version in VERSIONS:
        pyenv = Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")
        for python in (shutil.which(f"python{version}"), *map(str, pyenv)):
            if (
                python
                and not subprocess.run(  # noqa: S603 - from a list of ours
                    [python, "-c", f"import {NEEDS}"], check=False, capture_output=True
                ).returncode
            ):
                yield python
                break
        else:
            print(f"Python {version} is not here")


def install(home: Path, python: str, wheel: Path, extras: str) -> Path:
    """Install the wheel into an environment of its own; return the interpreter."""
    run(python, "-m", "venv", home)
    own = home / "bin/python"
    run(own, "-m", "pip", "install", "-qq", "--no-compile", f"{wheel}[{extras}]")
    return own


def try_out(own: Path, home: Path) -> None:
    """Run the command line and the demo, away from the checkout."""
    version = run(own.with_name("bls-agent"), "--version", cwd=home)
    run(own.with_name("bls-agent"), "demo", cwd=home)
    print(f"{run(own, '--version')}: {version}, and the demo runs")


def main() -> None:
    """Build, compare, try and list."""
    check_tag()
    committed = run("git", "log", "-1", "--format=%ct")
    os.environ.setdefault("SOURCE_DATE_EPOCH", committed)
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files, again = build(DIST), build(folder / "again")
        for one, other in zip(files, again, strict=True):
            if one.read_bytes() != other.read_bytes():
                sys.exit(f"{one.name} has other bytes when it is built again")
            print(f"{one.name}: {one.stat().st_size:,} bytes, twice the same")
        wheel = next(file for file in files if file.suffix == ".whl")
        for number, python in enumerate(interpreters()):
            home = folder / str(number)
            try_out(install(home, python, wheel, "cli,server"), home)
        own = install(folder / "all", sys.executable, wheel, "all")
        run(own, "-m", "pip", "uninstall", "-qq", "-y", "pip", "setuptools")
        listing = DIST / "bls-agent.cdx.json"
        words = ("environment", own, "--output-reproducible", "-o", listing)
        run(sys.executable, "-m", "cyclonedx_py", *words)
        packages = listing.read_text("utf-8").count('"purl"')
        print(f"{listing.name}: {packages} packages")


if __name__ == "__main__":
    main()
