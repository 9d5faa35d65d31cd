"""A value that another program has written in an odd form breaks no page but its own card."""

from __future__ import annotations

from redis.asyncio import Redis

from bls_agent.devserver import DevServer
from tests.corpus.hostile_values import PROJECT, plant
from tests.harness import eventually
from tests.ops.web.serving import console_of

PATHS = [
    "/",
    "/api/projects",
    "/workers",
    "/api/workers",
    "/crawl",
    "/api/crawl",
    "/assets",
    "/metrics",
    f"/api/projects/{PROJECT}",
    f"/api/logs?projectName={PROJECT}&q=a%3Db",
]


async def test_every_page_answers(own_server: DevServer, admin: Redis) -> None:
    """The others are shown, and so is the project whose report is odd."""
    await plant(admin)
    async with console_of(own_server.url) as client:

        async def has_read() -> bool:
            found = [
                (await client.get(f"/api/{name}")).json()[name]
                for name in ("projects", "workers")
            ]
            return all(found) and (await client.get("/metrics")).status_code == 200

        await eventually(has_read)
        for path in PATHS:
            answer = await client.get(path)
            assert answer.status_code == 200, path
