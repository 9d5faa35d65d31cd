"""The demo as people start it: the story, its verdict, and the fleet in the browser."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import httpx2
import pytest
from anyio.streams.text import TextReceiveStream

from bls_agent import Console, RedisUnavailableError
from bls_agent.devserver import DevServer
from bls_agent.ops.demo import STEPS, Screen, play
from bls_agent.ops.terminal import count_columns
from bls_agent.ops.texts import load_texts
from bls_agent.project.messages import Status

REPOSITORY = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "bls_agent.ops.demo"]
PATIENCE = 60.0
TERMINAL = ("COLUMNS", "LANG", "LC_", "NO_COLOR", "PYTHONIOENCODING", "TERM", "BLS_")


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """An environment that says nothing of the terminal but what a test wants."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "BLS_SERVER_BINARY" or not name.startswith(TERMINAL)
    }
    return {**kept, "PYTHONPATH": str(REPOSITORY), **changes}


@pytest.mark.parametrize(
    ("language", "columns", "encoding"),
    [("en", 80, "ascii"), ("zh", 40, "gbk")],
)
def test_everything_happens(language: str, columns: int, encoding: str) -> None:
    """The whole story, in both languages, on any terminal; nothing in it is obeyed there."""
    done = subprocess.run(
        [*DEMO, "--lang", language],
        capture_output=True,
        check=False,
        timeout=PATIENCE,
        env=environment({"COLUMNS": str(columns), "PYTHONIOENCODING": encoding}),
    )
    shown = done.stdout.decode(encoding)
    assert (done.returncode, done.stderr) == (0, b""), shown
    texts = load_texts("demo", language)
    titles = re.findall(r"^\d/6 (.+)$", shown, re.MULTILINE)
    if encoding != "ascii":
        assert titles == [texts[f"step_{name}"] for name in STEPS]
        assert texts["all_shown"].partition("{")[0] in shown
    assert max(map(count_columns, shown.splitlines())) <= columns
    assert all(letter == "\n" or letter.isprintable() for letter in shown)


async def test_a_step_that_does_not_end(
    own_server: DevServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The demo stops at its deadline, and its exit code tells so."""
    monkeypatch.setattr("bls_agent.ops.demo.DEADLINE", 0.01)
    assert await play(own_server, Screen(load_texts("demo", "zh"))) == 1
    assert "有一步没有结束" in capsys.readouterr().out


def test_no_server_to_start() -> None:
    """Without any server the extra is named, in a line and without a traceback."""
    code = (
        "import bls_agent.devserver as d, bls_agent.ops.demo; d._packaged_binary = str"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; bls_agent.ops.demo.main([])"],
        capture_output=True,
        check=False,
        timeout=PATIENCE,
        env=environment({"PATH": "/nowhere", "BLS_SERVER_BINARY": ""}),
    )
    assert done.returncode == 2
    assert b"pip install '.[server]'" in done.stderr
    assert done.stderr.count(b"\n") == 1


class Demo:
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
        """Send a signal, read to the end, and return the exit code; the server is gone."""
        self.process.send_signal(number)
        with anyio.fail_after(PATIENCE):
            async for part in self._output:
                self.shown += part
            code = await self.process.wait()
        async with Console(self.url) as console:
            with pytest.raises(RedisUnavailableError):
                await console.projects()
        return code

    @property
    def url(self) -> str:
        """The address of the server that it has started."""
        found = re.search(r"redis://127\.0\.0\.1:\d+/0", self.shown)
        assert found
        return found[0]


@asynccontextmanager
async def started(*program: str) -> AsyncIterator[Demo]:
    command = [sys.executable, "-m", *program]
    async with await anyio.open_process(command, env=environment({})) as process:
        yield Demo(process)


async def test_control_c() -> None:
    """Ctrl-C ends the story in order: 130, and no traceback."""
    async with started("bls_agent.ops.demo", "--lang", "en") as demo:
        await demo.until("4/6")
        assert await demo.end(signal.SIGINT) == 130
        assert demo.process.stderr is not None
        assert b"".join([part async for part in demo.process.stderr]) == b""


async def test_the_fleet_in_the_browser() -> None:
    """The console shows services, workers and runs until Ctrl-C."""
    async with started("bls_agent", "--lang", "en", "demo") as demo:
        await demo.until("Ctrl-C ends")
        page = re.findall(r"http://127\.0\.0\.1:\d+/", demo.shown)[0]
        async with httpx2.AsyncClient(base_url=page) as browser:
            for room, count in (("projects", 2), ("workers", 2), ("runs", 1)):
                with anyio.fail_after(PATIENCE):
                    while len(await items(browser, room)) < count:
                        await anyio.sleep(0.05)
        async with Console(demo.url) as console:
            assert (await console.call("订单系统", "reload")).succeeded
        assert await demo.end(signal.SIGINT) == 0
        assert load_texts("demo", "en")["fleet_ended"] in demo.shown


async def items(browser: httpx2.AsyncClient, room: str) -> list[object]:
    answer = (await browser.get(f"/api/{room}")).json()
    found: list[object] = answer[room]
    return found


def test_the_catalogue_has_no_more_than_is_used() -> None:
    """Every step and every status has a text, and no text is of something that is gone."""
    texts = load_texts("demo", "zh")
    steps = {name.removeprefix("step_") for name in texts if name.startswith("step_")}
    assert steps == set(STEPS)
    assert [texts[f"status_{status.name}"] for status in Status] == list(Status)
    programs = ("ops/demo.py", "devserver.py", "ops/texts.py")
    code = "".join((REPOSITORY / "bls_agent" / one).read_text() for one in programs)
    made = re.compile(r"(step|status|fleet)_")  # these are put together from names
    assert [
        one for one in texts if f'"{one}"' not in code and not made.match(one)
    ] == []
