"""Runs the console as a process with uvicorn; the process stops within two seconds.

uvicorn limits the number of connections and the size of a request's head. But it waits
without a limit for the rest of a request, and for a client that does not read. If anybody
besides the users can reach the console, a proxy must set these limits and provide TLS.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import uvicorn

from bls_agent.core.errors import ConfigurationError
from bls_agent.ops.web.config import WebConfig, show_host

if TYPE_CHECKING:
    from types import FrameType

    from bls_agent.ops.web.app import ConsoleApp

BACKLOG: Final = 128  # connections that wait to be accepted
KEEP_ALIVE: Final = 15  # seconds
GRACE: Final = 1  # seconds that open responses get to finish when the console stops
PROXIES: Final = ["127.0.0.1", "::1"]  # addresses of proxies whose headers are trusted


class _Server(uvicorn.Server):
    """uvicorn, but it ends the event streams before it waits for open responses."""

    def __init__(self, app: ConsoleApp, ready: Callable[[], None]) -> None:
        super().__init__(_uvicorn_config(app))
        self._app = app
        self._ready = ready
        self.interrupted: bool = False  # whether SIGINT has stopped the server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.interrupted = self.interrupted or sig == signal.SIGINT
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.close_streams()
        await super().shutdown(sockets)


def serve(
    app: ConsoleApp, ready: Callable[[Sequence[str]], None] | None = None
) -> None:
    """Run the console until SIGINT or SIGTERM.

    When the console has stopped, the signal ends the process as usual. The console calls
    ``ready`` with its URLs as soon as it listens. Raises ``ConfigurationError`` if the
    console cannot listen at its address, and ``KeyboardInterrupt`` after SIGINT.
    """
    with open_socket(app.web.config) as channel:
        server = make_server(app, channel, ready)
        server.run([channel])
    if server.interrupted:  # run() returns if the process ignores SIGINT
        raise KeyboardInterrupt


def make_server(
    app: ConsoleApp,
    channel: socket.socket,
    ready: Callable[[Sequence[str]], None] | None = None,
) -> _Server:
    urls = urls_of(app.web.config, channel.getsockname()[1])
    return _Server(app, lambda: ready(urls) if ready else None)


def _uvicorn_config(app: ConsoleApp) -> uvicorn.Config:
    config, limits = app.web.config, app.web.config.limits
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        loop="asyncio",
        log_config=None,
        access_log=False,
        backlog=BACKLOG,
        server_header=False,
        proxy_headers=config.behind_proxy,
        forwarded_allow_ips=PROXIES,
        root_path=config.root_path,
        limit_concurrency=limits.connections,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        h11_max_incomplete_event_size=limits.head,
    )


@contextmanager
def open_socket(config: WebConfig) -> Generator[socket.socket]:
    """Listen at the address; raise ``ConfigurationError`` if that is not possible."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named. Without TCP_NODELAY, a
    # short body waits 40 ms for the client's ACK of the headers.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as channel:
        try:
            if os.name == "posix":
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            channel.bind((config.host, config.port))
            channel.listen(BACKLOG)
        except OSError as error:
            is_taken = error.errno in {errno.EADDRINUSE, errno.EACCES}
            name = "port" if is_taken else "host"
            shown = f"{show_host(config.host)}:{config.port}"
            rule = f"it is not possible to listen there ({error.strerror})"
            remedy = f"Choose another one with --{name}."
            raise ConfigurationError(name, shown, rule, remedy) from None
        yield channel


def urls_of(config: WebConfig, port: int) -> list[str]:
    if config.behind_proxy and config.allowed_hosts:
        return [f"https://{name}{config.root_path}/" for name in config.allowed_hosts]
    host = config.host
    shown = "127.0.0.1" if host in {"0.0.0.0", "::"} else show_host(host)  # noqa: S104 - only shown
    return [f"http://{shown}:{port}{config.root_path}/"]
