"""The built site in a real Chromium; skipped where `make docs` has not built it."""

from __future__ import annotations

import functools
import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from docs.site.build import SITE
from tests.ops.web.browsers import DEADLINE, a_browser

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 844}
SCROLLS = "document.documentElement.scrollWidth > innerWidth"
SWITCH = "links => links.map(link => [link.hreflang, link.href])"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
        """Write nothing to standard error."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Serve the built site on a port of this machine."""
    if not (SITE / "index.html").is_file():
        pytest.skip("the site is not built: make docs")
    handler = functools.partial(Quiet, directory=os.fspath(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser(site: str) -> Iterator[Any]:
    with a_browser() as browser:
        yield browser


@contextmanager
def opened(browser: Any, **options: Any) -> Iterator[tuple[Any, list[str]]]:
    """Open an empty page; also yield the addresses that are asked for."""
    context = browser.new_context(**options)
    page, asked = context.new_page(), []
    page.set_default_timeout(DEADLINE)
    page.on("request", lambda request: asked.append(request.url))
    try:
        yield page, asked
    finally:
        context.close()


def test_every_page_on_a_phone(site: str, browser: Any) -> None:
    """No page scrolls sideways or asks elsewhere, and each switches to its translation."""
    known = json.loads((SITE / "zensical-i18n.json").read_text("utf-8"))["pages"]
    pages = [path for path in known["en"] if not path.startswith("api/")]
    wide, astray = [], []
    with opened(browser, viewport=PHONE) as (page, asked):
        for path in [*pages, "api/", "api/console/"]:
            for language in ("", "zh-CN/"):
                page.goto(f"{site}{language}{path}", wait_until="domcontentloaded")
                if page.evaluate(SCROLLS):
                    wide.append(language + path)
                links = page.locator(".md-select__link[hreflang]")
                targets = dict(links.evaluate_all(SWITCH))
                if targets != {"en": site + path, "zh-CN": f"{site}zh-CN/{path}"}:
                    astray.append((language + path, targets))
    assert len(pages) > 30
    assert wide == []
    assert astray == []
    schemes = (site, "data:", "blob:")
    assert [url for url in asked if not url.startswith(schemes)] == []


@pytest.mark.parametrize(
    ("start", "words", "target"),
    [
        ("", "dead letter", "protocol/"),
        ("zh-CN/", "死信", "zh-CN/protocol/"),
    ],
)
def test_the_search(
    start: str, words: str, target: str, site: str, browser: Any
) -> None:
    """English and Chinese words lead to pages in the same language."""
    with opened(browser, viewport=DESK) as (page, _):
        page.goto(site + start)
        page.locator(".md-search__button").first.click()
        page.get_by_role("combobox").fill(words)
        page.locator(f'a[href^="{site}{target}?h="]').first.wait_for()


def test_the_dark_theme(site: str, browser: Any) -> None:
    """The page follows the system, and has another background in the dark."""
    colours = set()
    for scheme in ("light", "dark"):
        with opened(browser, color_scheme=scheme) as (page, _):
            page.goto(site)
            colours.add(page.evaluate(BACKGROUND))
    assert len(colours) == 2
