"""The pages of assets: their cards, their interface."""

from __future__ import annotations

import re
import time
from typing import Any

import anyio
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent.assets import Asset, AssetLibrary, AssetSummary, SyncReport, SyncState
from bls_agent.core.errors import ManifestFault
from bls_agent.devserver import DevServer
from bls_agent.ops.web.feeds import assets as asset_feed
from bls_agent.ops.web.feeds.assets import (
    STATES,
    SYNC_STATES,
    make_asset_card,
    make_asset_sheet,
    make_sync_sheet,
)
from bls_agent.ops.web.requests import quote_name
from tests.assets.test_library import PATH, SHA, tool
from tests.corpus.hostile_texts import HOSTILE_TEXTS
from tests.ops.web.serving import console_of, told_in

REPORT = "bls_agent:{asset:sync:state}:report"
FAULT = ManifestFault("tools/x.yaml", "it is missing", field="version", line=3, id="x")


# --- decided without I/O


def texts_of(value: Any) -> list[str]:
    """Every text of a tree."""
    if isinstance(value, dict):
        return [text for one in value.values() for text in texts_of(one)]
    if isinstance(value, list):
        return [text for one in value for text in texts_of(one)]
    return [value] if isinstance(value, str) else []


def test_nothing_on_the_pages_is_obeyed() -> None:
    """Cards, the last synchronisation and an asset's page hold only what can be shown."""
    for text in HOSTILE_TEXTS.values():
        entry = AssetSummary(text, text, text, text, text)
        fault = ManifestFault(text, text, text, text, 3, text)
        report = SyncReport(status="failed", reason=text, source=text, broken=(fault,))
        state = SyncState(sync_status="failed", last_commit_sha=text, report=report)
        asset = Asset(
            id=text, version=text, category=text, name=text, description=text, author=text,
            config_schema=[{"name": text, "options": [{text: text}]}], github_sha=text,
            agent_specs={text: text}, runtime={text: [text]}, github_path=text,
            faults={"runtime": text},
        )  # fmt: skip
        sheets = [
            make_asset_card(entry),
            make_asset_card(entry, text),
            make_sync_sheet(state, 0.0),
            make_sync_sheet(SyncState(sync_status=text), 0.0),
            make_asset_sheet(asset),
        ]
        for shown in texts_of(sheets):
            assert all(line.isprintable() for line in shown.split("\n"))
        assert sheets[0]["key"] == quote_name(text)
        assert sheets[0]["key"].isascii()


def test_cards() -> None:
    """A category is a state; an entry of none, and one that is no summary, are broken."""
    card = make_asset_card(AssetSummary("a", "甲", "skill", "1.0.0", "x"))
    assert (card["state"], card["kind"], card["problem"]) == ("skill", "skill", "")
    odd = make_asset_card(AssetSummary("a", "甲", "widget", "1.0.0"))
    assert (odd["state"], odd["problem"]) == ("broken", "category: widget")
    assert set(STATES) >= {"tool", "prompt", "skill"}


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (SyncState(), "never"),
        (SyncState(sync_status="idle"), "idle"),
        (SyncState(sync_status="syncing"), "syncing"),
        (SyncState(sync_status="syncing", is_interrupted=True), "interrupted"),
        (SyncState(sync_status="failed"), "failed"),
        (SyncState(sync_status="done"), "odd"),
    ],
)
def test_how_a_synchronisation_stands(state: SyncState, shown: str) -> None:
    """One word for each, with its colour."""
    sheet = make_sync_sheet(state, 100.0)
    assert (sheet["state"], sheet["kind"]) == (shown, SYNC_STATES[shown])
    assert sheet["said"] == ("done" if shown == "odd" else "")


def test_whatever_stands_there_is_shown_in_bounds() -> None:
    """Times that are none, texts without end, settings of any form."""
    state = SyncState(last_sync_time=10**19, sync_status="idle")
    assert make_sync_sheet(state, 100.0)["time"] == ""
    asset = Asset(
        id="a", version="1", category="tool", name="a", description="x" * 10**6,
        config_schema=[{"name": [1], "default": 2**70}] * 2_000, created_at=1704067200,
        runtime={"x": "y" * 10**6},
    )  # fmt: skip
    sheet = make_asset_sheet(asset)
    assert sheet["created"] == "2024-01-01T00:00:00.000Z"
    assert sheet["config"][0][0] == "[1]"
    assert len(orjson.dumps(sheet)) < 300_000


# --- on a server


async def write_failure(admin: Redis) -> None:
    """What a synchronisation leaves that could not use one file."""
    state: dict[Any, Any] = {
        "last_sync_time": int(time.time()) - 130, "last_commit_sha": "f" * 40,
        "synced_count": 15, "sync_status": "failed",
    }  # fmt: skip
    await admin.hset("asset:sync:state", mapping=state)
    report = SyncReport(
        status="failed", reason="1 file could not be used", broken=(FAULT,)
    )
    await admin.set(REPORT, orjson.dumps(report))


async def test_the_pages_and_the_interface(
    own_server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Good and unreadable ones, the last failure with its file, and one in full."""
    monkeypatch.setattr(asset_feed, "INTERVAL", 0.05)
    await admin.hset("asset:index", mapping={"kaputt<b>": b"{", "half": b"[]"})
    await admin.hset("asset:metadata:half", mapping={"id": "half"})
    await write_failure(admin)
    async with AssetLibrary(own_server.url) as library, console_of(own_server.url) as client:  # fmt: skip
        await library.save(tool(), path=PATH, sha=SHA)
        page = (await client.get("/assets?lang=en")).text
        states = {card["key"]: card["state"] for card in told_in(page)["assets"]}
        assert states.pop("google_search") == "tool"
        assert states == {"kaputt%3Cb%3E": "broken", "half": "broken"}
        assert "kaputt<b>" not in page
        for told in ("2 min ago", "f" * 12, "1 file could not be used", str(FAULT)):
            assert told in page
        assert "最近一次同步" in (await client.get("/assets?lang=zh")).text
        answer = (await client.get("/api/assets")).json()
        assert [one["id"] for one in answer["assets"]] == ["google_search"]
        assert [one["id"] for one in answer["broken"]] == ["half", "kaputt<b>"]
        assert answer["sync"]["report"]["broken"][0]["line"] == 3
        assert answer["sync"]["synced_count"] == 15
        one = (await client.get("/api/assets/google_search")).json()
        assert (one["github_path"], one["github_sha"]) == (PATH, SHA)
        assert one["config_schema"][0]["label"] == "搜索词"
        page = (await client.get("/assets/google_search?lang=en")).text
        for told in (PATH, SHA, "搜索词", "&#34;handler&#34;: &#34;run&#34;", "数据组"):
            assert told in page
        half = await client.get("/assets/half?lang=en")
        assert "cannot be read" in half.text
        nobody = await client.get("/assets/nobody%2F%3Cb%3E?lang=en")
        assert "There is no asset nobody/&lt;b&gt;" in nobody.text
        assert [half.status_code, nobody.status_code] == [404, 404]
        for path in ("/api/assets/half", "/api/assets/nobody"):
            assert (await client.get(path)).status_code == 404
        part = "/fragments/assets/google_search"
        seen = re.findall(r'value="(\w{16})"', (await client.get(part)).text)[-1]
        assert (await client.get(f"{part}?seen={seen}")).status_code == 204
        await library.delete("google_search")
        with anyio.fail_after(10):
            while (
                "There is no asset google_search"
                not in (await client.get(f"{part}?lang=en")).text
            ):
                await anyio.sleep(0.01)


async def test_a_field_that_cannot_be_read_is_named(
    own_server: DevServer, admin: Redis
) -> None:
    """The asset is shown all the same, and its page says which field is left empty."""
    async with AssetLibrary(own_server.url) as library, console_of(own_server.url) as client:  # fmt: skip
        await library.save(tool(), path=PATH, sha=SHA)
        await admin.hset("asset:metadata:google_search", "runtime", "{broken")
        page = (await client.get("/assets/google_search?lang=en")).text
        assert "The field runtime is left empty, because it cannot be read" in page
        assert SHA in page


async def test_a_key_of_another_type_is_named(
    own_server: DevServer, admin: Redis
) -> None:
    """The page and the interface say that the library cannot be read."""
    await admin.set("asset:sync:state", "x")
    async with console_of(own_server.url) as client:
        answer = await client.get("/api/assets")
        page = (await client.get("/assets")).text
    assert answer.status_code == 503
    assert "asset:sync:state" in answer.json()["error"]
    assert '<code id="away-kind">wrong_type</code>' in page
