"""The public names of a package, each loaded from its module when it is first used.

This makes importing a package fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def names(
    package: str, public: Collection[str], homes: Mapping[str, str], default: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` of a package.

    ``homes`` maps names to modules; all other names are in the module ``default``. The
    modules are named from the package: ``testing.fleet`` below it, ``.agent`` beside it.
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
