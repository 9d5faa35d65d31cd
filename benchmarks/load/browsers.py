"""Browsers, as far as a server sees them: open streams, and pages that are asked for."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

PAUSE = 0.25  # seconds between two questions
LINE = 4 * 1024 * 1024  # bytes of the longest line of a stream


@dataclass
class Browsers:
    """All of them together.

    Attributes:
        url: Of the console.
        events: Events that came, by kind of stream.
        received: Bytes that came over streams.
        ended: Streams that ended before their time.
        took: Path → seconds that each answer took.
        wrong: Answers that were no 200.
    """

    url: str
    events: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    received: int = 0
    ended: int = 0
    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)

    async def follow(self, kind: str, path: str) -> None:
        """Keep a stream open and count what comes."""
        reader, writer = await self._send(path)
        try:
            while line := await reader.readline():
                self.received += len(line)
                self.events[kind] += line.startswith(b"event:")
            self.ended += 1
        finally:
            writer.close()

    async def look(self, paths: dict[str, str]) -> None:
        """Ask for one page after the other, each over a connection of its own."""
        while True:
            for name, path in paths.items():
                began = time.perf_counter()
                reader, writer = await self._send(path, "Connection: close\r\n")
                answer = await reader.read(-1)
                self.took[name].append(time.perf_counter() - began)
                writer.close()
                if not answer.startswith(b"HTTP/1.1 200 "):
                    self.wrong.append(f"{path}: {answer[:80]!r}")
                await asyncio.sleep(PAUSE)

    async def _send(
        self, path: str, more: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(
            place.hostname, place.port, limit=LINE
        )
        head = f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\n{more}\r\n"
        writer.write(head.encode())
        return reader, writer


def log_path(project: str) -> str:
    """Give the stream of a project's log."""
    return f"/api/logs/stream?projectName={quote(project)}"


def paths_of(project: str) -> dict[str, str]:
    """Give what people and programs ask for."""
    quoted = quote(project)
    return {
        "wallboard": "/",
        "project page": f"/projects/{quoted}",
        "GET /api/projects": "/api/projects",
        "GET /api/logs": f"/api/logs?projectName={quoted}",
        "GET /api/health": "/api/health",
    }
