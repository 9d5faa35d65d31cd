"""A pytest plugin for the run on the lowest versions: ``anyio_mode = "auto"``.

anyio's own plugin knows the option since 4.11, and the package supports 4.10. When
the lowest supported version is 4.11 or newer, this file can go.
"""

from __future__ import annotations

import inspect

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Make the option known, so that strict mode accepts it."""
    parser.addini("anyio_mode", "every coroutine test runs under anyio", default="auto")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> None:
    """Let anyio run each coroutine test, below hypothesis, too."""
    if collector.istestfunction(obj, name):
        inner = getattr(getattr(obj, "hypothesis", None), "inner_test", obj)
        if inspect.iscoroutinefunction(inner):
            pytest.mark.usefixtures("anyio_backend")(obj)
