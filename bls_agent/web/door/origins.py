"""Which requests come from our own pages: decided from their headers, without I/O.

Three dangers, each with its rule. A name of the attacker's that points to this machine
(DNS rebinding): the ``Host`` has to be one of ours. A foreign page that posts a form or
reads what it must not: ``Origin`` and ``Sec-Fetch-Site`` have to name our own origin.
A foreign page that makes us do work: it may link to our pages, and nothing else.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

__all__ = [
    "NOT_JSON",
    "SAFE_METHODS",
    "HostRule",
    "Provenance",
    "local_target",
    "refuse",
    "split_host",
]

_HOST: Final = re.compile(
    r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9_](?:[a-z0-9_.-]{0,252}[a-z0-9_])?)"
    r"(?::(?P<port>[0-9]{1,5}))?",
)
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def split_host(header: str) -> tuple[str, str] | None:
    """Take a ``Host`` header apart into a name in lower case and a port, or ``""``."""
    found = _HOST.fullmatch(header.lower())
    return (found["name"], found["port"] or "") if found else None


NOT_JSON: Final = "programs send JSON, with Content-Type: application/json"


@dataclass(frozen=True)
class HostRule:
    """By which names browsers may call us.

    Ports do not matter: a tunnel has one of its own, and only names can be rebound.

    Attributes:
        bound: The address that we listen at, ``""`` for a Unix socket.
        names: More names.
    """

    bound: str
    names: Collection[str] = ()

    def allows(self, header: str) -> bool:
        """Tell whether a ``Host`` header names us."""
        found = split_host(header)
        if found is None:
            return False
        name = found[0]
        if name in _LOOPBACK_NAMES or name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name == self.bound.lower()
        return self._is_bound_to(address)

    def _is_bound_to(
        self, address: ipaddress.IPv4Address | ipaddress.IPv6Address
    ) -> bool:
        try:
            bound = ipaddress.ip_address(self.bound.strip("[]"))
        except ValueError:
            return False
        # Of an address nobody can make a name of his own.
        return bound == address or bound.is_unspecified


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a request says of where it comes from.

    Attributes:
        method: GET, POST …
        own: Our origin as this request sees it: scheme, host and port.
        origin: The ``Origin`` header, ``None`` if there is none.
        site: ``Sec-Fetch-Site``, likewise.
        mode: ``Sec-Fetch-Mode``, likewise.
        json: Whether the body says that it is JSON, which no form can.
        data: Whether the path gives data and no page.
    """

    method: str
    own: str
    origin: str | None = None
    site: str | None = None
    mode: str | None = None
    json: bool = False
    data: bool = False


def refuse(told: Provenance) -> str:
    """Say why a request must not be answered, ``""`` if it may.

    Programs such as curl send neither header: they may read, and post JSON. A
    browser always says where a POST comes from.
    """
    foreign = told.site not in {None, "same-origin", "none"}
    if told.method in SAFE_METHODS:
        linked = told.mode == "navigate" and not told.data
        return "another site asks for data" if foreign and not linked else ""
    if foreign or told.site == "none":
        return "it was sent by another site"
    if told.origin is not None:
        same = _canonical(told.origin) == _canonical(told.own)
        return "" if same else "its Origin is another one"
    if told.site is None and not told.json:
        if told.data:
            return NOT_JSON
        return "a form has to say its Origin"
    return ""


def _canonical(origin: str) -> tuple[str, str, str] | str:
    """Write an origin with its port; what is none equals nothing of ours."""
    try:
        parts = urlsplit(origin.lower())
        found = split_host(parts.netloc)
    except ValueError:
        return origin
    if found is None or parts.path or parts.query or parts.fragment:
        return origin
    port = found[1] or _DEFAULT_PORTS.get(parts.scheme, "")
    return parts.scheme, found[0], port


def local_target(path: str, *, default: str = "/") -> str:
    """Take a path to go to after the login, never one that leads away."""
    plain = path.startswith("/") and path.isprintable() and path.isascii()
    if not plain or path[1:2] in {"/", "\\"} or "\\" in path:
        return default
    return path
