"""The frames of a run, sent to one client: what an event costs each of a thousand."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import anyio

from bls_agent.core.errors import BlsError
from bls_agent.runs.events import Followed
from bls_agent.runs.following.ends import FollowEnd
from bls_agent.runs.following.follower import Follower
from bls_agent.runs.frames import write_comment, write_retry, write_unnamed
from bls_agent.runs.sse import PATIENCE, RETRY, encode_close, write_chunks

__all__ = ["FramePump", "Put"]

Put: TypeAlias = Callable[[bytes], Awaitable[None]]  # sends a chunk

STALLED: Final = 60.0  # seconds for a client to take what it is sent

_log = logging.getLogger(__name__)


class FramePump:
    """Sends what :func:`~bls_agent.runs.sse.event_frames` gives, and costs less.

    A scope and a timer for each wait cost more than the event. So there is one scope
    around all of them, cancelled only by who has seen that nothing is being sent, and
    one who looks at the clock beside it: :meth:`mind`.
    """

    def __init__(
        self, follower: Follower, heartbeat: float, *, unnamed: bool = False
    ) -> None:
        """Remember what to follow; nothing is read yet.

        Args:
            follower: Nobody else iterates over it.
            heartbeat: Seconds without an event until a comment is sent.
            unnamed: Send everything as ``message``.
        """
        self._follower = follower
        self._heartbeat = heartbeat
        self._unnamed = unnamed
        self._scope: anyio.CancelScope | None = None
        self._is_ending = False
        self._is_waiting = False  # else something is being sent
        self._sent_at = anyio.current_time()  # when it was begun to be

    def end(self) -> None:
        """End at once without a last word: the client is to come back."""
        self._is_ending = True
        if self._is_waiting and self._scope is not None:
            self._scope.cancel()  # who is cancelled in a batch has lost nothing

    async def run(self, put: Put) -> None:
        """Send what comes until the run ends, or :meth:`end` is called.

        Where following cannot go on it ends, too: who comes back is told why.
        """
        try:
            with anyio.CancelScope() as self._scope:
                await put(write_retry(RETRY))
                while not self._is_ending and self._follower.end is None:
                    self._is_waiting = True
                    found = deque(await self._follower.batch())
                    self._is_waiting = False
                    if not self._is_ending:
                        await self._send(found, put)
        except BlsError as error:
            _log.warning("a stream ends: %s", error)
        finally:
            self._note_sending()
            with anyio.move_on_after(PATIENCE, shield=True):
                await self._follower.aclose()

    def _note_sending(self) -> None:
        self._is_waiting, self._sent_at = False, anyio.current_time()

    async def _send(self, found: deque[Followed], put: Put) -> None:
        for chunk in write_chunks(found):
            self._note_sending()
            await put(write_unnamed(chunk) if self._unnamed else chunk)
        end = self._follower.end
        if end is not None and end is not FollowEnd.LEFT:  # else it is to come back
            self._note_sending()
            last = encode_close(end)
            await put(write_unnamed(last) if self._unnamed else last)

    async def mind(self, put: Put) -> None:
        """Send a comment after each time without an event; beside :meth:`run`.

        Returns:
            When the client takes nothing any more.
        """
        while True:
            silence = anyio.current_time() - self._sent_at
            if self._is_waiting and silence >= self._heartbeat:
                # An event may overtake it: each is a chunk of its own.
                self._sent_at = anyio.current_time()
                with anyio.move_on_after(STALLED) as scope:
                    await put(write_comment())
                if scope.cancelled_caught:
                    return
            elif not self._is_waiting and silence >= STALLED:
                return
            else:
                most = self._heartbeat if self._is_waiting else STALLED
                await anyio.sleep(min(most - silence, self._heartbeat, STALLED))
