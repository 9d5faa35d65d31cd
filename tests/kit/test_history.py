"""What a history remembers: of agents, over threads, processes and SIGKILL."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path

from redis.asyncio import Redis

from bls_agent import Console, ProjectAgent, Status
from bls_agent.devserver import DevServer
from tests.harness import eventually
from tests.kit import (
    Footprint,
    History,
    LogCount,
    Promise,
    StatusSample,
    StatusSampler,
    Step,
    check_invariants,
)
from tests.programs import run_python


async def test_an_agent_writes_its_own_history(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """Started, ended and acked, by id and instance; records that reached the list."""
    history = History()
    agent = ProjectAgent(project, redis=redis_url, instance="北京-1")
    history.attach(agent)

    @agent.command
    async def work(fail: bool) -> None:
        if fail:
            raise ValueError

    async with agent:
        good = await console.call(project, "work", {"fail": False})
        bad = await console.call(project, "work", {"fail": True})
        record = history.log(agent)
        assert await agent.flush()
        history.find_records(await redis.lrange(f"{project}_项目控制台", 0, -1))
        history.evidence.final_log_counts.append(LogCount.of(agent.stats()))
    steps = [
        (e.step, e.id, e.detail)
        for e in history
        if e.id in (good.command_id, bad.command_id)
    ]
    assert steps == [
        (Step.STARTED, good.command_id, "delivery 1"),
        (Step.ENDED, good.command_id, "returned"),
        (Step.STARTED, bad.command_id, "delivery 1"),
        (Step.ENDED, bad.command_id, "ValueError"),
        (Step.ACKED, good.command_id, "succeeded"),
        (Step.ACKED, bad.command_id, "failed"),
    ]
    assert history.count(Step.FOUND) == {record: 1}
    assert {event.who for event in history} == {"北京-1"}
    for command in (good, bad):
        history.note(Step.PUSHED, command.command_id)
    assert check_invariants(history, Promise.blocking()) == []


def test_threads_write_into_one_history() -> None:
    """No event is lost, and each thread's are in order."""
    history = History()

    def write(who: str) -> None:
        for number in range(500):
            history.note(Step.STARTED, str(number), who)

    threads = [threading.Thread(target=write, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(history) == 2_000
    assert history.total(Step.STARTED) == 2_000
    mine = [event.id for event in history if event.who == "2"]
    assert mine == [str(number) for number in range(500)]


def test_a_killed_process_leaves_its_history(tmp_path: Path) -> None:
    """Each event is in the file before the next one begins; a torn line is left out."""
    path = tmp_path / "history.jsonl"
    script = (
        "import os, pathlib, sys\n"
        "from tests.kit import History, Step\n"
        "history = History(pathlib.Path(sys.argv[1]))\n"
        "history.note(Step.STARTED, '订单-1', 'child')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert run_python("-c", script, str(path)).code == -9
    with path.open("ab") as file:
        file.write(b'{"step":"ended","id":"')
    mine = History()
    mine.note(Step.PUSHED, "订单-1")
    theirs = History.load(path)
    assert [event.step for event in theirs] == [Step.STARTED]
    mine.merge(theirs)
    # The same clock in all processes: the child began before we wrote our own line.
    assert [event.step for event in mine] == [Step.STARTED, Step.PUSHED]
    assert [event.who for event in mine] == ["child", ""]
    assert mine.total(Step.STARTED) == theirs.total(Step.STARTED) == 1


def test_events_since_a_moment() -> None:
    """Those from then on, in order."""
    history = History()
    for number in range(3):
        history.note(Step.PUSHED, str(number))
        history.note(Step.STARTED, str(number))
    _, middle, _ = history.events(Step.PUSHED)
    found = history.events(Step.PUSHED, since=middle.at)
    assert [event.id for event in found] == ["1", "2"]
    assert history.total(Step.PUSHED) == 3
    assert history.total(Step.ENDED) == 0


async def test_the_sampler_sees_what_a_console_sees(
    own_server: DevServer, project: str
) -> None:
    """True and untrue, missing and unanswered; nothing while nobody said what is true."""
    samples: list[StatusSample] = []

    async def wait_for(shown: str | None, *, true: bool, answered: bool = True) -> None:
        def has_come() -> bool:
            last = samples[-1] if samples else None
            return last is not None and (
                (last.shown, last.is_true, last.answered) == (shown, true, answered)
            )

        await eventually(has_come)

    with StatusSampler(own_server.port, project, samples, interval=0.01) as sampler:
        await asyncio.sleep(0.03)
        assert samples == []
        sampler.expect(None)
        await wait_for(None, true=True)
        async with ProjectAgent(project, redis=own_server.url):
            sampler.expect(Status.ONLINE)
            await wait_for("在线", true=True)
            sampler.expect(Status.FAULT, Status.ERROR)
            await wait_for("在线", true=False)
            own_server.freeze()
            await wait_for(None, true=True, answered=False)
            own_server.thaw()
            await wait_for("在线", true=False)


async def test_a_footprint_counts_what_is_there() -> None:
    """Descriptors, threads and tasks of this process, and its memory."""
    gc.collect()  # what other tests have left must not be closed in between
    before = Footprint.take()
    reader, writer = os.pipe()
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    task = asyncio.create_task(asyncio.sleep(60))
    after = Footprint.take()
    assert after.descriptors == before.descriptors + 2
    assert after.threads == before.threads + 1
    assert after.tasks == before.tasks + 1
    assert after.memory > 1_000_000
    task.cancel()
    over.set()
    thread.join()
    os.close(reader)
    os.close(writer)
