"""A fleet of a thousand projects, as its agents would write it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from redis.asyncio import Redis

STATUSES = ("在线", "在线", "在线", "在线", "报错", "故障", "离线")
LEVELS = ("debug", "info", "info", "info", "warn", "error")
TTL = 60
CAP = 10_000


@dataclass
class Fleet:
    """Projects that refresh their statuses, a tenth of which log.

    Attributes:
        redis: Where.
        size: How many projects.
        logging: How many of them log, one record a second each.
        refresh: Seconds between two refreshes of a status.
        changes: Share of the refreshes that bring another status.
        written: Records that were written.
    """

    redis: Redis
    size: int
    logging: int
    refresh: float = 10.0
    changes: float = 0.05
    written: int = 0

    @property
    def names(self) -> list[str]:
        """All of them; those that log come first."""
        return [f"订单系统_{number:04}" for number in range(self.size)]

    async def settle(self) -> None:
        """Write what is there when the console starts: every status, and some logs."""
        pipe: Any = self.redis.pipeline(transaction=False)  # queues, answers later
        async with pipe:
            for name in self.names:
                pipe.set(f"{name}_项目状态", "在线", ex=TTL)
                pipe.rpush(f"{name}_项目控制台", *[record(n) for n in range(20)])
            await pipe.execute()

    async def live(self) -> None:
        """Refresh and log until cancelled, a tenth of a second's share at a time."""
        turn, states = 0, dict.fromkeys(self.names, "在线")
        names, slices = self.names, int(self.refresh * 10)
        while True:
            pipe: Any = self.redis.pipeline(transaction=False)
            async with pipe:
                for name in names[turn % slices :: slices]:
                    if random.random() < self.changes:
                        states[name] = random.choice(STATUSES)
                    pipe.set(f"{name}_项目状态", states[name], ex=TTL)
                for name in names[turn % 10 : self.logging : 10]:
                    self.written += 1
                    pipe.rpush(f"{name}_项目控制台", record(self.written))
                    pipe.ltrim(f"{name}_项目控制台", -CAP, -1)
                await pipe.execute()
            turn += 1
            await asyncio.sleep(0.1)


def record(number: int) -> bytes:
    """Write a record of an ordinary length."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return orjson.dumps(
        {
            "timestamp": now,
            "level": LEVELS[number % len(LEVELS)],
            "message": f"order {number} was paid, shipped and forgotten 订单已支付",
            "metadata": {
                "order": number,
                "module": "orders",
            },
        }
    )
