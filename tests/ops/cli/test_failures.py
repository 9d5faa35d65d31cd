"""Whatever goes wrong: one sentence, an exit code, no traceback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from redis.asyncio import Redis

from bls_agent import BlsError, RedisUnavailableError
from bls_agent.core.errors import MissingExtraError
from bls_agent.core.keys import CONTROL, PROJECT_STATUS
from bls_agent.devserver import DevServer
from bls_agent.ops.cli.errors import Exit, Failure, decide, unwrap
from bls_agent.ops.texts import load_texts
from tests.harness import (
    PASSWORD,
    eventually,
    execute,
    needs_selectors,
    url_with_rights,
)
from tests.ops.cli.conftest import Bls
from tests.ops.cli.terminal import (
    environment,
    read_all,
    run_at_terminal,
    run_piped,
    start_at_terminal,
    start_piped,
)

EVERY = [
    ["projects"], ["status", "订单系统"], ["logs", "订单系统"], ["logs", "订单系统", "-f"],
    ["send", "订单系统", "reload"], ["call", "订单系统", "reload"], ["top"],
]  # fmt: skip
names = pytest.mark.parametrize("words", EVERY, ids=" ".join)


@names
async def test_redis_is_not_there(bls: Bls, words: list[str]) -> None:
    """Exit code 4 and where it was looked for."""
    ran = await bls(*words, url="redis://127.0.0.1:1/0")
    assert ran.code == 4
    assert "redis://127.0.0.1:1/0 does not answer" in ran.said
    assert "--redis or BLS_REDIS_URL" in " ".join(ran.said.split())
    assert "Traceback" not in ran.said
    assert ran.out == b""


@names
async def test_redis_lets_nobody_in(
    bls: Bls, own_server: DevServer, admin: Redis, words: list[str]
) -> None:
    """A wrong password: exit code 4, what to do, and no password in what is said."""
    await url_with_rights(admin, own_server, "+@all", "~*")
    url = f"redis://agent:wrong-{PASSWORD}@127.0.0.1:{own_server.port}/0"
    ran = await bls(*words, url=url)
    assert ran.code == 4
    assert "The password or user name is wrong" in ran.said
    assert PASSWORD not in ran.said
    assert "Traceback" not in ran.said


@names
async def test_redis_refuses(
    bls: Bls, own_server: DevServer, admin: Redis, words: list[str]
) -> None:
    """A missing right: exit code 1, and which command prints the rights."""
    url = await url_with_rights(admin, own_server, "-@all", "+select", "+ping")
    ran = await bls(*words, url=url)
    assert ran.code == 1
    assert "no_permission" in ran.said
    said = " ".join(ran.said.split())
    assert "`bls-agent acl --console`" in said
    assert "--crawl, --assets, --runs or --workers" in said
    assert "Traceback" not in ran.said


@pytest.mark.parametrize(
    "url", ["http://x", "redis://h:99999999/0", "redis://127.0.0.1/x", "", "redis://127.0.0.1:1/0?x=y", "rediss://127.0.0.1:1?ssl_ca_certs=/no"]
)  # fmt: skip
async def test_a_url_that_is_none(bls: Bls, url: str) -> None:
    """Exit code 2 with rule and remedy; an empty one counts as absent."""
    ran = await bls.bare("projects", "--redis", url)
    if url:
        assert ran.code == 2
        assert "error" in ran.said
    else:  # whether or not somebody's server is at the default address
        assert ran.code in (0, 4)
    assert "Traceback" not in ran.said


async def test_the_default_is_named(bls: Bls) -> None:
    """Somebody who has said nowhere is told where was looked, if that failed."""
    ran = await bls.bare("projects")
    if ran.code:  # no server of the developer's own
        assert "Neither --redis nor BLS_REDIS_URL" in ran.said


async def test_a_wrong_variable(bls: Bls, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, with exit code 2."""
    monkeypatch.setenv("BLS_REDIS_TIMEOUT", "soon")
    ran = await bls.bare("projects")
    assert ran.code == 2
    assert "BLS_REDIS_TIMEOUT" in ran.said


async def test_keys_of_another_type(bls: Bls, redis: Redis, project: str) -> None:
    """Said with the key; the key stays as it is. The status names it, and is not well."""
    for suffix in ("项目状态", "项目控制台", "控制"):
        await redis.sadd(f"{project}_{suffix}", "x")
    for words in (["logs", project], ["logs", project, "-f"], ["call", project, "x"]):
        ran = await bls(*words)
        assert (ran.code, f"{project}_项目控制台" in ran.said) == (1, True)
    for words in (["send", project, "x"], ["send", project, "x", "--no-record"]):
        ran = await bls(*words)
        assert (ran.code, f"{project}_控制" in ran.said) == (1, True)
    ran = await bls("status", project)
    assert ran.code == 3
    assert "WRONGTYPE" in ran.text
    assert "another type" in ran.text
    assert (await bls("top")).code == 0
    assert (await bls("projects")).code == 0
    assert await redis.type(f"{project}_控制") == b"set"


async def test_the_wrong_database(bls: Bls, own_server: DevServer) -> None:
    """No project there, or no such database: the address and what to look at are said."""
    ran = await bls("projects", url=own_server.url)
    assert ran.code == 0
    assert own_server.url in "".join(ran.said.split())
    ran = await bls("projects", url=own_server.url.removesuffix("0") + "99")
    assert ran.code == 4
    assert "with this database" in " ".join(ran.said.split())


@needs_selectors
async def test_a_record_that_is_refused(
    bls: Bls, own_server: DevServer, admin: Redis, project: str
) -> None:
    """The command is sent all the same."""
    rules = [
        "-@all",
        "+select",
        "+get",
        f"(+rpush ~{project}_控制)",
        "%R~*",
        "+lrange",
        "+llen",
        "+scan",
    ]
    url = await url_with_rights(admin, own_server, *rules)
    await admin.set(f"{project}_项目状态", "在线")
    assert (await bls("send", project, "reload", url=url)).code == 0
    assert await admin.llen(f"{project}_控制") == 1
    assert not await admin.exists(f"{project}_项目控制台")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["projetcs"], "Did you mean projects"),
        (["nothing-like-it"], "--help"),
        (["projects", "--jsno"], "--json"),
        (["status"], "PROJECT is missing"),
        (["status", ""], "name is empty"),
        (["logs", "", "-f"], "name is empty"),
        (["send", "", "reload"], "name is empty"),
        (["logs", "a", "-n", "x"], "--lines"),
        (["logs", "a", "-n", "-1"], "--lines"),
        (["logs", "a", "--level", "loud"], "loud"),
        (["call", "a", "b", "-t", "0"], "timeout"),
        (["call", "a", "b", "-t", "nan"], "timeout"),
        (["send", " a", "b"], "blank"),
        (["send", "a\nb", "c"], "control characters"),
        (["send", "a", ""], "blank"),
        (["doctor", "--project", ""], "name is empty"),
        (["acl", "a b"], "blank"),
        (["acl"], "--console"),
        (["acl", "a", "--read-only"], "--console"),
        (["acl", 'a"b'], "--shell"),
        (["acl", "a", "--user", "b c"], "blanks"),
        (["acl", "a", "--mode", "fast"], "fast"),
        (["demo", "--json"], "no output as JSON"),
        (["keys", "explain"], "KEY is missing"),
        (["keys", "tell", "x"], "tell"),
    ],
)  # fmt: skip
async def test_wrong_usage(bls: Bls, words: list[str], said: str) -> None:
    """Exit code 2, and what is wrong."""
    ran = await bls(*words)
    assert ran.code == 2
    assert said in ran.said
    assert "Traceback" not in ran.said
    assert ran.out == b""


@pytest.mark.parametrize("name", ["call", "send"])
async def test_arguments_without_their_option(bls: Bls, name: str) -> None:
    """`n=3` behind a command is meant as `--arg n=3`, and so are several of them."""
    ran = await bls(name, "订单系统", "reload", "n=3", "text=a b")
    assert ran.code == 2
    assert "Did you mean --arg n=3 --arg 'text=a b'?" in ran.said
    for words in ([name, "订单系统", "reload", "more"], ["top", "n=3"]):
        assert "Did you mean" not in (await bls(*words)).said


async def test_common_options_that_are_none(bls: Bls) -> None:
    """Exit code 2, and which."""
    for words in (["projects", "--lang", "fr"], ["projects", "--redis"]):
        ran = await bls.bare(*words)
        assert ran.code == 2
        assert words[1] in ran.said


async def test_sentences_of_the_parser_in_chinese(bls: Bls) -> None:
    """The common ones; the rest is the parser's own English behind a Chinese word."""
    assert "没有选项 --jsno" in (await bls("projects", "--jsno", lang="zh")).said
    assert "缺少 PROJECT" in (await bls("status", lang="zh")).said
    assert "没有命令 x" in (await bls("x", lang="zh")).said
    assert "没有命令 x" in (await bls("keys", "x", lang="zh")).said
    assert "多余的参数：x" in (await bls("top", "x", lang="zh")).said
    assert (
        "--lines / -n 必须是整数" in (await bls("logs", "a", "-n", "x", lang="zh")).said
    )
    assert "-n 不能小于 0" in (await bls("logs", "a", "-n", "-1", lang="zh")).said
    ran = await bls("runs", "list", "-n", "1000001", lang="zh")
    assert "-n 不能大于 " in ran.said
    assert (
        "--timeout / -t 必须是数字"
        in (await bls("call", "a", "b", "-t", "x", lang="zh")).said
    )
    assert (
        "--level 不能是 loud，只能是 debug, info"
        in (await bls("logs", "a", "--level", "loud", lang="zh")).said
    )
    assert "--grep 后面缺少值" in (await bls.bare("--lang=zh", "logs", "--grep")).said
    assert "--json 不带值" in (await bls("top", "--json=1", lang="zh")).said


def test_a_missing_extra_in_both_languages() -> None:
    """Which one, for what, and how it is installed."""
    error = MissingExtraError("web", "the console")
    for language, said in (("en", "needs the extra web"), ("zh", "需要附加依赖 web")):
        verdict = decide(error, load_texts("cli", language))
        assert verdict.code == Exit.USAGE
        assert said in verdict.text
        assert "the console" in verdict.text
        assert "pip install '.[web]'" in verdict.text


def test_an_error_of_ours() -> None:
    """A fault of this package alone is shown with its traceback."""
    texts = load_texts("cli", "en")
    verdict = decide(ZeroDivisionError("x"), texts)
    assert "ZeroDivisionError" in verdict.details
    assert verdict.code == Exit.FAILED
    assert not decide(BlsError("x"), texts).details


def test_groups_of_errors() -> None:
    """What task groups make of one error is taken apart again."""
    error = RedisUnavailableError("timeout", "x")
    assert unwrap(ExceptionGroup("a", [ExceptionGroup("b", [error])])) is error
    pair = ExceptionGroup("a", [error, error])
    assert unwrap(pair) is pair


def test_a_command_that_was_perhaps_sent() -> None:
    """A cut after sending: said, because doing it again does it twice."""
    texts = load_texts("cli", "en")
    error = RedisUnavailableError("connection", "x", ambiguous=True)
    for by_default in (False, True):
        verdict = decide(error, texts, by_default=by_default)
        assert verdict.code == 4
        assert "may have been executed" in verdict.hint


def test_hints_are_sentences() -> None:
    """A hint is formatted with the values of its failure."""
    texts = load_texts("cli", "zh")
    failure = Failure("no_such_project", hint="did_you_mean", project="甲", names="乙")
    verdict = decide(failure, texts)
    assert "甲" in verdict.text
    assert "乙" in verdict.hint


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("bls keys | true", 141),
        ("bls keys >&-", 0),
        ("bls keys 2>&-", 0),
        ("bls keys explain x 2>&- >&-", 1),
        ("bls keys </dev/null", 0),
        ("bls keys >/dev/full", 1),
        ("bls keys --json >/dev/full", 1),
        ("bls projects --redis redis://127.0.0.1:1 2>/dev/full", 4),
    ],
)
def test_streams_that_are_not_there(command: str, code: int) -> None:
    """A reader that has gone, closed streams, a full disk: no traceback, a code."""
    script = f'bls() {{ "{sys.executable}" -m bls_agent "$@"; }}; {command}; echo "${{PIPESTATUS[0]}}" >&3'
    ran = subprocess.run(
        ["bash", "-c", f"exec 3>&1; {script}"],
        env=environment(), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.stdout.decode().splitlines()[-1] == str(code)
    assert b"Traceback" not in ran.stderr
    assert b"Exception" not in ran.stderr


def test_ctrl_c_while_it_waits() -> None:
    """Exit code 130, and nothing said."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        process = start_piped("projects", "--redis", url)
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(1)  # asyncio has noticed that it is connected
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == b""


INTERRUPTER = """
import os, signal, sys, weakref

class Thing:
    pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            sys.meta_path.remove(self)
            thing = Thing()
            # An exception of a weak reference's callback is printed and ignored.
            kept = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
            del thing

sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("typer", ("keys",)),
        ("bls_agent.ops.cli.app", ("keys",)),
        ("bls_agent.ops.cli.commands.keys", ("keys",)),
        ("uvicorn", ("console", "--port", "0")),
    ],
)
def test_ctrl_c_while_modules_load(
    module: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """Exit code 130, and nothing printed, also where Python would ignore it."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTER)
    process = start_piped(*words, PYTHONPATH=str(tmp_path), INTERRUPT_AT=module)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_ctrl_c_while_texts_are_read(tmp_path: Path) -> None:
    """Exit code 130, and nothing printed, before a command has begun."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def see(event, args):\n"
        "    if event == 'open' and str(args[0]).endswith('cli.toml'):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.addaudithook(see)\n"
    )
    process = start_piped("keys", PYTHONPATH=str(tmp_path))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


async def test_ctrl_c_while_a_command_runs(own_server: DevServer, admin: Redis) -> None:
    """It ends with 130, and without a traceback."""
    await admin.set(PROJECT_STATUS.build(project="订单系统"), "在线")
    process = start_piped("call", "订单系统", "reload", "--redis", own_server.url)

    async def sent() -> bool:
        return bool(await admin.exists(CONTROL.build(project="订单系统")))

    await eventually(sent)
    process.send_signal(signal.SIGINT)
    _, err = await anyio.to_thread.run_sync(process.communicate)
    assert process.returncode == 130
    assert "Traceback" not in err.decode()


def test_waiting_is_said_at_a_terminal(own_server: DevServer) -> None:
    """After a second, and taken away at the end; quick commands say nothing.

    On a busy machine one of several is quick.
    """
    env: dict[str, Any] = {"BLS_REDIS_URL": own_server.url, "LANG": "zh_CN.UTF-8"}
    assert any(
        "正在等待" not in run_at_terminal("projects", **env).text for _ in range(5)
    )
    own_server.freeze()
    process, user = start_at_terminal(["projects"], 80, env)
    shown = b""
    while "正在等待 Redis".encode() not in shown:
        shown += os.read(user, 4_096)
    own_server.thaw()
    rest = b"".join(read_all(user)).decode()
    os.close(user)
    assert process.wait(20) == 0
    assert rest.startswith("\r  ")
    assert "没有任何项目" in rest


def test_without_the_extra(tmp_path: Path) -> None:
    """One line that names the extra, exit code 2; --version works all the same."""
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(name='typer')")
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    ran = run_piped("projects", PYTHONPATH=path)
    assert ran.code == 2
    assert "pip install '.[cli]'" in ran.said
    assert len(ran.said.splitlines()) == 1
    assert run_piped("--version", PYTHONPATH=path).code == 0


async def test_a_server_that_is_none(bls: Bls) -> None:
    """Something else listens there: exit code 4."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)

    async def answer(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        ran = await bls("projects", url=f"redis://127.0.0.1:{port}")
        tasks.cancel_scope.cancel()
    assert ran.code == 4
    assert "Traceback" not in ran.said


async def test_a_right_that_only_records_lack(
    bls: Bls, own_server: DevServer, admin: Redis, project: str
) -> None:
    """Who may not list projects can still use those whose names are known."""
    await admin.set(f"{project}_项目状态", "在线", ex=60)
    url = await url_with_rights(admin, own_server, "+@all", "-scan", "~*")
    await execute(admin, "RPUSH", f"{project}_项目控制台", '{"message":"x"}')
    assert (await bls("status", project, url=url)).code == 0
    assert (await bls("logs", project, url=url)).code == 0
    assert (await bls("send", project, "x", url=url)).code == 0
    ran = await bls("status", "不存在", url=url)
    assert ran.code == 1
    assert "There is no project" in ran.said
