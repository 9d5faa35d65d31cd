"""What a doctor holds against the books of runs: keys of ours, beside contract 003."""

from __future__ import annotations

from typing import Final

from bls_agent.core.names import key_beside
from bls_agent.ops.doctor.rule import Question, Rule, Sample, Severity, Values, show
from bls_agent.runs.event_ids import find_id
from bls_agent.runs.events import StreamEvent
from bls_agent.runs.reading import RunKeys, run_id_of

__all__ = ["BOOK_RULES"]

ROW: Final = "run_books"
DIGITS: Final = 15  # sequences are at most 10^15 - 1


def _keys(sample: Sample) -> RunKeys | None:
    """Give the keys of the run that the books are of."""
    beside = key_beside(sample.fields.get("place", ""))
    run_id = run_id_of(beside.encode("utf-8", "surrogateescape"))
    return None if run_id is None else RunKeys(run_id)


def _ask(sample: Sample) -> list[Question]:
    """Ask whether its writer lives, and what it wrote last."""
    keys = _keys(sample)
    if keys is None:
        return []
    return [("EXISTS", keys.owner), _last_of(keys)]


def _last_of(keys: RunKeys) -> Question:
    return ("XREVRANGE", keys.events, "+", "-", "COUNT", "1")


def _lost(sample: Sample) -> Values | None:
    """Find a run whose writer has neither ended it nor keeps its lease."""
    keys = _keys(sample)
    last = None if keys is None else _last_event(keys, sample)
    if keys is None or last is None or last.closes or not _is_deserted(keys, sample):
        return None
    return {"run": str(keys.run_id), "shown": show(last.id)}


def _is_deserted(keys: RunKeys, sample: Sample) -> bool:
    owned = b"owner" in sample.pairs
    return owned and sample.answers.get(("EXISTS", keys.owner)) == 0


def _last_event(keys: RunKeys, sample: Sample) -> StreamEvent | None:
    entries = sample.answers.get(_last_of(keys))
    if not entries:
        return None
    return StreamEvent.decode(keys.run_id, *entries[0])


def _gone(sample: Sample) -> Values | None:
    """Find books without a run; a living writer that has written nothing has some."""
    keys = _keys(sample)
    if keys is None or sample.answers.get(_last_of(keys)) != []:
        return None
    if sample.answers.get(("EXISTS", keys.owner)) != 0:
        return None
    return {"run": str(keys.run_id), "shown": show(sample.pairs.get(b"sequence"))}


def _odd_books(sample: Sample) -> Values | None:
    """Find what the script that counts could not read."""
    sequence, last = sample.pairs.get(b"sequence"), sample.pairs.get(b"id")
    if sequence is not None and not _is_count(sequence):
        return {"field": "sequence", "shown": show(sequence)}
    if last is not None and find_id(last.decode("ascii", "replace")) is None:
        return {"field": "id", "shown": show(last)}
    return None


def _is_count(written: bytes) -> bool:
    return written.isdigit() and len(written) <= DIGITS


_E, _W = Severity.ERROR, Severity.WARNING

BOOK_RULES: Final = (
    Rule("run-lost", ROW, _W, "bls_agent", _lost, _ask),
    Rule("run-gone", ROW, _W, "bls_agent", _gone, _ask),
    Rule("run-books", ROW, _E, "bls_agent", _odd_books),
)
