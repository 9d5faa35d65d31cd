"""What a worker looks like on the page of workers: a card, from what the registry saw. Pure.

A card is language-independent and made once for all followers. Its texts are fit to be
shown (:func:`~bls_agent.terminal.visible`); the page words and colours it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from bls_agent.codec import JSONObject, JSONValue, encode
from bls_agent.errors import RedisUnavailableError
from bls_agent.terminal import visible
from bls_agent.web.names_in_urls import quote_name
from bls_agent.workers import Worker
from bls_agent.workers.watching.worker import HEARTBEATS

__all__ = [
    "GROUPS",
    "STATES",
    "encode_worker_changes",
    "encode_workers",
    "make_worker_card",
    "place_of_worker",
    "worker_key",
]

GROUPS: Final = tuple(HEARTBEATS)

# What a worker may be, the worst first → the colour and shape of a status like it.
STATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "broken": "odd",
        "error": "fault",
        "stale": "stale",
        "stopping": "error",
        "starting": "never",
        "stopped": "offline",
        "running": "online",
        "present": "online",  # of a kind whose value the contract leaves open
    }
)
_RANKS: Final = {state: rank for rank, state in enumerate(STATES)}

LONGEST: Final = 200  # characters of what stands in a key
LONGEST_FIGURE: Final = 40
MOST_FIGURES: Final = 6


def make_worker_card(worker: Worker, late: float = 0.0) -> JSONObject:
    """Make the card of a worker.

    Args:
        worker: What was seen of it.
        late: Seconds since then.

    Returns:
        ``key`` (what it is known by), ``group`` (the kind of heartbeat), ``id``,
        ``state`` (one of ``STATES``) and its ``kind`` (colour and shape), ``age`` and
        ``ttl`` in seconds or ``None``, ``problem`` (one word, or ``""``), ``figures``
        (pairs of a name and a text), ``said`` (what stands there where it is not
        understood).
    """
    state = _state_of(worker)
    return {
        "key": worker_key(worker),
        "group": worker.kind,
        "id": visible(worker.id),
        "state": state,
        "kind": STATES[state],
        "age": _seconds(worker.age, late),
        "ttl": _seconds(worker.ttl, -late),
        "problem": visible(worker.problem),
        "figures": [[_short(name), _short(text)] for name, text in _figures_of(worker)][
            :MOST_FIGURES
        ],
        "said": _said_by(worker),
    }


def worker_key(worker: Worker) -> str:
    """Write a worker's key, of whatever bytes, as letters that any page can hold."""
    return quote_name(worker.key)


def _state_of(worker: Worker) -> str:
    if worker.problem:
        return "broken"
    if worker.stale:
        return "stale"
    return "present" if worker.heartbeat is None else worker.heartbeat.status.value


def _figures_of(worker: Worker) -> list[tuple[str, str]]:
    """Say in a few figures what a heartbeat counts."""
    if worker.heartbeat is None:
        return []
    read: dict[str, Any] = worker.heartbeat.to_dict()
    told = {name: value for name, value in read.items() if name in worker.raw}
    found: list[tuple[str, str]] = []
    if "running_tasks" in told:
        most = f" / {told['max_tasks']}" if "max_tasks" in told else ""
        found.append(("running_tasks", f"{told['running_tasks']}{most}"))
    counts = ("pending_tasks", "jobs_count", "active_strategies")
    found += [(name, str(told[name])) for name in counts if name in told]
    if told.get("host"):
        port = f":{told['port']}" if told.get("port") else ""
        found.append(("host", f"{told['host']}{port}"))
    if told.get("task_uuids"):
        found.append(("task_uuids", ", ".join(told["task_uuids"][:MOST_FIGURES])))
    stats: dict[str, Any] = told.get("stats") or {}
    return found + [(name, _text(value)) for name, value in stats.items()]


def _said_by(worker: Worker) -> str:
    """Show what stands there, unless the figures say it better."""
    if worker.heartbeat is not None or not worker.raw:
        return ""
    raw: Any = worker.raw.get("raw") if worker.raw.keys() == {"raw"} else worker.raw
    text = _text(raw)
    return visible(text[:LONGEST]) + "…" * (len(text) > LONGEST)


def _text(value: object) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def _short(text: str) -> str:
    return visible(text[:LONGEST_FIGURE]) + "…" * (len(text) > LONGEST_FIGURE)


def _seconds(value: float | None, late: float) -> JSONValue:
    return None if value is None else round(max(value + late, 0.0), 1)


def place_of_worker(card: JSONObject) -> tuple[int, int, str]:
    """Say where a card stands: by kind, the worst first, by id among equals."""
    return GROUPS.index(card["group"]), _RANKS[card["state"]], card["id"]


def encode_workers(
    cards: Iterable[JSONObject], unavailable: RedisUnavailableError | None
) -> bytes:
    """Write the whole picture, for somebody who begins to follow."""
    ordered = sorted(cards, key=place_of_worker)
    return encode({"whole": True, "workers": ordered, "away": _away(unavailable)})


def encode_worker_changes(
    cards: Iterable[JSONObject],
    gone: Iterable[str],
    ages: Mapping[str, JSONValue],
    unavailable: RedisUnavailableError | None,
) -> bytes:
    """Write what has changed, for everybody who follows.

    Args:
        cards: Workers that are new, or say something else.
        gone: Keys of those that are no more.
        ages: Key → age of those that have only refreshed their heartbeat.
        unavailable: Why Redis does not answer.
    """
    return encode(
        {
            "workers": list(cards),
            "gone": list(gone),
            "ages": dict(ages),
            "away": _away(unavailable),
        }
    )


def _away(error: RedisUnavailableError | None) -> JSONValue:
    return None if error is None else visible(error.kind)
