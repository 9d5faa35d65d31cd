"""Where Redis is: URLs and clients understood, credentials kept out of sight."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from ssl import CERT_NONE, CERT_REQUIRED
from typing import Any, cast

import pytest
import redis
import redis.asyncio
from hypothesis import given, settings, strategies as st
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.connection import Connection, ConnectionPool
from redis.asyncio.sentinel import Sentinel

from bls_agent import ProjectAgent
from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.pool import find_endpoint
from bls_agent.core.errors import ConfigurationError
from bls_agent.core.redaction import mask_url
from bls_agent.core.settings import Settings

SECRET = "hunter2"


def connection_to(target: object) -> Any:
    """Make the connection, which is not open yet, with redis-py's own attributes."""
    return cast("Any", Endpoint.of(target).make())


# --- masking

MASKED = {
    "nothing to hide": ("redis://h:6379/0", "redis://h:6379/0"),
    "password": (f"redis://:{SECRET}@h:6379/0", "redis://***@h:6379/0"),
    "user and password": (f"redis://u:{SECRET}@h/0", "redis://u:***@h/0"),
    "user alone": (f"redis://{SECRET}@h/0", "redis://***@h/0"),
    "tls": (f"rediss://u:{SECRET}@h:6380", "rediss://u:***@h:6380"),
    "socket": (f"unix://u:{SECRET}@/run/redis.sock", "unix://u:***@/run/redis.sock"),
    "at sign": (f"redis://u:{SECRET}@x@h/0", "redis://u:***@h/0"),
    "query": (f"redis://h/0?password={SECRET}", "redis://h/0"),
    "git over ssh": ("ssh://git@h/a.git", "ssh://git@h/a.git"),
    "git, short": ("git@h:a.git?x", "git@h:a.git"),
    "git with a password": (f"ssh://git:{SECRET}@h/a.git", "ssh://git:***@h/a.git"),
}


@pytest.mark.parametrize(("url", "shown"), MASKED.values(), ids=list(MASKED))
def test_a_url_is_shown_without_its_credentials(url: str, shown: str) -> None:
    """Scheme, user, host and database stay readable, the password does not."""
    assert mask_url(url) == shown


BROKEN = {
    "unquoted slash": f"redis://:{SECRET}/x@h/0",
    "unquoted slash in front": f"redis://:x/{SECRET}@h/0",
    "unquoted slash, socket": f"unix://u:{SECRET}/x@/run/redis.sock",
    "unquoted slash in front, socket": f"unix://:x/{SECRET}@/run/redis.sock?db=1",
    "at sign and slash, socket": f"unix://u:1@/{SECRET}@/run/redis.sock",
    "unquoted hash": f"redis://:{SECRET}#x@h/0",
    "unquoted question mark": f"redis://:{SECRET}?x@h/0",
    "open bracket": f"redis://u:{SECRET}@[::1",
    "bracket in the password": f"redis://u:[{SECRET}@h/0",
    "no scheme": f"u:{SECRET}@h:6379",
    "no scheme, password alone": f":{SECRET}@h:6379",
    "one slash": f"redis:/u:{SECRET}@h:6379/0",
    "no slash": f"redis:u:{SECRET}@h:6379/0",
    "no colon": f"redis//u:{SECRET}@h:6379/0",
    "no port": f"redis://u:{SECRET}@h:port/0",
    "other scheme": f"http://u:{SECRET}@h/0",
    "blank in front": f" redis://u:{SECRET}@h/0",
    "option refused": f"redis://u:{SECRET}@h/0?colour=red",
    "option out of range": f"redis://u:{SECRET}@h/0?db=first",
    "password that looks like an option": f"redis://u:12?{SECRET}=x@h/0",
    "password that looks like options": f"redis://u:12?{SECRET}=x&y=z@h/0",
}


@pytest.mark.parametrize("url", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_url_does_not_give_its_password_away(url: str) -> None:
    """However a URL is misspelt, the error that shows it hides the password."""
    assert SECRET not in mask_url(url)
    with pytest.raises(ConfigurationError) as caught:
        Endpoint.of(url)
    assert SECRET not in str(caught.value)
    assert SECRET not in caught.value.value
    assert caught.value.name == "redis"


pieces = st.text(st.sampled_from("ab1:/@?#[]%\\ &.订\t\n"), max_size=6)


@settings(deadline=None)
@given(
    st.sampled_from(
        ["redis://", "rediss://", "unix://", "redis:/", "redis+cluster://"]
    ),
    pieces,
    pieces,
    pieces,
)
def test_no_password_survives_masking(
    scheme: str, user: str, before: str, after: str
) -> None:
    """Whatever stands around it, a password before the last @ is never shown."""
    url = f"{scheme}{user}:{before}{SECRET}{after}@host:6379/0"
    shown = [mask_url(url)]
    try:
        Endpoint.of(url)
    except ConfigurationError as error:
        shown.append(str(error))
    assert SECRET not in "".join(shown)


# --- URLs

URLS: dict[str, tuple[str, str, dict[str, object]]] = {
    "short": ("redis://", "redis://localhost:6379/0", {"host": "localhost"}),
    "host": ("redis://cache", "redis://cache:6379/0", {"host": "cache", "port": 6379}),
    "all": ("redis://u:p@cache:1/2", "redis://cache:1/2", {"port": 1, "db": "2"}),
    "quoted password": (
        "redis://u:p%40s%2F@h",
        "redis://h:6379/0",
        {"username": "u", "password": "p@s/"},
    ),
    "password in the query": (
        "redis://h/3?username=u&password=p",
        "redis://h:6379/3",
        {"username": "u", "password": "p"},
    ),
    "IPv4": ("redis://127.0.0.1:1/0", "redis://127.0.0.1:1/0", {"host": "127.0.0.1"}),
    "IPv6": ("redis://[::1]:6380/0", "redis://[::1]:6380/0", {"host": "::1"}),
    "socket": (
        "unix:///run/r.sock",
        "unix:///run/r.sock?db=0",
        {"path": "/run/r.sock"},
    ),
    "socket, database": (
        "unix://u:p@/run/r.sock?db=2",
        "unix:///run/r.sock?db=2",
        {"path": "/run/r.sock", "password": "p"},
    ),
}


@pytest.mark.parametrize(("url", "address", "place"), URLS.values(), ids=list(URLS))
def test_a_url_says_where_redis_is(
    url: str, address: str, place: dict[str, object]
) -> None:
    """Host, port, database and credentials of a URL reach the connection."""
    assert Endpoint.of(url).address == address
    assert repr(Endpoint.of(url)) == f"Endpoint({address!r})"
    assert Endpoint.of(url).notes == ()
    connection = connection_to(url)
    found = {name: getattr(connection, name) for name in place}
    assert {name: str(value) for name, value in found.items()} == {
        name: str(value) for name, value in place.items()
    }


@pytest.mark.parametrize(
    ("options", "verify"),
    [("", CERT_REQUIRED), ("?ssl_cert_reqs=none&ssl_check_hostname=false", CERT_NONE)],
    ids=["by default", "unless told otherwise"],
)
def test_certificates_are_verified(options: str, verify: int) -> None:
    """Over rediss:// the certificate counts, unless the URL says that it must not."""
    connection = connection_to(f"rediss://cache:6380/0{options}")
    assert connection.ssl_context.cert_reqs == verify


def test_a_file_is_looked_for_once(tmp_path: Path) -> None:
    """Failing over does not fail while a certificate is being replaced."""
    file = tmp_path / "ca.pem"
    file.touch()
    url = f"rediss+sentinel://h/main?ssl_ca_certs={file}"
    topology = Endpoint.of(url).topology
    file.unlink()
    assert topology is not None
    assert topology.node("h", 1).address == "rediss://h:1/0"


REFUSED_URLS = {
    "another scheme": ("http://h", "begins with redis://"),
    "capitals": ("REDIS://h", "begins with redis://"),
    "empty": ("", "begins with redis://"),
    "port": ("redis://h:port", "its port is a whole number from 0 to 65535"),
    "large port": ("redis://h:65536", "its port is a whole number"),
    "host": ("redis://[::1", "its host is not understood"),
    "password with a #": (f"redis://a:p#{SECRET}@h:6379", "written %2F %3F %23"),
    "password with a /": (f"redis://:p/{SECRET}@h:6379", "written %2F %3F %23"),
    "almost an option": ("rediss://h?ssl_ca_cert=x", "Did you mean ssl_ca_certs?"),
    "database": ("redis://h/first", "the database is a number"),
    "two databases": ("redis://h/0/1", "the database is a number"),
    "no path": ("unix://", "needs the socket's path"),
    "unknown option": ("redis://h?colour=red", "'colour' is not understood"),
    "TLS without TLS": ("redis://h?ssl_cert_reqs=none", "'ssl_cert_reqs' is not"),
    "file that cannot be looked at": (
        f"rediss+cluster://h?ssl_keyfile=/{'x' * 300}",
        "ssl_keyfile names no file: /xxx",
    ),
    "option of the wrong type": (
        "redis://h?socket_timeout=long",
        "the value of its option 'socket_timeout' is not understood; a URL like redis://",
    ),
}


@pytest.mark.parametrize(("url", "rule"), REFUSED_URLS.values(), ids=list(REFUSED_URLS))
def test_a_url_that_makes_no_sense_is_refused(url: str, rule: str) -> None:
    """The error says what a URL has to look like, or which option is at fault."""
    with pytest.raises(ConfigurationError, match=r"^redis: ") as caught:
        Endpoint.of(url)
    assert rule in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["http://h", "redis+cluster://h/1", "redis://h:x"])
def test_the_error_names_where_the_url_came_from(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """The keyword, the settings or the variable."""
    monkeypatch.setenv("BLS_REDIS_URL", url)
    places: dict[str, list[Callable[[], object]]] = {
        "redis": [lambda: ProjectAgent("a", redis=url)],
        "redis_url": [
            lambda: ProjectAgent("a", settings=Settings(redis_url=url)).endpoint
        ],
        "BLS_REDIS_URL": [
            lambda: ProjectAgent("a").endpoint,
            find_endpoint,
        ],
    }
    for name, ways in places.items():
        for give in ways:
            with pytest.raises(ConfigurationError, match=f"^{name}: "):
                give()


def test_an_option_that_is_ours_to_decide_is_overruled() -> None:
    """What would break a promise is not taken over, and that is said once."""
    endpoint = Endpoint.of("redis://h/0?socket_timeout=1&protocol=3&client_name=x")
    assert len(endpoint.notes) == 1
    for option in ("socket_timeout", "protocol", "client_name"):
        assert option in endpoint.notes[0]
    check_decisions(cast("Any", endpoint.make()))


def test_a_password_in_the_place_of_the_user_is_noticed() -> None:
    """The note does not repeat it, and a user with a password has no note."""
    (note,) = Endpoint.of("redis://geheim@h/0").notes
    assert "a user without a password" in note
    assert "geheim" not in note
    assert Endpoint.of("redis://:geheim@h/0").notes == ()
    assert Endpoint.of("redis://user:geheim@h/0").notes == ()


# --- clients


def check_decisions(connection: Any) -> None:
    """Assert what every connection of ours has in common."""
    assert isinstance(connection, redis.asyncio.connection.AbstractConnection)
    assert connection.protocol == 2
    assert connection.socket_timeout is None
    assert connection.socket_connect_timeout == 5.0
    assert connection.retry._retries == 0  # redis-py before 6 has no getter
    assert connection.retry_on_error == []
    assert connection.health_check_interval == 0
    assert connection.client_name is None
    assert not connection.encoder.decode_responses
    assert not connection.is_connected


def async_client(**options: Any) -> redis.asyncio.Redis:
    """Make a client as a host might have one, with habits that are not ours."""
    return redis.asyncio.Redis(
        password=SECRET,
        protocol=3,
        decode_responses=True,
        socket_timeout=1,
        health_check_interval=30,
        client_name="host",
        **options,
    )


CLIENTS: dict[str, tuple[Callable[[], object], str]] = {
    "asyncio": (
        lambda: async_client(host="cache", port=1, db=2),
        "redis://cache:1/2",
    ),
    "asyncio, TLS": (
        lambda: async_client(host="cache", ssl=True),
        "rediss://cache:6379/0",
    ),
    "asyncio, socket": (
        lambda: async_client(unix_socket_path="/run/r.sock"),
        "unix:///run/r.sock?db=0",
    ),
    "asyncio, from a URL": (
        lambda: redis.asyncio.Redis.from_url(f"redis://:{SECRET}@cache:1/2"),
        "redis://cache:1/2",
    ),
    "blocking": (
        lambda: redis.Redis("cache", 1, 2, password=SECRET, protocol=3),
        "redis://cache:1/2",
    ),
    "blocking, TLS": (
        lambda: redis.Redis("cache", password=SECRET, ssl=True),
        "rediss://cache:6379/0",
    ),
    "blocking, socket": (
        lambda: redis.Redis(unix_socket_path="/run/r.sock", password=SECRET),
        "unix:///run/r.sock?db=0",
    ),
}


@pytest.mark.parametrize(("client", "address"), CLIENTS.values(), ids=list(CLIENTS))
def test_a_client_says_where_redis_is(
    client: Callable[[], object], address: str
) -> None:
    """From a client come address, credentials and TLS; the habits are ours."""
    endpoint = Endpoint.of(client())
    assert endpoint.address == address
    assert SECRET not in repr(endpoint)
    connection = cast("Any", endpoint.make())
    check_decisions(connection)
    assert connection.password == SECRET


def test_a_borrowed_client_is_left_alone() -> None:
    """Making connections takes none from the client's pool and puts none into it."""
    client = async_client()
    pool = cast("Any", client.connection_pool)
    endpoint = Endpoint.of(client)
    assert endpoint.make() is not endpoint.make()
    assert not pool._available_connections
    assert not pool._in_use_connections


def test_idle_links_are_watched() -> None:
    """Keepalive is on, with the platform's names for idle, interval and count."""
    connection = connection_to("redis://h")
    assert connection.socket_keepalive
    options = connection.socket_keepalive_options
    assert options[socket.TCP_KEEPINTVL] == 5
    assert options[socket.TCP_KEEPCNT] == 3
    assert options.get(getattr(socket, "TCP_USER_TIMEOUT", None), 20_000) == 20_000
    assert 10 in options.values()


make_sentinel: Callable[..., Any] = Sentinel  # redis-py gives it no types
sentinel = make_sentinel([("127.0.0.1", 1)])


# --- several servers

SEVERAL: dict[str, tuple[object, str, list[str]]] = {
    "sentinels": (
        f"redis+sentinel://u:{SECRET}@a:1,[::1]:2,c/订单/3",
        "redis+sentinel://a:1,[::1]:2,c:26379/订单/3",
        ["redis://a:1/0", "redis://[::1]:2/0", "redis://c:26379/0"],
    ),
    "one sentinel, quoted name, TLS": (
        f"rediss+sentinel://:{SECRET}@a/main%2F1",
        "rediss+sentinel://a:26379/main/1/0",
        ["rediss://a:26379/0"],
    ),
    "cluster": (
        f"redis+cluster://:{SECRET}@a,b:7001",
        "redis+cluster://a:6379,b:7001",
        ["redis://a:6379/0", "redis://b:7001/0"],
    ),
    "cluster, TLS, database 0": (
        f"rediss+cluster://u:{SECRET}@a:1/0?ssl_cert_reqs=none&ssl_check_hostname=no",
        "rediss+cluster://a:1",
        ["rediss://a:1/0"],
    ),
    "client of a Sentinel": (
        sentinel.master_for("orders", db=3, password=SECRET, socket_timeout=1),
        "redis+sentinel://127.0.0.1:1/orders/3",
        ["redis://127.0.0.1:1/0"],
    ),
    "client of a cluster": (
        RedisCluster("127.0.0.1", 1, password=SECRET, decode_responses=True),
        "redis+cluster://127.0.0.1:1",
        ["redis://127.0.0.1:1/0"],
    ),
    "client of a cluster, TLS": (
        RedisCluster("127.0.0.1", 1, password=SECRET, ssl=True),
        "rediss+cluster://127.0.0.1:1",
        ["rediss://127.0.0.1:1/0"],
    ),
}


@pytest.mark.parametrize(
    ("target", "address", "seeds"), SEVERAL.values(), ids=list(SEVERAL)
)
def test_several_servers_are_one_endpoint(
    target: object, address: str, seeds: list[str]
) -> None:
    """Whom to ask, and connections of ours to whoever is named, with the same login."""
    endpoint = Endpoint.of(target)
    assert endpoint.address == address
    assert endpoint.notes == ()
    topology = endpoint.topology
    assert topology is not None
    assert [seed.address for seed in topology.seeds] == seeds
    assert endpoint.is_cluster is (topology.kind == "cluster")
    connection = cast("Any", topology.node("10.0.0.1", 7).make())
    check_decisions(connection)
    assert (connection.host, connection.port) == ("10.0.0.1", 7)
    assert connection.password == SECRET
    assert SECRET not in repr(topology) + repr(endpoint)


@pytest.mark.parametrize(
    ("target", "login"),
    [
        (f"redis+sentinel://u:{SECRET}@a/m", (None, None)),
        (
            f"redis+sentinel://a/m?sentinel_username=s&sentinel_password={SECRET}",
            ("s", SECRET),
        ),
        (f"redis+cluster://u:{SECRET}@a", ("u", SECRET)),
    ],
    ids=["not those of the server", "their own", "nodes"],
)
def test_sentinels_have_credentials_of_their_own(
    target: str, login: tuple[str | None, str | None]
) -> None:
    """User and password of the URL go to Redis, not to the sentinels."""
    topology = Endpoint.of(target).topology
    assert topology is not None
    seed = cast("Any", topology.seeds[0].make())
    assert (seed.username, seed.password) == login


REFUSED_SEVERAL = {
    "no hosts": ("redis+sentinel:///m", "at least one host"),
    "no hosts, cluster": (f"redis+cluster://u:{SECRET}@", "at least one host"),
    "an empty host": ("redis+cluster://a,,b", "hosts are written host:port"),
    "a word for a port": ("redis+cluster://a:b", "hosts are written host:port"),
    "a large port": ("redis+cluster://a:65536", "a port is between"),
    "no service": ("redis+sentinel://a:1", "needs the master's name"),
    "no service, slash": ("redis+sentinel://a:1/", "needs the master's name"),
    "a word for a database": ("redis+sentinel://a/m/x", "the database is a number"),
    "a database of a cluster": ("redis+cluster://a/1", "no database but 0"),
    "sentinels of a cluster": (
        f"redis+cluster://a?sentinel_password={SECRET}",
        "a cluster has no sentinels",
    ),
    "a slash in the password": (f"redis+cluster://u:1/{SECRET}@a", "are written %2F"),
    "a bracket in the password": (f"redis+cluster://u:[{SECRET}@a", "are written %2F"),
    "a question mark in it": (f"redis+cluster://u:1?{SECRET}=x@a", "a ? in a password"),
    "an unknown option": ("redis+sentinel://a/m?colour=red", "'colour' is not"),
    "another engine": ("redis+proxy://a", "begins with redis://"),
}


@pytest.mark.parametrize(
    ("url", "rule"), REFUSED_SEVERAL.values(), ids=list(REFUSED_SEVERAL)
)
def test_a_url_of_several_servers_that_makes_no_sense(url: str, rule: str) -> None:
    """The error names the rule, and hides the password."""
    with pytest.raises(ConfigurationError, match=r"^redis: ") as caught:
        Endpoint.of(url)
    assert rule in str(caught.value)
    assert SECRET not in str(caught.value)


NO_CLIENTS: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "bytes": lambda: b"redis://h",
    "a pool": ConnectionPool,
    "anything": object,
    "replicas of a Sentinel": lambda: sentinel.slave_for("orders"),
    "a blocking client's own connections": lambda: redis.Redis(
        connection_pool=redis.ConnectionPool(redis.sentinel.SentinelManagedConnection)
    ),
    "own connection classes": lambda: redis.asyncio.Redis(
        connection_pool=ConnectionPool(type("OwnConnection", (Connection,), {}))
    ),
}


@pytest.mark.parametrize("target", NO_CLIENTS.values(), ids=list(NO_CLIENTS))
def test_what_is_no_client_is_refused(target: Callable[[], object]) -> None:
    """Anything that connections to one server cannot be made of is refused at once."""
    with pytest.raises(ConfigurationError, match=r"^redis: "):
        Endpoint.of(target())
