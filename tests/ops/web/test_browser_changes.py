"""The page of status changes in a real Chromium: filter, pages, days."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
from redis import Redis

from bls_agent.devserver import DevServer
from bls_agent.ops.fleet import Condition
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.feeds.changes import StatusChange
from tests.ops.web.browsers import Foreign, looking
from tests.ops.web.serving import served

BAD = (Condition.FAULT, Condition.ERROR, Condition.ODD)
STREAM = "bls_agent:console:changes"


def test_changes_are_filtered_and_read_back(browser: Any, server: DevServer) -> None:
    """The address keeps the filter; older ones come on demand, new ones by themselves."""
    with Redis.from_url(server.url, protocol=2) as redis:
        now = time.time()
        for number in range(250):  # two of each project, two in an hour
            bad = number % 2 == 0
            change = StatusChange(
                number=1,
                project=f"订单系统-{number // 2}",
                before=Condition.ONLINE if bad else Condition.FAULT,
                after=BAD[number // 2 % 3] if bad else Condition.ONLINE,
                reason="数据库没有应答" if number == 0 else "",
                at=now - (250 - number) * 1_800,
            )
            redis.xadd(STREAM, {"change": orjson.dumps(change.to_dict())})
        Foreign(redis, "订单系统-124").status("在线", None)
        config = WebConfig(redis=server.url, port=0, keep_changes=True)
        with (
            served(config) as console,
            looking(browser, console.url, language="en", size=(390, 844)) as looked,
        ):
            page, rows = looked.page, looked.page.locator("#history li")
            looked.open("/changes")
            looked.wait("document.querySelectorAll('#history li').length === 200")
            assert looked.width() <= 390
            days = page.locator("#history li[data-day]")
            assert 4 <= days.count() <= 5
            assert rows.first.locator("time").get_attribute("title").endswith(" UTC")
            page.evaluate(
                "const older = document.getElementById('older'); older.click(); older.click();"
            )
            looked.wait("document.querySelectorAll('#history li').length === 250")
            assert not page.locator("#older").is_visible()
            Foreign(redis, "订单系统-124").status("故障", None)
            looked.wait("document.querySelectorAll('#history li').length === 251")
            assert rows.first.locator("bdi").first.text_content() == "订单系统-124"
            page.select_option("#kind", "fault")
            looked.wait("document.querySelectorAll('#history li').length === 43")
            page.fill("#search", "没有应答")
            looked.wait("document.querySelectorAll('#history li').length === 1")
            assert "kind=fault" in page.url
            page.reload()
            looked.wait("document.querySelectorAll('#history li').length === 1")
            assert page.locator("#search").input_value() == "没有应答"
            page.fill("#project", "订单系统-9")
            page.locator("#unchanged").wait_for()
            assert looked.texts("#unchanged") == ["No change matches the filter."]
            page.evaluate(
                """for (const [id, text] of [["project", "订单系统-0"], ["search", "应答"]]) {
                    document.getElementById(id).value = text;
                    document.getElementById(id).dispatchEvent(new Event("input"));
                }"""
            )  # at the same moment
            looked.wait("document.querySelectorAll('#history li').length === 1")
            assert parse_qs(urlsplit(page.url).query) == {
                "kind": ["fault"], "projectName": ["订单系统-0"], "q": ["应答"]
            }  # fmt: skip
