"""The headers that every answer carries, errors and files included."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

__all__ = ["HEADERS", "POLICY", "with_headers"]

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; "
    "object-src 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types console"  # that of guard.js
)

HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",  # for what does not know frame-ancestors
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": (
        "accelerometer=(), camera=(), display-capture=(), geolocation=(), "
        "gyroscope=(), magnetometer=(), microphone=(), payment=(), usb=()"
    ),
}

_LAST: Final = frozenset({408, 429})


def with_headers(send: Send) -> Send:
    """Add the headers to an answer; one without a word on caching is not kept.

    After a 408 or 429 the connection is closed: waiting clients hold none.
    """

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
            if message["status"] in _LAST:
                headers["connection"] = "close"
        await send(message)

    return send_with_headers
