"""Who did what to which element, and when: written down while things go wrong."""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

from bls_agent.agent import ProjectAgent
from bls_agent.core.codec import decode_object, encode
from bls_agent.project.commands.router import CommandContext
from bls_agent.project.messages import LogEntry
from tests.kit.evidence import Evidence


class Step(StrEnum):
    """What can happen to a command or a record."""

    PUSHED = "pushed"
    """The server said that it has it."""

    MAYBE_PUSHED = "maybe_pushed"
    """It was sent, and no answer came."""

    POPPED = "popped"
    """It was handed out."""

    STARTED = "started"
    """Its handler began."""

    ENDED = "ended"
    """Its handler returned, raised or was cancelled."""

    ACKED = "acked"
    """Its outcome stands in the console list; the detail says which one."""

    WAITING = "waiting"
    """It is still in the server when all is over."""

    LOGGED = "logged"
    """A record with this id was given to the agent's log."""

    FOUND = "found"
    """A record with this id stands in the console list."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history.

    Attributes:
        step: What happened.
        id: To which element.
        who: Which instance did it, or ``""``.
        at: Seconds on the clock of ``time.monotonic()``, which all processes of one
            machine share on Linux.
        detail: More, in a word: the outcome, the name of an error.
    """

    step: Step
    id: str
    who: str = ""
    at: float = 0.0
    detail: str = ""


class History:
    """A thread-safe record of what happened to each element.

    Attributes:
        evidence: What was measured meanwhile; the checker looks at it, too.

    Args:
        path: A file to which each event is appended at once as a line of JSON, so that
            it survives the process that wrote it. Other processes may append to the
            same file; :meth:`load` reads it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.evidence = Evidence()
        self._events: list[Event] = []
        self._totals: Counter[Step] = Counter()
        self._lock = threading.Lock()
        self._file = -1
        if path is not None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o600)

    @classmethod
    def load(cls, *paths: Path) -> Self:
        """Read what other processes wrote down; a line that was cut off is left out."""
        events: list[Event] = []
        for path in paths:
            for line in path.read_bytes().split(b"\n"):
                if line.endswith(b"}"):
                    fields: dict[str, Any] = decode_object(line)
                    fields["step"] = Step(fields["step"])
                    events.append(Event(**fields))
        history = cls()
        history._events = sorted(events, key=lambda event: event.at)
        history._totals.update(event.step for event in events)
        return history

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        """Give the events so far, in order."""
        return iter(self.events())

    def events(self, *steps: Step, since: float = -math.inf) -> list[Event]:
        """Give the events so far, of these kinds or of all.

        Args:
            steps: The kinds.
            since: Only those from this moment on; looking there often costs little.
        """
        with self._lock:
            recent = takewhile(lambda event: event.at >= since, reversed(self._events))
            found = [event for event in recent if not steps or event.step in steps]
        return found[::-1]

    def count(self, *steps: Step) -> Counter[str]:
        """Count the events of these kinds for each element."""
        return Counter(event.id for event in self.events(*steps))

    def total(self, step: Step) -> int:
        """Count the events of one kind; may be asked as often as you like."""
        return self._totals[step]

    def note(self, step: Step, id: str, who: str = "", detail: str = "") -> None:  # noqa: A002 - the contract's name
        """Write down that something happened, now; from any thread."""
        with self._lock:
            event = Event(step, id, who, time.monotonic(), detail)
            self._events.append(event)
            self._totals[step] += 1
        if self._file >= 0:
            os.write(self._file, encode(asdict(event)) + b"\n")  # one line, one write

    def merge(self, other: History) -> None:
        """Take over the events of another history, by their time."""
        theirs = other.events()
        with self._lock:
            self._events = sorted([*self._events, *theirs], key=lambda e: e.at)
            self._totals.update(event.step for event in theirs)

    def close(self) -> None:
        """Close the file, if there is one; what is noted later stays in memory."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    # -- what an agent does

    def attach(self, agent: ProjectAgent) -> None:
        """Write down each command that this agent starts and ends, by its id.

        It is a middleware: attach before your own ones, and it stands around them.
        """

        async def write_down(
            context: CommandContext,
            call_next: Callable[[CommandContext], Awaitable[Any]],
        ) -> Any:
            who = agent.stats().instance
            self.note(Step.STARTED, context.id, who, f"delivery {context.delivery}")
            detail = "returned"
            try:
                return await call_next(context)
            except BaseException as error:
                detail = type(error).__name__
                raise
            finally:
                self.note(Step.ENDED, context.id, who, detail)

        agent.middleware(write_down)

    def log(self, agent: ProjectAgent, message: str = "chaos") -> str:
        """Give a record to an agent's log, under an id that :meth:`find_records` knows."""
        number = secrets.token_hex(8)
        self.note(Step.LOGGED, number, agent.stats().instance)
        agent.log.info(message, chaos=number)
        return number

    def find_records(self, values: Iterable[bytes | str]) -> None:
        """Write down what a console list tells: records of :meth:`log`, and outcomes."""
        for value in values:
            payload = value.encode() if isinstance(value, str) else value
            entry = LogEntry.decode(payload)
            if "chaos" in entry.metadata:
                self.note(Step.FOUND, str(entry.metadata["chaos"]), entry.instance)
            if entry.outcome is not None and entry.outcome.command_id:
                kind = entry.outcome.kind.value
                self.note(Step.ACKED, entry.outcome.command_id, entry.instance, kind)
