"""Serves an application at a port of its own until the process is ended."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp

from benchmarks.subjects.acting import say

__all__ = ["serve"]


async def serve(app: ASGIApp) -> dict[str, float]:
    """Serve on a free port of this machine, and tell which."""
    # With the protocol named, asyncio sets TCP_NODELAY on the connections. Without it, a
    # second small write waits until the client has acknowledged the first, up to 40 ms.
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        say(port=listening.getsockname()[1])
        config = uvicorn.Config(app, log_level="warning", access_log=False)
        await uvicorn.Server(config).serve(sockets=[listening])
    return {}
