"""The rights of who writes runs, and of who follows them, are enough, and no more."""

from __future__ import annotations

import contextlib
from functools import partial

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import EventStore, RedisRefusedError
from bls_agent.core.acl import RUN_RIGHTS, KeyAccess, run_acl_rules
from bls_agent.core.errors import LeaseHeldError, RedisUnavailableError
from bls_agent.core.keys import KEYS
from bls_agent.devserver import DevServer
from bls_agent.runs.writer_pool import RunLease
from tests.acl_rules import documented_rules, each_right, may, refused, rules_without
from tests.harness import eventually, needs_selectors, url_with_rights

RUN, OTHER = 2**63 - 1, 7


async def write_everything(url: str) -> None:
    """All that a writer does."""
    async with EventStore(url, ttl=60) as store:
        await store.add(RUN, "lifecycle", "started", {"task": "分析"})
        await store.add_many(RUN, [("llm", "stream", {"text": "你好"})] * 3)
        assert await store.set_expire(RUN, 60)
        async with store.run(OTHER, lease=0.4) as run:
            run.emit("llm", "stream", {"text": "你好"})
            assert await run.flush(10)
            with pytest.raises(LeaseHeldError):
                async with store.run(OTHER):
                    pass
            held = run._run_lease
            assert held is not None
            due = held.due
            await eventually(partial(is_renewed, held, due))
        assert await store.delete(OTHER)


async def is_renewed(held: RunLease, due: float) -> bool:
    return held.due > due


async def read_everything(url: str) -> None:
    """All that somebody does who follows."""
    async with EventStore(url) as store:
        events = await store.get_events(RUN)
        assert await store.get_events_after(RUN, events[0].id) == events[1:]
        assert (await store.page(RUN)).events == events
        assert (await store.page_back(RUN)).events == events
        assert await store.tail(RUN) == events[-1].id
        assert await store.subscribe(RUN, events[-2].id, 5_000) == events[-1:]
        assert await store.exists(RUN)
        assert await store.get_length(RUN) == len(events)
        assert RUN in [one.run_id for one in await store.runs()]
        assert await store.describe(RUN) is not None
        for place, behind in (("0-0", events), (events[1].id, events[2:])):
            follower = store.follow(RUN, place)
            with anyio.fail_after(10):
                assert await follower.batch() == behind
                assert await follower.batch(0.05) == []
            await follower.aclose()
        with anyio.move_on_after(0.05):  # one more while a read is parked: UNBLOCK
            await store.follow(OTHER).batch()


@needs_selectors
async def test_a_writers_rights_are_enough(own_server: DevServer, admin: Redis) -> None:
    """Nothing is refused."""
    url = await url_with_rights(admin, own_server, *run_acl_rules())
    await write_everything(url)
    await read_everything(url)
    async with EventStore(url) as store:
        assert await store.delete(RUN)
    assert await refused(admin) == []


async def test_flat_rules_are_enough(own_server: DevServer, admin: Redis) -> None:
    """For Redis 6, without selectors."""
    rules = run_acl_rules(selectors=False)
    assert not any("(" in rule for rule in rules)
    url = await url_with_rights(admin, own_server, *rules)
    await write_everything(url)
    await read_everything(url)
    assert await refused(admin) == []


@needs_selectors
async def test_whoever_follows_cannot_write(
    own_server: DevServer, admin: Redis
) -> None:
    """Everything can be read, nothing written."""
    url = await url_with_rights(admin, own_server, *run_acl_rules(write=False))
    await write_everything(own_server.url)
    await read_everything(url)
    assert await refused(admin) == []
    async with EventStore(url) as store:
        with pytest.raises(RedisRefusedError) as caught:
            await store.add(RUN, "llm", "stream")
        assert caught.value.kind == "no_permission"
        with pytest.raises(RedisRefusedError):
            await store.delete(RUN)
    assert await admin.xlen(f"run:{RUN}:events") == 4


@needs_selectors
@pytest.mark.parametrize(("right", "command"), [*each_right(RUN_RIGHTS)])
async def test_no_right_is_too_many(
    right: KeyAccess, command: str, own_server: DevServer, admin: Redis
) -> None:
    """Without any one of them something is refused to who writes, or who follows."""
    rules = rules_without(RUN_RIGHTS, right, command)
    url = await url_with_rights(admin, own_server, *rules)
    if not right.writes:
        await write_everything(own_server.url)
    with contextlib.suppress(
        RedisUnavailableError, AssertionError, pytest.fail.Exception
    ):
        await (write_everything if right.writes else read_everything)(url)
    assert await refused(admin) != []


@needs_selectors
async def test_other_keys_stay_closed(own_server: DevServer, admin: Redis) -> None:
    """Whoever writes runs reaches no key of anything else."""
    await url_with_rights(admin, own_server, *run_acl_rules())
    for name, row in KEYS.items():
        if name == "run_events":
            continue
        key = row.locate(**dict.fromkeys(row.fields, "x"))
        for words in (["XRANGE", key, "-", "+"], ["EXPIRE", key, 1], ["UNLINK", key]):
            assert not await may(admin, *words), name
    assert not await may(admin, "KEYS", "*")


def test_the_document_shows_both_lines() -> None:
    """As they are printed."""
    lines = documented_rules()
    assert " ".join(run_acl_rules()) in lines
    assert " ".join(run_acl_rules(write=False)) in lines
