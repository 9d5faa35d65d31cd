"""A fleet of crawlers whose members die: the long run of ``tests.soak.crawlers``, in small."""

from __future__ import annotations

from bls_agent.devserver import DevServer
from tests.soak.crawlers import crawl_through_kills


async def test_crawlers_that_die_lose_nothing(own_server: DevServer) -> None:
    """Each request is handled, none twice without reason, and nothing is left in Redis."""
    done = await crawl_through_kills(own_server, 2_000, kills=3, lease=2.0)
    assert done.broken == []
    assert done.handled == 2_000
