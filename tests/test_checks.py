"""The checks of pages and public names in .ci: what they find, and what they let pass."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

CHECKS = Path(__file__).parents[1] / ".ci"
PAGE = """\
# A page

```python
agent = 1
```

- a list

  ```python
  await other(agent)
  ```
"""


def load(name: str) -> ModuleType:
    """Import one of the scripts, which are no package."""
    spec = importlib.util.spec_from_file_location(name, CHECKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_code_of_a_page_keeps_its_lines() -> None:
    """A finding of pyright names the line of the page; blocks in lists are code, too."""
    code = load("page_types").code_of(PAGE).splitlines()
    assert len(code) == PAGE.count("\n")
    assert {number: line for number, line in enumerate(code, 1) if line} == {
        4: "agent = 1",
        10: "await other(agent)",
    }


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the check, and a package with a release and two names."""
    pytest.importorskip("griffe", reason="griffe is in the group docs")
    (tmp_path / ".ci").mkdir()
    shutil.copy(CHECKS / "api_changes.py", tmp_path / ".ci")
    (tmp_path / "bls_agent").mkdir()
    write(tmp_path, '__all__ = ["send", "stop"]\n', "timeout: float = 5.0")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0\n", "utf-8")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def write(repository: Path, names: str, parameter: str) -> None:
    functions = f"def send({parameter}): ...\ndef stop(): ...\ndef _hide(): ...\n"
    (repository / "bls_agent/__init__.py").write_text(names + functions, "utf-8")


def git(repository: Path, *words: str) -> None:
    config = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    subprocess.run(("git", *config, *words), cwd=repository, check=True)


def commit(repository: Path) -> None:
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=a change")


def check(repository: Path) -> tuple[int, str]:
    """Run the check, and return its exit code and what it prints."""
    done = subprocess.run(
        (sys.executable, ".ci/api_changes.py"),
        cwd=repository,
        env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
        capture_output=True,
        check=False,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_public_names_without_a_release(repository: Path) -> None:
    """Nothing is compared, and the check says so."""
    assert check(repository) == (
        0,
        "public names: there is no release before this commit\n",
    )


def test_a_break_that_the_changelog_does_not_name(repository: Path) -> None:
    """It fails the check until it stands under Breaking; private names may change."""
    git(repository, "tag", "v0.1.0")
    write(repository, '__all__ = ["send"]\n', "timeout: float")
    commit(repository)
    code, printed = check(repository)
    assert code == 1
    assert "NOT LISTED: bls_agent: stop: Public object was removed" in printed
    assert "send(timeout): Parameter is now required" in printed
    assert "2 breaks since v0.1.0, 2 not in CHANGELOG.md" in printed

    breaking = "# Changelog\n\n## 0.2.0\n\n### Breaking\n\n- `stop` is gone; `send()` has no default.\n"
    (repository / "CHANGELOG.md").write_text(breaking, "utf-8")
    code, printed = check(repository)
    assert (code, printed.count("NOT LISTED")) == (0, 0)
    assert "listed: bls_agent: stop" in printed


def test_a_release_is_compared_with_the_one_before(repository: Path) -> None:
    """The tag of the commit itself is not what it is compared with."""
    git(repository, "tag", "v0.1.0")
    write(repository, '__all__ = ["send"]\n', "timeout: float = 5.0")
    commit(repository)
    git(repository, "tag", "v0.2.0")
    code, printed = check(repository)
    assert code == 1
    assert "1 breaks since v0.1.0" in printed
