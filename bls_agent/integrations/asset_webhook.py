"""A GitHub webhook that synchronises the asset library at each push (extra ``web``).

Mount the application as a route, or run it alone::

    Route("/hooks/assets", AssetWebhookApp(sync, secret), methods=["POST"])
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import parse_qs

import anyio

from bls_agent.assets.sources import check_branch
from bls_agent.assets.sync import AssetSync
from bls_agent.core.codec import JSONObject, decode_object
from bls_agent.core.errors import (
    ConfigurationError,
    DecodeError,
    LeaseHeldError,
    MissingExtraError,
)
from bls_agent.runtime.tasks import start_background

try:
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ModuleNotFoundError:
    raise MissingExtraError("web", "the webhook of the asset library") from None

__all__ = ["AssetWebhookApp"]

SHORTEST: Final = 16  # characters of a secret
MAX_BODY: Final = 5 * 2**20  # bytes
AT_ONCE: Final = 4  # bodies that are read at the same time; other deliveries wait
PATIENCE: Final = 10.0  # seconds for a body to arrive, because GitHub waits no longer
LEASE_PAUSE: Final = 1.0  # seconds between two tries while another one synchronises

_SIGNATURE: Final = re.compile("sha256=[0-9a-f]{64}")

_log = logging.getLogger(__name__)


class AssetWebhookApp(Starlette):
    """Synchronises the asset library at each push to the branch.

    This is an ASGI application for ``POST`` at any path. A push is answered at once
    with 202, and the synchronisation runs in the background. If another push arrives
    meanwhile, one more synchronisation follows. While another object or process
    synchronises, the push waits. Other events and other branches are answered with 200
    and start nothing.

    A delivery without a valid signature (``X-Hub-Signature-256``) is answered with 401
    and not decoded. A delivery of more than 5 MiB is answered with 413. A failed
    synchronisation is logged as a warning. Also run :meth:`AssetSync.run_forever`,
    because GitHub does not repeat lost deliveries.

    If the application runs alone, it closes ``sync`` at the end. An application that
    mounts it must call :meth:`aclose`, and close ``sync``.

    Args:
        sync: The synchronisation to run.
        secret: The webhook's secret in GitHub's settings, with 16 or more characters.
        branch: The branch whose pushes start a synchronisation. Default: the branch of
            ``sync.source``, or the repository's default branch if the source has none.

    Raises:
        ConfigurationError: The secret is too short, or the branch's name is invalid.
    """

    def __init__(self, sync: AssetSync, secret: str, *, branch: str = "") -> None:
        if type(secret) is not str or len(secret) < SHORTEST:
            rule = f"a secret has {SHORTEST} characters or more"
            raise ConfigurationError("secret", "***", rule)
        self._sync, self._secret = sync, secret.encode()
        self._branch = check_branch(branch) or getattr(sync.source, "branch", "")
        self._reading = anyio.Semaphore(AT_ONCE)
        self._is_wanted = False
        self._task: asyncio.Task[None] | None = None
        route = Route("/{path:path}", self._receive, methods=["POST"])
        super().__init__(routes=[route], lifespan=self._live)

    async def aclose(self) -> None:
        """Cancel the synchronisation that is running, if any, and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({self._task})

    @asynccontextmanager
    async def _live(self, _app: Starlette) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.aclose()
            await self._sync.aclose()

    async def _receive(self, request: Request) -> Response:
        given = request.headers.get("x-hub-signature-256", "")
        if not _SIGNATURE.fullmatch(given):
            return _answer(401, "the signature is missing or wrong")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > MAX_BODY:
            return _answer(413, f"a delivery has at most {MAX_BODY} bytes")
        body: bytes | None = None
        with suppress(ClientDisconnect), anyio.move_on_after(PATIENCE):
            async with self._reading:
                body = await self._read(request)
        if body is None:
            return _answer(503, "the body did not arrive in time")
        if len(body) > MAX_BODY:
            return _answer(413, f"a delivery has at most {MAX_BODY} bytes")
        expected = "sha256=" + hmac.new(self._secret, body, "sha256").hexdigest()
        if not hmac.compare_digest(given, expected):
            return _answer(401, "the signature is missing or wrong")
        return self._decide(request, body)

    async def _read(self, request: Request) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                break
        return bytes(body)

    def _decide(self, request: Request, body: bytes) -> Response:
        """Answer a delivery that has a valid signature.

        There are three cases:

        1. The body of a push cannot be read: the answer is 400.
        2. The delivery is a push to the branch: a synchronisation starts, or follows
           the running one, and the answer is 202.
        3. Any other delivery is ignored, and the answer is 200.
        """
        event = request.headers.get("x-github-event", "")
        if event != "push":
            return _answer(200, f"ignored: {event or 'no event'} is no push")
        push = _read_push(request, body)
        if push is None:
            return _answer(400, "the body is no JSON object")
        if push.get("ref") != f"refs/heads/{self._branch or _default_branch(push)}":
            return _answer(200, f"ignored: {str(push.get('ref'))[:200]}")
        if push.get("deleted") is True:
            return _answer(200, "ignored: the branch was deleted")
        self._is_wanted = True
        if self._task is None or self._task.done():
            self._task = start_background(self._work, "bls-agent-asset-webhook")
        return _answer(202, "accepted")

    async def _work(self) -> None:
        """Synchronise, and repeat if a push has arrived during the synchronisation."""
        while self._is_wanted:
            self._is_wanted = False
            try:
                report = await self._sync.run()
                failure = report.reason if report.status == "failed" else ""
            except LeaseHeldError:  # the other run may have read an older commit
                self._is_wanted = True
                await anyio.sleep(LEASE_PAUSE)
                continue
            except Exception as error:  # noqa: BLE001 - the next push has to be synchronised
                failure = f"{type(error).__name__}: {error}"
            if failure:
                _log.warning("assets are not up to date: %s", failure)


def _read_push(request: Request, body: bytes) -> JSONObject | None:
    """Decode a push, which GitHub sends as JSON or as a form; ``None`` if invalid."""
    try:
        if "form" in request.headers.get("content-type", ""):
            body = parse_qs(body.decode(), strict_parsing=True)["payload"][0].encode()
        return decode_object(body)
    except (DecodeError, ValueError, KeyError):
        return None


def _default_branch(push: JSONObject) -> object:
    repository: JSONObject | None = push.get("repository")
    return repository.get("default_branch") if isinstance(repository, dict) else None


def _answer(status: int, message: str) -> Response:
    return JSONResponse({"status": message}, status)
