"""Serves runs over HTTP as one writes it in an afternoon: a generator around XREAD."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import orjson
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.serving import serve


def frame(run_id: str, number: bytes, fields: dict[bytes, bytes]) -> bytes:
    """Write an entry as the application form of the contract."""
    category, action = fields[b"event_category"], fields[b"event_action"]
    told = {
        "id": number.decode(),
        "run_id": int(run_id),
        "timestamp": fields[b"timestamp"].decode(),
        "sequence": int(fields[b"sequence"]),
        "source": {
            name: fields[f"source_{name}".encode()].decode()
            for name in ("agent_id", "agent_type", "agent_name", "team_name")
        },
        "event": {"category": category.decode(), "action": action.decode()},
        "data": orjson.loads(fields[b"data"]),
    }
    return b"id: %b\nevent: %b.%b\ndata: %b\n\n" % (
        number, category, action, orjson.dumps(told),
    )  # fmt: skip


async def run(options: Options) -> dict[str, float]:
    """Serve until the stage has seen enough."""

    async def frames(run_id: str) -> AsyncGenerator[bytes]:
        key, last = f"run:{run_id}:events", "0-0"
        async with Redis.from_url(options["url"], socket_timeout=None) as redis:
            while True:
                found: Any = await redis.xread({key: last}, count=500, block=5_000)
                for _, entries in found:
                    yield b"".join(frame(run_id, *entry) for entry in entries)
                    last = entries[-1][0]

    async def stream(request: Request) -> Response:
        return StreamingResponse(
            frames(request.path_params["run_id"]), media_type="text/event-stream"
        )

    return await serve(
        Starlette(routes=[Route("/runs/{run_id}/events/stream", stream)])
    )


if __name__ == "__main__":
    act(run)
