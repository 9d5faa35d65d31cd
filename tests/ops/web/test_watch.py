"""What is kept once for many followers: the ring, and outages of Redis."""

from __future__ import annotations

import logging
import tracemalloc
from contextlib import ExitStack
from typing import Any

import anyio
import pytest

from bls_agent.core.codec import decode_object, encode
from bls_agent.devserver import DevServer
from bls_agent.ops.fleet import ProjectView
from bls_agent.ops.web.app import create_app
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.feeds import watch
from bls_agent.ops.web.feeds.fleet import FleetFeed
from bls_agent.ops.web.feeds.watch import Item, Ring, Shared
from bls_agent.ops.web.requests import project_path
from tests.corpus.hostile_texts import HOSTILE_TEXTS
from tests.harness import eventually
from tests.ops.web.serving import asking, told_in

NOBODY: Any = None


def payloads(items: list[Item]) -> list[bytes]:
    return [item.payload for item in items]


def test_a_follower_reads_on_from_his_place() -> None:
    """Everything from there on, in order, and nothing twice."""
    ring = Ring(most=10, size=1_000)
    ring.add(Item(b"a"), Item(b"b"))
    items, missed = ring.since(0)
    assert (payloads(items), missed) == ([b"a", b"b"], 0)
    place = ring.end
    ring.add(Item(b"c"))
    assert payloads(ring.since(place)[0]) == [b"c"]
    assert ring.since(ring.end) == ([], 0)
    assert payloads(ring.since(0, 2)[0]) == [b"a", b"b"]
    assert payloads(ring.since(0, 0)[0]) == [b"a"]  # one in any case


def test_a_slow_follower_learns_what_he_missed() -> None:
    """The ring does not grow for him, neither in number nor in bytes."""
    ring = Ring(most=3, size=1_000)
    for n in range(10):
        ring.add(Item(str(n).encode()))
    items, missed = ring.since(2)
    assert (payloads(items), missed) == ([b"7", b"8", b"9"], 5)
    ring = Ring(most=100, size=10)
    for n in range(10):
        ring.add(Item(str(n).encode() * 4))
    items, missed = ring.since(0)
    assert (payloads(items), missed) == ([b"8888", b"9999"], 8)
    ring.add(Item(b"x" * 100))
    assert payloads(ring.since(0)[0]) == [b"x" * 100]  # the newest in any case
    assert ring.begin == 10


def test_short_items_take_little_memory() -> None:
    """As much as their bytes, whatever the writer of the bytes had set aside."""
    tracemalloc.start()
    try:
        ring = Ring(most=2_000, size=1_000_000)
        before = tracemalloc.get_traced_memory()[0]
        for number in range(2_000):
            ring.add(Item(encode({"number": number}), "log"))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < 2_000 * 500


class _Once(Shared):
    runs = 0

    async def _run(self) -> None:
        self.runs += 1


async def test_what_has_ended_does_not_begin_again_for_who_leaves() -> None:
    """It begins with a follower, and not with the end of one."""
    once = _Once(Ring(most=1, size=1), 60.0)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            once.open(tasks)
            with once.wanted():
                await anyio.wait_all_tasks_blocked()
    assert (once.runs, once.running) == (1, False)


class _Slow(_Once):
    """Has something to do when it is cancelled."""

    def __init__(self) -> None:
        super().__init__(Ring(most=1, size=1), 0.0)
        self.ending = anyio.Event()
        self.may_end = anyio.Event()

    async def _run(self) -> None:
        await super()._run()
        try:
            await anyio.sleep_forever()
        finally:
            self.ending.set()
            with anyio.CancelScope(shield=True):
                await self.may_end.wait()


async def test_a_follower_that_comes_while_the_watch_ends_is_served() -> None:
    """The watch runs again when its end is complete, and only for a follower."""
    slow = _Slow()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            slow.open(tasks)
            with slow.wanted():
                await anyio.wait_all_tasks_blocked()
            await slow.ending.wait()
            assert slow.is_ending
            with slow.wanted():
                slow.may_end.set()
                await eventually(lambda: slow.runs == 2)
            await eventually(lambda: not slow.running)
    assert slow.runs == 2


async def test_a_project_that_is_gone_is_told_by_its_page() -> None:
    """Whatever its name holds, and that Redis answers."""
    feed = FleetFeed(NOBODY)
    for text in HOSTILE_TEXTS.values():
        feed._replace({text: ProjectView(project=text)})
        feed._replace({})
        told = decode_object(feed.ring.since(0)[0][-1].payload)
        assert (told["gone"], told["away"]) == ([project_path(text)], None)


async def test_a_console_logs_the_end_of_an_outage_once(
    own_server: DevServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Five watches have lost their connections, and one line tells how long."""
    caplog.set_level(logging.INFO, "bls_agent.connection")
    monkeypatch.setattr(watch, "AGAIN", 0.1)
    app = create_app(WebConfig(redis=own_server.url))
    async with asking(app):
        watches = app.web.watches
        with ExitStack() as all_wanted:
            for one in watches:
                all_wanted.enter_context(one.wanted())
            await eventually(lambda: all(one.read_at for one in watches))
            own_server.kill()
            await eventually(lambda: all(one.away for one in watches))
            own_server.restart()
            await eventually(lambda: not any(one.away for one in watches))
    assert len([one for one in caplog.messages if "answers again" in one]) == 1


async def test_until_the_first_read_nothing_is_claimed(
    own_server: DevServer, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis is slow: no page and no answer says that there is nothing."""
    monkeypatch.setattr(watch, "READY", 0.05)
    own_server.freeze()
    app = create_app(WebConfig(redis=own_server.url))
    async with asking(app) as client:
        for path in ("/", "/workers", "/runs", "/assets", "/crawl"):
            listing = (await client.get(path)).text
            assert told_in(listing)["state"] == "reading"
            assert '<p id="nothing" class="nothing" hidden>' in listing
        page = await client.get(project_path(project))
        assert page.status_code == 200
        told = told_in(page.text)
        assert (told["cards"], told["state"]) == ([], "reading")
        for path in ("/api/projects", "/api/workers", "/api/runs", "/api/health"):
            assert (await client.get(path)).status_code == 503, path
        follower = app.web.fleet.follow(60.0)
        first = decode_object(await anext(follower))
        assert (first["whole"], first["cards"]) == (True, [])
        assert first["state"] == "reading"
        own_server.thaw()
        second = decode_object(await anext(follower))
        assert (second["whole"], second["away"]) == (True, None)
        assert second["state"] == "live"
        await follower.aclose()
        assert (await client.get(project_path(project))).status_code == 404
        assert (await client.get("/api/projects")).json() == {"projects": []}


async def test_an_old_list_is_not_returned_after_a_pause(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch begins again, Redis is slow: an error, and not the list of before."""
    monkeypatch.setattr(watch, "GRACE", 0.05)
    app = create_app(WebConfig(redis=own_server.url))
    async with asking(app) as client:
        assert (await client.get("/api/workers")).status_code == 200
        await eventually(lambda: not app.web.workers.running)
        monkeypatch.setattr(watch, "READY", 0.05)
        own_server.freeze()
        try:
            assert (await client.get("/api/workers")).status_code == 503
            assert told_in((await client.get("/workers")).text)["state"] == "reading"
        finally:
            own_server.thaw()
