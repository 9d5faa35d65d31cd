"""How much of a batch goes at once, and what is done with what never passes: decided."""

from __future__ import annotations

from bls_agent.codec import decode, encode
from bls_agent.runs.writing.batches import ALL, LARGE, TRIES, Batch, Passage, Row
from bls_agent.runs.writing.emitted import take


def batch_of(*texts: str) -> Batch:
    """A batch with one event for each text."""
    source = ("", "", "", "")
    batch = Batch(
        [
            take("a", "b", {"x": text}, source, at=0.0, limit=ALL, merges=False)[0]
            for text in texts
        ]
    )
    batch.rows = [row_of(text) for text in texts]
    return batch


def row_of(text: str) -> Row:
    return ("", "", "", "", "", "", "a", "b", encode({"x": text}))


def test_all_goes_at_once_unless_that_is_too_much() -> None:
    """A part is never empty, and what is done is behind it."""
    batch = batch_of("1" * 100, "2" * 100, "3" * 100)
    assert batch.part(ALL) == batch.rows
    assert batch.part(1) == batch.rows[:1]
    assert batch.part(700) == batch.rows[:2]
    batch.settle(2)
    assert batch.part(ALL) == batch.rows[2:]


def test_a_part_has_a_number_of_its_own() -> None:
    """Kept while it is tried, gone when it stands."""
    batch = batch_of("1", "2")
    batch.number = 7
    batch.settle(1)
    assert (batch.number, batch.done) == (0, 1)


def test_long_data_that_never_pass_are_cut() -> None:
    """After some tries, again and again, until they may be short enough."""
    batch = batch_of("first", "x" * 100_000)
    assert [batch.cut(1_024) for _ in range(2 * TRIES)] == [0] * 2 * TRIES  # short
    batch.settle(1)
    sizes = []
    while len(batch.rows[1][-1]) >= LARGE:
        assert [batch.cut(1_024) for _ in range(TRIES - 1)] == [0] * (TRIES - 1)
        sizes.append(batch.cut(1_024))
    assert sizes[0] == len(encode({"x": "x" * 100_000}))
    assert len(sizes) == 2
    kept = decode(batch.rows[1][-1])
    assert isinstance(kept, dict)
    assert str(kept["x"]).startswith("xxx")
    assert batch.rows[0] == row_of("first")
    assert batch.cut(1_024) == 0


def test_a_passage_narrows_and_widens() -> None:
    """Half of what failed; more again when it was quick."""
    passage = Passage()
    assert passage.most == ALL
    passage.widen(0.1)
    assert passage.most == ALL
    part = batch_of("x" * 792, "x" * 792).rows  # 1,000 bytes each
    passage.shrink(part, took=5.0)
    assert passage.most == 1_000
    passage.widen(4.0)
    assert passage.most == 1_000
    passage.widen(1.0)
    assert passage.most == 2_000
