"""A small fleet: workers that live, work, and share what they computed.

Shows: heartbeats, tasks, days that are synced, shared results, a watch over the fleet.
Needs: ``pip install .`` and a Redis (``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/workers.py [fleet]``; look on with ``bls-agent workers -w``.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import anyio.abc

from bls_agent import workers

FLEET = sys.argv[1] if len(sys.argv) > 1 else "回测"
DAYS = [f"2026-01-{day:02}" for day in range(5, 10)]
codes = ["000001.SZ", "600519.SH", "300750.SZ", "601318.SH"]
tasks, crew = workers.TaskStatus(on_error="none"), workers.WorkerRegistry()
synced = workers.SyncProgress(on_error="none")


@workers.cached(ttl=60, lock=True)  # computed once in the fleet, whoever asks first
async def index_of(day: str) -> float:
    print("computing", day, flush=True)
    return 3000.0 + int(day[-2:])


async def work(name: str, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    said = workers.BacktestWorkerHeartbeat.create(name, max_tasks=1)
    async with workers.Heartbeat(said) as beat:  # leaving removes its key
        task_status.started()
        while codes:
            task = f"{FLEET}:{(code := codes.pop())}"
            beat.update(running_tasks=1, task_uuids=[task])  # never waits
            await tasks.set(task, "running", worker=name)
            for number, day in enumerate(DAYS, 1):
                await anyio.sleep(await index_of(day) / 20_000)  # in earnest: work
                await synced.add(FLEET, code, day)
                await tasks.update(task, progress=100 * number / len(DAYS))
            await tasks.update(task, status="done")
            print(task, await synced.summary(FLEET, code, DAYS), flush=True)


async def main() -> None:
    async with tasks, synced, crew, workers.cache, anyio.create_task_group() as fleet:
        for name in (f"{FLEET}-1", f"{FLEET}-2"):
            await fleet.start(work, name)
        async for change in crew.watch(interval=0.2):
            if (worker := change.worker) and worker.id.startswith(FLEET):
                print(worker.id, change.what, worker.raw["task_uuids"], flush=True)
                if change.what == "left" and worker.id == f"{FLEET}-2":
                    break


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        anyio.run(main)
