"""What has to be true after everything went wrong: eight invariants, one checker. Pure.

Each check looks at a history and what a mode promises, and gives violations that say
which elements are concerned. What was not measured is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self

from bls_agent.project.messages import Status
from tests.kit.evidence import Footprint, LogCount, StatusSample
from tests.kit.history import History, Step

SHOWN: Final = 10  # ids in a message


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What may happen at most, in a mode and under a fault.

    Attributes:
        lost: Commands that may be lost: pushed, never started, not in the server.
        repeated: Starts beyond the first one of a command, all commands together.
        recovery: Seconds from the end of a fault until all is well.
        status_ttl: Seconds for which a status may be wrong.
        vanished: Seconds for which the status of a living agent may be missing while
            Redis answers; 0 for not even once.
        memory: Bytes by which the process may grow.
        server_forgets: Whether the server may have lost what it had answered: it then
            hands out again, and misses, what nobody is to blame for.
        healed_at: When the server forgot for the last time, on the clock of the
            history: of the commands that were pushed later, none may be lost.
    """

    lost: int = 0
    repeated: int = 0
    recovery: float = 3.0
    status_ttl: float = 60.0
    vanished: float = 3.0
    memory: int = 64 * 1024 * 1024
    server_forgets: bool = False
    healed_at: float = math.inf

    @classmethod
    def blocking(
        cls,
        *,
        swallowed: int = 0,
        killed: int = 0,
        prefetch: int = 1,
        concurrency: int = 1,
    ) -> Self:
        """At most once.

        Args:
            swallowed: Replies that a dying server or link may have swallowed.
            killed: Processes killed by SIGKILL.
            prefetch: As the agent's setting.
            concurrency: As the agent's setting.
        """
        held = concurrency + prefetch - 1
        return cls(lost=swallowed * prefetch + killed * held)

    @classmethod
    def compat(cls, *, deaths: int = 0) -> Self:
        """At least once, one at a time.

        Args:
            deaths: Processes killed and links broken: each may repeat one command.
        """
        return cls(repeated=deaths)

    @classmethod
    def reliable(
        cls, *, deaths: int = 0, concurrency: int = 1, prefetch: int = 1
    ) -> Self:
        """At least once.

        Args:
            deaths: Processes killed and links broken.
            concurrency: As the agent's setting.
            prefetch: As the agent's setting: what has ended may wait for its ack.
        """
        return cls(repeated=deaths * (concurrency + prefetch - 1))


@dataclass(frozen=True)
class Violation:
    """A promise that was broken.

    Attributes:
        invariant: Its name, ``C1`` to ``C8``.
        text: What happened.
    """

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


@dataclass(frozen=True)
class Tally:
    """What became of the commands of a history, by id.

    Attributes:
        sent: Those that the server said it has.
        handled: Those that were started.
        waiting: Those that are in the server still.
        lost: Those that are neither.
        repeated: Starts beyond the first one of each command.
    """

    sent: frozenset[str]
    handled: frozenset[str]
    waiting: frozenset[str]
    lost: frozenset[str]
    repeated: dict[str, int]

    @classmethod
    def of(cls, history: History) -> Self:
        """Count."""
        starts = history.count(Step.STARTED)
        sent = frozenset(history.count(Step.PUSHED))
        waiting = frozenset(history.count(Step.WAITING))
        return cls(
            sent=sent,
            handled=frozenset(starts),
            waiting=waiting,
            lost=sent - starts.keys() - waiting,
            repeated={name: n - 1 for name, n in starts.items() if n > 1},
        )


def check_invariants(history: History, promise: Promise) -> list[Violation]:
    """Judge a history.

    Args:
        history: What happened, with its evidence. What is still in the server has to
            be noted as ``WAITING`` before.
        promise: What may happen.

    Returns:
        What was broken, in the order of the invariants; empty if all is well.
    """
    return [
        Violation(name, text)
        for name, check in CHECKS.items()
        for text in check(history, promise)
    ]


def _check_repeats(history: History, promise: Promise) -> Iterator[str]:
    """C1: no command is started more often than it may be."""
    if promise.server_forgets:
        return
    tally = Tally.of(history)
    total = sum(tally.repeated.values())
    if total > promise.repeated:
        yield (
            f"{total} starts beyond the first of a command, at most "
            f"{promise.repeated} may be: {_some(tally.repeated)}"
        )
    if not promise.repeated and (both := tally.handled & tally.waiting):
        yield f"started, and in the server all the same: {_some(both)}"


def _check_losses(history: History, promise: Promise) -> Iterator[str]:
    """C2: each command was started, or waits, or is one of the few that may be lost."""
    tally = Tally.of(history)
    known = tally.sent | history.count(Step.MAYBE_PUSHED).keys()
    if strangers := (tally.handled | tally.waiting) - known:
        yield f"started or waiting, and never pushed: {_some(strangers)}"
    few = promise.lost and not promise.server_forgets
    if few and len(tally.lost) > promise.lost:
        yield f"{_lost(tally)}, at most {promise.lost} may be"


def _check_nothing_lost(history: History, promise: Promise) -> Iterator[str]:
    """C3: where no command may be lost, no command is lost.

    1. The server forgot: no command that was pushed later is lost.
    2. Some commands may be lost: C2 counts the lost commands.
    3. Otherwise no command is lost.
    """
    tally = Tally.of(history)
    if promise.server_forgets:
        late = history.events(Step.MAYBE_PUSHED, since=promise.healed_at)
        if lost := tally.lost & {event.id for event in late}:
            yield f"pushed after the server forgot, and lost: {_some(lost)}"
    elif tally.lost and not promise.lost:
        yield f"{_lost(tally)}, none may be"


def _check_log(history: History, promise: Promise) -> Iterator[str]:
    """C4: accepted = delivered + dropped + queued, and the list agrees."""
    evidence = history.evidence
    for count in (*evidence.log_counts, *evidence.final_log_counts):
        told = count.delivered + count.dropped + count.queued
        if count.accepted != told:
            yield (
                f"{count.accepted} records accepted, but {count.delivered} delivered"
                f" + {count.dropped} dropped + {count.queued} queued = {told}"
            )
    if evidence.final_log_counts and not promise.server_forgets:
        yield from _compare_with_list(history, evidence.final_log_counts)


def _compare_with_list(history: History, counts: list[LogCount]) -> Iterator[str]:
    logged, found = history.count(Step.LOGGED), history.count(Step.FOUND)
    missing = logged.keys() - found.keys()
    excused = sum(count.dropped + count.queued for count in counts)
    if len(missing) > excused:
        yield (
            f"{len(missing)} records are not in the list, {excused} were dropped or "
            f"wait: {_some(missing)}"
        )
    twice = sum(found.values()) - len(found)
    told = sum(count.maybe_repeated for count in counts)
    if twice > told:
        yield f"{twice} records stand in the list again, {told} were counted"
    elif not told:
        yield from _compare_order(history)


def _compare_order(history: History) -> Iterator[str]:
    """Where no batch was sent again, the list has each agent's records in their order."""
    found = [event.id for event in history.events(Step.FOUND)]
    writers = {event.id: event.who for event in history.events(Step.LOGGED)}
    places = {number: place for place, number in enumerate(writers)}
    for who in set(writers.values()):
        shown = [places[number] for number in found if writers.get(number) == who]
        if shown != sorted(shown):
            yield f"the records of {who or 'the agent'} are not in order"


def _check_status(history: History, promise: Promise) -> Iterator[str]:
    """C5: no 离线 of a living agent, and no other lie for longer than may be."""
    samples = history.evidence.statuses
    for sample in samples:
        if not sample.is_true and sample.shown == Status.OFFLINE:
            yield f"{sample.shown} shown, true is {_values(sample)}"
            break
    for lie, seconds in _lies(samples):
        limit = promise.vanished if lie.shown is None else promise.status_ttl
        if seconds > limit or not limit:
            yield (
                f"{lie.shown or 'nothing'} shown for {seconds:.1f} s, at most "
                f"{limit:g} s; true is {_values(lie)}"
            )


def _lies(samples: list[StatusSample]) -> Iterator[tuple[StatusSample, float]]:
    """Give each lie with the seconds for which it was told without a break."""
    first: StatusSample | None = None
    last_at = 0.0
    for sample in samples:
        same = first is not None and (first.shown, first.truth) == (
            sample.shown,
            sample.truth,
        )
        if first is not None and not (same and sample.answered):
            yield first, last_at - first.at
            first = None
        if first is None and not sample.is_true:
            first = sample
        last_at = sample.at
    if first is not None:
        yield first, last_at - first.at


def _check_memory(history: History, promise: Promise) -> Iterator[str]:
    """C6: the process does not grow further than it may."""
    sizes = [footprint.memory for footprint in history.evidence.footprints]
    if sizes and max(sizes) - sizes[0] > promise.memory:
        grown = (max(sizes) - sizes[0]) / 1e6
        yield f"grown by {grown:.1f} MB, at most {promise.memory / 1e6:.1f} MB"


def _check_host(history: History, _: Promise) -> Iterator[str]:
    """C7: nothing reached the host, and nothing is left behind."""
    evidence = history.evidence
    yield from (f"reached the host: {error}" for error in evidence.host_errors)
    footprints = evidence.footprints
    if len(footprints) < 2:
        return
    for name in ("descriptors", "threads", "tasks"):
        before, after = (_part(footprints[place], name) for place in (0, -1))
        if after > before:
            yield f"{after - before} {name} left behind ({before} before)"


def _part(footprint: Footprint, name: str) -> int:
    value: int = getattr(footprint, name)
    return value


def _check_recovery(history: History, promise: Promise) -> Iterator[str]:
    """C8: all is well again in time."""
    for recovery in history.evidence.recoveries:
        if recovery.seconds is None:
            yield f"never well again after {recovery.fault}"
        elif recovery.seconds > promise.recovery:
            yield (
                f"well again {recovery.seconds:.2f} s after {recovery.fault}, "
                f"at most {promise.recovery:g} s"
            )


CHECKS: Final[dict[str, Callable[[History, Promise], Iterable[str]]]] = {
    "C1": _check_repeats,
    "C2": _check_losses,
    "C3": _check_nothing_lost,
    "C4": _check_log,
    "C5": _check_status,
    "C6": _check_memory,
    "C7": _check_host,
    "C8": _check_recovery,
}


def _lost(tally: Tally) -> str:
    return f"{len(tally.lost)} of {len(tally.sent)} commands lost ({_some(tally.lost)})"


def _some(ids: Iterable[str]) -> str:
    names = sorted(ids)
    return ", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN)


def _values(sample: StatusSample) -> str:
    return " or ".join(sorted(value or "nothing" for value in sample.truth))
