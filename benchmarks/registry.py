"""Finding the living among many keys: ``python -m benchmarks.registry``.

Fills a server of its own with heartbeats among foreign keys and calls ``alive()`` again
and again. The goals: under 3 s a call, no command longer than 5 ms, memory flat.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from redis import Redis

from bls_agent.devserver import DevServer
from bls_agent.workers import BacktestWorkerHeartbeat, WorkerRegistry

SECONDS = 3.0  # of one call
LONGEST = 5_000  # microseconds of a command
GROWTH = 8.0  # MiB over all calls but the first two
CALLS = 20
WATCHED = 10.0  # seconds
AT_ONCE = 10_000
LIVES = 3_600  # seconds; nobody refreshes here
# Beginnings like those of heartbeats, others, and ones that contracts know.
FILL = """
for n = ARGV[1], ARGV[2] do
  local kind = n % 4
  if kind == 0 then redis.call('SET', 'session:' .. n, 'x')
  elseif kind == 1 then redis.call('SET', 'ginkgo_func_cache_f_' .. n, '{}')
  elseif kind == 2 then redis.call('SET', 'heartbeats_' .. n, 'x')
  else redis.call('SET', 'run:' .. n, 'x') end
end
"""


def fill(redis: Redis, workers: int, foreign: int) -> None:
    """Write the keys."""
    evaluate: Any = redis.eval
    for first in range(0, foreign, AT_ONCE):
        evaluate(FILL, 0, first, min(first + AT_ONCE, foreign) - 1)
    pipeline = redis.pipeline(transaction=False)
    for number in range(workers):
        beat = BacktestWorkerHeartbeat.create(f"回测-{number}", running_tasks=2)
        pipeline.set(beat.key, beat.to_json(), ex=LIVES)
    pipeline.execute()
    redis.config_set("slowlog-max-len", 10_000)
    redis.config_set("slowlog-log-slower-than", 100)
    redis.slowlog_reset()
    redis.config_resetstat()


def resident() -> float:
    """MiB of memory that this process occupies now."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


async def call(url: str, expected: int) -> tuple[list[float], float]:
    """Call ``alive()`` again and again: seconds of each call, and growth in MiB."""
    seconds: list[float] = []
    before = 0.0
    async with WorkerRegistry(url) as registry:
        for number in range(CALLS):
            began = time.perf_counter()
            found = len(await registry.alive())
            seconds.append(time.perf_counter() - began)
            if found != expected:
                message = f"{found:,} workers instead of {expected:,}"
                raise RuntimeError(message)
            if number == 1:
                before = resident()
    return seconds, resident() - before


async def watch(url: str) -> float:
    """Watch for a while: the share of one core that it takes, when all are known."""
    async with WorkerRegistry(url) as registry:
        changes = registry.watch()
        await anext(changes)
        began, busy = time.perf_counter(), time.process_time()
        with anyio.move_on_after(WATCHED):
            async for _ in changes:
                pass
        await changes.aclose()
    return (time.process_time() - busy) / (time.perf_counter() - began)


def main() -> int:
    """Measure once and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.registry")
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--foreign", type=int, default=1_000_000)
    asked = parser.parse_args()
    with DevServer() as server, Redis.from_url(server.url) as redis:
        fill(redis, asked.workers, asked.foreign)
        seconds, growth = anyio.run(call, server.url, asked.workers)
        slow: Any = redis.slowlog_get(10_000)
        share = anyio.run(watch, server.url)
    ours = [
        one
        for one in slow
        if one["command"].split()[0] in (b"SCAN", b"PTTL", b"GETRANGE")
    ]
    longest = max((one["duration"] for one in ours), default=0)
    print(
        f"{asked.workers:,} heartbeats among {asked.foreign:,} keys: "
        f"alive() {min(seconds):.2f} to {max(seconds):.2f} s, longest command "
        f"{longest / 1000:.1f} ms, {growth:+.1f} MiB over {CALLS - 2} calls, "
        f"watch() {share:.0%} of one core; the goals are {SECONDS:.0f} s, "
        f"{LONGEST / 1000:.0f} ms, {GROWTH:.0f} MiB"
    )
    good = max(seconds) <= SECONDS and longest <= LONGEST and growth <= GROWTH
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
