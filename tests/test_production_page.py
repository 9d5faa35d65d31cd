"""The checklist for production: its service opens, and its commands work on it."""

from __future__ import annotations

from typing import Any

import pytest

from bls_agent.devserver import DevServer
from tests.documents import blocks, run_commands
from tests.test_docs import both


async def test_the_page_about_production_runs(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of the quick check find a service with the settings of the page."""
    monkeypatch.setenv("BLS_REDIS_URL", own_server.url)
    page = both("docs/production")[1]  # whose project is that of the commands
    [service] = blocks(page)
    names: dict[str, Any] = {"__name__": "agent"}
    exec(compile(service, "agent.py", "exec"), names)
    async with names["agent"] as agent:
        await agent.ready(5)
        assert await run_commands(page, own_server.url, monkeypatch) == 4
        assert agent.stats().mode == "reliable"
