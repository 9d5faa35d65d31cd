"""The table of the wallboard in a real Chromium: order, groups, address, targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from bls_agent.devserver import DevServer
from bls_agent.ops.web.config import WebConfig
from tests.ops.web.browsers import Foreign, looking, record
from tests.ops.web.serving import served

LONG = "一个名字非常非常长的项目" * 5
SMALL = """() => [...document.querySelectorAll("a[href], button, input, select")]
  .filter((one) => !one.closest(".skip") && one.checkVisibility({ visibilityProperty: true }))
  .map((one) => [one, (one.closest("[data-path]") ?? one).getBoundingClientRect()])
  .filter(([one, { height }]) => height < 40)
  .map(([one]) => one.outerHTML)"""
GROUPS = """async (names) => {
  const { groupByPrefix } = await import(document.querySelector("script[src*=wallboard]").src.replace("wallboard", "table"));
  const label = groupByPrefix(names);
  return names.map(label);
}"""


@pytest.fixture
def redis(server: DevServer) -> Iterator[Redis]:
    with Redis.from_url(server.url, protocol=2) as client:
        yield client


@pytest.fixture
def base(server: DevServer) -> Iterator[str]:
    with served(WebConfig(redis=server.url, port=0)) as console:
        yield console.url


def test_the_table_is_sorted_grouped_and_live(  # noqa: PLR0915 - one story
    browser: Any, base: str, redis: Redis
) -> None:
    """Every column sorts; the address keeps it all; the browser remembers the view."""
    names = ["order-1", "order-2", "order-10", "batch/导入", "batch/结算", "支付网关"]
    fleet = {name: Foreign(redis, name) for name in names}
    for one in fleet.values():
        one.status("在线")
    fleet["batch/结算"].log(*[record("连接被拒绝", "error", 10)] * 5)
    redis.rpush("order-2_控制", b"{}", b"{}")
    fleet["支付网关"].status("故障")
    letter = b'{"id":"d","command":"\xe5\xaf\xbc","timestamp":"2026-01-12T04:05:06Z"}'
    redis.rpush("bls_agent:{batch/导入_控制}:dead", letter, b"{}")
    with looking(browser, base, language="en") as looked:
        page = looked.page

        def names_are(*wanted: str) -> None:
            looked.wait(
                """(wanted) => JSON.stringify([...document.querySelectorAll("#table .entry")]
                     .filter((row) => row.checkVisibility()).map((row) => row.querySelector("a").textContent)) === JSON.stringify(wanted)""",
                list(wanted),
            )

        looked.open("/")
        looked.wait("document.querySelectorAll('.card').length === 6")
        page.click("#view")
        worst = ["支付网关", "batch/导入", "batch/结算", "order-2"]
        names_are(*worst, "order-1", "order-10")
        assert page.locator("[data-column=queue]").get_attribute("aria-sort") == "none"
        page.click("[data-column=queue] button")
        names_are(
            "order-2", "支付网关", "batch/导入", "batch/结算", "order-1", "order-10"
        )
        page.click("[data-column=name] button")
        names_are(
            "batch/导入", "batch/结算", "order-1", "order-2", "order-10", "支付网关"
        )
        page.click("[data-column=name] button")
        names_are(
            "支付网关", "order-10", "order-2", "order-1", "batch/结算", "batch/导入"
        )
        page.click("#group")
        heads = page.locator(".group-head:visible bdi")
        assert heads.all_text_contents() == ["order-*", "batch/", "others"]
        assert "errors 5" in page.locator(".group-head small").nth(1).text_content()
        page.locator(".group-head button").first.click()
        names_are("batch/结算", "batch/导入", "支付网关")
        page.fill("#search", "order")
        assert heads.all_text_contents() == ["order-*"]
        page.locator(".group-head button:visible").click()
        names_are("order-10", "order-2", "order-1")
        page.click(".chip[data-chip=online]")
        for part in (
            "view=table",
            "sort=-name",
            "group=prefix",
            "q=order",
            "state=online",
        ):
            assert part in page.url
        page.click("text=中文")
        page.wait_for_url("**lang=zh**")
        names_are("order-10", "order-2", "order-1")
        assert page.locator("#search").input_value() == "order"
        fleet["order-10"].status("报错")
        names_are("order-2", "order-1")
        fleet["order-10"].status("在线")
        fleet["order-10"].log(record("新的错误", "error"))
        names_are("order-10", "order-2", "order-1")
        looked.wait(
            "() => [...document.querySelectorAll('.entry .last bdi')].some((one) => one.textContent === '新的错误')"
        )
        looked.open("/")
        names_are(
            "支付网关", "batch/导入", "batch/结算", "order-10", "order-2", "order-1"
        )
        page.keyboard.press("j")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.textContent") == "batch/导入"
        assert page.locator(".entry .dead a:visible").all_text_contents() == ["2"]
        page.click("[data-view=table] #view, #view")
        page.locator(".card .dead a:visible").click()
        page.wait_for_url("**#dead")
        assert "下发于" in page.locator("#dead .facts").last.text_content()
        page.go_back()
        cases = ["order-eu-1", "order-us", "batch/a", "batch/b", "worker1", "worker22"]
        assert page.evaluate(GROUPS, [*cases, "单独"]) == [
            "order-*", "order-*", "batch/", "batch/", "worker*", "worker*", "",
        ]  # fmt: skip
        shop = ["shop-order-1", "shop-order-2", "shop-pay"]
        assert page.evaluate(GROUPS, shop) == ["shop-order-*", "shop-order-*", ""]
        assert page.evaluate(GROUPS, []) == []


def test_the_table_on_a_telephone(browser: Any, base: str, redis: Redis) -> None:
    """Rows for a thumb, nothing sideways; a whole name on hover and on focus."""
    for number in range(30):
        Foreign(redis, f"order-{number}").status("在线")
    Foreign(redis, LONG).status("报错")
    with looking(browser, base, size=(390, 844)) as looked:
        page = looked.page
        looked.open("/?view=table&group=prefix")
        looked.wait("document.querySelectorAll('.entry').length === 31")
        assert looked.width() <= 390
        assert page.evaluate(SMALL) == []
        name = page.locator(".entry a").filter(has_text=LONG)
        assert name.get_attribute("title") == LONG
        row = page.locator(".entry").filter(has_text=LONG)
        before = row.bounding_box()["height"]
        page.locator("#search").fill("名字")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.textContent") == LONG
        clipped = """() => { const cell = document.activeElement.closest("th");
          return cell.scrollWidth > cell.clientWidth || cell.scrollHeight > cell.clientHeight; }"""
        assert not page.evaluate(clipped)
        assert row.bounding_box()["height"] > before
        looked.open("/?view=cards")
        looked.wait("document.querySelectorAll('.card').length === 31")
        assert page.evaluate(SMALL) == []
