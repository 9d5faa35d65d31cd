"""The command messages of docs/vectors, as the tests use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bls_agent.ops.conformance.vectors import load_vectors


@dataclass(frozen=True, slots=True)
class CorpusItem:
    """One message and how it must end."""

    name: str
    group: str
    payload: bytes
    expect: str
    reason: str | None
    fields: tuple[str, ...] | None
    slow: bool


def load_commands() -> list[CorpusItem]:
    """Return every message that has an expected outcome."""
    items: list[CorpusItem] = []
    for vector in load_vectors():
        outcome: dict[str, Any] | None = vector.values.get("outcome")
        if outcome is not None:
            fields = outcome.get("fields")
            item = CorpusItem(
                name=vector.name,
                group=vector.values["group"],
                payload=vector.message,
                expect=outcome["outcome"],
                reason=outcome.get("reason"),
                fields=None if fields is None else tuple(fields),
                slow=vector.values.get("slow", False),
            )
            items.append(item)
    return items
