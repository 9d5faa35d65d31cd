"""The interface through which metrics and tracing are called for each command."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import NamedTuple, Protocol, TypeAlias

from bls_agent.core.redaction import redact_traceback
from bls_agent.project.messages import Outcome
from bls_agent.project.receive.receiver import Message

logger: logging.Logger = logging.getLogger(__name__)


class TakenCommand(NamedTuple):
    """A message that was taken from Redis, as an observer gets it."""

    message: Message  # its payload, its delivery and the mode in which it was taken
    id: str  # "" for a malformed message without a readable id
    command: str  # the name as it was sent; "" for a malformed message
    registered: str | None  # the name of its handler; None if there is no handler
    waited: float | None  # seconds since it was sent; None if its time is not readable


# Called with the outcome, and with the exception that the handler, the check of its
# arguments or a middleware has raised.
OnEnd: TypeAlias = Callable[[Outcome, BaseException | None], object]


class Observer(Protocol):
    """Metrics or tracing.

    If an observer raises an exception, the exception is logged and the observer is
    removed.
    """

    def begin(self, taken: TakenCommand, /) -> OnEnd:
        """Return a function that is called when the command has ended.

        This method and the returned function are called in the event loop of the
        session, in the context of the handler. If this method sets a context variable,
        the value is also set in the handler, in its threads and tasks, and when the
        outcome is logged. If the command is never started, the returned function is
        called immediately.
        """
        ...


class Observation:
    """Calls all observers at the beginning and at the end of one command."""

    def __init__(
        self,
        observers: Observers,
        taken: TakenCommand,
        context: Context,
    ) -> None:
        self.context = context  # of the handler
        self._error: BaseException | None = None
        self._observers = observers
        self._ends: list[tuple[Observer, OnEnd]] = []
        for observer in observers.all:
            try:
                self._ends.append((observer, context.run(observer.begin, taken)))
            except Exception as fault:  # noqa: BLE001 - any error of an observer
                observers.drop(observer, fault)

    def set_error(self, error: BaseException) -> None:
        self._error = error

    def end(self, outcome: Outcome) -> None:
        error, self._error = self._error, None  # its traceback refers to this object
        for observer, on_end in self._ends:
            try:
                self.context.run(on_end, outcome, error)
            except Exception as fault:  # noqa: BLE001 - any error of an observer
                self._observers.drop(observer, fault)


class Observers:
    """The observers of an agent. Any thread may add an observer at any time."""

    def __init__(self) -> None:
        # Each change makes a new sequence, because another task or thread may iterate
        # over the old one.
        self.all: Sequence[Observer] = ()

    def add(self, observer: Observer) -> None:
        self.all = (*self.all, observer)

    def remove(self, observer: Observer) -> bool:
        """Remove an observer; return whether it was there."""
        others = tuple(one for one in self.all if one is not observer)
        is_removed = len(others) < len(self.all)
        self.all = others
        return is_removed

    def drop(self, observer: Observer, fault: Exception) -> None:
        if self.remove(observer):
            text = "%r failed, and observes no more commands\n%s"
            logger.error(text, observer, redact_traceback(fault))
