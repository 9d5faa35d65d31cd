"""The vectors of docs/vectors, as the tests use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, NamedTuple

import pytest

from bls_agent import ProjectAgent
from bls_agent.ops.conformance.vectors import Vector, load_vectors, read_bytes

_RUN_ENTRY: Final = "003/events/tolerated/1"  # its file has a whole entry


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


class HeartbeatItem(NamedTuple):
    """One value under the key of a heartbeat, and the problem that a reader names."""

    kind: str
    payload: bytes
    problem: str


class RunEventItem(NamedTuple):
    """One entry of a run: names and values in turn, and the faults that a reader names."""

    fields: tuple[bytes, ...]
    faults: frozenset[str]


def add_handlers(agent: ProjectAgent) -> None:
    """Let an agent handle the commands that the messages name."""

    @agent.command
    async def echo(**arguments: object) -> dict[str, int]:
        return {"keys": len(arguments)}

    @agent.command
    def sync_echo(**arguments: object) -> dict[str, int]:
        return {"keys": len(arguments)}

    @agent.command("重新加载")
    async def reload(force: bool = False) -> None: ...

    @agent.command
    async def typed(
        count: int,
        ratio: float = 1.0,
        name: str = "",
        mode: Literal["fast", "safe"] = "fast",
        items: list[int] | None = None,
    ) -> None: ...


@cache
def _vectors() -> Mapping[str, Vector]:
    return {vector.id: vector for vector in load_vectors()}


def vectors_of(contract: str, *checks: str) -> dict[str, Vector]:
    """Return the vectors of a contract by their ids; with ``checks`` only those."""
    return {
        id_: vector
        for id_, vector in _vectors().items()
        if id_.startswith(f"{contract}/") and (not checks or vector.check in checks)
    }


def judge(contract: str, name: str, check: Callable[[Vector], None]) -> None:
    """Call the check for each vector that names it; a failure names the vector."""
    for id_, vector in vectors_of(contract, name).items():
        try:
            check(vector)
        except (AssertionError, pytest.fail.Exception) as error:
            pytest.fail(f"{id_} {vector.name}: {error}")


def load_commands() -> list[CorpusItem]:
    """Return every message that has an expected outcome."""
    items: list[CorpusItem] = []
    for vector in vectors_of("002").values():
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


def load_heartbeats() -> dict[str, HeartbeatItem]:
    """Return what may be under the key of a heartbeat, by id."""
    return {
        id_: HeartbeatItem(
            vector.values["kind"],
            read_bytes(vector.values["stored"]),
            vector.values["result"]["problem"],
        )
        for id_, vector in vectors_of("001", "heartbeat").items()
        if "type" not in vector.values and "ttl" not in vector.values
    }


def sound_heartbeats() -> dict[str, dict[str, Any]]:
    """Return the fields of one heartbeat of each kind, in the order of its value."""
    found: dict[str, dict[str, Any]] = {}
    for vector in vectors_of("001", "value").values():
        found.setdefault(vector.values["kind"], vector.values["given"])
    return found


def flat(pairs: list[list[Any]]) -> tuple[bytes, ...]:
    """Return names and values in turn."""
    return tuple(read_bytes(part) for pair in pairs for part in pair)


def pairs_of(vector: Vector) -> dict[Any, Any]:
    """Return the fields of a vector, by name."""
    parts = flat(vector.values["fields"])
    return dict(zip(parts[::2], parts[1::2], strict=True))


def sound_entry() -> dict[bytes, bytes]:
    """Return the fields of an entry of a run that has no fault."""
    return pairs_of(_vectors()[_RUN_ENTRY])


def entry(changed: Mapping[bytes, bytes | None]) -> tuple[bytes, ...]:
    """Return the sound entry with other values; ``None`` leaves a field out."""
    whole = {**sound_entry(), **changed}
    return tuple(
        part
        for name, value in whole.items()
        if value is not None
        for part in (name, value)
    )


def fields_of(vector: Vector) -> tuple[bytes, ...]:
    """Return the fields of a vector with the changed values, names and values in turn."""
    changed = vector.values.get("changed", {})
    pairs = [
        [name, changed.get(name, value) if isinstance(name, str) else value]
        for name, value in vector.values["fields"]
    ]
    return flat([pair for pair in pairs if pair[1] is not None])


def load_run_events() -> dict[str, RunEventItem]:
    """Return what may be in the stream of a run, by id."""
    return {
        id_: RunEventItem(
            fields_of(vector), frozenset(vector.values["result"]["faults"])
        )
        for id_, vector in vectors_of("003", "entry").items()
    }
