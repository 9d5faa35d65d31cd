"""Sends the requests that the tasks of one event loop push into a crawl queue.

If one run of the script queues many requests, each push costs half as much. So one
background task sends the pushes of all tasks. While this task waits for a reply, new
pushes are collected for the next run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.pool import ConnectionPool
from bls_agent.connection.scripts import CRAWL_PUSH, find_wrong_type, run_scripts
from bls_agent.core.errors import BlsError, RedisUnavailableError
from bls_agent.crawl.keys import QueueKeys

MOST_PUSHES: Final = 500  # requests in one write
MOST_BYTES: Final = 2**20  # bytes of bodies in one write


class Push(NamedTuple):
    """A request to be queued, as the arguments of the script."""

    priority: str
    body: bytes
    fingerprint: str = ""
    entry: bytes = b""  # the entry of the failed list that the push removes


@dataclass(eq=False, slots=True)
class _Batch:
    """The requests that one task pushes in one call."""

    pushes: Sequence[Push]
    future: asyncio.Future[list[int]]

    def answer(self, reply: list[int] | BlsError) -> None:
        """Pass the reply of the script, or its error, to the task that pushed."""
        if self.future.done():
            return
        if isinstance(reply, BlsError):
            self.future.set_exception(reply)
        else:
            self.future.set_result(reply)


class Pusher:
    """Collects the pushes of one event loop, and sends them."""

    def __init__(self, pool: ConnectionPool, keys: QueueKeys) -> None:
        self._pool = pool
        self._keys = keys
        self._loop = asyncio.get_running_loop()
        self._batches: deque[_Batch] = deque()
        self.task: asyncio.Task[None] | None = None

    async def push(self, pushes: Sequence[Push]) -> list[int]:
        """Queue up to 500 requests. Return for each 1 if it was queued, otherwise 0.

        Raise RedisUnavailableError if Redis did not queue the requests. If
        ``error.ambiguous`` is true, Redis may have queued them. Raise WrongTypeError if
        a key holds another type.
        """
        batch = _Batch(pushes, self._loop.create_future())
        self._batches.append(batch)
        if self.task is None or self.task.done():
            name, work = "bls-crawl-push", self._send_pushes()
            self.task = self._loop.create_task(work, name=name)
        return await batch.future

    async def _send_pushes(self) -> None:
        batches: list[_Batch] = []
        try:
            while self._batches:
                batches = self._next_batches()
                words = [
                    word for one in batches for push in one.pushes for word in push
                ]
                reply = await self._run_script(words)
                at = 0
                for one in batches:
                    end = at + len(one.pushes)
                    one.answer(reply if isinstance(reply, BlsError) else reply[at:end])
                    at = end
        finally:  # no task may wait for ever, even after a cancellation or a bug
            for one in (*batches, *self._batches):
                one.answer(closed_error(ambiguous=True))
            self._batches.clear()

    def _next_batches(self) -> list[_Batch]:
        found: list[_Batch] = []
        pushes = size = 0
        while self._batches:
            pushes += len(self._batches[0].pushes)
            size += sum(len(push.body) for push in self._batches[0].pushes)
            if found and (pushes > MOST_PUSHES or size > MOST_BYTES):
                break
            found.append(self._batches.popleft())
        return found

    async def _run_script(self, words: Sequence[Argument]) -> list[int] | BlsError:
        try:
            async with self._pool.to(self._keys.wake) as connection:
                run = (CRAWL_PUSH, self._keys.in_order, words)
                (reply,) = await run_scripts(connection, [run])
        except RedisUnavailableError as error:
            return error
        return cast(
            "list[int] | BlsError", await name_wrong_type(self._pool, self._keys, reply)
        )


async def name_wrong_type(pool: ConnectionPool, keys: QueueKeys, reply: Reply) -> Reply:
    """Return the reply, or for a key of the wrong type an error that names the key."""
    if not isinstance(reply, RedisUnavailableError):
        return reply
    connection = pool.pick(keys.wake)
    return await find_wrong_type(connection, reply, keys.types) or reply


def closed_error(*, ambiguous: bool = False) -> RedisUnavailableError:
    """Make the error for tasks that wait for a queue when it is closed."""
    return RedisUnavailableError("closed", "the queue was closed", ambiguous=ambiguous)
