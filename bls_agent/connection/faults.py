"""The one table that gives every foreign error its class."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

if TYPE_CHECKING:
    from bls_agent.connection.endpoint import Reply

__all__ = [
    "Fault",
    "classify",
    "ends_connection",
    "is_error_reply",
    "port_was_closed",
    "quotes_arguments",
    "redirects",
    "translate",
]


ECHO: Final = ", with args beginning"  # what Redis says in front of our arguments
CHAIN: Final = 10  # causes that are looked at; a chain of them may be a circle


class Fault(NamedTuple):
    """The class of a foreign error."""

    kind: str  # one word for messages, counters and tests
    permanent: bool  # trying again soon does not help
    drop: bool  # the connection must not be used again


# Class name (anywhere in the error's ancestry), beginning of its text → fault.
# The first row that fits decides; redis-py's own tree is no help, because there
# a wrong password is a ConnectionError and READONLY is not.
_FAULTS: Final = (
    ("AuthenticationError", "", Fault("auth", permanent=True, drop=True)),
    ("NoPermissionError", "", Fault("no_permission", permanent=True, drop=False)),
    ("InvalidResponse", "", Fault("not_redis", permanent=True, drop=True)),
    ("BusyLoadingError", "", Fault("loading", permanent=False, drop=False)),
    ("ReadOnlyError", "", Fault("read_only", permanent=False, drop=True)),
    ("MasterDownError", "", Fault("master_down", permanent=False, drop=True)),
    ("ClusterDownError", "", Fault("cluster_down", permanent=False, drop=True)),
    ("TryAgainError", "", Fault("try_again", permanent=False, drop=False)),
    ("MovedError", "", Fault("moved", permanent=False, drop=True)),
    ("AskError", "", Fault("ask", permanent=False, drop=False)),
    ("ClusterCrossSlotError", "", Fault("cross_slot", permanent=True, drop=False)),
    # redis-py 5 has no classes for the errors of clusters: the text decides.
    # A script of Redis 6.2 hides the class of the error in it.
    ("ResponseError", "READONLY", Fault("read_only", permanent=False, drop=True)),
    ("ResponseError", "MASTERDOWN", Fault("master_down", permanent=False, drop=True)),
    ("ResponseError", "CLUSTERDOWN", Fault("cluster_down", permanent=False, drop=True)),
    ("ResponseError", "TRYAGAIN", Fault("try_again", permanent=False, drop=False)),
    ("ResponseError", "MOVED ", Fault("moved", permanent=False, drop=True)),
    ("ResponseError", "ASK ", Fault("ask", permanent=False, drop=False)),
    ("ResponseError", "CROSSSLOT", Fault("cross_slot", permanent=True, drop=False)),
    ("OutOfMemoryError", "", Fault("out_of_memory", permanent=False, drop=False)),
    ("NoScriptError", "", Fault("no_script", permanent=False, drop=False)),
    ("ResponseError", "WRONGTYPE", Fault("wrong_type", permanent=True, drop=False)),
    ("ResponseError", "UNBLOCKED", Fault("role_changed", permanent=False, drop=True)),
    ("ResponseError", "MISCONF", Fault("disk", permanent=False, drop=False)),
    ("ResponseError", "NOREPLICAS", Fault("no_replicas", permanent=False, drop=False)),
    ("ResponseError", "BUSY", Fault("busy", permanent=False, drop=False)),
    ("ResponseError", "NOAUTH", Fault("auth", permanent=True, drop=True)),
    ("ResponseError", "NOPERM", Fault("no_permission", permanent=True, drop=False)),
    (
        "ResponseError",
        "ACL failure",
        Fault("no_permission", permanent=True, drop=False),
    ),
    (
        "ResponseError",
        "The user exec",
        Fault("no_permission", permanent=True, drop=False),
    ),
    ("ResponseError", "OOM", Fault("out_of_memory", permanent=False, drop=False)),
    ("ResponseError", "unknown", Fault("unknown_command", permanent=True, drop=False)),
    ("ResponseError", "Protocol error", Fault("protocol", permanent=True, drop=True)),
    ("ResponseError", "wrong number", Fault("unsupported", permanent=True, drop=False)),
    ("ResponseError", "syntax", Fault("unsupported", permanent=True, drop=False)),
    ("ResponseError", "", Fault("refused", permanent=True, drop=False)),
    ("SSLCertVerificationError", "", Fault("tls", permanent=True, drop=True)),
    ("TimeoutError", "", Fault("timeout", permanent=False, drop=True)),
    ("ConnectionError", "max number", Fault("max_clients", permanent=False, drop=True)),
    ("Exception", "", Fault("connection", permanent=False, drop=True)),
)


# Errors of OpenSSL that are permanent; redis-py hides them in its own error.
_TLS: Final = (
    "certificate_verify_failed",
    "wrong_version_number",  # no TLS there
    "record layer failure",  # the same, in newer versions
    "_alert_",  # the other side refuses: our certificate, our version, our ciphers
    "unsupported_protocol",
    "] pem lib",  # a key or certificate of ours that cannot be read
    "[x509: ",  # the same, or the two do not belong together
)


# What Redis before 7 puts in front of an error in a script.
_IN_SCRIPT: Final = re.compile(
    r"(error running script \(call to \w+\): )?(@user_script: ?\d+: )+-?"
)


def classify(error: BaseException) -> Fault:
    """Find the class of a foreign error in the table of this module."""
    names = {base.__name__ for base in type(error).__mro__}
    text = _IN_SCRIPT.sub("", str(error).removeprefix("ERR ").lower(), count=1)
    if "ResponseError" not in names and any(word in text for word in _TLS):
        return Fault("tls", permanent=True, drop=True)
    for name, start, fault in _FAULTS:
        if name in names and text.startswith(start.lower()):
            return fault
    return Fault("connection", permanent=False, drop=True)


def translate(
    error: Exception, address: str, *, ambiguous: bool = False, connecting: bool = False
) -> RedisUnavailableError:
    """Turn a foreign error into ours, without the arguments that Redis echoes."""
    if isinstance(error, RedisUnavailableError):
        return type(error)(
            error.kind,
            error.reason + (_advise(error.reason, address) if connecting else ""),
            address=address,
            ambiguous=ambiguous,
            connecting=connecting,
        )
    fault = classify(error)
    if fault.kind == "not_redis" and not connecting:
        # A moment ago it was Redis; the next connection shows whether it still is.
        fault = Fault("garbled", permanent=False, drop=True)
    reason = str(error).split(ECHO, 1)[0] or type(error).__name__
    kind = RedisRefusedError if fault.permanent else RedisUnavailableError
    if connecting:
        reason += _advise(reason, address)
    return kind(
        fault.kind, reason, address=address, ambiguous=ambiguous, connecting=connecting
    )


def _advise(reason: str, address: str) -> str:
    """Say what probably listens instead of Redis, and what to write in the URL."""
    if address.startswith("rediss") and reason == "TimeoutError":
        return "; a port without TLS keeps silent like that: is it redis://?"
    for sign, advice in _SIGNS.items():
        if sign in reason and advice not in reason:
            return advice
    return ""


# Text in an error of a new connection → what listens there.
_HTTP: Final = "; an HTTP server seems to answer there: is the port right?"
_NO_TLS: Final = "; no TLS is spoken there: is it redis:// with one s, or another port?"
_SIGNS: Final = {
    'got "H" as reply': _HTTP,
    'got "<" as reply': _HTTP,
    "b'HTTP/": _HTTP,  # without hiredis
    'got "\\x15" as reply': "; TLS is spoken there: is it rediss:// with two s?",
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "record layer failure": _NO_TLS,
}


def quotes_arguments(error: BaseException) -> bool:
    """Tell whether Redis echoes our arguments in an error: of AUTH, the password."""
    return ECHO in str(error)


def port_was_closed(error: BaseException | None) -> bool:
    """Tell whether the port was closed: a later listener is another process."""
    for _ in range(CHAIN):
        if error is None:
            break
        if isinstance(error, ConnectionRefusedError | FileNotFoundError):
            return True
        if f"Errno {errno.ECONNREFUSED}]" in str(error):  # several addresses, one text
            return True
        error = error.__cause__ or error.__context__
    return False


def is_error_reply(error: Exception) -> bool:
    """Tell an error that the server sent from a failure of the connection."""
    return classify(error).kind not in ("connection", "timeout", "tls", "not_redis")


def redirects(reply: Reply) -> bool:
    """Tell whether a reply names another node; its request was not executed."""
    return isinstance(reply, RedisUnavailableError) and reply.kind in ("moved", "ask")


def ends_connection(reply: Reply) -> bool:
    """Tell whether the connection must not be used after this error reply."""
    return isinstance(reply, RedisUnavailableError) and reply.kind in _DROP_KINDS


_DROP_KINDS: Final = frozenset(fault.kind for _, _, fault in _FAULTS if fault.drop)
