"""What a request about a run is answered with: JSON, statuses, headers; no I/O here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from starlette.responses import Response

from bls_agent.core.codec import encode
from bls_agent.core.errors import (
    BlsError,
    ConfigurationError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.runs.event_ids import check_run_id
from bls_agent.runs.events import StreamEvent

__all__ = [
    "CROWDED",
    "STREAM_HEADERS",
    "answer_error",
    "answer_page",
    "error_of",
    "read_limit",
    "read_run_id",
]

RETRY_AFTER: Final = "2"  # seconds
CROWDED: Final = 10_000  # milliseconds until a client comes back that found no room
DIGITS: Final = 19  # of the largest run id
# No cache keeps what may need a right to be read; no proxy collects it first.
HEADERS: Final = {"cache-control": "no-cache, no-store"}
STREAM_HEADERS: Final = {**HEADERS, "x-accel-buffering": "no"}
_ABSENT: Final = {404: "there is no such run", 410: "the run is not there any more"}


def answer_error(
    status: int,
    message: str = "",
    headers: Mapping[str, str] | None = None,
    **more: str,
) -> Response:
    """Answer with an error in JSON: ``error``, and what else is to be said."""
    body = encode({"error": message or _ABSENT[status], **more})
    told = {**HEADERS, "x-content-type-options": "nosniff", **(headers or {})}
    return Response(body, status, told, "application/json")


def error_of(error: BlsError) -> Response:
    """Answer with an error of ours, without addresses: strangers may read it."""
    if isinstance(error, RedisUnavailableError):
        refused = isinstance(error, RedisRefusedError)
        told = "Redis refuses" if refused else "Redis cannot be reached now"
        return answer_error(503, told, {"retry-after": RETRY_AFTER}, kind=error.kind)
    if isinstance(error, WrongTypeError):
        return answer_error(409, "something else stands where the run should")
    if isinstance(error, ConfigurationError):
        return answer_error(400, str(error))
    raise error


def answer_page(events: Sequence[StreamEvent], following: str | None) -> Response:
    """Answer with a page of events: ``events``, and ``next`` to go on behind."""
    told = b",".join(event.json for event in events)
    body = b'{"events":[%s],"next":%s}' % (told, encode(following))
    headers = {**HEADERS, "x-content-type-options": "nosniff"}
    return Response(body, 200, headers, "application/json")


def read_run_id(text: str) -> int:
    """Read the id of a run from an address.

    Raises:
        ConfigurationError: It is none.
    """
    return check_run_id(_read_number("run_id", text))


def read_limit(text: str | None, default: int) -> int:
    """Read how many events a page holds at most.

    Raises:
        ConfigurationError: It is no number.
    """
    return default if text is None else _read_number("limit", text)


def _read_number(name: str, text: str) -> int:
    # int() reads more than that: signs, blanks, underscores, the digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS):
        rule = f"it must be a number of at most {DIGITS} digits"
        raise ConfigurationError(name, text, rule)
    return int(text)
