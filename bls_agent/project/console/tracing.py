"""The interface through which tracing is called for each command of a console."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from bls_agent.core.errors import CommandTooLargeError
from bls_agent.project.messages import Command


class SendTracer(Protocol):
    """Observes the sending of a command, and may add trace fields to its payload."""

    def __call__(
        self, project: str, command: Command, payload: bytes, size_limit: int, /
    ) -> AbstractContextManager[bytes]:
        """Return a context manager, which is open while the command is sent.

        Entering it returns the payload to send.
        """
        ...


def untraced(
    _project: str, _command: Command, payload: bytes, _size_limit: int
) -> AbstractContextManager[bytes]:
    return nullcontext(payload)


class SendTracing:
    """The tracer of a console. Without tracing, :func:`untraced` is the tracer."""

    def __init__(self) -> None:
        self.tracer: SendTracer = untraced


class Traceable(Protocol):
    """A :class:`~bls_agent.Console` or :class:`~bls_agent.SyncConsole`."""

    _tracing: SendTracing


def tracing_of(console: Traceable) -> SendTracing:
    return console._tracing  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - declared in this module


def encode_within(size_limit: int, command: Command) -> bytes:
    payload = command.encode()
    if len(payload) > size_limit:
        raise CommandTooLargeError(len(payload), size_limit)
    return payload
