"""Loads a public name of a package at its first use, so that imports are fast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def names(
    package: str, public: Collection[str], homes: Mapping[str, str], default: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a package.

    ``homes`` maps public names to modules. All other names are in the module
    ``default``. Module names are relative to ``package``: ``fleet`` is a module in the
    package, and ``.agent`` a module in its parent package.
    """

    def load(name: str) -> Any:
        if name not in public:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        module = import_module(f".{homes.get(name, default)}", package)
        value = vars(sys.modules[package])[name] = getattr(module, name)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *public})

    return load, list_names
