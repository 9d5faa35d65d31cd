"""A console to be asked: over ASGI, or over TCP from a real uvicorn in a thread."""

from __future__ import annotations

import html
import re
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx
import orjson

from bls_agent.ops.web.app import ConsoleApp, create_app
from bls_agent.ops.web.auth import User
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.server import make_server, open_socket

PASSWORD = "正确 horse battery"
OWN = "http://127.0.0.1:8765"
# Of that password; quick, because the cost stands in the hash, and always the same,
# because tests are named after it.
HASH = (
    "$argon2id$v=19$m=64,t=1,p=1$A00"
    "DIvghsDFRr6GN3erw7w$fOoMy+Y9Z2zpkoSzTLwuh5fOU20GDhIFsksF5ze2o9Q"
)
USERS = {"operator": User(HASH), "值班": User(HASH)}


@asynccontextmanager
async def asking(
    app: ConsoleApp, address: str = "127.0.0.1", base: str = OWN, **more: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client of an application whose parts run."""
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(
            app=app, client=(address, 50_000), raise_app_exceptions=False
        )
        async with httpx.AsyncClient(
            transport=transport, base_url=base, **more
        ) as client:
            yield client


@asynccontextmanager
async def console_of(redis_url: str, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client of a console with a configuration of its own."""
    async with asking(create_app(WebConfig(redis=redis_url, **more))) as client:
        yield client


@dataclass
class Served:
    """A console that listens."""

    url: str
    app: ConsoleApp
    connections: set[Any]

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].strip("/"))


@contextmanager
def served(config: WebConfig) -> Iterator[Served]:
    """Let a console listen at a free port, in a thread."""
    up = threading.Event()
    urls: list[str] = []

    def ready(found: Sequence[str]) -> None:
        urls.extend(found)
        up.set()

    with open_socket(config) as channel:
        app = create_app(config)
        server = make_server(app, channel, ready)
        thread = threading.Thread(target=server.run, args=([channel],))
        thread.start()
        try:
            assert up.wait(10)
            yield Served(urls[0], app, server.server_state.connections)
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive()


async def log_in(
    client: httpx.AsyncClient,
    user: str = "operator",
    password: str = PASSWORD,
    **more: Any,
) -> httpx.Response:
    """Post the login form as a browser does."""
    form = {"user": user, "password": password, "next": "/"} | more
    return await client.post("/login", data=form, headers={"origin": OWN})


def told_in(page: str) -> Any:
    """What the server tells the script of a page of cards."""
    (told,) = re.findall(r' data-told="([^"]*)"', page)
    return orjson.loads(html.unescape(told))
