"""The watch of the newest runs, the card of a run, and the events of a run in pages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import anyio

from bls_agent.core.codec import JSONObject, JSONValue
from bls_agent.ops.terminal import visible_lines
from bls_agent.ops.web.feeds.watch import SharedWatch, clock, pause_after, shorten
from bls_agent.ops.web.requests import encode_cut
from bls_agent.runs import EventStore, RunState, RunSummary, StreamEvent

# State of a run → the name of its colour and shape.
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
LONGEST_NAME: Final = 60  # characters
INTERVAL: Final = 2.0  # least seconds between two reads
MOST: Final = 500  # runs that are shown
LONGEST_EVENT: Final = 65_536  # bytes of one event; longer ones are shortened


def make_run_card(run: RunSummary, now: float, *, whole: bool = False) -> JSONObject:
    """Make the card of a run; ``whole`` keeps all lines of the run's error.

    ``id`` is a text, because JavaScript numbers are exact only up to 2^53. ``started``
    and ``age`` are the seconds since the oldest and the newest stored event. ``took`` is
    the number of seconds between these events, if the run has ended.
    """
    source = run.source or {}
    names = ("agent_name", "agent_id", "agent_type", "team_name")
    return {
        "id": str(run.run_id),
        "path": f"/runs/{run.run_id}",
        "state": run.state.value,
        "kind": STATES[run.state.value],
        "length": run.length,
        "started": _seconds_since(run.started_at, now),
        "age": _seconds_since(run.last_at, now),
        "at": run.last_at or 0.0,
        "ttl": None if run.ttl is None else round(run.ttl, 1),
        "task": shorten(run.task),
        "error": visible_lines(run.error) if whole else shorten(run.error),
        "took": _took(run),
        "source": shorten(next(filter(None, map(source.get, names)), ""), LONGEST_NAME),
        "last": shorten(run.last, LONGEST_NAME),
    }


def _seconds_since(at: float | None, now: float) -> JSONValue:
    return None if at is None else round(max(0.0, now - at), 1)


def _took(run: RunSummary) -> JSONValue:
    if not run.ended or run.started_at is None or run.last_at is None:
        return None
    return round(run.last_at - run.started_at, 3)


class RunFeed(SharedWatch[RunSummary]):
    """The watch of the newest runs; closing the feed closes the store."""

    kind = "runs"

    def __init__(self, store: EventStore) -> None:
        super().__init__(store)
        self._store = store
        self.total: int = 0  # number of all runs
        self.left_out: dict[str, int] = {}  # why a key is no run → how many such keys

    def _card(self, thing: RunSummary, elapsed: float) -> JSONObject:
        del elapsed  # the ages are computed from the time now
        return make_run_card(thing, clock())

    @staticmethod
    def place_of(card: JSONObject) -> tuple[bool, float, int]:
        running = card["state"] == RunState.RUNNING
        return not running, 0.0 if running else -card["at"], -int(card["id"])

    def _differs(self, one: RunSummary, before: RunSummary) -> bool:
        seen, known = (
            (run.state, run.last_id, run.length, run.first_id) for run in (one, before)
        )
        return seen != known

    def _more(self) -> JSONObject:
        return {"gone": [], "total": self.total}

    async def _watch_once(self) -> None:
        while True:
            began = anyio.current_time()
            found = await self._store.runs(MOST)
            turned = self.total != found.total
            self.total, self.left_out = found.total, dict(found.left_out)
            self._replace({str(run.run_id): run for run in found}, turned=turned)
            await anyio.sleep(pause_after(began, INTERVAL))


def encode_event(event: StreamEvent) -> bytes:
    """Encode an event; add faults and raw fields if it violates the run event format."""
    if not event.faults and len(event.json) <= LONGEST_EVENT:
        return event.json
    fields: dict[str, Any] = event.to_dict()
    if event.faults:
        raw = {
            name.decode("utf-8", "backslashreplace"): value.decode(
                "utf-8", "backslashreplace"
            )
            for name, value in (event.raw or {}).items()
        }
        fields |= {"faults": list(event.faults), "raw": raw}
    return encode_cut(fields, LONGEST_EVENT)
