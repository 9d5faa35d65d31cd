"""Every exception of the package, under one root.

::

    BlsError
    ├─ ConfigurationError        a wrong argument, URL, name or variable; also ValueError
    │  ├─ MissingExtraError      an optional dependency is not installed
    │  └─ CommandTooLargeError   a command is longer than its project may read
    ├─ RedisUnavailableError     Redis did not answer, or cannot serve now
    │  └─ RedisRefusedError      Redis answered "no": password, right, unknown command
    ├─ LeaseHeldError            another live process owns a key that has one writer
    ├─ ContractError             a key or a value breaks the rules of its protocol
    │  ├─ WrongTypeError         a key holds another Redis type
    │  ├─ DecodeError            a value has another form than its protocol requires
    │  └─ ManifestError          a manifest of an asset breaks its rules; lists every fault
    ├─ SourceError               a source of assets cannot be read now
    └─ CommandError
       ├─ UnknownCommandError    no handler is registered for the command
       ├─ ArgumentError          the arguments do not fit the handler's signature
       ├─ DuplicateHandlerError  the command has a handler already; also ValueError
       ├─ UnknownProjectError    the project has no key; nothing was sent
       └─ NoOutcomeError         no outcome record in time; also TimeoutError

    DuplicateItem                a signal: the pipeline drops an item crawled before
    Reject                       a signal: a handler rejects its command

Each class builds its message from typed fields. Read a field such as ``error.key``
instead of parsing the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bls_agent.core.redaction import redact

PREVIEW_BYTES = 64
SHOWN = 80  # characters of a wrong value that a message shows


def preview(payload: bytes) -> str:
    r"""Return the first bytes of a payload without secrets, escaped as ``\xNN``."""
    return redact(repr(bytes(payload[:PREVIEW_BYTES]))[2:-1])


def ask_whether(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests the most similar name, or ``""`` without one."""
    alike = _most_similar(name, known, 0.7)
    return f"Did you mean {alike}?" if alike else ""


def _most_similar(name: str, known: Iterable[str], cutoff: float) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - the import takes 4 ms and is rarely needed

    return "".join(get_close_matches(name, [*known], 1, cutoff))


class BlsError(Exception):
    """The root of every exception that bls-agent raises."""

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling, because a process pool pickles exceptions."""
        return _revive, (type(self), self.args, self.__dict__)


def _revive(
    kind: type[BlsError], args: tuple[object, ...], fields: dict[str, object]
) -> BlsError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class ConfigurationError(BlsError, ValueError):
    """A wrong argument, URL, name or environment variable.

    Attributes:
        name: The name of the argument or variable.
        value: The wrong value, without secrets.
        rule: The rule that the value breaks.
        remedy: Advice on what to do, or ``""``.
    """

    def __init__(self, name: str, value: object, rule: str, remedy: str = "") -> None:
        self.name = name
        self.value: str = redact(value if isinstance(value, str) else _shown(value))
        self.rule = rule
        self.remedy = remedy
        shown = self.value[:SHOWN] + "..." * (len(self.value) > SHOWN)
        advice = f" {remedy}" if remedy else ""
        super().__init__(f"{name}: {shown!r} is not allowed; {rule}.{advice}")


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a program's __repr__ may raise anything
        return f"<{type(value).__name__}>"


class MissingExtraError(ConfigurationError):
    """An optional dependency is not installed; the message names the extra."""

    def __init__(self, extra: str, purpose: str) -> None:
        self.extra: str = extra
        self.purpose: str = purpose
        rule = f"{purpose} needs the extra {extra!r}, which is not installed"
        remedy = f"In the checkout of bls-agent: pip install '.[{extra}]'"
        super().__init__("extra", extra, rule, remedy)
        self.args: tuple[object, ...] = (f"{rule}. {remedy}",)


class CommandTooLargeError(ConfigurationError):
    """A command is longer than its limit and was not sent.

    Attributes:
        size: The command's length in bytes.
        limit: The longest allowed command in bytes.
    """

    def __init__(self, size: int, limit: int) -> None:
        self.size: int = size
        self.limit: int = limit
        rule = f"it may have {limit:,} bytes, with its arguments"
        remedy = (
            "Send a reference to the data; or pass size_limit=, where every agent of "
            "the project reads longer commands."
        )
        super().__init__("command", f"{size:,} bytes", rule, remedy)


class RedisUnavailableError(BlsError):
    """Redis did not answer, or cannot serve this request now.

    Raised if a connection is refused or lost, if no reply comes before the deadline,
    and if a server answers but cannot serve: it is loading, read-only or out of memory,
    or its disk is full.

    Attributes:
        kind: The kind of the fault in one word, such as ``timeout`` or ``read_only``.
        address: The address of Redis, without credentials.
        ambiguous: Whether Redis may have executed the request. If false, Redis did not
            execute the request.
        connecting: Whether the connection could not be opened.
    """

    verb = "is unavailable"

    def __init__(
        self,
        kind: str,
        reason: str,
        *,
        address: str = "",
        ambiguous: bool = False,
        connecting: bool = False,
    ) -> None:
        self.kind = kind
        self.reason: str = redact(reason)
        self.address = address
        self.ambiguous = ambiguous
        self.connecting = connecting
        where = f" at {address}" if address else ""
        super().__init__(f"Redis{where} {self.verb} ({kind}): {self.reason}")


class RedisRefusedError(RedisUnavailableError):
    """Redis refuses a request, and repeating the request does not help.

    An operator has to change the configuration of Redis or of the program.
    """

    verb = "refuses"


class LeaseHeldError(BlsError):
    """Another live process owns a key that only one process may write.

    Nothing was changed.

    Attributes:
        key: The key that has an owner.
        remaining: Seconds until the owner's lease ends, unless the owner renews the
            lease. ``None`` means never, because the key of the lease has no TTL.
    """

    def __init__(
        self,
        key: str,
        remaining: float | None,
        remedy: str = "Give each process an id of its own, or stop the other one first.",
    ) -> None:
        self.key = key
        self.remaining = remaining
        until = (
            "it has no TTL: delete it if nobody writes it any more"
            if remaining is None
            else f"free in {remaining:.1f} s unless its owner renews it"
        )
        super().__init__(
            f"key {key!r} belongs to a running process ({until}). {remedy}"
        )


class ContractError(BlsError):
    """A key or a value in Redis breaks the rules of its protocol."""


class WrongTypeError(ContractError):
    """A key has another Redis type than its protocol requires. The key was not changed.

    Attributes:
        key: The key.
        expected: The type that the key should have.
    """

    def __init__(self, key: str, expected: str) -> None:
        self.key = key
        self.expected = expected
        super().__init__(
            f"key {key!r} holds another type than {expected}; it was left alone. "
            "Is the name right? If so, rename or delete the key."
        )


class DecodeError(ContractError):
    """A value does not have the form that its protocol requires.

    Attributes:
        reason: The kind of fault in one word: ``not_utf8``, ``not_json``,
            ``not_an_object``, ``no_command``, ``bad_args``, ``too_deep``,
            ``too_large``, ``bad_status``, ``bad_request``, ``bad_field``, ``not_a_time``,
            ``not_an_asset``, ``not_a_report``.
        payload: The first bytes of the value.
        size: Length of the whole value in bytes.
    """

    def __init__(self, reason: str, payload: bytes, detail: str = "") -> None:
        self.reason = reason
        self.size: int = len(payload)
        self.payload: bytes = bytes(payload[:PREVIEW_BYTES])
        self.detail = detail
        shown = f" ({detail})" if detail else ""
        super().__init__(
            f"{reason}{shown}: {self.size} bytes beginning '{preview(self.payload)}'"
        )


@dataclass(frozen=True, slots=True)
class ManifestFault:
    """One fault of one manifest, or of the file that holds it.

    Attributes:
        path: The file, relative to the root of its repository.
        reason: The rule that the manifest breaks.
        remedy: Advice on what to do, or ``""``.
        field: The field, as in ``config_schema[0].type``; ``""`` for the whole file.
        line: The line of the field, from 1; 0 for the whole file.
        id: The id of the asset; ``""`` if it is not known.
    """

    path: str
    reason: str
    remedy: str = ""
    field: str = ""
    line: int = 0
    id: str = ""

    def __str__(self) -> str:
        """Return one line, as ``tools/a.yaml:3: version: it is missing. Add …``."""
        place = f"{self.path}:{self.line}" if self.line else self.path
        parts = [place, self.field, f"{self.reason}. {self.remedy}".rstrip(". ")]
        return redact(": ".join(part for part in parts if part))


class ManifestError(ContractError):
    """A manifest of an asset breaks its rules; nothing was written.

    Attributes:
        faults: All faults of the file, in the order of its lines.
    """

    def __init__(self, faults: Sequence[ManifestFault]) -> None:
        self.faults: tuple[ManifestFault, ...] = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


class SourceError(BlsError):
    """A source of assets cannot be read now, or returned incomplete data.

    Attributes:
        source: The source, without credentials.
        reason: What happened.
        retry_after: Seconds after which the source allows the next try; ``None`` if the
            source has sent no such time.
    """

    def __init__(
        self, source: str, reason: str, *, retry_after: float | None = None
    ) -> None:
        self.source = source
        self.reason: str = redact(reason)
        self.retry_after = retry_after
        wait = "" if retry_after is None else f"; try again in {retry_after:.0f} s"
        super().__init__(redact(f"{source}: {reason}{wait}"))


class CommandError(BlsError):
    """The root of the errors of commands and their handlers."""


class UnknownCommandError(CommandError):
    """No handler is registered for this command.

    Attributes:
        command: The name as it was sent.
        likely: The most similar registered name, or ``""``.
    """

    def __init__(self, command: str, known: Iterable[str] = ()) -> None:
        self.command = command
        self.likely: str = _most_similar(command[:100], known, 0.6)
        advice = f"; did you mean {self.likely[:100]!r}?" if self.likely else ""
        super().__init__(f"no handler is registered for {command[:100]!r}{advice}")


class ArgumentError(CommandError):
    """The arguments of a command do not fit its handler; the handler did not run.

    Attributes:
        command: The command's name.
        fields: Name of each wrong argument → what is wrong with the argument.
    """

    def __init__(self, command: str, fields: Mapping[str, str]) -> None:
        self.command = command
        self.fields: dict[str, str] = dict(fields)
        shown = "; ".join(f"{name[:60]!r} {what}" for name, what in self.fields.items())
        super().__init__(redact(f"arguments of {command[:100]!r}: {shown}"))


class DuplicateHandlerError(CommandError, ValueError):
    """Two handlers were registered for one command."""

    def __init__(self, command: str) -> None:
        self.command = command
        super().__init__(f"{command!r} already has a handler; choose another name")


class UnknownProjectError(CommandError):
    """A project has no key in Redis: no status, no log, no queue. Nothing was sent.

    Attributes:
        project: The project's name.
    """

    def __init__(self, project: str) -> None:
        self.project = project
        super().__init__(
            f"there is no project {project[:100]!r}: no status, no log, no queue. "
            "Is the name right? Pass create=True to begin its queue all the same."
        )


class NoOutcomeError(CommandError, TimeoutError):
    """No outcome record of a command appeared in time.

    The console does not withdraw the command. So the command may still be waiting,
    running or done.

    Attributes:
        command: The command's name.
        command_id: The command's id.
        state: The command's state after the timeout. ``offline``: the command waits in
            the queue, and the project is not running. ``waiting``: the command waits in
            the queue of a running project. ``taken``: an agent took the command from
            the queue. ``""``: the state is not known.
        since: ISO-8601 time of the agent's newest record if ``state`` is ``offline``;
            ``""`` if there is no record.
    """

    def __init__(
        self,
        command: str,
        command_id: str,
        timeout: float,
        *,
        state: str = "",
        since: str = "",
    ) -> None:
        self.command = command
        self.command_id = command_id
        self.state = state
        self.since = since
        known = _STATES[state].format(since=f" since {since}" if since else "")
        super().__init__(
            f"no outcome of {command!r} ({command_id}) within {timeout:g} s; {known}"
        )


_STATES: Mapping[str, str] = {
    "": "it may still be waiting, running, or done",
    "offline": "the project is offline{since}: the command waits in its queue and will "
    "run at the next start, if nobody withdraws it",
    "waiting": "it still stands in the queue of the project, which is running",
    "taken": "it was taken from the queue, and may be running, or done",
}


class DuplicateItem(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a pipeline to drop an item, because an equal item was crawled before.

    Attributes:
        fingerprint: The hash that both items have in common.
    """

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        super().__init__(fingerprint)

    def __str__(self) -> str:
        return f"an item with the fingerprint {self.fingerprint} was there before"


class Reject(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a handler or middleware to reject a command (outcome ``rejected``).

    Attributes:
        reason: The text of the outcome record.
        details: More fields for the record's ``error`` object.
    """

    def __init__(
        self, reason: str, details: Mapping[str, object] | Sequence[object] = ()
    ) -> None:
        self.reason = reason
        self.details = details
        super().__init__(reason)
