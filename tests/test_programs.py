"""Programs of tests: none outlives its block, and none is waited for without an end."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.programs import Program, run_python

TALKS = """
import sys
print("ready", "天", flush=True)
print("got", sys.stdin.readline().strip(), flush=True)
print("rest", file=sys.stderr)
print("last")
sys.exit(3)
"""

HANGS = """
import os, sys, time
if os.fork():
    print("complains", file=sys.stderr, flush=True)
    print("ready", flush=True)
time.sleep(600)
"""


def test_it_is_read_and_told() -> None:
    """Line by line; the end gives the exit code and what was not read."""
    with Program("-c", TALKS) as program:
        assert program.line() == "ready 天"
        program.send("订单")
        assert program.line() == "got 订单"
        assert program.end() == (3, "last\n", "rest\n")


def test_no_line_comes() -> None:
    """The test fails, whether the program hangs or has ended."""
    with Program("-c", "input()") as program:
        with pytest.raises(AssertionError, match="in time"):
            program.line(timeout=0.1)
        program.send()
        with pytest.raises(AssertionError, match="ended without another line"):
            program.line()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_it_hangs(capsys: pytest.CaptureFixture[str]) -> None:
    """It is killed with its children, and what it complained of is shown."""
    with Program("-c", HANGS) as program:
        assert program.line() == "ready"
        with pytest.raises(subprocess.TimeoutExpired):
            program.end(timeout=0.1)
    assert program.returncode == -9
    # The child has the same pipe: it is read to its end only when both are gone.
    assert capsys.readouterr().err == "complains\n"


def test_run_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the variables for the package it has the server's and what it is given."""
    code = "import os; print(*sorted(n for n in os.environ if n.startswith('BLS_')))"
    monkeypatch.setenv("BLS_INSTANCE", "甲")
    monkeypatch.setenv("BLS_SERVER_BINARY", "/usr/bin/redis-server")
    assert run_python("-c", code, env={"BLS_MODE": "compat"}) == (
        0,
        "BLS_MODE BLS_SERVER_BINARY\n",
        "",
    )
