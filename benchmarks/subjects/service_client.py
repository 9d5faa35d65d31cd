"""Asks two HTTP services in turn, over open connections, and sends them commands."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis

from benchmarks.figures.commands import make_commands
from benchmarks.subjects.acting import Options, act
from benchmarks.summary import quantile

CONNECTIONS = 8
TURN = 0.25  # seconds
WARM_UP = 2  # first turns of each service, which do not count
COMMANDS = 5  # in each turn
READ_EVERY = 24  # turns from one reading of the metrics to the next
PRICE = b"GET /prices/tea HTTP/1.1\r\nHost: localhost\r\n\r\n"
METRICS = b"GET /metrics/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Service:
    """One service, what it has answered, and how long each answer took."""

    def __init__(self, target: dict[str, Any]) -> None:
        """Connect later."""
        self.port, self.control = target["port"], target["control"]
        self.seconds: list[float] = []
        self.took = 0.0
        self.answers = 0  # the warm-up included

    async def connect(self) -> None:
        """Open the connections; wait until the service listens."""
        self.connections = [
            await asyncio.open_connection("127.0.0.1", self.port)
            for _ in range(CONNECTIONS)
        ]

    async def turn(
        self, redis: Redis, commands: list[bytes], *, reads_metrics: bool
    ) -> None:
        """Ask over all connections for a while; meanwhile read the metrics once."""
        until = time.perf_counter() + TURN
        await redis.rpush(self.control, *commands)
        began = time.perf_counter()
        asking = [self._ask(*each, until) for each in self.connections]
        if reads_metrics:
            await self._read_metrics()
        for seconds in await asyncio.gather(*asking):
            self.seconds += seconds
            self.answers += len(seconds)
        self.took += time.perf_counter() - began

    async def _read_metrics(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(METRICS)
        found = await reader.read(-1)
        writer.close()
        if b"bls_commands_total" not in found:
            raise RuntimeError(found)

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        until: float,
    ) -> list[float]:
        seconds = []
        while (began := time.perf_counter()) < until:
            await ask_price(reader, writer)
            seconds.append(time.perf_counter() - began)
        return seconds


async def ask_price(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a request and read the whole answer."""
    writer.write(PRICE)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(head)
    length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
    await reader.readexactly(length)


async def run(options: Options) -> dict[str, object]:
    """Let the services answer in turn."""
    services = [Service(target) for target in options["targets"]]
    commands = make_commands(COMMANDS)
    async with Redis.from_url(options["url"], protocol=2) as redis:
        for service in services:
            for _ in range(200):
                with suppress(OSError):
                    await service.connect()
                    break
                await asyncio.sleep(0.05)
        for number in range(WARM_UP + options["pieces"]):
            for service in services:
                if number == WARM_UP:
                    service.seconds, service.took = [], 0.0
                reads = service is services[-1] and number % READ_EVERY == WARM_UP
                await service.turn(redis, commands, reads_metrics=reads)
    return {
        "answers": [service.answers for service in services],
        "services": [
            {
                "requests/s": len(service.seconds) / service.took,
                "p50 ms": 1_000 * quantile(service.seconds, 0.5),
                "p99 ms": 1_000 * quantile(service.seconds, 0.99),
            }
            for service in services
        ],
    }


if __name__ == "__main__":
    act(run)
