"""Answers in JSON, and what an error of ours becomes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from bls_agent.codec import encode
from bls_agent.errors import (
    BlsError,
    CommandTooLargeError,
    ConfigurationError,
    LeaseHeldError,
    NoOutcomeError,
    RedisUnavailableError,
    UnknownProjectError,
    WrongTypeError,
)

__all__ = ["RETRY_AFTER", "error_answer", "json_answer", "status_of"]

RETRY_AFTER: Final = 2  # seconds, while Redis is away


def json_answer(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with a value, or with JSON that is written already."""
    body = content if isinstance(content, bytes) else encode(content)
    return Response(body, status, headers, "application/json")


def error_answer(
    status: int,
    message: str,
    *,
    fields: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    wait: float = 0,
) -> Response:
    """Answer with an error in JSON.

    Args:
        status: HTTP status.
        message: What is wrong.
        fields: Name of a field → what is wrong with it.
        headers: More headers.
        wait: Seconds after which to try again, said in ``Retry-After``.
    """
    content: dict[str, Any] = {"error": message}
    if fields:
        content["fields"] = dict(fields)
    told = dict(headers or {})
    if wait:
        told["retry-after"] = str(math.ceil(wait))
    return json_answer(content, status, told)


def status_of(error: BlsError) -> int:
    """Give the HTTP status of an error of ours."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


_STATUSES: Final[tuple[tuple[type[BlsError], int], ...]] = (
    (RedisUnavailableError, 503),
    (UnknownProjectError, 404),
    (WrongTypeError, 409),
    (LeaseHeldError, 409),
    (NoOutcomeError, 504),
    (CommandTooLargeError, 413),
    (ConfigurationError, 400),
)
