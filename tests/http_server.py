"""An HTTP server of a test: in a thread, on loopback."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self


class QuietHandler(BaseHTTPRequestHandler):
    """Writes nothing about requests to standard error."""

    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


class HTTPServer(ThreadingHTTPServer):
    """Serves during a ``with`` block. A client that hangs up is expected."""

    request_queue_size = 100

    def __init__(self, handler: Any, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = Thread(target=self.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
