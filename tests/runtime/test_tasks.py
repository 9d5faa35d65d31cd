"""Whoever raises the flag, the waiting task wakes at once."""

from __future__ import annotations

import asyncio
import signal
import threading

import anyio
import pytest

from bls_agent.runtime.tasks import ThreadSafeEvent, cancel, start_background


async def test_cancel_returns_when_the_task_has_ended() -> None:
    """Also if the task needs some time to clean up."""
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            cleaned = True

    task = start_background(work, "test")
    await anyio.sleep(0)
    await cancel(task)
    assert cleaned
    assert task.cancelled()


async def test_raised_by_a_task_of_the_same_loop() -> None:
    wakeup = ThreadSafeEvent()
    wakeup.bind()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wakeup.wait, None)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(1):
            wakeup.set()
    wakeup.unbind()


async def test_raised_by_a_thread_while_the_loop_sleeps() -> None:
    wakeup = ThreadSafeEvent()
    wakeup.bind()
    timer = threading.Timer(0.05, wakeup.set)
    timer.start()
    assert await wakeup.wait(5.0)
    wakeup.unbind()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such timer here")
async def test_raised_by_a_signal_handler_while_the_loop_sleeps() -> None:
    """Python runs the handler inside the loop's select, which then sleeps on."""
    wakeup = ThreadSafeEvent()
    wakeup.bind()
    former = signal.signal(signal.SIGALRM, lambda *_: wakeup.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        began = anyio.current_time()
        assert await wakeup.wait(5.0)
        assert anyio.current_time() - began < 2.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        wakeup.unbind()


async def test_raised_by_a_plain_callback_of_the_loop() -> None:
    wakeup = ThreadSafeEvent()
    wakeup.bind()
    asyncio.get_running_loop().call_later(0.02, wakeup.set)
    assert await wakeup.wait(5.0)
    wakeup.unbind()


async def test_a_flag_raised_before_is_not_overlooked() -> None:
    wakeup = ThreadSafeEvent()
    wakeup.set()
    wakeup.bind()
    assert await wakeup.wait(1.0)
    assert not await wakeup.wait(0.0)
    wakeup.unbind()
