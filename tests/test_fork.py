"""A forked child takes nothing from its parent, disturbs it in nothing and starts anew."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import time
from collections import defaultdict
from typing import Any

import pytest
from redis.asyncio import Redis

from bls_agent import ProjectAgent
from bls_agent.connection import after_fork
from tests.harness import records, status_of
from tests.programs import run_python

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or not os.path.exists("/proc/self/fd"),  # noqa: PTH110
    reason="needs fork, and /proc to look at what a child holds",
)

BEGINNING = '''
import asyncio, json, multiprocessing, os, signal, sys, threading, time, traceback
from bls_agent import Console, ProjectAgent, Status
from bls_agent.project.log.log import CURRENT_COMMAND
from tests.programs import sockets_to

project, url, kind = sys.argv[1:4]
agent = ProjectAgent(project, redis=url, log_list_limit=100_000)

if kind == "uvloop":
    from uvloop import run as run_loop
else:
    run_loop = asyncio.run

def tell(**facts):
    """One line, in one piece also when several processes write."""
    os.write(1, (json.dumps(facts) + "\\n").encode())

def sockets():
    return sockets_to(url)

def fork(life):
    """Let a child live this life and end; the parent gets its number."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            life()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid

def reap(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

async def reap_softly(pid):
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        await asyncio.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])

def account():
    stats = agent.stats()
    settled = stats.logs_delivered + sum(stats.logs_dropped.values())
    assert stats.logs_accepted == settled + stats.logs_queued, stats
    return stats

def must_be_inert():
    """What is used is the face of a closed agent; nothing of it raises or waits."""
    began = time.monotonic()
    stats = account()
    assert not stats.open and stats.mode == "closed" and not stats.connections, stats
    assert stats.logs_queued == 0 and stats.logs_delivered == 0, stats
    assert not set(stats.logs_dropped) - {"forked"}, stats
    assert sockets() == []
    assert agent._state.stream.delivery._wakeup._loop is None
    assert agent._session is None or agent._session.status._wakeup._loop is None
    agent.log.info("inert")
    agent.set_status(Status.ERROR)
    agent.set_status(Status.ONLINE)
    assert "closed" in repr(agent)
    assert account().logs_queued == 1
    assert time.monotonic() - began < 10
    return stats

async def open_own(**fields):
    async with agent:
        await agent.ready(10)
        agent.log.info("own", **fields)
        assert await agent.flush(10)
        assert account().open

async def ask(command, **args):
    async with Console(url) as console:
        ended = await console.call(project, command, args)
    assert ended.succeeded, ended
    return ended.result

async def see():
    async with Console(url) as console:
        return await console.status(project)

async def settle():
    """Wait until nothing connects any more: a child could not know such a socket."""
    agent.log.info("settled")
    while not all(account().connections.values()):
        await asyncio.sleep(0.002)
    assert await agent.flush(10)
'''


def run(
    code: str, project: str, url: str, kind: str = "asyncio"
) -> list[dict[str, Any]]:
    """Run a program that forks; give what it and its children told.

    Everything that it started is gone at the end, and it said nothing else.
    """
    ended = run_python(
        *("-W", "error"),
        *("-W", "ignore:This process:DeprecationWarning"),  # threads and fork
        *("-c", BEGINNING + code, project, url, kind),
        timeout=50,
        env={"BLS_BANNER": "0"},
    )
    # A child that runs its parent's loop may find that Redis cannot be reached there.
    errors = "".join(
        re.findall(r"^(?!Redis at .+trying again).*\n?", ended.err, re.MULTILINE)
    )
    assert (ended.code, errors) == (0, "")
    return [json.loads(line) for line in ended.out.splitlines()]


async def by_agent(redis: Redis, project: str) -> dict[str, list[dict[str, Any]]]:
    """The records of each process, after a look that their numbers have no hole."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    numbers: dict[str, list[int]] = defaultdict(list)
    for record in await records(redis, project):
        who, _, number = record["metadata"]["agent"].partition("#")
        found[who].append(record)
        numbers[who].append(int(number))
    for who, given in numbers.items():
        assert given == list(range(1, len(given) + 1)), who
    return found


def messages(found: list[dict[str, Any]]) -> list[str]:
    """What the records say."""
    return [record["message"] for record in found]


every_loop = pytest.mark.parametrize("kind", ["asyncio", "uvloop"])

INHERIT = """
def inherit(depth):
    stats = must_be_inert()
    assert stats.instance == ""
    assert run_loop(agent._state.threads.run(os.getpid)) == os.getpid()
    run_loop(open_own(depth=depth))
    assert sockets() == []
    tell(depth=depth, instance=agent.stats().instance, forked=stats.logs_dropped)
    if depth < 2:  # what a child has used is inert in its own child
        reap(fork(lambda: inherit(depth + 1)))

def tell_parent():
    tell(depth=0, instance=agent.stats().instance, forked=account().logs_dropped)
"""


async def check_family(
    told: list[dict[str, Any]], redis: Redis, project: str, count: int
) -> None:
    """The parent, its child and the child's child wrote each what they had to say."""
    names = {one["depth"]: one["instance"] for one in told}
    assert len(set(names.values())) == 3
    found = await by_agent(redis, project)
    assert set(found) == set(names.values())
    spoken = [one for one in messages(found[names[0]]) if one == "parent"]
    assert len(spoken) == count
    for depth in (1, 2):
        assert messages(found[names[depth]]) == ["inert", "own"]
        assert found[names[depth]][1]["metadata"]["depth"] == depth
    assert told[-1]["forked"] == {}  # the parent has given up nothing


async def test_beside_an_agent_in_a_thread(redis_url: str, project: str) -> None:
    """A child is inert until it opens its own; the parent's goes on where it was."""
    code = """
with agent.in_thread() as thread:
    thread.ready(10)
    agent.log.info("settled")
    while not all(account().connections.values()):
        time.sleep(0.002)
    assert run_loop(agent._state.threads.run(os.getpid)) == os.getpid()
    for _ in range(200):
        agent.log.info("parent")
    reap(fork(lambda: inherit(1)))
    for _ in range(200):
        agent.log.info("parent")
    assert run_loop(ask("ping"))["pong"]
    assert thread.flush(10)
    assert len(sockets()) == 3
    tell_parent()
"""
    told = run(INHERIT + code, project, redis_url)
    async with Redis.from_url(redis_url, protocol=2) as redis:
        await check_family(told, redis, project, 400)
    assert told[0]["forked"]["forked"] > 0  # not everything was written already


@every_loop
async def test_inside_of_an_event_loop(
    redis_url: str, redis: Redis, project: str, kind: str
) -> None:
    """The same where the agent's loop is the one in which the fork happens."""
    code = """
async def main():
    async with Console(url) as console, agent:
        await settle()
        assert (await console.call(project, "ping")).succeeded
        assert await agent.flush(10)  # the outcome's record counts until its reply is read
        for _ in range(200):
            agent.log.info("parent")
        assert await reap_softly(fork(lambda: inherit(1))) == 0
        threading.Thread(target=agent.log.info, args=["parent"]).start()
        assert (await console.call(project, "ping")).succeeded
        assert await agent.flush(10)
        tell_parent()

run_loop(main())
"""
    told = run(INHERIT + code, project, redis_url, kind)
    await check_family(told, redis, project, 201)
    assert told[0]["forked"] == {"forked": 200}


async def test_before_it_is_opened(redis_url: str, redis: Redis, project: str) -> None:
    """What was logged before the fork is counted in the child and written by the parent.

    A name that was given is not shared either, and a lock that is held is replaced.
    """
    code = """
agent = ProjectAgent(project, redis=url, instance="worker")
plain = []

@agent.command
def work(number: int):
    plain.append(threading.current_thread().name)
    return number

def serve():
    assert must_be_inert().logs_dropped == {"forked": 3}

    async def main():
        async with Console(url) as console, agent:
            assert (await console.call(project, "work", {"number": 7})).result == 7

    run_loop(main())
    assert agent.stats().outcomes == {"succeeded": 1}
    tell(pid=os.getpid(), instance=agent.stats().instance)

held, done = threading.Event(), threading.Event()
buffer = agent._state.stream.delivery.buffer

def hold():
    with buffer._lock:
        held.set()
        done.wait()

for _ in range(3):
    agent.log.info("early")
holder = threading.Thread(target=hold)
holder.start()
held.wait()
pid = fork(serve)
done.set()
reap(pid)
run_loop(open_own())
assert agent.stats().instance == "worker"
"""
    told = run(code, project, redis_url)
    found = await by_agent(redis, project)
    assert messages(found["worker"]) == ["early"] * 3 + ["own"]
    assert told[0]["instance"] == f"worker-{told[0]['pid']}"
    assert messages(found[told[0]["instance"]])[0] == "inert"


async def test_under_load(redis_url: str, redis: Redis, project: str) -> None:
    """Six forks while 8 threads log: the parent loses, repeats and misorders nothing."""
    code = """
stopped = threading.Event()
counts = [0] * 8

def produce(thread):
    while not stopped.is_set():
        agent.log.info("load", thread=thread, count=counts[thread])
        counts[thread] += 1
        time.sleep(0.001)

def live(number):
    must_be_inert()
    if number % 3 == 0:
        run_loop(open_own())
    elif number % 3 == 1:
        with agent.in_thread() as thread:
            thread.ready(10)
            agent.log.info("own")

async def main():
    producers = [threading.Thread(target=produce, args=[n], daemon=True) for n in range(8)]
    async with agent:
        await settle()
        for producer in producers:
            producer.start()
        children = []
        for number in range(6):
            await asyncio.sleep(0.01)
            children.append(fork(lambda: live(number)))
        for child in children:
            assert await reap_softly(child) == 0
        handled = [await ask("mark", number=number) for number in range(20)]
        assert handled == list(range(20))
        stopped.set()
        for producer in producers:
            producer.join()
        assert await agent.flush(10)
        tell(instance=agent.stats().instance, counts=counts)

@agent.command
async def mark(number: int):
    return number

run_loop(main())
"""
    (told,) = run(code, project, redis_url)
    found = await by_agent(redis, project)
    seen = [0] * 8
    for record in found.pop(told["instance"]):
        if record["message"] == "load":
            thread = record["metadata"]["thread"]
            assert record["metadata"]["count"] == seen[thread]
            seen[thread] += 1
    assert seen == told["counts"]
    said = [
        # … and one that met others says so: they all share one project's status.
        [text for text in messages(own) if "another process also writes" not in text]
        for own in found.values()
    ]
    assert said == [["inert", "own"]] * 4


RELIABLE = """
from bls_agent import CommandContext

def make(hold):
    global agent
    agent = ProjectAgent(project, redis=url, mode="reliable", lease_ttl=1.0, prefetch=2)

    @agent.command
    async def work(number: int, context: CommandContext):
        tell(number=number, delivery=context.delivery)
        await hold.wait()

async def begin(console):
    for number in range(3):
        await console.send(project, "work", {"number": number}, create=True)
    while not agent.stats().commands_held == 2:
        await asyncio.sleep(0.005)

def lease():
    receiver = agent._session.receiver
    return receiver.list.lease
"""


@every_loop
async def test_what_an_agent_holds(redis_url: str, project: str, kind: str) -> None:
    """A child has no lease and no command of its parent's, which keeps all of them."""
    code = """
async def main():
    hold = asyncio.Event()
    make(hold)

    async def look(depth):
        async with agent:
            await agent.ready(10)
            await asyncio.sleep(0)
            assert agent.stats().commands_held == 0, agent.stats()

    def live():
        mine = lease()
        assert not mine.token
        must_be_inert()
        time.sleep(1.5)  # longer than a lease: the parent renews its own meanwhile
        run_loop(look(1))

    async with Console(url) as console, agent:
        await agent.ready(10)
        await begin(console)
        before = lease().token
        assert await reap_softly(fork(live)) == 0
        assert lease().token == before and lease().valid
        hold.set()
        while agent.stats().outcomes.get("succeeded") != 3:
            await asyncio.sleep(0.005)
        assert agent.stats().lease_losses == 0
        assert agent.stats().commands_reclaimed == 0

run_loop(main())
"""
    told = run(RELIABLE + code, project, redis_url, kind)
    assert told == [{"number": n, "delivery": 1} for n in range(3)]


async def test_what_a_dead_parent_held(redis_url: str, project: str) -> None:
    """A child that lives on keeps no lease of its parent's up: somebody else takes over."""
    code = """
waiting, alive = os.pipe()

async def serve():
    make(asyncio.Event())
    async with Console(url) as console, agent:
        await agent.ready(10)
        await begin(console)
        if os.fork() == 0:
            os.close(alive)
            os.read(waiting, 1)  # until the one who looks closes its end
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

async def take_over():
    hold = asyncio.Event()
    hold.set()
    make(hold)
    async with agent:
        while agent.stats().outcomes.get("succeeded") != 3:
            await asyncio.sleep(0.005)
        assert agent.stats().commands_reclaimed == 2

pid = fork(lambda: run_loop(serve()))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
run_loop(take_over())
os.close(alive)
"""
    told = run(RELIABLE + code, project, redis_url)
    given = sorted((one["number"], one["delivery"]) for one in told)
    assert given == [(0, 1), (0, 2), (1, 1), (2, 1)]


async def test_a_child_process_of_multiprocessing(
    redis_url: str, redis: Redis, project: str
) -> None:
    """``multiprocessing`` with the fork method, out of a coroutine, is as any fork."""
    code = """
def live():
    must_be_inert()
    with agent.in_thread() as thread:
        thread.ready(10)

async def main():
    async with agent:
        await settle()
        process = multiprocessing.get_context("fork").Process(target=live)
        process.start()
        while process.exitcode is None:
            await asyncio.sleep(0.005)
        assert process.exitcode == 0
        assert (await ask("ping"))["pong"]

run_loop(main())
"""
    run(code, project, redis_url)
    assert len(await by_agent(redis, project)) == 2


async def test_a_child_that_leaves_its_parent_s_block(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Closing what was inherited says no last word and takes no time."""
    code = """
async def main():
    async with Console(url) as console:
        async with agent:
            await settle()
            assert (await console.call(project, "ping")).succeeded
            began = time.monotonic()
            child = os.fork()
            if child == 0:
                await agent.aclose()
                await console.aclose()
            else:
                assert await reap_softly(child) == 0
                assert await console.status(project) is Status.ONLINE
                assert (await console.call(project, "ping")).succeeded
        if child == 0:
            assert sockets() == []
            assert time.monotonic() - began < 5
    if child == 0:
        os._exit(0)

run_loop(main())
"""
    run(code, project, redis_url)
    assert await status_of(redis, project) == "离线"


def test_a_child_that_exits_in_its_parent_s_block(redis_url: str, project: str) -> None:
    """A child of a program with an agent in a thread may exit as any program does."""
    code = """
with agent.in_thread() as thread:
    thread.ready(10)
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    reap(pid)
    assert run_loop(see()) is Status.ONLINE
    assert agent.stats().open
"""
    run(code, project, redis_url)


def test_a_child_that_runs_its_parent_s_loop(redis_url: str, project: str) -> None:
    """Nothing of the agent lives on in it: no connection is opened, nothing is said."""
    code = """
loop = asyncio.new_event_loop()
loop.run_until_complete(agent.__aenter__())
loop.run_until_complete(settle())

async def look():
    for _ in range(50):
        assert sockets() == []
        await asyncio.sleep(0.005)

child = os.fork()
if child == 0:
    loop.run_until_complete(look())
    must_be_inert()
    os._exit(0)
for number in range(10):
    agent.log.info("parent", number=number)
    assert loop.run_until_complete(ask("ping"))["pong"]
assert loop.run_until_complete(reap_softly(child)) == 0
assert loop.run_until_complete(ask("ping"))["pong"]
loop.run_until_complete(agent.aclose())
loop.close()
"""
    run(code, project, redis_url)


def test_a_child_that_ends_its_parent_s_loop(redis_url: str, project: str) -> None:
    """What ``asyncio.run`` cancels there ends at once and says no last word."""
    code = """
async def main():
    async with agent:
        await settle()
        await asyncio.sleep(0.05)  # so that nothing else is just about to run
        child = os.fork()
        if child:
            assert await reap_softly(child) == 0
            assert await see() is Status.ONLINE
        return child, time.monotonic()

child, began = asyncio.run(main())
assert child or time.monotonic() - began < 0.4  # an end in order takes longer
assert agent.stats().logs_accepted == (0 if child == 0 else 1)
"""
    run(code, project, redis_url)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_a_signal_for_the_child(
    redis_url: str, project: str, number: signal.Signals
) -> None:
    """It ends the child, as usual, and not the parent's ``run()``, which listens too."""
    code = """
@agent.command
async def spawn(number: int):
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(go, b".")
            for _ in range(200):  # a sleep misses a signal that comes just before it
                time.sleep(0.1)
        except KeyboardInterrupt:
            os._exit(130)
        os._exit(1)
    os.read(ready, 1)
    os.kill(child, number)
    return await reap_softly(child)

async def main():
    serving = asyncio.create_task(agent.run())
    tell(result=await ask("spawn", number=NUMBER))
    assert (await ask("ping"))["pong"]
    os.kill(os.getpid(), signal.SIGTERM)
    await serving

run_loop(main())
"""
    (told,) = run(code.replace("NUMBER", str(int(number))), project, redis_url)
    usual = {signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: 130}
    assert told["result"] == usual[number]


async def test_a_plain_handler_that_forks(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The child that returns from it ends; there is one outcome, and it is the parent's."""
    code = """
@agent.command
def split():
    child = os.fork()
    if child == 0:
        try:
            must_be_inert()
            assert CURRENT_COMMAND.get().id == ""  # its outcome is not told here
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child

with agent.in_thread() as thread:
    thread.ready(10)
    reap(run_loop(ask("split")))
    assert run_loop(ask("ping"))["pong"]
"""
    run(code, project, redis_url)
    (found,) = (await by_agent(redis, project)).values()
    assert len(found) == 2


@pytest.mark.parametrize("handler", ["async def", "def"])
@every_loop
def test_a_handler_whose_child_exits(
    redis_url: str, project: str, handler: str, kind: str
) -> None:
    """The child ends with this code at once, and the parent goes on."""
    code = """
@agent.command
HANDLER spawn():
    child = os.fork()
    if child == 0:
        print("{}")  # flushed by the exit
        sys.exit(3)
    return child

async def main():
    async with agent:
        await settle()
        child = await ask("spawn")
        tell(code=await reap_softly(child))
        assert (await ask("ping"))["pong"]

run_loop(main())
"""
    told = run(code.replace("HANDLER", handler), project, redis_url, kind)
    assert told == [{}, {"code": 3}]


def test_a_console(redis_url: str, project: str) -> None:
    """A child that uses its parent's Console gets a connection of its own."""
    code = """
console = Console(url)

async def main():
    await console.send(project, "nothing", create=True)
    number = console._pool.pick().client_id

    async def look():
        async with console:
            assert (await console.projects())[project] is None
            assert console._pool.pick().client_id != number
            assert len(sockets()) == 1

    assert await reap_softly(fork(lambda: run_loop(look()))) == 0
    assert project in await console.projects()
    assert console._pool.pick().client_id == number
    await console.aclose()

run_loop(main())
"""
    run(code, project, redis_url)


def test_registering_is_cheap_and_holds_nothing() -> None:
    """A thousand agents are nothing to speak of, and gone when nobody wants them."""
    gc.collect()
    before = len(after_fork._FORK_AWARE)
    began = time.process_time()
    agents = [ProjectAgent(f"p{number}") for number in range(1_000)]
    assert time.process_time() - began < 1
    assert len(after_fork._FORK_AWARE) >= before + 1_000
    del agents
    gc.collect()
    assert len(after_fork._FORK_AWARE) <= before
