"""The webhook: genuine pushes of the branch synchronise, everything else does nothing."""

from __future__ import annotations

import hashlib
import hmac
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import anyio
import httpx2
import orjson
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from bls_agent import ConfigurationError, LeaseHeldError, SourceError
from bls_agent.assets import AssetSync
from bls_agent.devserver import DevServer
from bls_agent.integrations.asset_webhook import AssetWebhookApp
from tests.assets.memory_source import MemorySource, manifest
from tests.harness import eventually
from tests.integrations.serving import serving

SECRET = "a-secret-of-the-webhook"
PUSH = {"ref": "refs/heads/main", "repository": {"default_branch": "main"}}


class Gate(MemorySource):
    """A source that can be held, and counts how often it was looked at."""

    def __init__(self) -> None:
        super().__init__({"a.yaml": manifest("a")})
        self.looks = 0
        self.is_open = True
        self.failure = ""

    async def head(self) -> Any:
        self.looks += 1
        while not self.is_open:
            await anyio.sleep(0.005)
        if self.failure:
            raise SourceError("gate", self.failure)
        return await super().head()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def sync(own_server: DevServer, gate: Gate) -> AsyncIterator[AssetSync]:
    async with AssetSync(own_server.url, gate) as opened:
        yield opened


@pytest.fixture
async def client(
    sync: AssetSync, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx2.AsyncClient]:
    """To the application, in the event loop of the test."""
    monkeypatch.setattr("bls_agent.integrations.asset_webhook.MAX_BODY", 10_000)
    app = AssetWebhookApp(sync, SECRET)
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://h") as opened:
        yield opened
    await app.aclose()


def headers(body: bytes, **others: str) -> dict[str, str]:
    """What GitHub sends beside the body."""
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return {
        "X-Hub-Signature-256": f"sha256={signature}",
        "X-GitHub-Event": "push",
        "Content-Type": "application/json",
        **others,
    }


async def post(
    client: httpx2.AsyncClient, told: Any = PUSH, **others: str
) -> tuple[int, str]:
    """Deliver; bytes as they are."""
    body = told if isinstance(told, bytes) else orjson.dumps(told)
    sent = headers(body, **others)
    raw = [(name.encode(), text.encode("latin-1")) for name, text in sent.items()]
    answer = await client.post("/x", content=body, headers=raw)

    return answer.status_code, answer.json()["status"]


async def test_a_push_synchronises(
    client: httpx2.AsyncClient, sync: AssetSync, gate: Gate
) -> None:
    """Answered at once; one run at a time, and once more for all that came meanwhile."""
    gate.is_open = False
    assert await post(client) == (202, "accepted")
    await eventually(lambda: gate.looks == 1)
    for _ in range(10):
        assert await post(client) == (202, "accepted")
    assert gate.looks == 1
    gate.is_open = True
    await eventually(lambda: gate.looks == 2)
    assert [one.id for one in await sync.library.list()] == ["a"]
    gate.files["b.yaml"] = manifest("b")
    body = urlencode({"payload": orjson.dumps(PUSH).decode()}).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert (await post(client, body, **form))[0] == 202

    async def is_done() -> bool:
        return len(await sync.library.list()) == 2

    await eventually(is_done)
    assert gate.looks == 3


async def test_a_push_waits_for_another_synchronisation(
    client: httpx2.AsyncClient,
    sync: AssetSync,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other one may have read the branch before the push."""
    monkeypatch.setattr("bls_agent.integrations.asset_webhook.LEASE_PAUSE", 0.01)
    refused: list[LeaseHeldError] = []
    run = sync.run

    async def run_or_be_refused() -> Any:
        try:
            return await run()
        except LeaseHeldError as error:
            refused.append(error)
            raise

    monkeypatch.setattr(sync, "run", run_or_be_refused)
    async with sync._hold_lease():
        assert await post(client) == (202, "accepted")
        await eventually(lambda: bool(refused))
    await eventually(lambda: gate.looks == 1)


@pytest.mark.parametrize(
    ("told", "others", "status"),
    [
        ({**PUSH, "ref": "refs/heads/other"}, {}, 200),
        ({**PUSH, "ref": "refs/tags/main"}, {}, 200),
        ({**PUSH, "deleted": True}, {}, 200),
        ({"ref": "refs/heads/main", "repository": []}, {}, 200),
        ({"zen": "x"}, {"X-GitHub-Event": "ping"}, 200),
        (PUSH, {"X-GitHub-Event": ""}, 200),
        (b"{", {}, 400), (b"[]", {}, 400), (b"\xff", {}, 400),
        (b"payload=%7B%7D&x", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b"a=b", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b" " * 10_001, {}, 413),
        (PUSH, {"X-Hub-Signature-256": ""}, 401),
        (PUSH, {"X-Hub-Signature-256": "sha256=" + "0" * 64}, 401),
        (PUSH, {"X-Hub-Signature-256": "sha1=0"}, 401),
        (PUSH, {"X-Hub-Signature-256": "\xe4"}, 401),
        (b" " * 10_001, {"X-Hub-Signature-256": ""}, 401),
    ],
)  # fmt: skip
async def test_what_does_nothing(
    client: httpx2.AsyncClient, gate: Gate, told: Any, others: Any, status: int
) -> None:
    """Other events, other branches, what is not genuine, what is too long."""
    assert (await post(client, told, **others))[0] == status
    assert gate.looks == 0
    assert (await client.get("/x")).status_code == 405


async def test_a_body_without_end(client: httpx2.AsyncClient) -> None:
    """No more is read than a delivery may have, whether or not its length is named."""
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 1_000:
            sent += 1
            yield b" " * 1_000

    answer = await client.post("/x", content=chunks(), headers=headers(b""))
    assert answer.status_code == 413
    assert sent <= 12
    sent = 0
    named = {**headers(b""), "Content-Length": "10001"}
    answer = await client.post("/x", content=chunks(), headers=named)
    assert (answer.status_code, sent) == (413, 0)
    named["X-Hub-Signature-256"] = "sha256=short"
    answer = await client.post("/x", content=chunks(), headers=named)
    assert (answer.status_code, sent) == (401, 0)


async def test_few_bodies_at_once(client: httpx2.AsyncClient) -> None:
    """The others wait unread, and have their turn."""
    begun: list[int] = []
    statuses: list[int] = []
    may_end = anyio.Event()

    async def deliver(number: int) -> None:
        async def slow() -> AsyncIterator[bytes]:
            begun.append(number)
            yield b"x"
            await may_end.wait()

        answer = await client.post("/x", content=slow(), headers=headers(b""))
        statuses.append(answer.status_code)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(deliver, number)
        await eventually(lambda: len(begun) == 4)
        sent = {"X-Hub-Signature-256": ""}
        assert [(await post(client, **sent))[0] for _ in range(50)] == [401] * 50
        assert len(begun) == 4
        may_end.set()
    assert statuses == [401] * 20
    assert len(begun) == 20


async def test_a_body_that_does_not_come(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a delivery gives way to others."""
    monkeypatch.setattr("bls_agent.integrations.asset_webhook.PATIENCE", 0.1)

    async def never() -> AsyncIterator[bytes]:
        yield b"x"
        await anyio.sleep_forever()

    for _ in range(5):
        answer = await client.post("/x", content=never(), headers=headers(b""))
        assert answer.status_code == 503
    monkeypatch.undo()
    assert (await post(client))[0] == 202


async def test_a_failure_can_be_delivered_again(
    client: httpx2.AsyncClient, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a warning, and the next delivery synchronises again."""
    caplog.set_level(logging.WARNING)
    gate.failure = "no answer"
    assert (await post(client))[0] == 202
    await eventually(lambda: "no answer" in caplog.text)
    gate.failure = ""
    assert (await post(client))[0] == 202
    await eventually(lambda: gate.looks == 2)


async def test_the_branch_of_the_source(sync: AssetSync, gate: Gate) -> None:
    """Counts, unless another one is named; the secret is needed."""
    gate.branch = "dev"  # type: ignore[attr-defined]
    for branch, accepted in (("", "dev"), ("live", "live")):
        app = AssetWebhookApp(sync, SECRET, branch=branch)
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://h") as one:
            assert (await post(one))[0] == 200
            assert (await post(one, {"ref": f"refs/heads/{accepted}"}))[0] == 202
        await app.aclose()
    with pytest.raises(ConfigurationError, match="16 characters"):
        AssetWebhookApp(sync, "short")


@pytest.mark.parametrize("how", ["alone", "route", "mount"])
async def test_under_a_server(own_server: DevServer, how: str) -> None:
    """Alone, as a route and mounted; a client that leaves in the middle harms nobody."""
    gate = Gate()
    sync = AssetSync(own_server.url, gate)
    hook = AssetWebhookApp(sync, SECRET)

    @asynccontextmanager
    async def live(_: Starlette) -> AsyncIterator[None]:
        yield
        await hook.aclose()
        await sync.aclose()

    path = {"alone": "/", "route": "/hook", "mount": "/hook/"}[how]
    app: Any = hook
    if how == "route":
        app = Starlette(routes=[Route("/hook", hook, methods=["POST"])], lifespan=live)
    elif how == "mount":
        app = Starlette(routes=[Mount("/hook", hook)], lifespan=live)
    with serving(app) as url:
        address = httpx2.URL(url)
        with socket.create_connection((address.host, address.port or 0), 5) as leaving:
            leaving.sendall(
                f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n"
                f"X-Hub-Signature-256: sha256={'0' * 64}\r\n\r\nab".encode()
            )
        body = orjson.dumps(PUSH)
        async with httpx2.AsyncClient(trust_env=False) as client:
            answer = await client.post(url + path, content=body, headers=headers(body))
        assert answer.status_code == 202
        await eventually(lambda: gate.looks == 1)
