"""The console as a process: where it listens, what it says, how it ends."""

from __future__ import annotations

import getpass
import importlib.util
import io
import select
import signal
import socket
import sys
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path

import httpx2 as httpx
import orjson
import pytest
from redis import Redis

from bls_agent import ConfigurationError
from bls_agent.ops.cli import main
from bls_agent.ops.texts import load_texts
from bls_agent.ops.web.auth import User, hash_token, parse_users
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.rights import Grants
from bls_agent.ops.web.server import open_socket, urls_of
from tests.harness import until
from tests.ops.web.serving import HASH, PASSWORD, USERS, served
from tests.programs import Program

COMMAND = ("-m", "bls_agent", "console", "--port", "0")


def first_url(console: Program) -> str:
    """Wait until a console says where it is."""
    return str(orjson.loads(console.line())["urls"][0])


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)]
)
def test_a_signal_ends_it(redis_url: str, number: signal.Signals, code: int) -> None:
    """As shells and service managers expect, without a word, streams included."""
    with Program(*COMMAND, "--json", "--redis", redis_url) as console:
        with httpx.stream("GET", f"{first_url(console)}events/fleet") as stream:
            assert stream.status_code == 200
            console.send_signal(number)
            for _ in stream.iter_raw():
                pass
        ended = console.end(10)
    assert (ended.code, ended.err) == (code, "")


def test_a_signal_ends_it_where_it_was_to_be_ignored(redis_url: str) -> None:
    """A shell starts background programs so; the code is 130 there, too."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what a process inherits
    try:
        with Program(*COMMAND, "--json", "--redis", redis_url) as console:
            assert first_url(console)
            console.send_signal(signal.SIGINT)
            assert console.end(10).code == 130
    finally:
        signal.signal(signal.SIGINT, usual)


def test_a_post_without_an_answer_does_not_delay_the_end(
    redis_url: str, project: str
) -> None:
    """The thread of a post may wait for ten seconds, and nobody waits for the thread."""
    secret = {"BLS_WEBHOOK_SECRET": f"whsec_{'A' * 43}="}
    statuses = cycle(("在线", "离线"))
    with (
        socket.create_server(("127.0.0.1", 0)) as receiver,
        Redis.from_url(redis_url) as redis,
        Program(
            *COMMAND, "--json", "--redis", redis_url, "--webhook",
            f"http://127.0.0.1:{receiver.getsockname()[1]}/", env=secret,
        ) as console,
    ):  # fmt: skip
        assert first_url(console)

        def is_posting() -> bool:
            redis.set(f"{project}_项目状态", next(statuses))
            return bool(select.select([receiver], [], [], 1)[0])

        until(is_posting, 30)
        console.send_signal(signal.SIGINT)
        assert console.end(6).code == 130


def test_it_says_where_it_is_and_who_may_come_in(
    redis_url: str, tmp_path: Path
) -> None:
    """In the reader's language; what was sent and who failed to log in goes to stderr."""
    users = tmp_path / "users"
    users.write_text(f"operator:{HASH}\n")
    users.chmod(0o600)
    options = ("--users", str(users), "--host", "0.0.0.0", "--lang", "zh")
    with Program(*COMMAND, "--redis", redis_url, *options) as console:
        texts = load_texts("cli", "zh")
        before, _, after = texts["console_ready"].partition("{url}")
        url = console.line().removeprefix(before).removesuffix(after)
        assert url.startswith("http://127.0.0.1:")
        form = {"user": "ali\x1b[31mce", "password": "wrong-wrong"}
        headers = {"origin": url.rstrip("/")}
        assert httpx.post(f"{url}login", data=form, headers=headers).status_code == 401
        console.terminate()
        told = console.end().err
    assert texts["console_users"].format(names="operator") in told
    assert texts["console_in_clear"] in told
    assert "ali\\x1b[31mce from 127.0.0.1 failed" in told
    assert "wrong-wrong" not in told
    assert "argon2" not in told


@pytest.mark.parametrize(
    "options",
    [
        ("--host", "0.0.0.0"),
        ("--host", "::"),
        ("--host", "0"),
        ("--host", "192.0.2.1"),
        ("--behind-proxy",),
        ("--allowed-host", "console.example"),
        ("--users", "/nonexistent"),
        ("--root-path", "console"),
        ("--host", "localhost"),
    ],
)
def test_what_is_not_safe_is_refused(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and a sentence."""
    assert main(["console", "--port", "0", *options]) == 2
    told = capsys.readouterr().err
    assert "error: " in told
    assert "Traceback" not in told


def test_what_asyncio_repeats_is_said_once(redis_url: str, tmp_path: Path) -> None:
    """Where files run out it logs a traceback for each connection that waits."""
    short = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60));"
    script = f"{short} from bls_agent.ops.cli import main; main()"
    options = ["--redis", redis_url, "--json", "console", "--port", "0"]
    with Program("-c", script, *options) as console:
        url = httpx.URL(first_url(console))
        # They say nothing, and the last one shows that the others were looked at.
        with ExitStack() as stack:
            for _ in range(120):
                where = (url.host, url.port or 0)
                stack.enter_context(socket.create_connection(where))
            with suppress(httpx.TransportError):
                httpx.get(url, timeout=2)
        console.kill()
        said = console.end().err
    assert said.count("out of system resource") <= 1


def test_answers_wait_for_nobody(redis_url: str) -> None:
    """Else the body of each comes 40 ms behind its head, on a connection that is kept."""
    with (
        served(WebConfig(redis=redis_url, port=0)) as console,
        httpx.Client(base_url=console.url) as client,
    ):
        assert client.get("/api/health").status_code == 200
        (connection,) = console.connections
        channel = connection.transport.get_extra_info("socket")
        assert channel.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_where_it_cannot_listen_is_named() -> None:
    """A port that is taken, or an address of another machine; with what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for host, name in (("127.0.0.1", "port"), ("192.0.2.1", "host")):
            with (
                pytest.raises(ConfigurationError) as caught,
                open_socket(WebConfig(host=host, port=port, users=USERS)),
            ):
                pass
            assert str(caught.value).startswith(f"{name}: '{host}:{port}'")
            assert str(caught.value).endswith(f"Choose another one with --{name}.")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:7/"),
        ("0.0.0.0", "http://127.0.0.1:7/"),
        ("::1", "http://[::1]:7/"),
    ],
)
def test_the_urls_are_those_to_open(host: str, url: str) -> None:
    """Of both families, and of every address."""
    assert urls_of(WebConfig(host=host, users=USERS), 7) == [url]


def test_a_proxy_is_opened_by_its_name() -> None:
    """Over TLS, because the proxy has the certificate."""
    config = WebConfig(
        users=USERS,
        behind_proxy=True,
        allowed_hosts=("console.example",),
        root_path="/bls",
    )
    assert urls_of(config, 7) == ["https://console.example/bls/"]


@pytest.mark.parametrize("announced", [False, True])
def test_a_proxy_is_believed_only_when_it_was_announced(
    redis_url: str, announced: bool
) -> None:
    """Who pretends to come from elsewhere gets no budget, no name, no TLS by that."""
    config = WebConfig(
        redis=redis_url,
        port=0,
        host="127.0.0.1",
        users=USERS,
        behind_proxy=announced,
        root_path="/bls",
    )
    with served(config) as console:
        base = console.url.removesuffix("/bls/")
        form = {"user": "operator", "password": PASSWORD}
        headers = {
            "x-forwarded-for": "203.0.113.9",
            "x-forwarded-proto": "https",
            "origin": base.replace("http:", "https:") if announced else base,
        }
        with httpx.Client(base_url=base, headers=headers) as client:
            answer = client.post("/login", data=form)
            assert answer.status_code == 303
            assert answer.headers["location"] == "/bls/"
            secure = answer.headers["set-cookie"].startswith("__Host-")
            assert secure is announced
            client.post("/login", data={**form, "password": "wrong"})
        known = list(console.app.web.logins._full_at)
        assert known == (["203.0.113.9"] if announced else ["127.0.0.1"])


def test_a_token_is_written_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into a new file of our own user; the line for the users names no token."""
    file = tmp_path / "令牌"
    assert main(["console", "token", "prometheus", str(file)]) == 0
    token, line = file.read_text("ascii").strip(), capsys.readouterr().out
    assert file.stat().st_mode & 0o777 == 0o600
    assert token not in line
    (user,) = parse_users(line).values()
    assert user == User(hash_token(token), Grants.parse("x", "viewer"))
    assert main(["console", "token", "b", str(file)]) == 2
    assert "exists" in capsys.readouterr().err
    assert file.read_text("ascii").strip() == token
    words = ["--role", "viewer=订单*", "--role", "operator=批*"]
    assert main(["console", "token", "b", str(tmp_path / "b"), *words]) == 0
    assert capsys.readouterr().out.endswith(":viewer=订单* operator=批*\n")


def test_a_password_line_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a pipe, or asked for twice; never from the command line."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{PASSWORD}\n"))
    assert main(["console", "password", "值班"]) == 0
    line = capsys.readouterr().out
    assert set(parse_users(line)) == {"值班"}
    assert PASSWORD not in line
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{PASSWORD}\n"))
    roles = ["--role", "viewer", "--role", "operator=订单*"]
    assert main(["console", "password", "值班", *roles]) == 0
    user = parse_users(capsys.readouterr().out)["值班"]
    assert user.grants == Grants.parse("role", "viewer operator=订单*")
    assert main(["console", "password", "值班", "--role", "root"]) == 2
    assert "operator=batch/*" in capsys.readouterr().err
    for text in ("", "short\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert main(["console", "password", "operator"]) == 2
    assert "short" not in capsys.readouterr().err
    for errors in ("strict", "surrogateescape"):  # the latter in the locale C.UTF-8
        raw = io.BytesIO("geheim-密码-geheim\n".encode("gbk"))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw, "utf-8", errors))
        assert main(["console", "password", "operator"]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "it has to be text in utf-8" in printed.err
        assert "geheim" not in printed.err
        assert "Traceback" not in printed.err
    assert main(["console", "password", "operator", "geheim-geheim"]) == 2

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    answers = [PASSWORD, PASSWORD, PASSWORD, "another one"]
    monkeypatch.setattr(getpass, "getpass", lambda _: answers.pop(0))
    assert main(["console", "password", "operator"]) == 0
    assert main(["console", "password", "operator"]) == 2

    def end(_: str) -> str:
        raise EOFError

    monkeypatch.setattr(getpass, "getpass", end)  # Ctrl-D
    assert main(["console", "password", "operator"]) == 2
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["console", "password", "operator"]) == 2


def test_a_missing_extra_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command that installs it."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "argon2" else find(name),
    )
    assert main(["console"]) == 2
    assert ".[web]" in capsys.readouterr().err
