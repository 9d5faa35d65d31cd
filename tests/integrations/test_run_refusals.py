"""Runs over HTTP that are not sent: Redis is away or refuses, or nobody may read them."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import anyio
import httpx2 as httpx
import pytest
from fastapi import HTTPException, Request
from redis.asyncio import Redis
from starlette.responses import RedirectResponse, Response

from bls_agent import ConfigurationError, EventStore, MissingExtraError
from bls_agent.devserver import DevServer
from bls_agent.integrations.run_events import (
    RunEventsApp,
    allow_all,
)
from tests.harness import PASSWORD, execute
from tests.integrations.serving import asking, following, serving, write

PAGE = "https://page.example"


async def test_redis_away(own_server: DevServer) -> None:
    """503 for who comes; who comes back waits, and goes on where he was."""
    app = RunEventsApp(EventStore(own_server.url), authorize=allow_all, heartbeat=0.2)
    async with EventStore(own_server.url) as store:
        ids = await write(store, 1, 3)
        ended = await write(store, 2, 1)
        ended.append(await store.add(2, "system", "close") or "")
        own_server.kill()
        with serving(app) as url:
            async with httpx.AsyncClient(base_url=url, timeout=20) as client:
                for path in ("/runs/1/events", "/runs/1/events/stream"):
                    answer = await client.get(path)
                    assert answer.status_code == 503
                    assert answer.headers["retry-after"] == "2"
                    assert answer.json()["kind"] == "connection"
                    assert str(own_server.port) not in answer.text
            async with (
                following(url, 1, ids[1]) as stream,
                following(url, 2, ended[1]) as over,
            ):
                while min(stream.parser.comments, over.parser.comments) < 2:
                    assert await stream.read()
                    assert await over.read()
                assert stream.parser.retry == 2000
                assert stream.messages == over.messages == []
                await anyio.to_thread.run_sync(own_server.restart)
                ids.append(await store.add(1, "system", "close") or "")
                messages = await stream.rest()
                assert stream.ids == ids[2:]
                assert messages[-1].type == "close"
                assert [one.type for one in await over.rest()] == ["close"]


async def test_redis_refuses(own_server: DevServer, admin: Redis) -> None:
    """503 without a word about the password; also for who comes back."""
    url = own_server.url.replace("//", f"//agent:{PASSWORD}@")
    app = RunEventsApp(EventStore(url), authorize=allow_all)
    header = {"Last-Event-ID": "5-0"}
    async with asking(app) as client:
        for rules, kind in (((), "auth"), (("on", f">{PASSWORD}"), "no_permission")):
            if rules:
                await execute(admin, "ACL", "SETUSER", "agent", "reset", *rules)
            for path in ("/runs/1/events", "/runs/1/events/stream"):
                answer = await client.get(path, headers=header)
                assert answer.status_code == 503
                assert answer.json() == {"error": "Redis refuses", "kind": kind}
    await app._store.aclose()


async def test_a_run_that_becomes_something_else(
    redis_url: str,
    store: EventStore,
    run_id: int,
    redis: Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The stream ends in order, and the log says why; who comes back gets 409."""
    ids = await write(store, run_id, 1)
    with serving(RunEventsApp(EventStore(redis_url), authorize=allow_all)) as url:
        async with following(url, run_id) as stream:
            await stream.until(1)
            await redis.set(f"run:{run_id}:events", "no stream", ex=60)
            assert [one.type for one in await stream.rest()] == ["llm.stream"]
        path, header = f"{url}/runs/{run_id}/events/stream", {"Last-Event-ID": ids[0]}
        async with httpx.AsyncClient() as client:
            assert (await client.get(path, headers=header)).status_code == 409
    assert "a stream ends: key" in caplog.text


# Rights


async def test_nobody_may_read_by_default(
    store: EventStore, run_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """403, and the log says at once what to do about it."""
    await write(store, run_id, 1)
    await store.add(run_id, "system", "close")
    app = RunEventsApp(store)
    assert "pass authorize=" in caplog.text
    async with asking(app) as client:
        for path in ("events", "events/stream"):
            answer = await client.get(f"/runs/{run_id}/{path}")
            assert answer.status_code == 403
            assert "authorize" in answer.json()["error"]


@pytest.mark.parametrize("said", [False, None, 1, "yes", {"user": "me"}], ids=str)
async def test_only_true_opens(store: EventStore, run_id: int, said: object) -> None:
    """What is merely not false keeps the door closed."""
    await write(store, run_id, 1)
    await store.add(run_id, "system", "close")

    async def authorize(request: Request, run_id: int) -> Any:
        return said

    async with asking(RunEventsApp(store, authorize=authorize)) as client:
        for path in ("events", "events/stream"):
            assert (await client.get(f"/runs/{run_id}/{path}")).status_code == 403


async def test_authorize_is_asked_each_time(store: EventStore, run_id: int) -> None:
    """With the request and the run; it may answer by itself, and be no coroutine."""
    ids = await write(store, run_id, 1)
    await store.add(run_id, "system", "close")
    asked = list[tuple[str | None, int]]()

    def authorize(request: Request, run_id: int) -> bool | Response:
        user = request.cookies.get("session")
        asked.append((user, run_id))
        return user == "mine" or RedirectResponse("/login")

    app = RunEventsApp(store, authorize=authorize)
    path, header = f"/runs/{run_id}/events/stream", {"Last-Event-ID": ids[0]}
    async with asking(app) as client:
        assert (await client.get(path)).headers["location"] == "/login"
        client.cookies["session"] = "mine"
        assert (await client.get(path)).status_code == 200
        client.cookies["session"] = "another's"
        assert (await client.get(path, headers=header)).status_code == 307
        assert (await client.get(f"/runs/{run_id}/events")).status_code == 307
    assert asked == [
        (None, run_id),
        ("mine", run_id),
        ("another's", run_id),
        ("another's", run_id),
    ]


async def test_an_authorize_that_raises_opens_nothing(
    store: EventStore, run_id: int
) -> None:
    """A framework's refusal is the answer; a fault of its own is a 500."""
    await write(store, run_id, 1)
    await store.add(run_id, "system", "close")

    async def authorize(request: Request, run_id: int) -> bool:
        if "user" in request.query_params:
            raise RuntimeError
        detail = request.query_params.get("detail", "who are you?")
        raise HTTPException(401, detail, {"WWW-Authenticate": "Basic"})

    async with asking(RunEventsApp(store, authorize=authorize)) as client:
        answer = await client.get(f"/runs/{run_id}/events/stream")
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Basic"
        assert answer.json() == {"error": "who are you?"}
        answer = await client.get(f"/runs/{run_id}/events?detail=")
        assert (answer.status_code, answer.json()) == (401, {"error": ""})
        answer = await client.get(f"/runs/{run_id}/events?user=x")
        assert answer.status_code == 500
        assert b"id" not in answer.content


async def test_pages_of_other_origins(store: EventStore, run_id: int) -> None:
    """None may read; those that are named may, with their cookies."""
    await write(store, run_id, 1)
    await store.add(run_id, "system", "close")
    path = f"/runs/{run_id}/events/stream"
    asking_first = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "Last-Event-ID",
    }
    async with asking(RunEventsApp(store, authorize=allow_all)) as client:
        for answer in (
            await client.get(path, headers={"Origin": PAGE}),
            await client.options(path, headers=asking_first),
        ):
            assert not [one for one in answer.headers if one.startswith("access-c")]
    app = RunEventsApp(store, authorize=allow_all, allow_origins=[PAGE])
    async with asking(app) as client:
        answer = await client.get(path, headers={"Origin": PAGE})
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert "Origin" in answer.headers["vary"]
        answer = await client.options(path, headers=asking_first)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        for other in ("https://evil.example", f"{PAGE}.evil.example", "null"):
            answer = await client.get(path, headers={"Origin": other})
            assert "access-control-allow-origin" not in answer.headers
    app = RunEventsApp(store, authorize=allow_all, allow_origins=["*"])
    async with asking(app, cookies={"session": "mine"}) as client:
        answer = await client.get(path, headers={"Origin": PAGE})
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "options",
    [
        {"allow_origins": PAGE},
        {"allow_origins": [f"{PAGE}/"]},
        {"allow_origins": ["page.example"]},
        {"allow_origins": ["https://*.example"]},
        {"max_streams": 0},
        {"heartbeat": 0},
        {"heartbeat": "15"},
    ],
    ids=str,
)
def test_wrong_options_are_refused_at_once(
    redis_url: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        RunEventsApp(EventStore(redis_url), authorize=allow_all, **options)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Starlette the import says what to install."""
    name = "bls_agent.integrations.run_events"
    for loaded in [one for one in sys.modules if one.startswith("bls_agent.integr")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, "sse_starlette", None)
    with pytest.raises(MissingExtraError, match=r"\.\[web\]"):
        importlib.import_module(name)
