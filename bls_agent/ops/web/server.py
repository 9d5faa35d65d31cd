"""The console as a process: its sockets, uvicorn, and an end within two seconds.

uvicorn waits for ever for a request that does not come, and for a client that reads
nothing. Both hold a connection, and the second one memory; here both are dropped.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from bls_agent.core.errors import ConfigurationError
from bls_agent.ops.web.config import (
    MAKE_USERS,
    NEEDS_USERS,
    WebConfig,
    is_loopback,
    show_host,
)
from bls_agent.ops.web.security import HEADERS, group_address

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport
    from types import FrameType

    from bls_agent.ops.web.app import ConsoleApp

UNIX: Final = ("unix", 0)  # a peer without an address: a proxy, if there is one, too
_HEAD: Final = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
_REFUSAL: Final = (
    "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\n"
    "content-length: {length}\r\nconnection: close\r\ncache-control: no-store\r\n"
    "{head}\r\n{text}"
)
# Asked by a tool that sends an address as it was typed.
_ASCII: Final = "In an address every byte that is not ASCII has to be written as %NN."
BACKLOG: Final = 128  # connections that are taken in one go
SPARE: Final = 2 * BACKLOG + 64  # files beside the connections: those refused, Redis
KEEP_ALIVE: Final = 15  # seconds
GRACE: Final = 1  # seconds that answers get to come to their end


class _PatientProtocol(H11Protocol):
    """One connection, with deadlines for requests and for the client's reads."""

    stall: ClassVar[float]  # seconds for a request's head, or until an answer is taken
    most: ClassVar[int]  # connections that may be open; more are refused
    counts: ClassVar[Counter[str]]  # connections that were dropped, by reason

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timers: dict[str, TimerHandle] = {}  # "requests", "readers"
        self.client = self.client or UNIX
        if len(self.connections) > self.most:
            self._refuse("503 Service Unavailable", "too many connections")
            self.counts["connections_refused"] += 1
        else:
            self._start("requests")

    def data_received(self, data: bytes) -> None:
        """Take bytes; the head of a request has to arrive within its time."""
        super().data_received(data)
        if self._is_answering():
            self._stop("requests")
        elif "requests" not in self._timers:
            self._start("requests")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.trailing_data[0] and not self._is_answering():
            self._start("requests")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("requests")
        self._stop("readers")
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the peer to read, within a deadline."""
        super().pause_writing()
        self._start("readers")

    def resume_writing(self) -> None:
        self._stop("readers")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP, with the headers of every answer."""
        self.counts["not_http"] += 1
        self._refuse("400 Bad Request", f"{msg} {_ASCII}\n")

    def _refuse(self, status: str, text: str) -> None:
        self.transport.write(_write_refusal(status, text))
        self.transport.close()

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _start(self, what: str) -> None:
        self._stop(what)
        timer = self.loop.call_later(self.stall, self._give_up, what)
        self._timers[what] = timer

    def _stop(self, what: str) -> None:
        if timer := self._timers.pop(what, None):
            timer.cancel()

    def _give_up(self, what: str) -> None:
        if what == "readers" or not self._is_answering():
            self.counts[f"{what}_stalled"] += 1
            self.transport.abort()


def _write_refusal(status: str, text: str) -> bytes:
    answer = _REFUSAL.format(status=status, text=text, length=len(text), head=_HEAD)
    return answer.encode()


class _Listener(socket.socket):
    """Refuses connections beyond one address's share: at once, before TLS begins.

    Windows accepts connections in another way; there only their total is bounded.
    """

    def __init__(self, family: socket.AddressFamily, config: WebConfig) -> None:
        # With the protocol named, asyncio sends a short body at once (TCP_NODELAY);
        # without, it waits 40 ms for the peer's ACK of the head.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._config = config
        self._held: list[tuple[str, socket.socket]] = []  # by whom it was opened
        self.counts: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; asyncio goes on after ConnectionAbortedError."""
        channel, peer = super().accept()
        address = peer[0]
        if self._config.behind_proxy and is_loopback(address):
            return channel, peer  # the proxy, which bounds its clients itself
        self._held = [one for one in self._held if one[1].fileno() >= 0]
        client = group_address(address)
        held = sum(one == client for one, _ in self._held)
        if held < self._config.limits.address_connections:
            self._held.append((client, channel))
            return channel, peer
        with channel, suppress(OSError):
            channel.settimeout(0)
            if not self._config.tls:
                text = "too many connections of one address"
                channel.send(_write_refusal("503 Service Unavailable", text))
        self.counts["connections_refused"] += 1
        raise ConnectionAbortedError


class _Server(uvicorn.Server):
    """uvicorn, but the streams end before it waits for them."""

    def __init__(
        self, config: uvicorn.Config, app: ConsoleApp, ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._app = app
        self._ready = ready
        self.interrupted = False  # by SIGINT

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Remember a signal, which ends the server."""
        self.interrupted = self.interrupted or sig == signal.SIGINT
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then everything: after a signal nothing else runs."""
        self._app.close_streams()
        await super().shutdown(sockets)
        path = self._app.web.config.unix_socket
        if path is not None:
            await anyio.Path(path).unlink(missing_ok=True)


def serve(
    app: ConsoleApp, ready: Callable[[Sequence[str]], None] | None = None
) -> None:
    """Run the console until SIGINT or SIGTERM, which then ends the process as usual.

    ``ready`` is called with the URLs to open, once it listens. Raises
    ``ConfigurationError`` if it cannot listen there or TLS cannot be set up, and
    ``KeyboardInterrupt`` after SIGINT.
    """
    with open_sockets(app.web.config) as sockets:
        server = make_server(app, sockets, ready)
        server.run(sockets)
    if server.interrupted:  # where the process has to ignore SIGINT, run() returns
        raise KeyboardInterrupt


def make_server(
    app: ConsoleApp,
    sockets: Sequence[socket.socket],
    ready: Callable[[Sequence[str]], None] | None = None,
) -> _Server:
    """Make the server of a console for open sockets."""
    for channel in sockets:
        if isinstance(channel, _Listener):
            channel.counts = app.web.counts
    urls = urls_of(app.web.config, sockets)
    return _Server(_uvicorn_config(app), app, lambda: ready(urls) if ready else None)


def _uvicorn_config(app: ConsoleApp) -> uvicorn.Config:
    config, limits = app.web.config, app.web.config.limits
    attributes = {
        "stall": limits.stall,
        "most": make_room(limits.connections),
        "counts": app.web.counts,
    }
    try:
        made = uvicorn.Config(
            app,
            http=type("ConsoleProtocol", (_PatientProtocol,), attributes),
            ws="none",
            lifespan="on",
            loop="asyncio",
            log_config=None,
            access_log=False,
            backlog=BACKLOG,
            server_header=False,
            proxy_headers=config.behind_proxy,
            forwarded_allow_ips=["127.0.0.1", "::1", "unix", ""],
            root_path=config.root_path,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=GRACE,
            h11_max_incomplete_event_size=limits.url + limits.headers,
            ssl_certfile=config.certificate,
            ssl_keyfile=config.private_key,
        )
        made.load()
    except OSError as error:  # ssl.SSLError is one
        rule = f"TLS cannot be set up with it ({error})"
        raise ConfigurationError("certificate", str(config.certificate), rule) from None
    return made


def make_room(connections: int) -> int:
    """Raise this process's limit of open files, and give the connections that fit.

    The default is 1,024 files. Without a free one for a waiting connection asyncio logs
    that, as fast as it can, for as long as the connection waits.
    """
    if sys.platform == "win32":
        return connections
    import resource  # noqa: PLC0415 - there is none on Windows

    kind = resource.RLIMIT_NOFILE
    (soft, hard), files = resource.getrlimit(kind), connections + SPARE
    if hard != resource.RLIM_INFINITY:
        files = min(files, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(kind, (files, hard))
    return max(1, min(connections, files - SPARE))


@contextmanager
def open_sockets(config: WebConfig) -> Generator[list[socket.socket]]:
    """Listen where the configuration says, at the addresses that were checked.

    Raises ``ConfigurationError`` if the address is taken or not ours, or if a name
    means an address that others can reach and there are no users.
    """
    with ExitStack() as stack:
        if config.unix_socket is not None:
            yield [stack.enter_context(_open_unix(config.unix_socket))]
            return
        opened: list[socket.socket] = []
        port = config.port
        for family, address in _resolve(config):
            channel = stack.enter_context(_open_tcp(family, address, port, config))
            port = port or channel.getsockname()[1]
            opened.append(channel)
        yield opened


def _resolve(config: WebConfig) -> list[tuple[socket.AddressFamily, str]]:
    try:
        found = socket.getaddrinfo(
            config.host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        rule = f"it is no address of this machine ({error.strerror})"
        raise ConfigurationError("host", config.host, rule) from None
    places: dict[tuple[socket.AddressFamily, str], None] = dict.fromkeys(
        (family, str(place[0])) for family, *_, place in found
    )
    for _, address in places:
        if not config.users and not is_loopback(address):
            rule = f"it means {address}, which others can reach, and {NEEDS_USERS}"
            raise ConfigurationError("host", config.host, rule, MAKE_USERS)
    return list(places)


def _open_tcp(
    family: socket.AddressFamily, address: str, port: int, config: WebConfig
) -> socket.socket:
    channel = _Listener(family, config)
    try:
        if os.name == "posix":
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            channel.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        channel.bind((address, port))
        channel.listen(BACKLOG)
    except OSError as error:
        channel.close()
        name = "port" if config.port else "host"
        shown = f"{show_host(address)}:{port}"
        rule = f"it is not possible to listen there ({error.strerror})"
        remedy = "Choose another one with --port." if name == "port" else ""
        raise ConfigurationError(name, shown, rule, remedy) from None
    return channel


@contextmanager
def _open_unix(path: Path) -> Generator[socket.socket]:
    """Listen at a path that only our user can open; a dead socket is replaced."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        before = os.umask(0o177)
        try:
            channel.bind(str(path))
        finally:
            os.umask(before)
        channel.listen(BACKLOG)
    except OSError as error:
        channel.close()
        rule = f"it is not possible to listen there ({error.strerror})"
        raise ConfigurationError("unix_socket", str(path), rule) from None
    try:
        yield channel
    finally:
        channel.close()
        path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def urls_of(config: WebConfig, sockets: Sequence[socket.socket]) -> list[str]:
    """Return the addresses to open in a browser."""
    scheme = "https" if config.tls else "http"
    if config.unix_socket is not None:
        return [f"unix:{config.unix_socket}"]
    if config.behind_proxy and config.allowed_hosts:
        return [f"https://{name}{config.root_path}/" for name in config.allowed_hosts]
    urls: list[str] = []
    for channel in sockets:
        address, port = channel.getsockname()[:2]
        host = "127.0.0.1" if address in {"0.0.0.0", "::"} else address  # noqa: S104 - shown
        urls.append(f"{scheme}://{show_host(host)}:{port}{config.root_path}/")
    return urls
