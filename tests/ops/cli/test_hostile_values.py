"""A value that another program has written in an odd form ends no command."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from bls_agent.devserver import DevServer
from tests.corpus.hostile_values import PROJECT, plant
from tests.ops.cli.conftest import Bls


@pytest.mark.parametrize(
    "words",
    [
        ["status", PROJECT, "--json"],
        ["projects", "--json"],
        ["top", "--once", "--json"],
        ["crawl", "stats"],
        ["workers"],
        ["logs", PROJECT, "--grep", "a=b"],
        ["doctor"],
    ],
    ids=lambda words: words[0],
)
async def test_every_command_answers(
    bls: Bls, own_server: DevServer, admin: Redis, words: list[str]
) -> None:
    """No fault of bls-agent itself."""
    await plant(admin)
    ran = await bls(*words, url=own_server.url)
    assert ran.code in (0, 3)
    assert "Traceback" not in ran.said
