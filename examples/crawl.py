"""Three workers crawl a site; one is killed with pages in its hands, none is missed.

Shows: a queue that processes share, links that are queued once, leases, the end.
Needs: ``pip install .`` and a Redis (``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/crawl.py [project]``; it ends with 1 if a page is missing.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from threading import Barrier, Thread
from time import sleep
from urllib.request import ProxyHandler, build_opener

import anyio
import anyio.to_thread

from bls_agent.crawl import CrawlRequest, RequestQueue, SeenFilter, cleanup

PROJECT = sys.argv[1] if len(sys.argv) > 1 else "新闻"
PAGES = 100
served: Counter[str] = Counter()


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # page n links to 2n, 2n + 1 and the first
        sleep(0.02)
        served[self.path] += 1
        number = int(self.path[1:])
        links = (f"/{n}" for n in (2 * number, 2 * number + 1, 1) if n <= PAGES)
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):  # its reader was killed
            self.wfile.write(" ".join(links).encode())

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - as it is there


async def crawl(project: str, fails_at: int) -> None:
    web = build_opener(ProxyHandler({}))
    items = SeenFilter(None, project, kind="item")  # in place of a database
    async with RequestQueue(None, project, lease=1.0) as queue, items:  # seconds
        urls = 0
        while True:
            async with queue.take(timeout=0.5) as taken:
                if taken is not None:
                    url = taken.request.url
                    page = await anyio.to_thread.run_sync(web.open, url)
                    site, links = url.rpartition("/")[0], page.read().decode().split()
                    found = [CrawlRequest(site + link) for link in links]
                    await queue.push_many(found, unique=True)
                    if (urls := urls + 1) == fails_at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    await items.add(url)
                    continue  # leaving the block has acknowledged it
            now = await queue.stats()
            if now.waiting + now.delayed + now.in_flight == 0:
                return


def work(project: str, fails_at: int, start: Barrier) -> None:
    with suppress(KeyboardInterrupt):
        start.wait()
        anyio.run(crawl, project, fails_at)


async def main() -> int:
    site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    Thread(target=site.serve_forever, daemon=True).start()
    spawn, items = get_context("spawn"), SeenFilter(None, PROJECT, kind="item")
    start = spawn.Barrier(3)
    await cleanup(None, PROJECT, dry_run=False)  # of the last time
    async with RequestQueue(None, PROJECT) as queue, items:
        await queue.push(
            CrawlRequest(f"http://127.0.0.1:{site.server_port}/1"), unique=True
        )
        jobs = [(PROJECT, fails_at, start) for fails_at in (10, 0, 0)]
        workers = [spawn.Process(target=work, args=job, daemon=True) for job in jobs]
        for worker in workers:
            worker.start()
        for worker in workers:
            await anyio.to_thread.run_sync(worker.join, abandon_on_cancel=True)
        crawled, stats = await items.size(), await queue.stats()
    twice = served.total() - len(served)
    print(f"{crawled} of {PAGES} pages crawled, {stats.failed} failed;", end=" ")
    print(f"{stats.expired} came back from the killed worker, {twice} fetched twice")
    await cleanup(None, PROJECT, dry_run=False)
    return 0 if crawled == PAGES and stats.expired else 1


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(anyio.run(main))
