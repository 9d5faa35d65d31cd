"""Followers: everything behind a place, in order, once; what is missing; the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import RedisUnavailableError
from bls_agent.connection.scripts import HOLD_RUN
from bls_agent.devserver import DevServer
from bls_agent.runs import (
    EventStore,
    Followed,
    FollowEnd,
    Follower,
    Gap,
    GapReason,
    StreamEvent,
    WriterLost,
)
from bls_agent.runs.follower import BATCH
from bls_agent.runs.reading import FIRST_PAGE, RunKeys
from bls_agent.testing import Delay, FaultProxy
from tests.harness import eventually, execute
from tests.runs.writing import write


async def gather(
    follower: Follower, enough: Callable[[list[Followed]], bool] | int
) -> list[Followed]:
    """Take what comes until it is enough, or to the end."""
    found: list[Followed] = []
    is_enough = enough if callable(enough) else lambda all_: len(all_) >= enough
    with anyio.fail_after(30):
        while not is_enough(found) and not follower.ended:
            found += await follower.batch()
    return found


def sequences(found: list[Followed]) -> list[int]:
    return [one.sequence for one in found if isinstance(one, StreamEvent)]


def others(found: list[Followed]) -> list[Followed]:
    return [one for one in found if not isinstance(one, StreamEvent)]


async def write_plainly(
    redis: Redis, run_id: int, entry_id: str = "*", **fields: Any
) -> str:
    """Write as a foreign writer does, who keeps no books."""
    told: dict[Any, Any] = {"timestamp": "2026-01-12T12:35:00.000Z", "event_category": "llm",
            "event_action": "stream", "data": "{}", **fields}  # fmt: skip
    added: Any = await redis.xadd(f"run:{run_id}:events", told, id=entry_id)
    return str(added, "ascii")


# -- from the beginning to the end


async def test_all_of_a_run_from_before_it_begins(
    store: EventStore, run_id: int
) -> None:
    """It waits for a run that does not exist, and ends with its close."""
    found: list[Followed] = []
    begun = anyio.Event()

    async def follow() -> None:
        follower = store.follow(run_id)
        assert await follower.batch(0.05) == []
        begun.set()
        async for one in follower:
            found.append(one)
            assert isinstance(one, StreamEvent)
            assert follower.place == one.id
        assert follower.ended
        assert await follower.batch() == []

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await begun.wait()
            for _ in range(20):
                await write(store, run_id)
            await store.add(run_id, "system", "close")
    assert sequences(found) == list(range(1, 22))
    assert others(found) == []


async def test_replay_and_resume(store: EventStore, run_id: int) -> None:
    """Pages of a long run, without overlap; from any place in it, and from its end."""
    ids = await write(store, run_id, 1_700)
    ids.append(await store.add(run_id, "system", "close") or "")
    for begin in (0, 1, 499, 1_699, 1_700):
        place = ids[begin - 1] if begin else "0-0"
        found = await gather(store.follow(run_id, place), 10**9)
        assert sequences(found) == list(range(begin + 1, 1_702))
        assert others(found) == []
    at_end = store.follow(run_id, ids[-1])
    assert await at_end.batch() == []
    assert at_end.ended


async def test_only_what_is_new(store: EventStore, run_id: int) -> None:
    """The end is fixed by the first wait, once: what comes between two waits is given."""
    await write(store, run_id, 3)
    follower = store.follow(run_id, "$")
    assert await follower.batch(0.05) == []
    ids = await write(store, run_id, 2)
    await anyio.lowlevel.checkpoint()
    assert sequences(await gather(follower, 2)) == [4, 5]
    assert follower.place == ids[-1]
    assert sequences(await gather(store.follow(run_id, ids[0]), 1)) == [5]


async def test_end_of_a_run_that_does_not_exist(store: EventStore, run_id: int) -> None:
    follower = store.follow(run_id, "$")
    assert await follower.batch(0.05) == []
    await write(store, run_id, 2)
    assert sequences(await gather(follower, 2)) == [1, 2]


async def test_a_run_that_is_used_again(store: EventStore, run_id: int) -> None:
    """A close behind which something stands ends nothing."""
    await write(store, run_id, 2)
    await store.add(run_id, "system", "close")
    await write(store, run_id, 2)
    follower = store.follow(run_id)
    assert sequences(await gather(follower, 5)) == [1, 2, 3, 4, 5]
    assert not follower.ended
    await store.add(run_id, "system", "close")
    assert sequences(await gather(follower, 10)) == [6]
    assert follower.ended


async def test_a_close_at_the_end_of_a_page(store: EventStore, run_id: int) -> None:
    """What stands on the next one is followed on."""
    await write(store, run_id, FIRST_PAGE - 1)
    await store.add(run_id, "system", "close")
    await write(store, run_id, 10)
    found = await gather(store.follow(run_id), FIRST_PAGE + 10)
    assert sequences(found) == list(range(1, FIRST_PAGE + 11))


async def test_a_close_at_the_end_of_a_batch(store: EventStore, run_id: int) -> None:
    """The same of what comes from the buffer."""
    slow, quick = store.follow(run_id), store.follow(run_id)
    await write(store, run_id)
    assert len(await gather(slow, 1)) == len(await gather(quick, 1)) == 1
    await write(store, run_id, BATCH - 1)
    await store.add(run_id, "system", "close")
    await write(store, run_id, 10)
    assert len(await gather(quick, BATCH + 10)) == BATCH + 10
    assert len(await gather(slow, BATCH + 10)) == BATCH + 10


async def test_a_run_that_is_deleted(store: EventStore, run_id: int) -> None:
    """Who has seen it ends; who comes now waits for its next life."""
    await write(store, run_id, 2)
    follower, late = store.follow(run_id), store.follow(run_id)
    assert sequences(await gather(follower, 2)) == [1, 2]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gather, follower, 3)
        await anyio.wait_all_tasks_blocked()
        await store.delete(run_id)
        assert await late.batch(0.2) == []
        with anyio.fail_after(20):
            await eventually(lambda: follower.ended)
    assert not late.ended
    await write(store, run_id, 1)
    assert sequences(await gather(late, 1)) == [1]


# -- what is missing


async def test_the_beginning_was_trimmed(
    store: EventStore, run_id: int, bare: Redis
) -> None:
    ids = await write(store, run_id, 10)
    await bare.xtrim(f"run:{run_id}:events", minid=ids[4], approximate=False)
    found = await gather(store.follow(run_id), 7)
    assert found[0] == Gap(run_id, GapReason.TRIMMED, "0-0", ids[4], 4)
    assert sequences(found) == list(range(5, 11))
    found = await gather(store.follow(run_id, ids[1]), 7)
    assert isinstance(found[0], Gap)
    assert (found[0].reason, found[0].after, found[0].missing) == ("trimmed", ids[1], None)  # fmt: skip
    assert others(await gather(store.follow(run_id, ids[4]), 5)) == []


async def test_trimmed_under_one_who_is_slow(
    store: EventStore, run_id: int, bare: Redis
) -> None:
    """He is told exactly how many he has missed; one who keeps pace misses nothing."""
    slow, quick = store.follow(run_id), store.follow(run_id)
    first = await write(store, run_id, 3)
    assert sequences(await gather(slow, 3)) == [1, 2, 3]
    found = await gather(quick, 3)
    ids: list[str] = []
    for _ in range(8):
        ids = await write(store, run_id, 200)
        found += await gather(quick, 200)
    await bare.xtrim(f"run:{run_id}:events", minid=ids[-100], approximate=False)
    missed = await gather(slow, 101)
    assert missed[0] == Gap(run_id, GapReason.TRIMMED, first[2], ids[-100], 1_500)
    assert sequences(missed) == list(range(1_504, 1_604))
    assert sequences(found) == list(range(1, 1_604))
    assert others(found) == []


async def test_foreign_writers_count_as_they_like(
    store: EventStore, run_id: int, bare: Redis
) -> None:
    """Two that count on their own, one that cannot count: nothing is missing."""
    follower = store.follow(run_id)
    told = [1, 2, 1, 40, 3, "", "-7", "9" * 30, 41, 0, 7]
    late = [8, 100, 4]
    for sequence in told:
        await write_plainly(bare, run_id, sequence=sequence)
    found = await gather(follower, len(told))
    for sequence in late:
        await write_plainly(bare, run_id, sequence=sequence)
        found += await gather(follower, 1)
    assert len(found) == len(told) + len(late)
    assert others(found) == []


async def test_one_foreign_writer_trims_between_two_reads(
    store: EventStore, run_id: int, bare: Redis
) -> None:
    """Who waits on the shared connection is told as well."""
    key = f"run:{run_id}:events"
    first = await write_plainly(bare, run_id, sequence=1)
    follower = store.follow(run_id)
    assert sequences(await gather(follower, 1)) == [1]
    async with bare.pipeline(transaction=True) as together:
        for sequence in (2, 3, 4):
            await together.xadd(
                key, {"sequence": sequence}, maxlen=1, approximate=False
            )
        await together.execute()
    found = await gather(follower, 2)
    assert isinstance(found[0], Gap)
    assert (found[0].reason, found[0].after, found[0].missing) == ("trimmed", first, 2)
    assert sequences(found) == [4]


async def test_expired(store: EventStore, run_id: int) -> None:
    """A place in a run that is gone: said at once, and the end."""
    ids = await write(store, run_id, 3)
    await store.delete(run_id)
    found = await gather(store.follow(run_id, ids[0]), 9)
    assert found == [Gap(run_id, GapReason.EXPIRED, ids[0])]


async def test_an_id_that_was_never_given(store: EventStore, run_id: int) -> None:
    """The server must have forgotten: said, and followed on from its end."""
    await write(store, run_id, 3)
    future = "99999999999999-0"
    follower = store.follow(run_id, future)
    found = await gather(follower, 1)
    assert found == [Gap(run_id, GapReason.LOST, future)]
    await write(store, run_id, 1)
    assert await gather(follower, 1) == (await store.get_events(run_id))[-1:]


async def test_an_id_that_was_never_given_to_a_run_that_has_ended(
    store: EventStore, run_id: int
) -> None:
    """Nothing is to come: its follower does not wait for ever."""
    await write(store, run_id, 3)
    await store.add(run_id, "system", "close")
    future = "99999999999999-0"
    follower = store.follow(run_id, future)
    assert await gather(follower, 9) == [Gap(run_id, GapReason.LOST, future)]
    assert follower.end is FollowEnd.CLOSED


async def test_an_id_between_two_events(
    store: EventStore, run_id: int, bare: Redis
) -> None:
    """The server does not have the event any more: a gap, then the later events."""
    for number in (1_000, 2_000, 3_000):
        await write_plainly(bare, run_id, f"{number}-0", sequence=number // 1_000)
    cases = [("500-0", "expired", [1, 2, 3]), ("1500-0", "lost", [2, 3])]
    for place, reason, told in cases:
        found = await gather(store.follow(run_id, place), 1 + len(told))
        gap = Gap(run_id, GapReason(reason), place, f"{told[0]}000-0")
        assert (sequences(found), others(found)) == (told, [gap])


async def test_a_server_that_lost_its_tail(
    own_server: DevServer, admin: Redis, run_id: int
) -> None:
    """Restarted with older data: a gap behind a lost id, nothing behind a kept one."""
    await admin.config_set("appendonly", "no")
    await admin.config_set("save", "")
    async with EventStore(own_server.url) as store:
        follower, behind = store.follow(run_id), store.follow(run_id)
        ids = await write(store, run_id, 5)
        assert sequences(await gather(follower, 5)) == [1, 2, 3, 4, 5]
        assert sequences(await gather(behind, 5)) == [1, 2, 3, 4, 5]
        await admin.save()
        (own_server.folder / "dump.rdb").rename(own_server.folder / "kept.rdb")
        ids += await write(store, run_id, 4)
        assert sequences(await gather(follower, 4)) == [6, 7, 8, 9]
        await restart_with(own_server, "kept.rdb")
        with anyio.fail_after(20):
            while True:
                try:
                    ids += await write(store, run_id, 2)
                    break
                except RedisUnavailableError:
                    await anyio.sleep(0.05)
        found = await gather(follower, 2)
        assert (sequences(found), others(found)) == ([10, 11], [])
        found = await gather(behind, lambda all_: sequences(all_)[-1:] == [11])
        assert sequences(found)[-2:] == [10, 11]
        for place in (3, 4):  # whether or not the loss is at the border of a page
            found = await gather(
                store.follow(run_id, ids[place]),
                lambda all_: sequences(all_)[-1:] == [11],
            )
            assert others(found) == []
        found = await gather(store.follow(run_id, ids[6]), 3)  # as after Last-Event-ID
        assert found[0] == Gap(run_id, GapReason.LOST, ids[6], ids[9])
        assert sequences(found) == [10, 11]


async def restart_with(server: DevServer, dump: str) -> None:
    """Restart a server with the data of an earlier dump, and without its log."""
    server.kill()
    for path in server.folder.rglob("appendonly*"):
        if path.is_file():
            path.unlink()
    server._options = (*server._options, "--appendonly", "no", "--dbfilename", dump)
    server.restart()


async def test_a_lost_tail_behind_which_others_write(
    own_server: DevServer, admin: Redis, run_id: int
) -> None:
    """Told at once; then what a writer adds that does not know what is missing."""
    await admin.config_set("appendonly", "no")
    async with EventStore(own_server.url) as store:
        follower = store.follow(run_id)
        ids = await write(store, run_id, 2)
        await admin.save()
        (own_server.folder / "dump.rdb").rename(own_server.folder / "kept.rdb")
        ids += await write(store, run_id, 2)
        assert len(await gather(follower, 4)) == 4
        found: list[Followed] = []

        async def go_on() -> None:
            while len(found) < 2:
                found.extend(await follower.batch())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go_on)
            await anyio.wait_all_tasks_blocked()
            await restart_with(own_server, "kept.rdb")
            await eventually(lambda: bool(found))
            async with EventStore(own_server.url) as other:  # which never wrote before
                await write(other, run_id, 1)
        assert found[0] == Gap(run_id, GapReason.LOST, ids[3])
        late = await gather(store.follow(run_id, ids[3]), 2)  # as after Last-Event-ID
        assert sequences(found) == sequences(late) == [3]
        assert isinstance(late[0], Gap)
        assert (late[0].reason, late[0].after) == ("lost", ids[3])


# -- writers


async def hold(redis: Redis, run_id: int, token: str, lease: float) -> None:
    """Hold a run as its writer does."""
    keys = RunKeys(run_id).all
    words = HOLD_RUN.request(keys, (token, int(lease * 1000), "", 1_000), known=False)
    await execute(redis, *words)


async def test_a_writer_that_falls_silent(
    store: EventStore, run_id: int, bare: Redis
) -> None:
    """Told once, behind everything; told again when it has come back and dies again."""
    await hold(bare, run_id, "a", 0.6)
    await write(store, run_id, 3)
    follower, other = store.follow(run_id), store.follow(run_id)
    found = await gather(follower, 4)
    last = found[2]
    assert isinstance(last, StreamEvent)
    assert found[3] == WriterLost(run_id, last.id)
    assert (await gather(other, 4))[3] == found[3]
    assert await follower.batch(0.5) == []
    await hold(bare, run_id, "a", 30)
    await write(store, run_id, 1)
    assert sequences(await gather(follower, 1)) == [4]
    assert follower._seat is not None
    topic = follower._seat.topic
    topic.liveness.probe_at = 0  # the next look comes by itself within 5 s
    follower._hub._woken.set()  # type: ignore[union-attr]
    await eventually(lambda: topic.liveness.lost is None)
    await hold(bare, run_id, "a", 0.3)
    topic.liveness.probe_at = 0
    follower._hub._woken.set()  # type: ignore[union-attr]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gather, other, 2)
        found = await gather(follower, 1)
        assert isinstance(found[0], WriterLost)
    assert not follower.ended


async def test_a_writer_dies_again_after_a_pause_of_the_follower(
    store: EventStore, run_id: int, bare: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower has another topic by then, which counts the losses anew."""
    monkeypatch.setattr("bls_agent.runs.topic.LINGER", 0.2)
    await hold(bare, run_id, "a", 0.5)
    await write(store, run_id, 1)
    follower = store.follow(run_id)
    assert isinstance((await gather(follower, 2))[1], WriterLost)
    assert follower._seat is not None
    first = follower._seat.topic
    await hold(bare, run_id, "a", 60)
    await write(store, run_id, 1)
    await eventually(lambda: not first.is_open)
    assert sequences(await gather(follower, 1)) == [2]
    with anyio.fail_after(10):
        while not follower._seat.topic.liveness.had_no_loss:
            assert await follower.batch(0.1) == []
    await bare.delete(RunKeys(run_id).owner)
    assert isinstance((await gather(follower, 1))[0], WriterLost)
    assert await follower.batch(0.5) == []


async def test_a_writer_that_falls_silent_far_away(
    own_server: DevServer, admin: Redis
) -> None:
    """At a round trip of 0.6 s, too: not to look quickly is no outage of Redis."""
    async with (
        FaultProxy(own_server.url) as link,
        EventStore(link.url) as far,
        EventStore(own_server.url) as near,
    ):
        await near.add(1, "a", "b")
        async with link.during(Delay(0.3)):
            follower = far.follow(1)
            await hold(admin, 1, "a", lease := 2.5)
            began = anyio.current_time()
            assert len(await gather(follower, 2)) == 2
            told_after = anyio.current_time() - began
        assert told_after < lease + 6.0  # the goal is two: a busy machine is late


async def test_a_writer_that_has_ended_the_run_is_not_lost(
    store: EventStore, run_id: int, bare: Redis
) -> None:
    await hold(bare, run_id, "a", 0.3)
    await write(store, run_id, 1)
    await execute(bare, "HDEL", RunKeys(run_id).books, "owner")
    follower = store.follow(run_id)
    assert len(await gather(follower, 1)) == 1
    assert await follower.batch(1.0) == []
