"""Requests that want to write, to linger or to leave traces where they must not."""

from __future__ import annotations

import html
import logging
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
from redis.asyncio import Redis

from bls_agent.ops.web.app import create_app
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.forms import Entry
from bls_agent.ops.web.requests import project_in_path
from tests.ops.web.serving import OWN, USERS, asking, console_of

OURS = '{"message": "x", "metadata": {"agent": "host-1#7"}}'


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody at this machine, of a console without users."""
    async with console_of(redis_url) as asked:
        yield asked


async def test_nobody_writes_lines_into_the_consoles_own_log(
    client: httpx.AsyncClient,
    redis: Redis,
    project: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The id of a command is free text, and stands in the log of who sent what."""
    await redis.set(f"{project}_项目状态", "在线")
    caplog.set_level(logging.INFO, "bls_agent")
    told = {"targetProjectName": project, "command": "x", "id": "1\nINFO root sent 'y'"}
    answer = await client.post("/api/commands", json=told)
    assert answer.status_code == 202
    lines = [one for one in caplog.messages if "sent 'x'" in one]
    assert len(lines) == 1
    assert "\n" not in lines[0]


@pytest.mark.parametrize("path", ["help", "send"])
async def test_pages_begin_no_project(
    client: httpx.AsyncClient, redis: Redis, project: str, path: str
) -> None:
    """Neither does the interface: a name with a slip in it is no new control list."""
    answer = await client.post(
        f"/fragments/{path}",
        params={"projectName": project},
        data={"payload": '{"command": "x"}'},
        headers={"origin": OWN},
    )
    assert answer.status_code == 404
    assert not await redis.keys(f"{project}*")


async def test_nobody_is_asked_unasked(
    client: httpx.AsyncClient, redis: Redis, project: str
) -> None:
    """A link of somebody else's may open a page; that commands nobody."""
    await redis.set(f"{project}_项目状态", "在线", ex=60)
    await redis.rpush(f"{project}_项目控制台", OURS)
    page = await client.get("/fragments/commands", params={"projectName": project})
    assert page.status_code == 200
    assert 'hx-trigger="load"' not in page.text
    assert "/fragments/help" in page.text
    assert not await redis.exists(f"{project}_控制")


async def test_a_form_keeps_its_command_when_others_ask_again(redis_url: str) -> None:
    """Commands that were added since then do not change what is reviewed."""
    app = create_app(WebConfig(redis=redis_url))
    query = {"projectName": "订单系统"}
    resize, reset = Entry(name="re<size"), Entry(name="reset")
    async with asking(app) as client:
        app.web.manuals.put("订单系统", (resize, reset), time.monotonic())
        page = (await client.get("/fragments/commands", params=query)).text
        (value,) = re.findall('<option value="([^"]*)">reset<', page)
        added = (Entry(name="other"), Entry(name=""), resize, reset)
        app.web.manuals.put("订单系统", added, time.monotonic())
        for name, form in (("reset", {"chosen": value}), ("x", {"command": "x"})):
            review = "/fragments/review"
            sent = await client.post(
                review, params=query, data=form, headers={"origin": OWN}
            )
            payload = f'{{"command":"{name}","args":{{}}}}'
            assert payload in html.unescape(sent.text)
        for value in (f'"{"长" * 21_000}"', "1180591620717411303424"):
            payload = f'{{"command":"x","args":{{"n":{value}}}}}'
            form = {"command": "x", "args": payload[22:-1]}
            sent = await client.post(
                "/fragments/review", params=query, data=form, headers={"origin": OWN}
            )
            assert f"<bdi>{payload}</bdi>" in html.unescape(sent.text)  # all of it


async def test_who_hangs_up_is_no_fault_of_ours(redis_url: str) -> None:
    """Otherwise everybody could fill the disk with tracebacks, before any login."""
    app = create_app(WebConfig(redis=redis_url, users=USERS))
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    form = (b"content-type", b"application/x-www-form-urlencoded")
    own = [(b"host", b"127.0.0.1:8765"), (b"origin", OWN.encode()), form]
    scope: dict[str, Any] = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/login", "raw_path": b"/login", "query_string": b"", "headers": own,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8765),
    }  # fmt: skip
    async with asking(app):
        await app(scope, receive, send)  # raises nothing
    assert sent


async def test_questions_have_no_body(client: httpx.AsyncClient) -> None:
    """Nobody reads it, and a stream would wait for its end."""
    answer = await client.request("GET", "/api/health", content=b"x")
    assert answer.status_code == 400

    async def parts() -> AsyncIterator[bytes]:
        yield b"x"

    answer = await client.request("GET", "/api/health", content=parts())
    assert answer.status_code == 411


def test_a_console_may_stand_below_a_path_called_projects() -> None:
    """What a proxy cuts off is no part of a name."""
    scope = {"raw_path": b"/projects/projects/a", "root_path": "/projects"}
    assert project_in_path(scope) == "a"
