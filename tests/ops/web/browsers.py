"""A real browser that looks at the console, and everything that it complains about."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import pytest
from redis import Redis

from bls_agent.ops.web.requests import project_path

CHROMIUM = os.environ.get("BLS_CHROMIUM") or shutil.which("chromium") or ""
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-lcd-text",
]
DEADLINE = 20_000  # ms
LOCALES = {"zh": "zh-CN", "en": "en-GB"}
# Language → context, and its pages that nobody looks at: a fresh context or page costs as
# much processor time as a test does in it.
CONTEXTS: dict[str, Any] = {}
PAGES: dict[str, list[Watched]] = {}
LISTEN = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


def missing() -> str:
    """Say what is missing for tests with a browser, ``""`` if nothing is."""
    if find_spec("playwright") is None:
        return "playwright is not installed (group test)"
    return "" if CHROMIUM else "there is no chromium on PATH"


def require_browser() -> None:
    """Skip the test visibly where there is no browser; in CI there has to be one."""
    if reason := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI needs a browser: {reason}")
        pytest.skip(reason)


@contextmanager
def a_browser() -> Iterator[Any]:
    """Give a Chromium with an own, empty profile."""
    require_browser()
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - may be missing

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=ARGUMENTS, timeout=60_000
        )
        try:
            yield browser
        finally:
            CONTEXTS.clear()
            PAGES.clear()
            browser.close()


@dataclass
class Watched:
    """A page, and all that must not happen on it."""

    page: Any
    base: str
    complaints: list[str] = field(default_factory=list[str])
    expected: tuple[str, ...] = ()

    def listen(self) -> None:
        """Note every dialog, error, and request to somebody else."""
        note, page = self.complaints.append, self.page
        page.set_default_timeout(DEADLINE)
        page.add_init_script(LISTEN)
        page.on(
            "dialog",
            lambda dialog: (note(f"dialog {dialog.message}"), dialog.dismiss()),
        )
        page.on("pageerror", lambda error: note(f"error {error}"))
        page.on("console", self._said)
        page.on("request", self._asked)

    def begin(self, base: str, expected: tuple[str, ...]) -> None:
        """Forget the test before."""
        self.base, self.expected = base.rstrip("/"), expected
        self.complaints.clear()

    def leave(self) -> None:
        """Go away from the console; no request is answered by a test any more."""
        self.page.unroute_all()
        self.page.mouse.move(0, 0)
        self.page.goto("about:blank")

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(
            text in message.text for text in self.expected
        ):
            self.complaints.append(f"console {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(f"{self.base}/"):
            self.complaints.append(f"request to {request.url}")

    def open(self, path: str) -> Any:
        """Go to a page of the console."""
        answer = self.page.goto(self.base + path)
        self.page.wait_for_load_state()
        return answer

    def open_project(self, name: str) -> Any:
        """Go to a project's page."""
        return self.open(project_path(name))

    def wait(self, condition: str, argument: Any = None) -> float:
        """Wait until an expression of the page holds; give the seconds it took."""
        if (
            "=>" not in condition
        ):  # a bare expression would need eval, which is forbidden
            condition = f"() => {condition}"
        began = time.perf_counter()
        self.page.wait_for_function(condition, arg=argument, polling=20)
        return time.perf_counter() - began

    def texts(self, selector: str) -> list[str]:
        """Give the texts of all elements."""
        found: list[str] = self.page.locator(selector).all_text_contents()
        return found

    def width(self) -> int:
        """Give the width of what is on the page."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth")
        return width

    def check(self) -> None:
        """Assert that nothing happened that must not."""
        violations = self.page.evaluate("window.violations")
        assert violations == []
        assert self.complaints == []


@contextmanager
def looking(
    browser: Any,
    base: str,
    *,
    language: str = "zh",
    scheme: str = "light",
    size: tuple[int, int] = (1280, 800),
    expected: tuple[str, ...] = (),
    is_kept: bool = True,
) -> Iterator[Watched]:
    """Give a page, as of a new visitor; at the end nothing bad has happened.

    A page in which something lasts that only its end removes (a time zone, a script that
    runs in each document) is not kept.
    """
    if language not in CONTEXTS:
        CONTEXTS[language] = browser.new_context(locale=LOCALES[language])
        PAGES[language] = []
    context, ready = CONTEXTS[language], PAGES[language]
    context.clear_cookies()
    if ready:
        watched = ready.pop()
    else:
        watched = Watched(context.new_page(), base)
        watched.listen()
    try:
        watched.begin(base, expected)
        watched.page.set_viewport_size({"width": size[0], "height": size[1]})
        watched.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        yield watched
        watched.check()
    except BaseException:
        watched.page.close()
        raise
    if is_kept:
        watched.leave()
        ready.append(watched)
    else:
        watched.page.close()


class Tabs:
    """Tabs of one window of a Chromium, of which one is seen: Playwright's all are."""

    def __init__(self, profile: Path) -> None:
        """Start it, and talk to it over two pipes."""
        theirs, self._commands = os.pipe()
        self._answers, ours = os.pipe()
        redirect = f'exec "$@" 3<&{theirs} 4>&{ours}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", redirect, "bash", CHROMIUM, *ARGUMENTS,
             f"--user-data-dir={profile}", "--remote-debugging-pipe",
             "--renderer-process-limit=1", "about:blank"],
            pass_fds=(theirs, ours), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs)
        os.close(ours)
        self._number, self._rest = 0, b""

    def close(self) -> None:
        """End it."""
        self._call("Browser.close")
        self._process.wait(20)
        os.close(self._commands)
        os.close(self._answers)

    def open(self, url: str, *, behind: bool = False) -> tuple[str, str]:
        """Open a tab, which is seen unless it is opened behind the others."""
        told = self._call("Target.createTarget", url=url, background=behind)
        target = told["targetId"]
        told = self._call("Target.attachToTarget", targetId=target, flatten=True)
        return target, told["sessionId"]

    def show(self, tab: tuple[str, str]) -> None:
        """Bring a tab to the front."""
        self._call("Target.activateTarget", targetId=tab[0])

    def ask(self, tab: tuple[str, str], expression: str) -> Any:
        """Evaluate an expression in a tab."""
        told = self._call("Runtime.evaluate", tab[1], expression=expression)
        return told.get("result", {}).get("value")

    def _call(self, method: str, session: str = "", **params: Any) -> Any:
        self._number += 1
        told = {"id": self._number, "method": method, "params": params}
        if session:
            told["sessionId"] = session
        os.write(self._commands, orjson.dumps(told) + b"\0")
        while True:
            while b"\0" not in self._rest:
                self._rest += os.read(self._answers, 65_536)
            one, _, self._rest = self._rest.partition(b"\0")
            answer = orjson.loads(one)
            if answer.get("id") == self._number:
                return answer.get("result", {})  # an error while a page is loading


def record(
    message: str, level: str = "info", ago: float = 0.0, /, **metadata: Any
) -> bytes:
    """Write a record as somebody who knows the contract only."""
    stamp = (datetime.now(UTC) - timedelta(seconds=ago)).isoformat(
        timespec="milliseconds"
    )
    fields: dict[str, Any] = {
        "timestamp": stamp.replace("+00:00", "Z"),
        "level": level,
        "message": message,
    }
    return orjson.dumps(fields | ({"metadata": metadata} if metadata else {}))


class Foreign:
    """A project that writes its keys with bare commands."""

    def __init__(self, redis: Redis, name: str) -> None:
        self.redis, self.name = redis, name

    def status(self, value: str, ttl: int | None = 60) -> None:
        self.redis.set(f"{self.name}_项目状态", value, ex=ttl)

    def log(self, *payloads: bytes) -> None:
        self.redis.rpush(f"{self.name}_项目控制台", *payloads)

    def waiting(self) -> list[Any]:
        items: Any = self.redis.lrange(f"{self.name}_控制", 0, -1)
        return [orjson.loads(item) for item in items]

    def remove(self) -> None:
        for suffix in ("项目状态", "项目控制台", "控制"):
            self.redis.delete(f"{self.name}_{suffix}")


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until a condition holds, or fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
