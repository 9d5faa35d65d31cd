"""What a run looks like on the pages of runs: a card, from what the store saw. Pure.

A card is language-independent. Its texts are fit to be shown
(:func:`~bls_agent.terminal.visible`); the page words and colours it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from bls_agent.codec import JSONObject, JSONValue, encode
from bls_agent.errors import RedisUnavailableError
from bls_agent.runs import RunState, RunSummary
from bls_agent.terminal import visible, visible_lines

__all__ = [
    "STATES",
    "encode_run_changes",
    "encode_runs",
    "make_run_card",
    "place_of_run",
    "run_path",
]

# How a run may stand → the colour and shape of a status like it.
STATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        RunState.RUNNING.value: "going",
        RunState.LOST.value: "stale",
        RunState.OPEN.value: "never",
        RunState.FAILED.value: "fault",
        RunState.COMPLETED.value: "online",
        RunState.CANCELLED.value: "offline",
        RunState.CLOSED.value: "offline",
    }
)
LONGEST: Final = 200  # characters of what stands on a card
LONGEST_NAME: Final = 60


def run_path(run_id: int) -> str:
    """Give the address of a run's page."""
    return f"/runs/{run_id}"


def make_run_card(run: RunSummary, now: float, *, whole: bool = False) -> JSONObject:
    """Make the card of a run.

    Args:
        run: What was seen of it.
        now: Seconds since 1970.
        whole: Tell all of the error, in its lines.

    Returns:
        ``id`` (as text: a page's numbers end at 2^53), ``path``, ``state`` (one of
        ``STATES``) and its ``kind`` (colour and shape), ``length``, ``sequence``,
        ``started`` and ``age`` (seconds since the oldest and the newest event that are
        kept, or ``None``), ``at`` (when the newest was written), ``ttl`` in seconds or ``None``, ``task``, ``error``,
        ``source`` and ``last`` (texts); of one that has ended ``took`` in seconds, else
        ``None``: from the oldest event that is kept.
    """
    source = run.source or {}
    names = ("agent_name", "agent_id", "agent_type", "team_name")
    return {
        "id": str(run.run_id),
        "path": run_path(run.run_id),
        "state": run.state.value,
        "kind": STATES[run.state.value],
        "length": run.length,
        "sequence": run.sequence,
        "started": _seconds_since(run.started_at, now),
        "age": _seconds_since(run.last_at, now),
        "at": run.last_at or 0.0,
        "ttl": None if run.ttl is None else round(run.ttl, 1),
        "task": _short(run.task, LONGEST),
        "error": visible_lines(run.error) if whole else _short(run.error, LONGEST),
        "took": _took(run),
        "source": _short(next(filter(None, map(source.get, names)), ""), LONGEST_NAME),
        "last": _short(run.last, LONGEST_NAME),
    }


def _seconds_since(at: float | None, now: float) -> JSONValue:
    return None if at is None else round(max(0.0, now - at), 1)


def _took(run: RunSummary) -> JSONValue:
    if not run.ended or run.started_at is None or run.last_at is None:
        return None
    return round(run.last_at - run.started_at, 3)


def _short(text: str, longest: int) -> str:
    return visible(text[:longest]) + "…" * (len(text) > longest)


def place_of_run(card: JSONObject) -> tuple[bool, float, int]:
    """Say where a card stands: what runs first, by its number; then the newest end.

    What runs does not change places with every event.
    """
    running = card["state"] == RunState.RUNNING
    return not running, 0.0 if running else -card["at"], -int(card["id"])


def encode_runs(
    cards: Iterable[JSONObject], total: int, unavailable: RedisUnavailableError | None
) -> bytes:
    """Write the whole picture, for somebody who begins to follow."""
    told = {"whole": True, "runs": list(cards), "gone": [], "total": total}
    return encode(told | {"away": _away(unavailable)})


def encode_run_changes(
    cards: Iterable[JSONObject],
    gone: Iterable[int],
    total: int,
    unavailable: RedisUnavailableError | None,
) -> bytes:
    """Write what has changed, for everybody who follows.

    Args:
        cards: Runs that are new, or look otherwise.
        gone: Those that are no more, or no longer among the newest.
        total: How many runs there are.
        unavailable: Why Redis does not answer.
    """
    told = {"runs": list(cards), "gone": list(map(str, gone)), "total": total}
    return encode(told | {"away": _away(unavailable)})


def _away(error: RedisUnavailableError | None) -> JSONValue:
    return None if error is None else visible(error.kind)
