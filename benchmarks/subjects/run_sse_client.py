"""A client of server-sent events, with nothing but a socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import orjson

from benchmarks.subjects.acting import Options, act, on_cue, say

LIMIT = 2**20  # bytes of a line


async def read_data(port: int, run_id: int) -> AsyncGenerator[bytes]:
    """Give what stands behind ``data:``, frame by frame."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LIMIT)
    writer.write(
        b"GET /runs/%d/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n" % run_id
    )
    try:
        while line := await reader.readline():
            if line.startswith(b"data:"):
                yield line[5:]
    finally:
        writer.close()


async def run(options: Options) -> dict[str, object]:
    """Follow one run, then read another one again and again, on cue."""
    port, noted = options["port"], list[int]()
    async with aclosing(read_data(port, options["follow"])) as following:
        await anext(following)
        say(following=True)
        async for data in following:
            now = time.monotonic_ns()
            noted.append(now - orjson.loads(data)["data"]["at"])
            if len(noted) == options["live"] - 1:
                break

    async def replay() -> float:
        began, left = time.perf_counter(), options["kept"]
        async with aclosing(read_data(port, options["replay"])) as kept:
            async for _ in kept:
                left -= 1
                if not left:
                    break
        return time.perf_counter() - began

    seconds = sum(await on_cue(replay, options["replays"]))
    return {"nanoseconds": noted, "seconds": seconds}


if __name__ == "__main__":
    act(run)
