"""Pushes one command every few milliseconds, each with the time of its push.

Several lists get theirs in turn, so that their readers meet the same machine.
``time.monotonic_ns`` is one clock for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import json
import random
import time

from redis import Redis

from benchmarks.subjects.acting import Options, act


async def run(options: Options) -> dict[str, int]:
    """Push ``count`` commands into each list; about ``pause`` seconds before each."""
    chance = random.Random(options["count"])
    redis = Redis.from_url(options["url"])
    redis.ping()
    for number in range(options["count"]):
        for control in options["controls"]:
            await asyncio.sleep(options["pause"] * chance.uniform(0.5, 1.5))
            command = {
                "id": f"cmd-{number}",
                "timestamp": "2026-01-12T12:35:00.000Z",
                "source": "BLS Project Console",
                "command": "note",
                "args": {"at": time.monotonic_ns()},
            }
            redis.rpush(control, json.dumps(command))
    redis.close()
    return {"pushed": options["count"]}


if __name__ == "__main__":
    act(run)
