"""Batches of events, and how much of one goes through the link at once; no I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias, cast

from bls_agent.codec import JSONObject, decode, encode_within
from bls_agent.endpoint import Argument
from bls_agent.runs.new_events import FIELDS_BYTES
from bls_agent.runs.writing.emitted import Emitted

__all__ = ["Batch", "Passage", "Row"]

Row: TypeAlias = tuple[Argument, Argument, Argument, Argument, Argument, Argument,
                       Argument, Argument, bytes]  # fmt: skip

TRIES: Final = 3  # of one event that does not pass in time, until its data are cut
LARGE: Final = 4 * 1024  # bytes of data: what is shorter is not what keeps it
LESS: Final = 4  # by which long data are divided
QUICK: Final = 4  # times as fast as what failed: then more may go at once
ALL: Final = 1 << 40  # bytes
NEVER: Final = float("inf")


class Batch(list[Emitted]):
    """Events that are written in one step, or part by part where the link is narrow.

    Attributes:
        rows: What is written: nine arguments for each event.
        pieces: How many were merged into the event of another one.
        ends: Whether the run ends with it.
        done: How many of the events stand in Redis.
        number: Of the part that is under way; 0 if none is. A part keeps it when it is
            sent again, and a later part has a greater one.
        stuck_at: When the next event alone did not pass for the first time.
    """

    def __init__(self, events: Sequence[Emitted]) -> None:
        """Take the events; what is written of them follows."""
        super().__init__(events)
        self.rows: list[Row] = []
        self.pieces = 0
        self.ends = False
        self.done = 0
        self.number = 0
        self.stuck_at = NEVER
        self._failed = 0  # how often the next event alone did not pass

    def part(self, most: int) -> list[Row]:
        """Give what to write next.

        Args:
            most: Bytes, about; one event is given in any case.
        """
        if most >= ALL:
            return self.rows[self.done :]
        part: list[Row] = []
        for row in self.rows[self.done :]:
            most -= _size_of(row)
            if part and most < 0:
                break
            part.append(row)
        return part

    def settle(self, count: int) -> None:
        """Note that so many events more stand in Redis."""
        self.done += count
        self.number = self._failed = 0
        self.stuck_at = NEVER

    def cut(self, limit: int, *, is_narrow: bool = True) -> int:
        """Cut the data of the next event, if it is they that do not pass the link.

        Args:
            limit: Shortest data that are cut to.
            is_narrow: Whether something shorter has passed meanwhile, as far as we know.

        Returns:
            How long they were; 0 if they were left as they are.
        """
        self._failed += 1
        row = self.rows[self.done]
        data = row[-1]
        if self._failed < TRIES or not is_narrow or len(data) < max(LARGE, limit):
            return 0
        self._failed, self.stuck_at = 0, NEVER
        plain = cast("JSONObject", decode(data))
        shorter, _ = encode_within(plain, max(limit, len(data) // LESS))
        self.rows[self.done] = (*row[:-1], shorter)
        return len(data)


class Passage:
    """How many bytes may go at once: as many as come through the link in time.

    Attributes:
        most: Bytes of a part of a batch.
    """

    def __init__(self) -> None:
        """Everything may: nobody knows better."""
        self.most = ALL
        self._too_long = 0.0

    def shrink(self, part: Sequence[Row], took: float) -> None:
        """Note that this did not pass within that time."""
        self.most = max(1, sum(map(_size_of, part)) // 2)
        self._too_long = took

    def widen(self, took: float) -> None:
        """Note in how many seconds a part has passed."""
        if self.most < ALL and took * QUICK < self._too_long:
            self.most *= 2


def _size_of(row: Row) -> int:
    return len(row[-1]) + FIELDS_BYTES
