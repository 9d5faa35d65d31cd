"""Requests and replies over one connection.

Its rules:

* every request runs under a deadline of ours, which grows with its bytes, and nothing is
  repeated by itself;
* a reply that was not waited for stays *owed* (:attr:`Wire.owed`): cancelling a read
  loses nothing, the next read gets it;
* whatever redis-py raises becomes one of our errors here, once (see ``faults.py``);
* what another node should have been asked is asked there: it was not executed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import anyio

from bls_agent.connection.endpoint import Argument, RawConnection, Reply, Request, pack
from bls_agent.connection.faults import (
    ends_connection,
    is_error_reply,
    redirects,
    translate,
)
from bls_agent.connection.link import Link
from bls_agent.connection.route import keys_of
from bls_agent.connection.transport import leaves_at_once
from bls_agent.core.errors import RedisUnavailableError

__all__ = ["Wire"]

REDIRECTS: Final = 3  # that one request follows before its caller is told
ASKING: Final = ("ASKING",)


class Wire(Link):
    """One connection: requests out, replies in, in order.

    Opens by itself on first use and again after a loss. Any number of tasks may call
    :meth:`call`; they take turns. A blocking reader uses :meth:`post` and
    :meth:`collect` instead and has the wire for itself.
    """

    async def call(self, *request: Argument) -> Reply:
        """Send one request and give its reply.

        Raises:
            RedisUnavailableError: No answer within the deadline, or an error reply.
                ``error.ambiguous``: it may have been executed all the same.
        """
        reply = (await self.call_many([request]))[0]
        if isinstance(reply, RedisUnavailableError):
            raise reply
        return reply

    async def call_many(
        self,
        requests: Sequence[Request],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Reply]:
        """Send several requests in one write; error replies stand in the list.

        Args:
            requests: What to send.
            meanwhile: Called when they have left, before their replies are awaited.

        Raises:
            RedisUnavailableError: The connection failed; ``error.ambiguous`` as above.
        """
        lock = await self._take_turn()
        try:
            replies = await self._ask(requests, meanwhile)
            for _ in range(REDIRECTS):
                # Of keys in one slot that is on its way some may have arrived already.
                again = [at for at, reply in enumerate(replies) if redirects(reply)]
                if not again:
                    break
                answers = await self._ask_elsewhere(
                    [requests[at] for at in again], meanwhile, of=len(replies)
                )
                for at, answer in zip(again, answers, strict=True):
                    replies[at] = answer
            return replies
        finally:
            lock.release()

    async def _take_turn(self) -> anyio.Lock:
        """Wait until no other request is under way, and give what has to be released.

        Who has to wait is in time, too: each of those before may wait for a whole
        deadline. Behind a gate all wait until it opens.

        Raises:
            RedisUnavailableError: The turn has not come within the deadline.
        """
        lock = self._lock
        try:
            lock.acquire_nowait()
        except anyio.WouldBlock:
            wait = self._timeout if self._gate is None else None
            with anyio.move_on_after(wait) as scope:
                await lock.acquire()
            if scope.cancelled_caught:
                said = f"the requests before it took more than {wait:g} s"
                raise RedisUnavailableError(
                    "timeout", said, address=self.address
                ) from None
        return lock

    async def read(self, *request: Argument) -> Reply:
        """Like :meth:`call`, and once more if the connection was lost.

        Only for requests that change nothing.
        """
        try:
            return await self.call(*request)
        except RedisUnavailableError as error:
            if error.kind != "connection" or not error.ambiguous:
                raise
        return await self.call(*request)

    async def read_many(self, requests: Sequence[Request]) -> list[Reply]:
        """Like :meth:`call_many`, and once more if the connection was lost.

        Only for requests that change nothing.
        """
        try:
            return await self.call_many(requests)
        except RedisUnavailableError as error:
            if error.kind != "connection" or not error.ambiguous:
                raise
        return await self.call_many(requests)

    async def open(self) -> None:
        """Connect if the wire is not connected."""
        lock = await self._take_turn()
        try:
            await self._opened()
        finally:
            lock.release()

    async def post(self, requests: Sequence[Request]) -> None:
        """Send requests without waiting; their replies are owed.

        Never cancelled half-way, because a request sent in part ends the connection.
        """
        await self._leave_host(requests)
        raw = await self._opened()
        if requests is not self._packed[0]:  # a reader posts the same ones for ever
            self._packed = (requests, pack(self._prefaced(requests)))
        self.owed += len(requests)
        try:
            if leaves_at_once(raw, self._packed[1]):
                await raw.send_packed_command(self._packed[1], check_health=False)
            else:
                limit = self._time_for(self._packed[1])
                with anyio.CancelScope(shield=True), anyio.fail_after(limit):
                    await raw.send_packed_command(self._packed[1], check_health=False)
        except Exception as error:
            await self.drop()
            raise translate(error, self.address, ambiguous=True) from error

    async def collect(self) -> Reply:
        """Wait for the next owed reply.

        Cancelling loses nothing: the reply stays owed and the next call gets it.

        Raises:
            RedisUnavailableError: An error reply, or the connection was lost and with
                it what was owed.
        """
        if self._raw is None:
            raise RedisUnavailableError(
                "connection", "the connection is closed", address=self.address
            )
        raw = self._raw
        try:
            if self.asking and not self._asking_answered:
                await raw.read_response(disconnect_on_error=False)
                self._asking_answered = True
            reply = await raw.read_response(disconnect_on_error=False)
        except Exception as error:
            raise await self._not_collected(error, raw) from error
        # Else somebody has left the connection meanwhile, and with it all it owed.
        if raw is self._raw:
            self._asking_answered = False
            self.owed -= 1
        return reply

    async def _not_collected(
        self, error: Exception, raw: RawConnection
    ) -> RedisUnavailableError:
        """Note what an error does to what is owed, and give it as ours."""
        if not is_error_reply(error):
            translated = translate(error, self.address, ambiguous=True)
            if raw is self._raw:
                await self.drop()
            return translated
        translated = self.route.explain(translate(error, self.address))
        if raw is not self._raw:
            return translated
        if self._gate is not None:
            self._gate.complaints.hear(self._packed[0][-self.owed :], [translated])
        self._asking_answered = False
        self.owed -= 1
        if ends_connection(translated):
            for request in self._packed[0][-self.owed - 1 :][:1]:
                self._note_asked(request, translated)
            self.route.look_anew(translated)
            self._ends = True
        if self._ends and not self.owed:
            await self._close()
        return translated

    def _prefaced(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Put ASKING in front of each request, where the slot is on its way to."""
        if not self.asking:
            return requests
        return [words for request in requests for words in (ASKING, request)]

    async def _ask(
        self, requests: Sequence[Request], meanwhile: Callable[[], None] | None
    ) -> list[Reply]:
        await self._leave_host(requests)
        raw = await self._opened()
        if self.asking:
            replies = await self._exchange(raw, self._prefaced(requests), meanwhile)
            replies = replies[1::2]
        else:
            replies = await self._exchange(raw, requests, meanwhile)
        for request, reply in zip(requests, replies, strict=True):
            self._note_asked(request, reply)
        return replies

    async def _ask_elsewhere(
        self,
        requests: Sequence[Request],
        meanwhile: Callable[[], None] | None,
        *,
        of: int,
    ) -> list[Reply]:
        """Ask what was redirected; a failure must not hide that others were executed."""
        try:
            return await self._ask(requests, meanwhile)
        except RedisUnavailableError as error:
            if len(requests) == of:
                raise
            return [error] * len(requests)

    def _note_asked(self, request: Request, reply: Reply) -> None:
        """Remember what the slot's owner has sent on to where the slot is on its way to."""
        if isinstance(reply, RedisUnavailableError) and reply.kind == "ask":
            self._asked.add(keys_of(request))

    async def _leave_host(self, requests: Sequence[Request]) -> None:
        """Go back to the slot's owner, unless it has sent on all of these requests.

        Where a slot is on its way to, a key that has not arrived yet looks absent, and
        writing it would make a second one.
        """
        if not self.asking:
            return
        if not self._asked.issuperset(map(keys_of, requests)):
            await self._close()
