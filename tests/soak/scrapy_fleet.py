"""Scrapy in two processes over one queue, one of them killed: no page is lost.

``python -m tests.soak.scrapy_fleet [pages]`` crawls a site of 2,000 pages on loopback.
Each page is fetched once, but those in the hands of the process that is killed.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from bls_agent.devserver import DevServer
from tests.http_server import HTTPServer, QuietHandler

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds for a step
LEASE = 1.0


@dataclass
class Site:
    """Pages that link to each other: each but the first is linked twice or more.

    Attributes:
        pages: How many there are.
        pause: Seconds that each answer takes.
        hits: Page → names of the processes that fetched it, in order.
        limits: Process → how many pages it is given, until the limit is lifted.
        busy: Pages that answer 503 once.
    """

    pages: int
    pause: float = 0.0
    hits: dict[str, list[str]] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    url: str = ""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def answer(self, path: str, name: str) -> bytes:
        """Give a page, or nothing while it is busy, and note who asked for it."""
        time.sleep(self.pause)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_too_far(name), PATIENCE)
            self.hits.setdefault(path, []).append(name)
            self._changed.notify_all()
            if path in self.busy:
                self.busy.remove(path)
                return b""
        number = int(path.rpartition("/")[2])
        links = [3 * number + 1, 3 * number + 2, 3 * number + 3, number, number // 2]
        found = {link for link in links if 0 <= link < self.pages}
        return "".join(f'<a href="/page/{each}">.</a>' for each in found).encode()

    def fetched_by(self, name: str) -> int:
        """Count the pages that a process was given."""
        return sum(names.count(name) for names in self.hits.values())

    def _is_too_far(self, name: str) -> bool:
        return name in self.limits and self.fetched_by(name) >= self.limits[name]

    def wait_for(self, count: int, name: str) -> None:
        """Wait until a process was given so many pages."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: self.fetched_by(name) >= count, PATIENCE
            )

    def lift_limits(self) -> None:
        """Give pages to everybody from now on."""
        with self._changed:
            self.limits.clear()
            self._changed.notify_all()

    def again(self) -> list[str]:
        """Give the pages that were fetched more than once."""
        return [page for page, names in self.hits.items() if len(names) > 1]


@contextmanager
def serve(site: Site) -> Generator[Site]:
    """Serve a site on loopback."""

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = site.answer(self.path, self.headers["User-Agent"])
            self.send_response(200 if body else 503)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with HTTPServer(Handler) as server:
        site.url = server.url
        yield site


class Crawler:
    """A process that crawls a site with Scrapy."""

    def __init__(
        self, redis_url: str, site: Site, project: str, name: str, **settings: object
    ) -> None:
        """Start it; it waits for :meth:`begin`, when everything is imported."""
        told = {
            "start": f"{site.url}/page/0",
            "BLS_REDIS_URL": redis_url,
            "PROJECT_NAME": project,
            "USER_AGENT": name,
            "BLS_CRAWL_LEASE": LEASE,
            "CONCURRENT_REQUESTS": 8,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
            **settings,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.scrapy_fleet", json.dumps(told)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self) -> None:
        """Let it crawl."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Let it end without any time to do anything about it."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def result(self) -> tuple[dict[str, Any], str]:
        """Wait for the end; give the stats of Scrapy and what it logged."""
        out, log = self._process.communicate(timeout=10 * PATIENCE)
        assert self._process.returncode == 0, log
        stats: dict[str, Any] = json.loads(out.splitlines()[-1])
        return stats, log


def crawl(told: dict[str, Any]) -> None:
    """Crawl a site with Scrapy, as a project does; prints the stats at the end."""
    from scrapy import Request, Spider  # noqa: PLC0415 - in a process of its own
    from scrapy.crawler import CrawlerProcess  # noqa: PLC0415

    class PageSpider(Spider):
        name = "pages"
        start_urls: list[str] = [told.pop("start")]  # noqa: RUF012 - Scrapy's own type

        def parse(self, response: Any) -> Any:
            yield {"url": response.url}
            for link in response.css("a::attr(href)").getall():
                yield response.follow(link, callback=self.parse)
            if "lambda" in told and response.url.endswith("/page/0"):
                url = response.urljoin("/page/1")
                for _ in range(2):
                    yield Request(url, callback=lambda *_: None)

    sys.stdin.readline()
    process = CrawlerProcess(
        {
            "ADDONS": {"bls_agent.integrations.scrapy.CrawlAddon": 500},
            "TELNETCONSOLE_ENABLED": False,
            "LOG_LEVEL": "INFO",
            **told,
        }
    )
    crawler = process.create_crawler(PageSpider)
    _ = process.crawl(crawler)
    process.start()
    assert crawler.stats is not None
    stats = crawler.stats.get_stats()
    print(json.dumps(stats, default=str))
    sys.exit("finish_reason" not in stats)


def crawl_and_kill(redis_url: str, site: Site) -> dict[str, float]:
    """Crawl with two processes, kill one, start it again; check every page.

    Returns:
        Figures of the run.
    """
    project, part = f"爬虫_{secrets.token_hex(4)}", site.pages // 5
    with ExitStack() as stack:

        def start(name: str) -> Crawler:
            return stack.enter_context(Crawler(redis_url, site, project, name))

        first, killed, second = start("first"), start("killed"), start("second")
        site.limits["first"] = part  # so that enough is left for the others
        first.begin()
        killed.begin()
        began = time.monotonic()
        site.wait_for(part, "killed")
        killed.kill()
        second.begin()
        site.wait_for(part, "second")
        site.lift_limits()
        stats = [each.result()[0] for each in (first, second)]
    again = site.again()
    assert len(site.hits) == site.pages, "pages were lost"
    assert all(site.hits[page][0] == "killed" for page in again), "fetched twice"
    assert all(len(site.hits[page]) == 2 for page in again)
    items = sum(each.get("item_scraped_count", 0) for each in stats)
    return {
        "seconds": time.monotonic() - began,
        "pages": len(site.hits),
        "fetched twice": len(again),
        "items of the survivors": items,
        **{
            f"by {name}": site.fetched_by(name)
            for name in ("first", "killed", "second")
        },
    }


def main() -> None:
    """Run it at length."""
    pages = int(sys.argv[1]) if sys.argv[1:] else 2_000
    with DevServer() as server, serve(Site(pages, pause=0.01)) as site:
        print(json.dumps(crawl_and_kill(server.url, site), indent=2))


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("{"):
        crawl(json.loads(sys.argv[1]))
    else:
        main()
