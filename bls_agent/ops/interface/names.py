"""Chooses names in generated code and documents, so that no two things share one."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Names:
    """The names that are in use; ``make`` turns any text into a name that is allowed."""

    def __init__(self, make: Callable[[str], str], taken: Iterable[str] = ()) -> None:
        self._make = make
        self._taken = set(taken)

    def add(self, wanted: str) -> str:
        """Return a name that resembles ``wanted`` and is not in use yet."""
        name = plain = self._make(wanted)
        number = 2
        while name in self._taken:
            name = f"{plain}_{number}"
            number += 1
        self._taken.add(name)
        return name
