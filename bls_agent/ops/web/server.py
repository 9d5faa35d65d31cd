"""The console as a process: its sockets, uvicorn, and an end within two seconds.

uvicorn limits the number of connections and the size of a request's headers. It waits
for ever for a request that does not arrive and for a client that reads nothing. A
console that other people than its users can reach therefore needs a proxy.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from bls_agent.core.errors import ConfigurationError
from bls_agent.ops.web.config import (
    MAKE_USERS,
    NEEDS_USERS,
    WebConfig,
    is_loopback,
    show_host,
)

if TYPE_CHECKING:
    from types import FrameType

    from bls_agent.ops.web.app import ConsoleApp

UNIX: Final = ("unix", 0)  # stands for a client of the Unix socket, or a proxy there
BACKLOG: Final = 128  # connections that wait to be accepted
KEEP_ALIVE: Final = 15  # seconds
GRACE: Final = 1  # seconds for which responses may still finish at the end


class _Server(uvicorn.Server):
    """uvicorn that ends the event streams before it waits for open responses."""

    def __init__(
        self, config: uvicorn.Config, app: ConsoleApp, ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._app = app
        self._ready = ready
        self.interrupted = False  # by SIGINT

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.interrupted = self.interrupted or sig == signal.SIGINT
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the event streams, then shut down, then remove the Unix socket."""
        self._app.close_streams()
        await super().shutdown(sockets)
        path = self._app.web.config.unix_socket
        if path is not None:
            await anyio.Path(path).unlink(missing_ok=True)


def serve(
    app: ConsoleApp, ready: Callable[[Sequence[str]], None] | None = None
) -> None:
    """Run the console until SIGINT or SIGTERM, which then ends the process as usual.

    ``ready`` is called with the URLs to open, once the console listens. Raises
    ``ConfigurationError`` if the console cannot listen at its address or TLS cannot be
    set up, and ``KeyboardInterrupt`` after SIGINT.
    """
    with open_sockets(app.web.config) as sockets:
        server = make_server(app, sockets, ready)
        server.run(sockets)
    if server.interrupted:  # run() returns if the process ignores SIGINT
        raise KeyboardInterrupt


def make_server(
    app: ConsoleApp,
    sockets: Sequence[socket.socket],
    ready: Callable[[Sequence[str]], None] | None = None,
) -> _Server:
    urls = urls_of(app.web.config, sockets)
    return _Server(_uvicorn_config(app), app, lambda: ready(urls) if ready else None)


def _uvicorn_config(app: ConsoleApp) -> uvicorn.Config:
    config, limits = app.web.config, app.web.config.limits
    try:
        made = uvicorn.Config(
            _believe_proxies(app) if config.behind_proxy else app,
            http="h11",
            ws="none",
            lifespan="on",
            loop="asyncio",
            log_config=None,
            access_log=False,
            backlog=BACKLOG,
            server_header=False,
            proxy_headers=False,  # _believe_proxies reads them instead
            root_path=config.root_path,
            limit_concurrency=limits.connections,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=GRACE,
            h11_max_incomplete_event_size=limits.url + limits.headers,
            ssl_certfile=config.certificate,
            ssl_keyfile=config.private_key,
        )
        made.load()
    except OSError as error:  # also ssl.SSLError, a subclass
        rule = f"TLS cannot be set up with it ({error})"
        raise ConfigurationError("certificate", str(config.certificate), rule) from None
    return made


def _believe_proxies(app: ASGIApp) -> ASGIApp:
    """Trust the headers of a proxy on this machine, also one on the Unix socket."""
    believing: Any = ProxyHeadersMiddleware(
        cast("Any", app), ["127.0.0.1", "::1", UNIX[0]]
    )

    async def name_peer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["client"] = scope["client"] or UNIX
        await believing(scope, receive, send)

    return name_peer


@contextmanager
def open_sockets(config: WebConfig) -> Generator[list[socket.socket]]:
    """Open the sockets of the configuration, at the addresses that were checked.

    Raises ``ConfigurationError`` if the address is in use or not on this machine, or if
    a name stands for an address that others can reach and there are no users.
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
    # asyncio sets TCP_NODELAY only if the protocol is named. Without TCP_NODELAY, a
    # short body waits 40 ms for the client's ACK of the headers.
    channel = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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
    """Listen at a path that only our user can open; replace an unused old socket."""
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
