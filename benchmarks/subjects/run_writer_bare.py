"""A pipeline of XADD over fields that are prepared when the clock starts."""

from __future__ import annotations

import time
from typing import Any, Final

import orjson
from redis.asyncio import Redis

from benchmarks.subjects.acting import Options, act, on_cue

__all__ = ["SOURCE", "make_data"]

SOURCE: Final = {
    "agent_id": "analyst",
    "agent_type": "worker",
    "agent_name": "分析师",
    "team_name": "研究小组",
}


def make_data(number: int) -> dict[str, Any]:
    """What an event says: about 100 bytes."""
    return {"tool": "行情查询", "row": number, "values": [1.5, 2.25, 3.125], "ok": True}


def fields(number: int) -> dict[Any, Any]:
    """An event as its stream entry."""
    return {
        "timestamp": "2026-01-12T12:35:00.000Z",
        "sequence": str(number),
        **{f"source_{name}": value for name, value in SOURCE.items()},
        "event_category": "agent",
        "event_action": "tool_result",
        "data": orjson.dumps(make_data(number)),
    }


async def run(options: Options) -> dict[str, float]:
    """Write ``count`` events on each cue, ``batch`` in a write."""
    count, batch = options["count"], options["batch"]
    waves = [
        [fields(number) for number in range(1 + wave * count, 1 + (wave + 1) * count)]
        for wave in range(options["waves"])
    ]
    key = f"run:{options['run']}:events"
    async with Redis.from_url(options["url"]) as redis:

        async def wave() -> float:
            prepared = waves.pop(0)
            began = time.perf_counter()
            for start in range(0, count, batch):
                async with redis.pipeline(transaction=False) as pipe:
                    for one in prepared[start : start + batch]:
                        _ = pipe.xadd(key, one, maxlen=10_000, approximate=True)
                    await pipe.execute()
            return time.perf_counter() - began

        return {"seconds": sum(await on_cue(wave, options["waves"]))}


if __name__ == "__main__":
    act(run)
