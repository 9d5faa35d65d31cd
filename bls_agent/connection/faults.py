"""The table that maps errors of redis-py and asyncio to errors of this package."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Final

from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

if TYPE_CHECKING:
    from bls_agent.connection.endpoint import Reply


# After these words an error of Redis quotes the arguments of the command. The arguments
# of AUTH contain the password.
ECHO: Final = ", with args beginning"
CHAIN: Final = 10  # most causes of an error to follow; a chain may be circular


# Each row: a class name anywhere in the error's ancestry, the beginning of its text,
# and the kind. The first row that fits decides. The class alone is not enough, because
# in redis-py a wrong password is a ConnectionError, like a lost connection.
_KINDS: Final = (
    ("AuthenticationError", "", "auth"),
    ("NoPermissionError", "", "no_permission"),
    ("InvalidResponse", "", "not_redis"),
    ("BusyLoadingError", "", "loading"),
    ("ReadOnlyError", "", "read_only"),
    ("MasterDownError", "", "master_down"),
    ("ClusterDownError", "", "cluster_down"),
    ("TryAgainError", "", "try_again"),
    ("MovedError", "", "moved"),
    ("AskError", "", "ask"),
    ("ClusterCrossSlotError", "", "cross_slot"),
    # From here on only the text decides, because redis-py 5 has no classes for cluster
    # errors, and because an error inside a script of Redis 6.2 loses its class.
    ("ResponseError", "READONLY", "read_only"),
    ("ResponseError", "MASTERDOWN", "master_down"),
    ("ResponseError", "CLUSTERDOWN", "cluster_down"),
    ("ResponseError", "TRYAGAIN", "try_again"),
    ("ResponseError", "MOVED ", "moved"),
    ("ResponseError", "ASK ", "ask"),
    ("ResponseError", "CROSSSLOT", "cross_slot"),
    ("OutOfMemoryError", "", "out_of_memory"),
    ("NoScriptError", "", "no_script"),
    ("ResponseError", "WRONGTYPE", "wrong_type"),
    ("ResponseError", "UNBLOCKED", "role_changed"),
    ("ResponseError", "MISCONF", "disk"),
    ("ResponseError", "NOREPLICAS", "no_replicas"),
    ("ResponseError", "BUSY", "busy"),
    ("ResponseError", "NOAUTH", "auth"),
    ("ResponseError", "NOPERM", "no_permission"),
    ("ResponseError", "ACL failure", "no_permission"),
    ("ResponseError", "The user exec", "no_permission"),
    ("ResponseError", "OOM", "out_of_memory"),
    ("ResponseError", "unknown", "unknown_command"),
    ("ResponseError", "Protocol error", "protocol"),
    ("ResponseError", "wrong number", "unsupported"),
    ("ResponseError", "syntax", "unsupported"),
    ("ResponseError", "", "refused"),
    ("SSLCertVerificationError", "", "tls"),
    ("TimeoutError", "", "timeout"),
    ("ConnectionError", "max number", "max_clients"),
    ("Exception", "", "connection"),
)

_PERMANENT: Final = frozenset(  # kinds for which trying again soon does not help
    {
        "auth", "cross_slot", "no_permission", "not_redis", "protocol", "refused", "tls",
        "unknown_command", "unsupported", "wrong_type",
    }
)  # fmt: skip
# Kinds of errors if the server does not have a command, or does not allow it. ``refused``
# means that the ACL allows scripts, but not the commands in the script.
NOT_ALLOWED: Final = ("no_permission", "unknown_command", "unsupported", "refused")
_ENDING: Final = frozenset(  # of replies after which the connection must not be used
    {
        "auth", "cluster_down", "master_down", "max_clients", "moved", "protocol",
        "read_only", "role_changed",
    }
)  # fmt: skip


# Parts of the texts of permanent OpenSSL errors, which redis-py wraps in its own error.
_TLS: Final = (
    "certificate_verify_failed",
    "wrong_version_number",  # the server does not use TLS
    "record layer failure",  # the server does not use TLS, in newer versions
    "_alert_",  # the server refuses our certificate, version or ciphers
    "unsupported_protocol",
    "] pem lib",  # OpenSSL cannot read our key or certificate
    "[x509: ",  # the key does not match the certificate, or is no key
)


# The text that Redis before 7 puts before an error in a script.
_IN_SCRIPT: Final = re.compile(
    r"(error running script \(call to \w+\): )?(@user_script: ?\d+: )+-?"
)


def classify(error: BaseException) -> str:
    names = {base.__name__ for base in type(error).__mro__}
    text = _IN_SCRIPT.sub("", str(error).removeprefix("ERR ").lower(), count=1)
    if "ResponseError" not in names and any(word in text for word in _TLS):
        return "tls"
    for name, start, kind in _KINDS:
        if name in names and text.startswith(start.lower()):
            return kind
    return "connection"


def translate(
    error: Exception, address: str, *, ambiguous: bool = False, connecting: bool = False
) -> RedisUnavailableError:
    """Return an error of this package for any error, without arguments of commands."""
    if isinstance(error, RedisUnavailableError):
        return type(error)(
            error.kind,
            _advise(error.reason, address) if connecting else error.reason,
            address=address,
            ambiguous=ambiguous,
            connecting=connecting,
        )
    kind = classify(error)
    if kind == "not_redis" and not connecting:
        # The server has sent correct replies before. If it is no Redis, the next try to
        # connect finds this out.
        kind = "garbled"
    reason = str(error).split(ECHO, 1)[0] or type(error).__name__
    ours = RedisRefusedError if kind in _PERMANENT else RedisUnavailableError
    if connecting:
        reason = _advise(reason, address)
    return ours(
        kind, reason, address=address, ambiguous=ambiguous, connecting=connecting
    )


def _advise(reason: str, address: str) -> str:
    """Add advice to an error: which server probably answers, and how to fix the URL."""
    if any(advice in reason for advice in _SIGNS.values()):
        return reason
    for sign, advice in _SIGNS.items():
        if sign in reason:
            return reason.removesuffix(".") + advice
    if address.startswith("rediss") and reason == "TimeoutError":
        return f"{reason}; a port without TLS keeps silent like that: is it redis://?"
    return reason


# Text in an error of a new connection → advice that is added to the error.
_HTTP: Final = "; an HTTP server seems to answer there: is it a Redis?"
_NO_TLS: Final = "; no TLS is spoken there: is it redis:// with one s, or another port?"
_SIGNS: Final = {
    'got "H" as reply': _HTTP,
    'got "<" as reply': _HTTP,
    "b'HTTP/": _HTTP,  # without hiredis
    'got "\\x15" as reply': "; TLS is spoken there: is it rediss:// with two s?",
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "record layer failure": _NO_TLS,
    "Connection closed by server": "; is it a Redis that listens there?",
    "as reply type byte": "; is it a Redis that listens there?",
}


def port_was_closed(error: BaseException | None) -> bool:
    """Return whether an error shows a closed port, so that its server has ended."""
    for _ in range(CHAIN):
        if error is None:
            break
        if isinstance(error, ConnectionRefusedError | FileNotFoundError):
            return True
        # If a host has several addresses, asyncio joins their errors in one text.
        if f"Errno {errno.ECONNREFUSED}]" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def redirects(reply: Reply) -> bool:
    """Return whether a reply names another node; the request was not executed then."""
    return isinstance(reply, RedisUnavailableError) and reply.kind in ("moved", "ask")


def ends_connection(reply: Reply) -> bool:
    """Return whether the connection must be closed after this error reply."""
    return isinstance(reply, RedisUnavailableError) and reply.kind in _ENDING
