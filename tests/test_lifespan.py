"""An agent as the lifespan of a Starlette or FastAPI application."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI
from redis import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from bls_agent import ConfigurationError, ProjectAgent, Status, SyncConsole
from tests.programs import run_python


@pytest.fixture
def console(redis_url: str, project: str) -> Iterator[SyncConsole]:
    """The other end; the project's keys are removed."""
    with SyncConsole(redis_url) as opened:
        yield opened
    with Redis.from_url(redis_url) as client:
        client.delete(*(f"{project}_{s}" for s in ("项目状态", "项目控制台", "控制")))


def test_as_the_lifespan_of_fastapi(
    redis_url: str, console: SyncConsole, project: str, caplog: pytest.LogCaptureFixture
) -> None:
    """On the console while the application lives, 离线 afterwards, and again."""
    agent = ProjectAgent(project, redis=redis_url)
    app = FastAPI(lifespan=agent.lifespan)

    @agent.command
    async def count() -> int:
        return len(app.routes)

    @app.get("/orders/{number}")
    async def order(number: int) -> str:
        await agent.ready(5)
        agent.log.info("looked up", number=number)
        return agent.status

    for _ in range(2):
        with TestClient(app) as client:
            assert client.get("/orders/7").json() == "在线"
            assert console.status(project) is Status.ONLINE
            assert console.call(project, "count").result == len(app.routes)
        assert console.status(project) is Status.OFFLINE
        assert console.logs(project)[-2].metadata["number"] == 7
    assert not [r for r in caplog.records if r.name.startswith("bls_agent")]


@asynccontextmanager
async def _connect() -> AsyncGenerator[str]:
    yield "a pool"


def test_inside_of_another_lifespan(
    redis_url: str, console: SyncConsole, project: str
) -> None:
    """The application's own lifespan holds it, and keeps its state."""
    agent = ProjectAgent(project, redis=redis_url)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[dict[str, str]]:
        async with agent.lifespan(app), _connect() as pool:
            await agent.ready(5)
            yield {"pool": pool}

    async def show(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.state.pool)

    app = Starlette(routes=[Route("/", show)], lifespan=lifespan)
    with TestClient(app) as client:
        assert client.get("/").text == "a pool"
        assert console.status(project) is Status.ONLINE
    assert console.status(project) is Status.OFFLINE


def test_an_application_that_cannot_start(
    redis_url: str, console: SyncConsole, project: str
) -> None:
    """Its exception is raised unchanged, and the status says 故障."""
    agent = ProjectAgent(project, redis=redis_url)
    error = ConnectionError("no database")

    async def connect() -> None:
        raise error

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with agent.lifespan(app):
            await connect()
            yield

    with (
        pytest.raises(ConnectionError) as caught,
        TestClient(FastAPI(lifespan=lifespan)),
    ):
        pass
    assert caught.value is error
    assert console.status(project) is Status.FAULT


def test_an_agent_that_cannot_open(
    project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong settings keep the application from starting, and say what is wrong."""
    monkeypatch.setenv("BLS_CONCURRENCY", "many")
    agent = ProjectAgent(project)
    with (
        pytest.raises(ConfigurationError, match="BLS_CONCURRENCY"),
        TestClient(FastAPI(lifespan=agent.lifespan)),
    ):
        pass


SERVICE = """
import sys, uvicorn
from fastapi import FastAPI
from bls_agent import ProjectAgent

agent = ProjectAgent(sys.argv[1])
app = FastAPI(lifespan=agent.lifespan)
uvicorn.run(app, host="127.0.0.1", port=0, log_level="info")
"""


def test_uvicorn_does_not_start_without_the_agent(redis_url: str, project: str) -> None:
    """A wrong setting is told in the server's log, and its exit code is not 0."""
    env = {"BLS_REDIS_URL": redis_url, "BLS_CONCURRENCY": "many"}
    ended = run_python("-c", SERVICE, project, env=env)
    assert "BLS_CONCURRENCY" in ended.err
    assert "Application startup failed" in ended.err
    assert ended.code
