"""The built site in a real Chromium; skipped where `make docs` has not built it."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from http.server import SimpleHTTPRequestHandler
from typing import Any
from urllib.parse import urljoin

import pytest

from docs.site.build import SITE
from tests.http_server import HTTPServer, QuietHandler
from tests.ops.web.browsers import DEADLINE, a_browser

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 844}
SCROLLS = "document.documentElement.scrollWidth > innerWidth"
LINK = re.compile(r'<a href="([^"]*)" hreflang="([^"]*)"')
WIDEST = ("", "protocol/", "errors/", "promises/", "cli/", "ledger/", "api/console/")
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


class Files(QuietHandler, SimpleHTTPRequestHandler):
    """The files of a folder."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Serve the built site on a port of this machine."""
    if not (SITE / "index.html").is_file():
        pytest.skip("the site is not built: make docs")
    with HTTPServer(functools.partial(Files, directory=os.fspath(SITE))) as server:
        yield f"{server.url}/"


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


def test_each_page_switches_to_its_translation(site: str) -> None:
    """The switch of language leads to the same page, from every page of the site."""
    known = json.loads((SITE / "zensical-i18n.json").read_text("utf-8"))["pages"]
    astray = []
    for path in known["en"]:
        expected = {"en": site + path, "zh-CN": f"{site}zh-CN/{path}"}
        for own in expected.values():
            file = SITE / own.removeprefix(site) / "index.html"
            links = LINK.findall(file.read_text("utf-8"))
            targets = {language: urljoin(own, unescape(to)) for to, language in links}
            if targets != expected:
                astray.append((own, targets))
    assert len(known["en"]) > 60
    assert astray == []


@pytest.mark.parametrize("language", ["", "zh-CN/"])
def test_pages_on_a_phone(language: str, site: str, browser: Any) -> None:
    """The pages with the widest tables do not scroll sideways, and ask nowhere else."""
    wide = []
    with opened(browser, viewport=PHONE) as (page, asked):
        for path in WIDEST:
            page.goto(site + language + path, wait_until="domcontentloaded")
            if page.evaluate(SCROLLS):
                wide.append(path)
    assert wide == []
    assert len(asked) > len(WIDEST)
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
