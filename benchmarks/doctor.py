"""How long a doctor takes for many keys: ``python -m benchmarks.doctor``.

Fills a server of its own with keys of the contracts as a fleet leaves them, half of them
logs and commands, and examines it. The goal is 100,000 keys in 10 s.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator

import anyio
import orjson
from redis import Redis

from bls_agent.devserver import DevServer
from bls_agent.ops.doctor.examine import examine

GOAL = 10.0  # seconds for 100,000 keys
KEYS_EACH = 5
RECORDS = 20
TOGETHER = 5_000  # requests in one write


def requests_of(number: int, now: str) -> Iterator[tuple[object, ...]]:
    """What one project, one worker and one run leave."""
    record = {
        "timestamp": now, "level": "info", "message": "连接成功",
        "metadata": {"module": "redis", "host": "127.0.0.1", "agent": f"a{number}#1"},
    }  # fmt: skip
    command = {
        "id": f"cmd-{number}", "timestamp": now, "source": "BLS Project Console",
        "command": "reload", "args": {"force": True},
    }  # fmt: skip
    heartbeat = {"status": "running", "timestamp": now, "node_id": str(number)}
    yield "SET", f"项目{number}_项目状态", "在线", "EX", 600
    yield "RPUSH", f"项目{number}_项目控制台", *[orjson.dumps(record)] * RECORDS
    yield "RPUSH", f"项目{number}_控制", orjson.dumps(command)
    yield "SET", f"heartbeat:node:{number}", orjson.dumps(heartbeat), "EX", 300
    yield (
        "XADD", f"run:{number}:events", "*", "timestamp", now, "sequence", "1",
        "event_category", "llm", "event_action", "stream", "data", "{}",
    )  # fmt: skip


def fill(server: DevServer, keys: int) -> None:
    """Write the keys."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    with Redis.from_url(server.url) as redis:
        pipeline = redis.pipeline(transaction=False)
        for number in range(keys // KEYS_EACH):
            for request in requests_of(number, now):
                pipeline.execute_command(*request)
            if len(pipeline) >= TOGETHER:
                pipeline.execute()
        pipeline.execute()


def main() -> int:
    """Measure once and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doctor")
    parser.add_argument("--keys", type=int, default=100_000)
    keys: int = parser.parse_args().keys
    with DevServer() as server:
        fill(server, keys)
        began = time.process_time()
        report = anyio.run(examine, server.url)
        busy = time.process_time() - began
    goal = GOAL * report.seen / 100_000
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{report.seen:,} keys: {report.seconds:.1f} s, {busy:.1f} s of one core, "
        f"{memory:.0f} MiB; the goal is {goal:.1f} s"
    )
    return 0 if report.seconds <= goal else 1


if __name__ == "__main__":
    sys.exit(main())
