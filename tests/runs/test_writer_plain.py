"""Runs written by programs without an event loop: threads, forks, signals, Redis away."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from redis import Redis

from bls_agent import ConfigurationError, EventStore, LeaseHeldError, WrongTypeError
from bls_agent.devserver import DevServer
from bls_agent.runs import RunWriter, StreamEvent, writer_task
from bls_agent.runs.reading import RunKeys
from tests.harness import until
from tests.programs import Program, run_python

# Older redis-py complains of a connection that a closed loop has left; nothing of ours does.
OURS = "bls_agent/"
ENDS = ["lifecycle.completed", "system.close"]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="cannot fork")


@pytest.fixture
def plain(redis_url: str, run_id: int) -> Iterator[Redis]:
    """A client of redis-py without an event loop; it removes the run."""
    with Redis.from_url(redis_url, protocol=2) as client:
        yield client
        client.delete(*RunKeys(run_id).all)


@pytest.fixture
def alone(own_server: DevServer) -> Iterator[Redis]:
    """The same of a server that nobody else uses."""
    with Redis.from_url(own_server.url, protocol=2) as client:
        yield client


def read(url: str, run_id: int) -> list[StreamEvent]:
    async def get() -> list[StreamEvent]:
        async with EventStore(url) as store:
            return await store.get_events(run_id)

    return anyio.run(get)


def names(url: str, run_id: int) -> list[str]:
    return [event.name for event in read(url, run_id)]


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "bls-agent runs"]


def connections(plain: Redis) -> int:
    clients: Any = plain.client_list()
    return len([one for one in clients if one["name"].startswith("bls-runs")])


def test_a_run(own_server: DevServer, alone: Redis, run_id: int) -> None:
    """Begun, written, flushed, completed, closed; nothing of ours is left behind."""
    store = EventStore(own_server.url, ttl=60)
    with store.run(run_id, source={"agent_name": "分析师"}, data={"task": "茶"}) as run:
        assert isinstance(run, RunWriter)
        assert run.is_owner
        assert names(own_server.url, run_id) == ["lifecycle.started"]
        run.emit("llm", "stream", {"text": "好"})
        assert run.wait_flushed(5.0).complete
        assert names(own_server.url, run_id)[-1] == "llm.stream"
        assert threads() == ["bls-agent runs"]
        run.complete({"answer": 42})
    events = read(own_server.url, run_id)
    assert [event.name for event in events][-2:] == ENDS
    assert events[-2].data == {"answer": 42}
    assert not run.stats().open
    assert run.stats().dropped == {}
    assert threads() == []
    until(lambda: connections(alone) == 0)
    assert alone.exists(RunKeys(run_id).owner) == 0
    with store.run(run_id):  # the same store once more, in another thread
        pass
    assert names(own_server.url, run_id)[-2:] == ENDS


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (ValueError("茶"), "failed"),
        (KeyboardInterrupt(), "cancelled"),
        (SystemExit(0), "cancelled"),
        (SystemExit(1), "failed"),
    ],
    ids=repr,
)
def test_how_it_ended(
    redis_url: str, plain: Redis, run_id: int, error: BaseException, action: str
) -> None:
    """The exception of the body is told in the run, and goes on unchanged."""
    del plain
    with pytest.raises(type(error)) as caught, EventStore(redis_url).run(run_id):
        raise error
    assert caught.value is error
    assert caught.value.__cause__ is None
    assert names(redis_url, run_id)[1:] == [f"lifecycle.{action}", "system.close"]


def test_several_at_once(own_server: DevServer, alone: Redis, run_id: int) -> None:
    """Eight threads, a run each: one thread of ours, one connection, all in order."""
    store = EventStore(own_server.url)
    all_open, looked = threading.Barrier(9), threading.Event()
    runs = [run_id + number for number in range(8)]

    def write(one: int) -> None:
        with store.run(one) as run:
            all_open.wait(10)
            for n in range(500):
                run.emit("a", "b", {"n": n})
            assert run.wait_flushed(10)
            assert looked.wait(10)

    workers = [threading.Thread(target=write, args=(one,)) for one in runs]
    for worker in workers:
        worker.start()
    all_open.wait(10)
    try:
        assert len(threads()) == 1
        assert connections(alone) == 1
    finally:
        looked.set()
        for worker in workers:
            worker.join(20)
    for one in runs:
        events = read(own_server.url, one)
        assert [event.data["n"] for event in events[1:-2]] == list(range(500))
        assert [event.name for event in events[-2:]] == ENDS
    assert threads() == []
    until(lambda: connections(alone) == 0)


def test_many_stores_leave_no_connections(
    own_server: DevServer, alone: Redis, run_id: int
) -> None:
    """A store for each request, while another one's run is open all the time."""
    with EventStore(own_server.url).run(run_id):
        for number in range(1, 4):
            with EventStore(own_server.url).run(run_id + number):
                assert connections(alone) == 2
            until(lambda: connections(alone) == 1)


def test_what_opening_raises(own_server: DevServer, alone: Redis, run_id: int) -> None:
    """As async with: a living writer, another type, opened twice; nothing stays open."""
    store = EventStore(own_server.url)
    with store.run(run_id) as run:
        with pytest.raises(LeaseHeldError), EventStore(own_server.url).run(run_id):
            pytest.fail("entered")
        until(lambda: connections(alone) == 1)
        with pytest.raises(ConfigurationError, match="opened once"), run:
            pytest.fail("entered")
        assert run.wait_flushed()
    with pytest.raises(ConfigurationError, match="'with'"):
        run.wait_flushed()
    alone.delete(*RunKeys(run_id).all)
    alone.set(RunKeys(run_id).events, "x")
    with pytest.raises(WrongTypeError), store.run(run_id):
        pytest.fail("entered")
    assert threads() == []
    until(lambda: connections(alone) == 0)


async def test_it_is_refused_in_an_event_loop(redis_url: str, run_id: int) -> None:
    """It would block the loop; and who is open in a loop is not waited for by threads."""
    store = EventStore(redis_url)
    with pytest.raises(ConfigurationError, match="async with"), store.run(run_id):
        pytest.fail("entered")
    async with store, store.run(run_id) as run:
        with pytest.raises(ConfigurationError, match="flush"):
            run.wait_flushed()
        with pytest.raises(ConfigurationError, match="opened by 'with'"):
            await anyio.to_thread.run_sync(run.wait_flushed)
    assert threads() == []


def test_redis_away_at_the_start(own_server: DevServer) -> None:
    """The program goes on; all is written when Redis is there."""
    own_server.kill()
    with EventStore(own_server.url).run(1) as run:
        for n in range(100):
            run.emit("a", "b", {"n": n})
        assert not run.is_owner
        assert not run.wait_flushed(0.1)
        own_server.restart()
        assert run.wait_flushed(20)
        until(lambda: run.is_owner)
    events = read(own_server.url, 1)
    assert [event.data["n"] for event in events[1:-2]] == list(range(100))
    assert [event.name for event in events[-2:]] == ENDS


@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_redis_away_at_the_end(
    own_server: DevServer, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Leaving is bounded and raises nothing of ours; what is lost is counted and said."""
    store = EventStore(own_server.url)
    with store.run(1, shutdown_timeout=0.3) as run:
        assert run.wait_flushed()
        getattr(own_server, how)()
        run.emit("a", "b")
        left_at = time.monotonic()
    assert time.monotonic() - left_at < 5.0
    if how == "freeze":
        own_server.thaw()
    assert run.stats().dropped == {"shutdown": 3}
    assert "3 events could not be written before the end" in caplog.text
    assert threads() == []


def test_leaving_waits_for_redis(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes back within shutdown_timeout gets all of it, the end included."""
    monkeypatch.setattr(writer_task, "FINAL_WRITE", 0.05)  # of a thread that is ended
    run = EventStore(own_server.url).run(1, shutdown_timeout=20)

    def come_back() -> None:
        until(lambda: not run.stats().open)
        own_server.restart()

    coming_back = threading.Thread(target=come_back)
    with run:
        assert run.wait_flushed()
        own_server.kill()
        run.emit("a", "b")
        coming_back.start()
    coming_back.join(10)
    assert names(own_server.url, 1) == ["lifecycle.started", "a.b", *ENDS]


def test_a_second_signal_ends_the_wait(own_server: DevServer) -> None:
    """Ctrl-C while leaving waits for a frozen Redis: it goes through, the thread ends."""
    main = threading.main_thread().ident
    assert main is not None
    run = EventStore(own_server.url).run(1, shutdown_timeout=60)

    def press() -> None:
        until(lambda: not run.stats().open)
        signal.pthread_kill(main, signal.SIGINT)

    pressing = threading.Thread(target=press)

    def work() -> None:
        with run:
            assert run.wait_flushed()
            own_server.freeze()
            pressing.start()

    with pytest.raises(KeyboardInterrupt):
        work()
    pressing.join(10)
    own_server.thaw()
    until(lambda: not threads())
    assert run.stats().queued == 0


@pytest.mark.parametrize("where", ["register", "unregister"])
def test_a_signal_leaves_no_thread(
    redis_url: str,
    plain: Redis,
    run_id: int,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    """However unhappy its moment is: while the thread starts, or while it is let go."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    run = EventStore(redis_url).run(run_id)
    with monkeypatch.context() as patch:
        patch.setattr(f"bls_agent.runtime.loop_thread.atexit.{where}", interrupt)
        with pytest.raises(KeyboardInterrupt), run:
            pass
    until(lambda: not threads())
    plain.delete(*RunKeys(run_id).all)
    with EventStore(redis_url).run(run_id):
        assert len(threads()) == 1
    until(lambda: not threads())


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child(redis_url: str, plain: Redis, run_id: int) -> None:
    """It ends nothing of its parent's, and writes runs of its own."""
    store = EventStore(redis_url)
    with store.run(run_id) as run:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run.emit("a", "child")
                run.__exit__(None, None, None)
                with store.run(run_id + 1) as own:
                    own.emit("a", "child")
                if run.stats().dropped == {"forked": 1} and not threads():
                    code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        run.emit("a", "parent")
    assert names(redis_url, run_id) == ["lifecycle.started", "a.parent", *ENDS]
    assert names(redis_url, run_id + 1) == ["lifecycle.started", "a.child", *ENDS]
    plain.delete(*RunKeys(run_id + 1).all)


def test_a_program_that_never_leaves(redis_url: str, plain: Redis, run_id: int) -> None:
    """What it emitted is written at its exit; it has not said that the run has ended."""
    code = (
        "import sys; from bls_agent import EventStore\n"
        "run = EventStore(sys.argv[1]).run(int(sys.argv[2]), coalesce=5.0)\n"
        "run.__enter__(); run.emit('a', 'b'); run.emit('a', 'c')"
    )
    ended = run_python("-c", code, redis_url, str(run_id))
    assert ended.code == 0
    assert OURS not in ended.err
    assert names(redis_url, run_id) == ["lifecycle.started", "a.b", "a.c"]
    assert plain.pttl(RunKeys(run_id).owner) != -1


def test_a_program_that_is_ended(redis_url: str, plain: Redis, run_id: int) -> None:
    """SIGTERM that is turned into sys.exit leaves the block: the run is cancelled."""
    del plain
    code = (
        "import signal, sys, time; from bls_agent import EventStore\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "with EventStore(sys.argv[1]).run(int(sys.argv[2])) as run:\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()"
    )
    with Program("-c", code, redis_url, str(run_id)) as program:
        assert program.line() == "ready"
        program.send_signal(signal.SIGTERM)
        assert program.end().code == 0
    assert names(redis_url, run_id)[1:] == ["lifecycle.cancelled", "system.close"]
