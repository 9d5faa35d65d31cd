"""The clock of the pages in a real Chromium: local times, their zone, UTC on demand."""

from __future__ import annotations

from typing import Any

import orjson
from redis import Redis

from bls_agent.devserver import DevServer
from bls_agent.ops.web.config import WebConfig
from tests.ops.web.browsers import Foreign, looking
from tests.ops.web.serving import served


def test_times_are_local_and_their_zone_is_named(
    browser: Any, server: DevServer, project: str
) -> None:
    """Logs have a row for each day; a tooltip has UTC; the server's times are the same."""

    def at(stamp: str, message: str) -> bytes:
        fields = {"timestamp": stamp, "level": "info", "message": message}
        return orjson.dumps({**fields, "metadata": {}})

    with Redis.from_url(server.url, protocol=2) as redis:
        foreign = Foreign(redis, project)
        foreign.status("在线", None)
        foreign.log(
            at("2026-01-12T15:59:58.250Z", "一"),
            at("2026-01-12T16:00:01.000Z", "二"),
            at("2026-01-12T16:00:02.000+00:00", "三"),
            at("2026-01-12T16:00:03.500", "without a zone it is UTC"),
            at("2026-01-12 16:00:04", "also with a blank"),
            at("nonsense", "四"),
        )
        command = {"id": "1", "timestamp": "2026-01-12T20:30:00.000Z", "command": "x"}
        redis.rpush(f"{project}_控制", orjson.dumps(command))
        with (
            served(WebConfig(redis=server.url, port=0)) as console,
            looking(browser, console.url, language="en", is_kept=False) as looked,
        ):
            page = looked.page
            page.context.new_cdp_session(page).send(
                "Emulation.setTimezoneOverride", {"timezoneId": "Asia/Shanghai"}
            )
            looked.open_project(project)
            looked.wait("document.querySelectorAll('#records .row').length === 6")
            assert looked.texts("#records time") == [
                "23:59:58.250", "00:00:01.000", "00:00:02.000", "00:00:03.500",
                "00:00:04.000", "nonsense",
            ]  # fmt: skip
            days = "[...document.querySelectorAll('#records .row')].map((row) => row.dataset.day ?? '')"
            looked.wait(
                f'JSON.stringify({days}) === \'["2026-01-12","2026-01-13","","","",""]\''
            )
            titles = [
                one.get_attribute("title")
                for one in page.locator("#records time").all()
            ]
            assert titles[0] == "2026-01-12 15:59:58.250 UTC"
            assert titles[3] == "2026-01-12 16:00:03.500 UTC"
            assert titles[5] == "nonsense"
            waiting = page.locator("#waiting .facts time")
            waiting.wait_for()
            assert waiting.text_content() == "2026-01-13 04:30:00"
            assert waiting.get_attribute("title") == "2026-01-12 20:30:00.000 UTC"
            assert page.locator("#zone").text_content() == "UTC+8"
            assert "Asia/Shanghai" in page.locator("#zone").get_attribute("title")
