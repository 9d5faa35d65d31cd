"""Finds the address of Redis from a URL or a client, and makes new connections.

Only this module imports redis-py. The defaults of redis-py do not fit a library inside
another program: a socket timeout ends BLPOP, ten silent retries may duplicate RPUSH,
and connecting takes five round trips. So this module builds connections from parts of
redis-py, with RESP2, one round trip to connect, frequent keepalive, no retry, and own
deadlines. From a client of the program it takes address, credentials, TLS and database.
It never closes the client.
"""

from __future__ import annotations

import inspect
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, Union, cast
from urllib.parse import urlsplit

from bls_agent.connection.outage import Outage
from bls_agent.core.errors import ConfigurationError, ask_whether
from bls_agent.core.redaction import mask_url, redact

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    from bls_agent.core.urls import Kind, SeveralHosts

Argument: TypeAlias = str | bytes | int | float
Request: TypeAlias = Sequence[Argument]
Reply: TypeAlias = Any  # bytes, int, None, or lists of them: Redis decides

CONNECT_TIMEOUT: Final = 5.0


def packer() -> Callable[[tuple[Argument, ...]], bytes]:
    """Return hiredis's function that encodes a request, twice as fast as redis-py's."""
    hiredis: Any = import_module("hiredis")  # imported late, because it takes 3 ms
    return cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)


def make_reader(parse_error: Callable[[str], Exception], nothing: object) -> Any:
    """Return a parser of hiredis, which returns ``nothing`` for an incomplete reply."""
    from redis.exceptions import InvalidResponse

    hiredis: Any = import_module("hiredis")
    return hiredis.Reader(
        protocolError=InvalidResponse, replyError=parse_error, notEnoughData=nothing
    )


def push_type() -> type:
    """Return the class of the messages that a server sends without a request."""
    return cast("type", import_module("hiredis").PushNotification)


def client_version() -> str:
    return str(import_module("redis").__version__)


class RawConnection(Protocol):
    """The attributes of redis-py's connection that ``transport.py`` uses."""

    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...  # noqa: FBT001, FBT002


# Seconds after which the kernel gives up a connection, if sent data is not acknowledged.
GIVEN_UP: Final = 20
# Seconds after the loss of a connection in which a sent request may still be executed:
# our kernel tries to send the request for GIVEN_UP seconds, and a blocking read follows.
MAY_ARRIVE: Final = 25.0

# Options that are taken from a URL or a client. This module sets all other options.
_PLACE: Final = frozenset({"host", "port", "path", "db"})
_CREDENTIALS: Final = frozenset({"username", "password", "credential_provider"})
_FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_SENTINEL_CREDENTIALS: Final = {
    "sentinel_username": "username",
    "sentinel_password": "password",
}
_SCHEMES: Final = (
    "the URL begins with redis://, rediss:// or unix://, or with redis+sentinel://, "
    "redis+cluster:// or the same with rediss"
)
_OVERRULED: Final = frozenset(
    {
        "client_name", "decode_responses", "encoding", "encoding_errors",
        "health_check_interval", "max_connections", "protocol", "retry_on_error",
        "retry_on_timeout", "socket_connect_timeout", "socket_keepalive",
        "socket_read_size", "socket_timeout", "timeout",
    }
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Topology:
    """Several servers behind one URL, and the servers to ask which one to use."""

    kind: Kind
    seeds: tuple[Endpoint, ...]
    node: Callable[[str, int], Endpoint]  # from host and port, with the same login
    service: str = ""  # the name of the master in the configuration of the sentinels


@dataclass(frozen=True, repr=False)
class Endpoint:
    """Where Redis is and how a new connection to it is made."""

    address: str  # for messages, without credentials
    make: Callable[[], RawConnection]  # connects to the first server
    notes: tuple[str, ...] = ()  # warnings about ignored options; logged once
    topology: Topology | None = None  # ``None`` for one server
    likeness: int = 0  # hash of address and credentials; 0 if unknown
    # All pools with this endpoint share the outage, so that a console with five pools
    # logs the end of an outage once.
    outage: Outage = field(default_factory=Outage, compare=False)

    def __repr__(self) -> str:
        return f"Endpoint({self.address!r})"

    @property
    def is_cluster(self) -> bool:
        """Whether this is a cluster, where a request may use keys of one slot only."""
        return self.topology is not None and self.topology.kind == "cluster"

    @classmethod
    def of(cls, redis: object, name: str = "redis") -> Endpoint:
        """Return the endpoint of a URL, a redis-py client (asyncio or not) or an endpoint.

        ``name`` is the argument or variable that a ConfigurationError names.
        """
        if isinstance(redis, Endpoint):
            return redis
        if not isinstance(redis, str):
            return _endpoint_of_client(redis)
        try:
            return _endpoint_of_url(redis)
        except ConfigurationError as error:
            if error.name == name:
                raise
            details = error.value, error.rule, error.remedy
            raise ConfigurationError(name, *details) from None


# Forward references, because redis-py takes 100 ms to import.
RedisSource: TypeAlias = Union[
    str,
    "redis.Redis",
    "redis.asyncio.Redis",
    "redis.RedisCluster",
    "redis.asyncio.RedisCluster",
    Endpoint,
]
"""The types of the argument ``redis``: a URL, or a client of redis-py.

The client may be for asyncio or not. The package takes address and credentials from the
client, and opens its own connections. ``Endpoint`` is internal.
"""


def _endpoint_of_url(url: str) -> Endpoint:
    shown = mask_url(url)
    scheme = url.split("://", 1)[0]
    if "+" in scheme:
        from bls_agent.core.urls import take_apart

        if several := take_apart(url):
            return _endpoint_of_several(several, shown)
    if scheme not in ("redis", "rediss", "unix"):
        raise ConfigurationError("redis", shown, _SCHEMES)
    options = _parse(url, shown)
    parts = urlsplit(url)
    path = parts.path.strip("/")
    if scheme == "unix" and parts.netloc and ("@" in path or "@" not in parts.netloc):
        rule = "a URL like unix://user:password@/run/redis.sock"
        remedy = "A / in the password is written %2F, an @ in the path %40."
        raise ConfigurationError("redis", shown, rule, remedy)
    if scheme != "unix" and path and not path.isdecimal():
        raise ConfigurationError("redis", shown, "the database is a number, as in /0")
    if scheme == "unix" and not options.get("path"):
        raise ConfigurationError("redis", shown, "unix:// needs the socket's path")
    _check_files(options, shown)
    return _endpoint_of_options(options, scheme, shown, strict=True)


def _parse(url: str, shown: str) -> dict[str, Any]:
    from redis.asyncio.connection import parse_url

    try:
        return dict(cast("Mapping[str, Any]", parse_url(url)))
    except ValueError as error:
        rule = f"{_wrong_part(url, str(error))}; a URL like redis://user:password@host:6379/0"
        raise ConfigurationError("redis", shown, rule) from None


def _wrong_part(url: str, message: str) -> str:
    """Describe the wrong part of a URL without its text, which may be a password."""
    place, _, rest = url.partition("://")[2].partition("?")
    _, *after = re.split(r"[/#]", place, maxsplit=1)
    if any("@" in part for part in (*after, rest)):
        return "in a user or password / ? # [ ] are written %2F %3F %23 %5B %5D"
    if option := re.search(r"for '(\w+)' in", message):
        return f"the value of its option {option[1]!r} is not understood"
    if message.startswith("Port "):
        return "its port is a whole number from 0 to 65535"
    return "its host is not understood"


def _endpoint_of_several(url: SeveralHosts, shown: str) -> Endpoint:
    """Return the endpoint of a URL of several hosts; redis-py parses its options."""
    options = _parse(f"{url.base}://{url.login}host/{url.database}{url.query}", shown)
    asking = {name: options.pop(name, None) for name in _SENTINEL_CREDENTIALS}
    if url.kind == "cluster":
        if any(asking.values()):
            raise ConfigurationError("redis", shown, "a cluster has no sentinels")
        return _spread(url.kind, options, url.base, url.hosts, shown)
    node = _node_maker(options, url.base, shown, strict=True)
    login = {_SENTINEL_CREDENTIALS[name]: word for name, word in asking.items() if word}
    apart = _CREDENTIALS | {"db"}
    rest = {name: value for name, value in options.items() if name not in apart}
    ask = _node_maker(rest | login, url.base, shown, strict=True)
    first = node(*url.hosts[0])
    seeds = tuple(ask(*host) for host in url.hosts)
    topology = Topology(url.kind, seeds, node, url.service)
    return Endpoint(url.address, first.make, first.notes, topology)


def _spread(
    kind: Kind,
    options: Mapping[str, Any],
    scheme: str,
    hosts: tuple[tuple[str, int], ...],
    shown: str,
    *,
    strict: bool = True,
) -> Endpoint:
    """Make the endpoint of a cluster, or of a master that sentinels name.

    ``hosts`` are the nodes or sentinels that are asked first.
    """
    from bls_agent.core.urls import address_of

    node = _node_maker(options, scheme, shown, strict=strict)
    seeds = tuple(node(*host) for host in hosts)
    address = address_of(kind, scheme, hosts, "", 0)
    return Endpoint(address, seeds[0].make, seeds[0].notes, Topology(kind, seeds, node))


def _node_maker(
    options: Mapping[str, Any], scheme: str, shown: str, *, strict: bool
) -> Callable[[str, int], Endpoint]:
    _check_files(options, shown)

    def node(host: str, port: int) -> Endpoint:
        place = {**options, "host": host, "port": port}
        return _endpoint_of_options(place, scheme, shown, strict=strict)

    return node


def _endpoint_of_options(
    options: Mapping[str, Any], scheme: str, shown: str, *, strict: bool
) -> Endpoint:
    from redis.asyncio import connection as parts
    from redis.exceptions import RedisError

    kind: Callable[..., Any] = {
        "redis": parts.Connection,
        "rediss": parts.SSLConnection,
        "unix": parts.UnixDomainSocketConnection,
    }[scheme]
    known = _parameters(kind) | _parameters(parts.AbstractConnection)
    kept: dict[str, Any] = {}
    overruled: list[str] = []
    for name, value in options.items():
        if name in _PLACE | _CREDENTIALS or (name.startswith("ssl_") and name in known):
            kept[name] = value
        elif name in _OVERRULED:
            overruled.append(name)
        elif strict and name != "connection_class":
            rule = _unknown_option(name, options)
            remedy = ask_whether(name, known) if name in rule else ""
            raise ConfigurationError("redis", shown, rule, remedy)
    if strict and scheme == "rediss":  # redis-py 5 does not check the host by default
        verifies = str(kept.get("ssl_cert_reqs", "required")).lower() != "none"
        kept.setdefault("ssl_check_hostname", verifies)
    # Without a value OpenSSL asks for the password of the key at the terminal, which
    # blocks the event loop.
    kept |= {name: kept.get(name) or "" for name in known & {"ssl_password"}}
    fixed = _fixed_options(known, tcp=scheme != "unix")
    try:
        kind(**kept, **fixed)
    except (RedisError, TypeError, ValueError) as error:
        raise ConfigurationError("redis", shown, redact(str(error))) from None
    return Endpoint(
        _address_of(kept, scheme),
        cast("Callable[[], RawConnection]", lambda: kind(**kept, **fixed)),
        _notes_on(kept, overruled) if strict else (),
        likeness=hash((scheme, repr(sorted(kept.items())))),
    )


def _check_files(options: Mapping[str, Any], shown: str) -> None:
    """Check once for each URL or client, because a file may be replaced later."""
    for name in _FILES:
        path = options.get(name)
        if path and not os.path.exists(str(path)):  # noqa: PTH110 - Path's may raise
            raise ConfigurationError("redis", shown, f"{name} names no file: {path}")


def _notes_on(kept: Mapping[str, Any], overruled: Sequence[str]) -> tuple[str, ...]:
    """Return warnings about ignored options, and about a user without a password."""
    notes: list[str] = []
    if overruled:
        notes.append(f"options of the URL that do not apply: {overruled}")
    if kept.get("username") and not kept.get("password"):
        notes.append(
            "the URL names a user without a password; "
            "a password alone is written redis://:password@host"
        )
    return tuple(notes)


def _unknown_option(name: str, options: Mapping[str, Any]) -> str:
    """Return an error text; name the option unless it may be part of a password."""
    if any("@" in str(options[other]) for other in options.keys() - _CREDENTIALS):
        return "one of its options is not understood; is a ? in a password written %3F?"
    return f"its option {name!r} is not understood"


def _address_of(options: Mapping[str, Any], scheme: str) -> str:
    database = options.get("db") or 0
    if scheme == "unix":
        return f"unix://{options.get('path')}?db={database}"
    host, port = options.get("host") or "localhost", options.get("port") or 6379
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{port}/{database}"


def _endpoint_of_client(client: object) -> Endpoint:
    shown = type(client).__name__
    nodes: Any = getattr(client, "nodes_manager", None)
    if nodes is not None:
        return _endpoint_of_cluster_client(nodes, shown)
    pool: Any = getattr(client, "connection_pool", None)
    options: Mapping[str, Any] | None = getattr(pool, "connection_kwargs", None)
    if pool is None or options is None:
        raise ConfigurationError("redis", shown, "a URL, or a client of redis-py")
    kind: type = pool.connection_class
    scheme = {
        "Connection": "redis",
        "SSLConnection": "rediss",
        "UnixDomainSocketConnection": "unix",
    }.get(kind.__name__ if kind.__module__.startswith("redis.") else "")
    if scheme:
        _check_files(options, shown)
        return _endpoint_of_options(options, scheme, shown, strict=False)
    if hasattr(pool, "sentinel_manager") and kind.__module__.startswith("redis."):
        return _endpoint_of_sentinel_client(pool, kind)
    rule = "a URL, or a client of redis-py with the connections of redis-py"
    raise ConfigurationError("redis", kind.__name__, rule)


def _endpoint_of_sentinel_client(pool: Any, kind: type) -> Endpoint:
    """Return an endpoint that asks the sentinels of a client, over own connections."""
    from bls_agent.core.urls import address_of

    shown = f"Sentinel({pool.service_name!r})"
    if not pool.is_master:
        rule = "a client for the master, as of master_for(): replicas cannot be written"
        raise ConfigurationError("redis", shown, rule)
    scheme = "rediss" if "SSL" in kind.__name__ else "redis"
    options = dict(pool.connection_kwargs)
    seeds = tuple(_endpoint_of_client(s) for s in pool.sentinel_manager.sentinels)
    node = _node_maker(options, scheme, shown, strict=False)
    known = [
        s.connection_pool.connection_kwargs for s in pool.sentinel_manager.sentinels
    ]
    hosts = tuple((str(k["host"]), int(k["port"])) for k in known)
    if not hosts:
        raise ConfigurationError("redis", shown, "it needs at least one sentinel")
    address = address_of(
        "sentinel", scheme, hosts, pool.service_name, options.get("db")
    )
    topology = Topology("sentinel", seeds, node, pool.service_name)
    return Endpoint(address, node(*hosts[0]).make, topology=topology)


def _endpoint_of_cluster_client(nodes: Any, shown: str) -> Endpoint:
    """Make the endpoint of a client of a cluster; its known nodes are asked first."""
    options: Mapping[str, Any] = nodes.connection_kwargs
    kind = getattr(options.get("connection_class"), "__name__", "")
    scheme = "rediss" if options.get("ssl") or "SSL" in kind else "redis"
    hosts = tuple((n.host, int(n.port)) for n in nodes.startup_nodes.values())
    if not hosts:
        raise ConfigurationError("redis", shown, "it needs at least one node")
    return _spread("cluster", options, scheme, hosts, shown, strict=False)


@cache
def _parameters(kind: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(kind).parameters)


def _fixed_options(known: frozenset[str], *, tcp: bool) -> dict[str, Any]:
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": None,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
        "decode_responses": False,
    }
    if "driver_info" in known:
        options["driver_info"] = None
    else:  # redis-py before 7 has these two options instead
        options |= {"lib_name": None, "lib_version": None}
    if tcp:
        options["socket_keepalive"] = True
        options["socket_keepalive_options"] = _keepalive()
    return options


def _keepalive() -> dict[int, int]:
    """Return socket options that find a dead link in 25 seconds.

    If sent data is not acknowledged, they find a dead link in :data:`GIVEN_UP` seconds.
    """
    wanted = {
        "TCP_KEEPIDLE": 10,
        "TCP_KEEPALIVE": 10,  # macOS's name for TCP_KEEPIDLE
        "TCP_KEEPINTVL": 5,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": GIVEN_UP * 1000,
    }
    found = {getattr(socket, name, None): value for name, value in wanted.items()}
    return {option: value for option, value in found.items() if option is not None}
