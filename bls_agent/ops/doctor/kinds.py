"""Which row of the table of keys a key belongs to: fast, for millions of keys."""

from __future__ import annotations

from typing import Final, NamedTuple

from bls_agent.core.keys import KEYS, KeyTemplate
from bls_agent.core.names import key_beside
from bls_agent.ops.doctor.rule import Values

__all__ = ["Kind", "is_loose", "kind_of", "project_of"]

# Of a key that can be read in many ways all of them are made: of none that is as long
# as no pair of names makes it.
LONGEST: Final = 1_200

_CONSOLE_ROWS: Final = ("project_status", "project_console", "control")


class Kind(NamedTuple):
    """What a key is.

    Attributes:
        row: Name of its row in ``KEYS``, ``""`` for a key of no contract.
        fields: What the key says: field of the row → value.
    """

    row: str
    fields: Values


def is_loose(row: KeyTemplate) -> bool:
    """Tell a form that keys of others may well have, too: ``{type}_update_{code}``."""
    return row.ambiguous and row.template.startswith("{")


def _ends(row: KeyTemplate) -> tuple[str, str]:
    return row.template.partition("{")[0], row.template.rpartition("}")[2]


def _order(name: str) -> tuple[bool, bool]:
    """Loose forms come last; a form with an end of its own before one without."""
    return is_loose(KEYS[name]), not _ends(KEYS[name])[1]


_ROWS: Final = [
    (name, *_ends(KEYS[name]), KEYS[name]) for name in sorted(KEYS, key=_order)
]


def kind_of(key: str) -> Kind:
    """Find the row of a key; of several the one that says most of it."""
    for name, head, tail, row in _ROWS:
        if key.startswith(head) and key.endswith(tail):
            if row.ambiguous and len(key) > LONGEST:
                continue
            readings = row.readings(key)
            if readings:
                return Kind(name, readings[0] if len(readings) == 1 else {})
    return Kind("", {})


def project_of(kind: Kind) -> str:
    """Give the project of contract 002 that a key belongs to, ``""`` if none."""
    if kind.row in _CONSOLE_ROWS:
        return kind.fields["project"]
    place = kind.fields.get("place", "")
    return project_of(kind_of(key_beside(place))) if place else ""
