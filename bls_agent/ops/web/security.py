"""Decide which requests are answered, by their origin and number. No I/O.

Each of three attacks has a rule against it. A name of the attacker points to this
machine (DNS rebinding): the ``Host`` has to be one of ours. A foreign page posts a form
or reads data: ``Origin`` and ``Sec-Fetch-Site`` have to name our own origin. A foreign
page keeps the console busy: such a page may only link to our pages.
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
    "require-trusted-types-for 'script'; trusted-types console"  # see guard.js
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

    Ports do not matter, because a tunnel changes them, and only names can be rebound.
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
    """Return the reason to refuse a request, ``""`` if it may pass.

    ``own`` is our origin as this request sees it; ``origin``, ``site`` and ``mode`` are
    the headers ``Origin``, ``Sec-Fetch-Site`` and ``Sec-Fetch-Mode``. ``json``: the body
    is declared as JSON, which no form can do. ``data``: the path returns no page.

    Programs such as curl send none of these headers; they may read, and they may post
    JSON. A browser always sends the ``Origin`` of a POST.
    """
    foreign = site not in {None, "same-origin", "none"}
    if method in SAFE_METHODS:
        linked = mode == "navigate" and not data
        return "another site asks for data" if foreign and not linked else ""
    if foreign or site == "none":
        return "it was sent by another site"
    if origin is not None:
        # Browsers write both in lower case and leave out the default port.
        return "" if origin == own else "its Origin is another one"
    if site is None and not json:
        return NOT_JSON if data else "a form has to say its Origin"
    return ""


def local_target(path: str, *, default: str = "/") -> str:
    """Return the path to open after the login, never a path of another site."""
    plain = path.startswith("/") and path.isprintable() and path.isascii()
    if not plain or path[1:2] in {"/", "\\"} or "\\" in path:
        return default
    return path


class Buckets:
    """Token buckets of the clients seen last, stored as the time when each is full."""

    def __init__(self, size: float, rate: float, *, most: int = 4_096) -> None:
        self._size = size
        self._rate = rate
        self._most = most
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def take(self, client: str, now: float) -> float:
        """Take a token and return 0, or return the seconds until the client has one."""
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
