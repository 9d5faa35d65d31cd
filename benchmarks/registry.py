"""Finding the living among many keys: ``python -m benchmarks.registry``.

Fills a server of its own with heartbeats among foreign keys and calls ``alive()`` again
and again. The goals: under 3 s a call, no command longer than 5 ms, memory flat. Of the
calls the median counts: the server's clock goes on while others have the processor.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import anyio
from redis import Redis

from bls_agent.devserver import DevServer
from bls_agent.workers import BacktestWorkerHeartbeat, WorkerRegistry

SECONDS = 3.0  # of one call
LONGEST = 5.0  # milliseconds of a command
OURS = (b"SCAN", b"PTTL", b"GETRANGE")
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


def resident() -> float:
    """MiB of memory that this process occupies now."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


async def call(
    url: str, redis: Redis, expected: int
) -> tuple[list[float], list[float], float]:
    """Call ``alive()`` again and again.

    Returns:
        Seconds and the longest command's milliseconds of each call, and growth in MiB.
    """
    seconds: list[float] = []
    longest: list[float] = []
    before = 0.0
    async with WorkerRegistry(url) as registry:
        for number in range(CALLS):
            redis.slowlog_reset()
            began = time.perf_counter()
            found = len(await registry.alive())
            seconds.append(time.perf_counter() - began)
            longest.append(find_longest(redis))
            if found != expected:
                message = f"{found:,} workers instead of {expected:,}"
                raise RuntimeError(message)
            if number == 1:
                before = resident()
    return seconds, longest, resident() - before


def find_longest(redis: Redis) -> float:
    """Milliseconds of the longest command of ours, whoever else wanted the processor."""
    slow: Any = redis.slowlog_get(10_000)
    ours = (one for one in slow if one["command"].split()[0] in OURS)
    return max((one["duration"] / 1000 for one in ours), default=0.0)


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
        seconds, longest, growth = anyio.run(call, server.url, redis, asked.workers)
        share = anyio.run(watch, server.url)
    taken, command = median(seconds), median(longest)
    print(
        f"{asked.workers:,} heartbeats among {asked.foreign:,} keys, {CALLS} calls: "
        f"alive() {taken:.2f} s (at most {max(seconds):.2f}), its longest command "
        f"{command:.1f} ms (at most {max(longest):.1f}), {growth:+.1f} MiB, "
        f"watch() {share:.0%} of one core; the goals are {SECONDS:.0f} s, "
        f"{LONGEST:.0f} ms, {GROWTH:.0f} MiB"
    )
    return 0 if taken <= SECONDS and command <= LONGEST and growth <= GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
