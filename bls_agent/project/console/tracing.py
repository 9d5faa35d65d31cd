"""Where tracing sees the commands that a console sends."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from bls_agent.core.errors import CommandTooLargeError
from bls_agent.project.messages import Command


class SendTracer(Protocol):
    """Observes the sending of a command; tracing puts its fields into the payload."""

    def __call__(
        self, project: str, command: Command, payload: bytes, size_limit: int, /
    ) -> AbstractContextManager[bytes]:
        """Return a context manager that returns the payload to send."""
        ...


def untraced(
    _project: str, _command: Command, payload: bytes, _size_limit: int
) -> AbstractContextManager[bytes]:
    return nullcontext(payload)


class SendTracing:
    """Holds the tracer of a console, if it has one."""

    def __init__(self) -> None:
        self.tracer: SendTracer = untraced


class Traceable(Protocol):
    """A :class:`~bls_agent.Console` or :class:`~bls_agent.SyncConsole`."""

    _tracing: SendTracing


def tracing_of(console: Traceable) -> SendTracing:
    return console._tracing  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - declared in this module


def encode_within(
    size_limit: int, command: Command, trace: Mapping[str, str] | None = None
) -> bytes:
    payload = command.encode(trace)
    if len(payload) > size_limit:
        raise CommandTooLargeError(len(payload), size_limit)
    return payload
