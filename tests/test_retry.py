""".ci/run: what fails beside other tests is repeated alone, and named at the end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / ".ci/run"
FLAKY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("mode", ["busy", "calm"])
def test_of_a_busy_machine(mode):
    mark = Path("been-here")
    if mode == "busy" and not mark.exists():
        mark.touch()
        raise AssertionError

def test_that_passes():
    assert not {broken}
"""


def run(folder: Path, *, broken: bool) -> tuple[int, list[str]]:
    """Run the functions of the script over one flaky test, without its steps."""
    (folder / "test_it.py").write_text(FLAKY.format(broken=broken), "utf-8")
    functions = re.split(r"^step '", SCRIPT.read_text("utf-8"), flags=re.MULTILINE)[0]
    functions = functions.replace('cd "$(dirname "$0")/.."', "")
    functions = functions.replace("--numprocesses=6", "--numprocesses=0")
    ending = f"step tests run_tests {sys.executable} -q test_it.py\n"
    done = subprocess.run(
        ["bash", "-c", functions + ending],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout.splitlines()


def test_a_green_run_names_what_it_repeated(tmp_path: Path) -> None:
    """The last lines hold the step and each test that had to be run again."""
    code, lines = run(tmp_path, broken=False)
    assert (code, lines[-1]) == (0, "steps: 1 passed, 0 failed")
    begin = lines.index("repeated alone:")
    assert lines[begin + 1 : -1] == [
        "  tests: test_it.py::test_of_a_busy_machine[busy]",
    ]


def test_what_fails_twice_fails_the_run(tmp_path: Path) -> None:
    """Both tests are named, and the exit code is that of pytest."""
    code, lines = run(tmp_path, broken=True)
    assert (code, lines[-1]) == (1, "steps: 0 passed, 1 failed")
    assert "  tests: test_it.py::test_that_passes" in lines


def test_nothing_was_repeated(tmp_path: Path) -> None:
    """A run that needed no net says so."""
    (tmp_path / "been-here").touch()
    code, lines = run(tmp_path, broken=False)
    assert (code, lines[-2:]) == (
        0,
        ["repeated alone: nothing", "steps: 1 passed, 0 failed"],
    )
