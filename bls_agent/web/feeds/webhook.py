"""The webhook: each change of a status is posted, signed, to one URL of the operator's.

Signatures are those of Standard Webhooks (https://www.standardwebhooks.com), for which
there are libraries to verify them in most languages. h11 is what uvicorn speaks HTTP
with; a post is one request on a connection of its own, under one deadline.
"""

from __future__ import annotations

import base64
import hmac
import logging
import secrets
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import anyio
import h11
from anyio.abc import ByteStream

import bls_agent
from bls_agent.backoff import Backoff
from bls_agent.codec import encode, format_timestamp
from bls_agent.web.configuration import WebhookTarget
from bls_agent.web.feeds.journal import StatusChange

__all__ = ["Webhook"]

MOST: Final = 1_000  # changes that wait
AT_ONCE: Final = 100  # changes in one post
DEADLINE: Final = 10.0  # seconds for one post, from the name's look-up to the answer
LONGEST_PAUSE: Final = 60.0  # seconds between two posts
GIVE_UP: Final = 3_600.0  # seconds after which a post is dropped
REMIND: Final = 60.0  # seconds between two warnings
HEAD: Final = 16 * 1024  # bytes of an answer's head

logger = logging.getLogger(__name__)


class Webhook:
    """Posts what it is told, in order, as long as the other side takes to accept it.

    A post is repeated with growing pauses until it is answered with 2xx; after an hour it
    is dropped. Redirections are not followed. At most 1,000 changes wait: of more the
    oldest are dropped, and the next post says how many.
    """

    def __init__(
        self,
        target: WebhookTarget,
        about: Mapping[str, str],
        counts: Counter[str],
        clock: Callable[[], float] = time.time,  # noqa: TID251 - the outermost place
    ) -> None:
        """Post nothing yet.

        Args:
            target: Where to.
            about: Which console it is: part of every post.
            counts: Counts changes that were posted and dropped, and posts that failed.
            clock: Gives Unix time.
        """
        self._target = target
        self._about = dict(about)
        self._counts = counts
        self._clock = clock
        self._key = target.key
        self._waiting: deque[StatusChange] = deque()
        self._more = anyio.Event()
        self._posting = 0  # changes that are under way
        self._dropped = 0  # since the last post that was accepted
        self._said_at = float("-inf")

    def put(self, change: StatusChange) -> None:
        """Have a change posted; never waits."""
        if len(self._waiting) >= MOST:
            self._waiting.popleft()
            self._drop(1)
        self._waiting.append(change)
        self._more.set()

    async def run(self) -> None:
        """Post until it is cancelled."""
        tls = ssl.create_default_context() if self._is_secure else None
        try:
            while True:
                if not self._waiting:
                    self._more = anyio.Event()
                    await self._more.wait()
                await self._deliver(tls)
        finally:
            if left := len(self._waiting) + self._posting:
                text = "the console ends; %d changes were not posted to %s"
                logger.warning(text, left, self._target.place)

    @property
    def _is_secure(self) -> bool:
        return self._target.url.lower().startswith("https:")

    async def _deliver(self, tls: ssl.SSLContext | None) -> None:
        """Post the oldest changes until that has succeeded, or for an hour."""
        number = self._posting = min(len(self._waiting), AT_ONCE)
        changes = [self._waiting.popleft() for _ in range(number)]
        name, dropped = f"msg_{secrets.token_hex(12)}", self._dropped
        body = encode(
            {
                "type": "status.changed",
                "timestamp": format_timestamp(self._clock()),
                "data": {
                    **self._about,
                    "dropped": dropped,
                    "changes": [change.to_dict() for change in changes],
                },
            }
        )
        backoff, began = Backoff(base=1.0, cap=LONGEST_PAUSE), anyio.current_time()
        while reason := await self._post(name, body, tls):
            self._counts["webhook_posts_failed"] += 1
            self._complain(reason)
            if anyio.current_time() - began > GIVE_UP:
                self._posting = 0
                self._drop(number)
                return
            await anyio.sleep(backoff.failed())
        self._posting = 0
        self._counts["webhook_changes_posted"] += number
        self._dropped -= dropped
        if backoff.failures:
            logger.info("webhook %s takes posts again", self._target.place)
            self._said_at = float("-inf")

    def _drop(self, number: int) -> None:
        self._dropped += number
        self._counts["webhook_changes_dropped"] += number

    def _complain(self, reason: str) -> None:
        now = anyio.current_time()
        if now - self._said_at < REMIND:
            return
        self._said_at = now
        text = "webhook %s: %s; it is tried again (%d changes wait, %d were dropped)"
        place, waiting = self._target.place, len(self._waiting)
        logger.warning(text, place, reason, waiting, self._dropped)

    async def _post(self, name: str, body: bytes, tls: ssl.SSLContext | None) -> str:
        """Post once; give what went wrong, ``""`` if it was accepted."""
        try:
            with anyio.fail_after(DEADLINE):
                status = await self._ask(self._sign(name, body), body, tls)
        except TimeoutError:
            return f"no answer within {DEADLINE:g} s"
        except Exception as error:  # noqa: BLE001 - whatever it is: the console goes on
            return str(error.__cause__ or error) or type(error).__name__
        if 200 <= status < 300:  # noqa: PLR2004 - HTTP's own
            return ""
        return f"it answered {status}" if status else "it closed the connection"

    def _sign(self, name: str, body: bytes) -> dict[str, str]:
        moment = str(int(self._clock()))
        signed = f"{name}.{moment}.".encode() + body
        digest = base64.b64encode(hmac.digest(self._key, signed, "sha256")).decode()
        return {
            "webhook-id": name,
            "webhook-timestamp": moment,
            "webhook-signature": f"v1,{digest}",
        }

    async def _ask(
        self, signature: Mapping[str, str], body: bytes, tls: ssl.SSLContext | None
    ) -> int:
        parts = urlsplit(self._target.url)
        headers = {
            "host": parts.netloc,
            "user-agent": f"bls-agent/{bls_agent.__version__}",
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **signature,
        }
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        request = h11.Request(method="POST", target=path, headers=[*headers.items()])
        wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD)
        written = [wire.send(event) for event in (request, h11.Data(data=body))]
        port = parts.port or (443 if tls else 80)
        host = parts.hostname or ""
        stream: ByteStream = (
            await anyio.connect_tcp(host, port)
            if tls is None
            else await anyio.connect_tcp(
                host, port, ssl_context=tls, tls_standard_compatible=False
            )
        )
        async with stream:
            await stream.send(b"".join(part or b"" for part in written))
            return await _read_status(wire, stream)


async def _read_status(wire: h11.Connection, stream: ByteStream) -> int:
    """Read the status of an answer, 0 if there is none; the rest is not of interest."""
    while True:
        event = wire.next_event()
        if isinstance(event, h11.Response):
            return event.status_code
        if event is h11.NEED_DATA:
            try:
                wire.receive_data(await stream.receive())
            except anyio.EndOfStream:
                wire.receive_data(b"")
        elif not isinstance(event, h11.InformationalResponse):
            return 0
