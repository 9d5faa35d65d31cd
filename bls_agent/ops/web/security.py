"""Decides which requests are refused, by their origin and number. No I/O.

There is a rule against each of three attacks:

1. A host name of the attacker resolves to this machine (DNS rebinding). The header
   ``Host`` must therefore be one of our names.
2. A page of another site posts a form or reads data. The headers ``Origin`` and
   ``Sec-Fetch-Site`` must therefore name our own origin.
3. A page of another site keeps the console busy with requests. Pages of other sites may
   therefore only link to our pages.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter, OrderedDict
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import Message, Send

_HOST: Final = re.compile(
    r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9_](?:[a-z0-9_.-]{0,252}[a-z0-9_])?)"
    r"(?::(?P<port>[0-9]{1,5}))?",
)
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
NOT_JSON: Final = "programs send JSON, with Content-Type: application/json"
ROUNDING: Final = 1e-6  # seconds, because sums of fractions are not exact
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; "
    "object-src 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types console"  # guard.js makes this policy
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",  # for browsers without frame-ancestors
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": (
        "accelerometer=(), camera=(), display-capture=(), geolocation=(), "
        "gyroscope=(), magnetometer=(), microphone=(), payment=(), usb=()"
    ),
}


def split_host(header: str) -> tuple[str, str] | None:
    """Split a ``Host`` header into a lower-case name and a port, possibly ``""``."""
    found = _HOST.fullmatch(header.lower())
    return (found["name"], found["port"] or "") if found else None


@dataclass(frozen=True)
class HostRule:
    """The host names under which browsers may call the console.

    Any port is allowed, because a tunnel may change the port, and an attacker can change
    only the address of a name.
    """

    bound: str  # the address that we listen at
    names: Collection[str] = ()

    def allows(self, header: str) -> bool:
        found = split_host(header)
        if found is None:
            return False
        name = found[0]
        if name in _LOOPBACK_NAMES or name in self.names:
            return True
        try:  # an attacker can rebind a name, but not an address
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        bound = ipaddress.ip_address(self.bound)
        return bound == address or bound.is_unspecified


def refuse(
    method: str,
    own: str,
    *,
    origin: str | None = None,
    site: str | None = None,
    mode: str | None = None,
    json: bool = False,
    data: bool = False,
) -> str:
    """Return the reason to refuse a request, or ``""`` if the request may pass.

    ``own`` is the console's origin in the request's URL. ``origin``, ``site`` and
    ``mode`` are the headers ``Origin``, ``Sec-Fetch-Site`` and ``Sec-Fetch-Mode``.
    ``json`` is whether the body's media type is JSON, which no form can send. ``data`` is
    whether the path returns data for programs instead of a page.

    Programs such as curl send none of these headers. They may read, and may post JSON. A
    browser always sends ``Origin`` with a POST.
    """
    foreign = site not in {None, "same-origin", "none"}
    if method in SAFE_METHODS:
        linked = mode == "navigate" and not data
        return "another site asks for data" if foreign and not linked else ""
    if foreign or site == "none":
        return "it was sent by another site"
    if origin is not None:
        # Browsers write both values in lower case and without the default port.
        return "" if origin == own else "its Origin is another one"
    if site is None and not json:
        return NOT_JSON if data else "a form needs the header Origin"
    return ""


def local_target(path: str, *, default: str = "/") -> str:
    """Return the path to open after the login, never a path of another site."""
    plain = path.startswith("/") and path.isprintable() and path.isascii()
    if not plain or path[1:2] in {"/", "\\"} or "\\" in path:
        return default
    return path


class Buckets:
    """One token bucket for each of the clients that were seen last.

    A bucket is stored as the time at which it will be full.
    """

    def __init__(self, size: float, rate: float, *, most: int = 4_096) -> None:
        self._size = size
        self._rate = rate
        self._most = most
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def take(self, client: str, now: float) -> float:
        """Take a token and return 0, or return the seconds until there is a token."""
        full_at = max(now, self._full_at.get(client, now))
        wait = full_at - now - (self._size - 1) / self._rate
        if wait <= ROUNDING:
            full_at, wait = full_at + 1 / self._rate, 0.0
        self._full_at[client] = full_at
        self._full_at.move_to_end(client)
        while len(self._full_at) > self._most:
            self._full_at.popitem(last=False)
        return wait

    def give_back(self, client: str) -> None:
        if client in self._full_at:
            self._full_at[client] -= 1 / self._rate


class StreamQuota:
    """Counts the open streams of each user, and of all users."""

    def __init__(self, *, each: int, total: int, counts: Counter[str]) -> None:
        self._each = each
        self._total = total
        self._counts = counts
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        return self._open.total()

    @contextmanager
    def hold(self, user: str) -> Generator[None]:
        """Count a stream while the block runs; raise 429 or 503 above a limit."""
        is_many = self._open[user] >= self._each
        if is_many or self.open >= self._total:
            self._counts["streams_refused"] += 1
            status = 429 if is_many else 503
            raise HTTPException(status, "too many streams", {"retry-after": "10"})
        self._open[user] += 1
        try:
            yield
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]


def with_headers(send: Send) -> Send:
    """Add the security headers to each response."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return send_with_headers
