"""What is known before the command line is parsed, and the options of every command."""

from __future__ import annotations

import io
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from typing import Any
from unittest.mock import patch

import pytest
from redis.asyncio import Redis

from bls_agent import Console, ProjectAgent
from bls_agent.core.settings import BUILTINS
from bls_agent.devserver import DevServer
from bls_agent.ops.cli import main
from bls_agent.ops.texts import find_language, find_value
from bls_agent.ops.web.config import WebConfig
from tests.ops.cli.terminal import run_piped


@pytest.mark.parametrize(
    ("given", "environ", "language"),
    [
        ([], {}, "en"),
        ([], {"LANG": "zh_CN.UTF-8"}, "zh"),
        ([], {"LANG": "zh_CN.UTF-8", "BLS_LANG": "en"}, "en"),
        ([], {"BLS_LANG": "ZH"}, "zh"),
        ([], {"BLS_LANG": "fr", "LANG": "zh"}, "zh"),
        (["--lang", "zh", "projects"], {"BLS_LANG": "en"}, "zh"),
        (["projects", "--lang=zh"], {}, "zh"),
        (["--lang", "zh", "projects", "--lang", "en"], {}, "en"),
        (["send", "a", "b", "--", "--lang", "zh"], {}, "en"),
        (["projects", "--lang"], {}, "en"),
        (["projects", "--lang", "fr"], {"LANG": "zh"}, "zh"),
        ([], {"LANG": "en_GB.UTF-8", "LC_MESSAGES": "zh_TW"}, "zh"),
        ([], {"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ([], {"LANG": "zh_CN.GBK", "LC_ALL": "", "LC_MESSAGES": ""}, "zh"),
    ],
)
def test_the_language(given: list[str], environ: dict[str, str], language: str) -> None:
    """--lang, BLS_LANG, the locale; what is no language counts as nothing."""
    assert find_language(given, environ) == language


@pytest.mark.parametrize(
    ("given", "environ", "wanted"),
    [
        (["console", "--lang", "zh"], "en", "zh"),
        (["console"], "en", "en"),
        (["console"], "fr", ""),
    ],
)
def test_the_language_of_the_console(
    given: list[str], environ: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that the arguments or BLS_LANG name, else the browser's."""
    configs: list[WebConfig] = []

    def refuse(config: WebConfig) -> None:
        configs.append(config)
        raise OSError("no server is wanted")

    monkeypatch.setattr("bls_agent.ops.web.app.create_app", refuse)
    monkeypatch.setenv("BLS_LANG", environ)
    main(given)
    assert [config.language for config in configs] == [wanted]


def test_the_last_value_counts() -> None:
    """As for every parser of options."""
    assert find_value("--redis", ["--redis", "a", "logs", "--redis=b"]) == "b"
    assert find_value("--redis", ["logs"]) == ""


def asking(*words: str) -> dict[str, Any]:
    """What bash sets when it asks for the last word."""
    line = " ".join(["bls-agent", *words])
    return {
        "_BLS_AGENT_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words)),
    }


def complete(*words: str, **env: str) -> list[str]:
    """What bash is offered, by the command line in a thread of this process."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        patch.dict(os.environ, asking(*words) | env),
        redirect_stdout(output),
        ThreadPoolExecutor(1) as threads,
    ):
        threads.submit(main, []).result(60)
    output.seek(0)
    return output.read().split()


def offered(*words: str, **env: str) -> list[str]:
    """The names: at the second or third Tab, if a busy machine took too long."""
    for _ in range(3):
        if found := complete(*words, **env):
            return found
    return []


async def test_names_of_projects(own_server: DevServer, admin: Redis) -> None:
    """Those at the Redis that is named; not those that a terminal would obey."""
    for name in ("订单系统", "订货", "库存", "订\x1b[2J"):
        await admin.set(f"{name}_项目状态", "在线")
    found = offered("logs", "订", BLS_REDIS_URL=own_server.url)
    assert sorted(found) == sorted(["订单系统", "订货"])
    assert offered("--redis", own_server.url, "call", "库") == ["库存"]


async def test_names_of_commands(own_server: DevServer, redis_url: str) -> None:
    """Those that its log tells of: of the answer to help, and what has been run."""
    async with ProjectAgent("库房", redis=own_server.url) as agent:
        agent.command("重建")(_nothing)
        agent.command("rebuild")(_nothing)
        async with Console(own_server.url) as console:
            await console.call("库房", "help")
    env = {"BLS_REDIS_URL": own_server.url}
    assert offered("call", "库房", "reb", **env) == ["rebuild"]
    assert sorted(offered("commands", "库房", "", **env)) == sorted(
        [*BUILTINS, "rebuild", "重建"]
    )
    async with Console(own_server.url) as console:
        assert len(await console.queue("库房")) == 0  # a Tab sends nothing


async def _nothing() -> None: ...


def test_commands_and_options() -> None:
    """Without any Redis."""
    assert complete("sta") == ["status"]
    assert "--follow" in complete("logs", "x", "--fo")
    assert complete("workers", "bac") == ["backtest_worker"]


def test_nothing_is_waited_for(own_server: DevServer) -> None:
    """A server that hangs, none at all, a URL that is none: no names, no noise."""
    own_server.freeze()
    began = time.perf_counter()
    for url in (own_server.url, "redis://127.0.0.1:1", "nonsense"):
        ran = run_piped(**asking("logs", "订"), BLS_REDIS_URL=url)
        assert (ran.text.strip(), ran.said) == ("", "")
    took = time.perf_counter() - began
    own_server.thaw()
    assert took < 30  # far from a hang; three starts of an interpreter among it


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str) -> None:
    """What a shell loads."""
    ran = run_piped(_BLS_AGENT_COMPLETE=f"source_{shell}")
    assert ran.code == 0
    assert "_BLS_AGENT_COMPLETE" in ran.text
