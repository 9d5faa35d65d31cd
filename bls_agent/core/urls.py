"""Parses URLs that name several servers. No I/O.

* Sentinel: ``redis+sentinel://user:password@host:port,host:port/service/db``
* Cluster: ``redis+cluster://user:password@host:port,host:port``

URLs with TLS begin with ``rediss+``. redis-py parses URLs of one server (see
``connection/endpoint.py``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast
from urllib.parse import unquote

from bls_agent.core.errors import ConfigurationError
from bls_agent.core.redaction import mask_url

Kind: TypeAlias = Literal["sentinel", "cluster"]

_PORTS: Final = {"sentinel": 26379, "cluster": 6379}
_LARGEST_PORT: Final = 65_535
_HOST: Final = re.compile(
    r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^:\[\]\s]+))(?::(?P<port>\d+))?"
)


@dataclass(frozen=True, repr=False)
class SeveralHosts:
    """The fields of a URL that names several servers."""

    kind: Kind  # whether the hosts are sentinels or nodes of a cluster
    base: str  # the scheme for a single server, ``redis`` or ``rediss``
    login: str  # user, password and ``@`` exactly as in the URL, or ``""``
    hosts: tuple[tuple[str, int], ...]  # host and port of each server
    service: str  # the name of the master in the configuration of the sentinels
    database: str  # number of the database, as text
    query: str  # the options, with the ``?``, or ``""``

    @property
    def address(self) -> str:
        return address_of(self.kind, self.base, self.hosts, self.service, self.database)


def address_of(
    kind: Kind,
    base: str,
    hosts: tuple[tuple[str, int], ...],
    service: str,
    database: object,
) -> str:
    """Return the URL of several servers, without credentials."""
    shown = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts
    )
    place = f"/{service}/{database or 0}" if kind == "sentinel" else ""
    return f"{base}+{kind}://{shown}{place}"


def take_apart(url: str) -> SeveralHosts | None:
    """Parse a URL that names several servers; return ``None`` for any other URL.

    Raise a ConfigurationError with the broken rule if the URL is wrong.
    """
    found = re.fullmatch(r"(rediss?)\+(sentinel|cluster)://(.*)", url, re.DOTALL)
    if found is None:
        return None
    base, kind = found[1], cast("Kind", found[2])
    rest, mark, query = found[3].partition("?")
    login, at, place = rest.rpartition("@")
    names, _, path = place.partition("/")
    if re.search(r"[/#\[\]]", login):
        rule = "in a user or password / # [ ] are written %2F %23 %5B %5D"
        raise _refusal(url, rule)
    hosts = _hosts_of(url, kind, names)
    if kind == "sentinel":
        service, database = _master_of(url, path)
    elif path in ("", "0", "/"):
        service, database = "", "0"
    else:
        rule = "a cluster has no database but 0; nothing follows the hosts"
        raise _refusal(url, rule)
    return SeveralHosts(kind, base, login + at, hosts, service, database, mark + query)


def _refusal(url: str, rule: str) -> ConfigurationError:
    return ConfigurationError("redis", mask_url(url), rule)


def _hosts_of(url: str, kind: Kind, names: str) -> tuple[tuple[str, int], ...]:
    if not names:
        raise _refusal(
            url, f"the URL needs at least one host: redis+{kind}://host:port,…"
        )
    hosts: list[tuple[str, int]] = []
    for name in names.split(","):
        found = _HOST.fullmatch(name)
        if found is None:
            raise _refusal(url, "hosts are written host:port, with commas between them")
        port = int(found["port"] or _PORTS[kind])
        if not 0 < port <= _LARGEST_PORT:
            raise _refusal(url, f"a port is between 1 and {_LARGEST_PORT}")
        hosts.append((unquote(found["six"] or found["host"]), port))
    return tuple(hosts)


def _master_of(url: str, path: str) -> tuple[str, str]:
    service, slash, database = path.partition("/")
    if not service:
        rule = "the URL needs the master's name: redis+sentinel://host:port/service/0"
        raise _refusal(url, rule)
    if slash and database and not database.isdecimal():
        raise _refusal(url, "the database is a number, as in /service/0")
    return unquote(service), database or "0"
