"""Implements ``pause``, ``resume`` and ``drain``: whether an agent takes commands.

A paused, draining or drained agent handles commands as follows:

1. A built-in command in the control list is taken and run at once, at any position of
   the list. The oldest command is taken first. LREM removes the command by its exact
   bytes. If LREM removes nothing, another process has taken the command. Therefore a
   built-in command runs at most once in every mode.
2. Any other command stays in the control list.
3. A command that was taken and not started is put back to the head of the list. If
   Redis surely has not put it back, the agent runs the command. If the reply is lost,
   the agent reports the command as cancelled, because it may be in the list again.
4. A command whose handler runs is run to its end.
5. Cases 1 and 2 also apply to the inbox of a replica.

A busy agent that takes commands searches only the newest commands of the list for
``pause`` and ``drain``, so that they do not wait behind a backlog. A pause is stored
only in this process. Therefore an outage of Redis does not end the pause. The end of
the session ends it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import anyio

from bls_agent.connection.connection import Connection
from bls_agent.core.checks import check_text
from bls_agent.core.codec import JSONObject, cut_text
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError, Reject
from bls_agent.core.settings import BUILTINS, PAUSING
from bls_agent.project.commands.dispatcher import Dispatcher, Taking
from bls_agent.project.messages import Command, IntakeState
from bls_agent.project.receive.receiver import Message, Receiver
from bls_agent.project.status.intake import IntakePublisher

LOOK_EVERY: Final = 1.0  # seconds between two searches of the newest commands
LOOK_THROUGH: Final = 10.0  # seconds between two searches of the whole list
SHARE: Final = 10  # the pause after a search is this many times its duration
PUBLISH_EVERY: Final = 10.0  # seconds between two reports during a search
REFUSED: Final = 30.0  # seconds until the next search after Redis refused a request
PAGE: Final = 50  # commands in one read; few, because a command may be long
REASON_LIMIT: Final = 1_000  # bytes of the reason for a pause


class BuiltinSearch:
    """Finds and takes built-in commands in a list, and leaves all other commands."""

    def __init__(
        self,
        connection: Connection,
        key: str,
        mode: str,
        is_wanted: Callable[[str], bool],
    ) -> None:
        self._connection = connection
        self._key = key
        self.mode = mode  # the mode of the messages that are taken from this list
        self._is_wanted = is_wanted
        self._look_at = self._look_through_at = float("-inf")

    async def find(
        self, after_page: Callable[[], Awaitable[bool]], *, whole: bool
    ) -> Sequence[bytes]:
        """Return the wanted commands, oldest first.

        With ``whole=True`` the whole list is searched, but at most every 10 s. All
        other calls search only the newest ``PAGE`` commands. ``after_page`` is called
        between two pages, and ends the search if it returns false. Raises
        RedisUnavailableError. After Redis has refused a request, the result is empty
        for 30 s.
        """
        if anyio.current_time() < self._look_at:
            return ()
        try:
            return await self._find(after_page, whole=whole)
        except RedisRefusedError:
            self._look_at = anyio.current_time() + REFUSED
            raise

    async def _find(
        self, after_page: Callable[[], Awaitable[bool]], *, whole: bool
    ) -> Sequence[bytes]:
        began, last = anyio.current_time(), -1
        whole = whole and began >= self._look_through_at
        found: list[bytes] = []
        while True:
            window = (self._key, last - PAGE + 1, last)
            page: list[bytes] = await self._connection.read("LRANGE", *window)
            found += filter(self._matches, reversed(page))
            last -= PAGE
            if not whole or len(page) < PAGE:
                break
            if not await after_page():
                return ()
        now = anyio.current_time()
        self._look_at = now + SHARE * (now - began)
        if whole:
            self._look_through_at = max(self._look_at, now + LOOK_THROUGH)
        return found[::-1]

    def _matches(self, payload: bytes) -> bool:
        may_match = any(name in payload for name in _NAMES)  # parsing is slow
        return may_match and self._is_wanted(Command.peek(payload).command)

    async def take(self, payload: bytes) -> bool:
        """Remove a command from the list. Return false if another process took it."""
        return bool(await self._connection.call("LREM", self._key, 1, payload))

    async def check_rights(self) -> None:
        """Raise RedisRefusedError if the ACL user may not read or change the list."""
        await self._connection.read("LRANGE", self._key, -1, -1)
        await self._connection.call("LREM", self._key, 1, secrets.token_bytes(16))


_NAMES: Final = tuple(name.encode() for name in BUILTINS)


class IntakeSwitch:
    """Pauses and resumes the intake of one session, and takes built-in commands.

    The intake is the taking of commands from Redis. Its states are those of
    :class:`IntakeState`. From each state ``pause`` changes to ``PAUSED``, ``drain`` to
    ``DRAINING``, and ``resume`` to ``OPEN``. ``DRAINING`` becomes ``DRAINED`` when all
    taken commands have ended. Running ``drain`` commands are not counted.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        receiver: Receiver,
        publisher: IntakePublisher,
        lists: Sequence[tuple[Connection, str, str]],
        *,
        is_builtin: Callable[[str], bool],
        announce: Callable[[str, JSONObject], None],
        redact: Callable[[str], str],
    ) -> None:
        """Set the lists to search and the functions to call.

        ``lists`` has the connection, the key and the message mode of the control list,
        and of the inbox if the agent has one. ``announce`` logs each change of the
        state. ``redact`` removes secrets from the reason of a pause.
        """
        self._dispatcher = dispatcher
        self._receiver = receiver
        self._publisher = publisher
        self._searches = [BuiltinSearch(*one, self._is_wanted) for one in lists]
        self._is_builtin = is_builtin
        self._announce = announce
        self._redact = redact
        self.state: IntakeState = IntakeState.OPEN
        self._reason: str = ""
        self._changed_at = time.monotonic()
        self._changed = anyio.Event()
        self._lock = anyio.Lock()  # held while the dispatcher changes to the state
        # Held while the state is written to Redis, so that close() writes the last one.
        self._publishing = anyio.Lock()
        # The callers that wait in drain(): a running command, or None for the program.
        self._drains: list[Message | None] = []
        self._received = 0  # Dispatcher.received at the last call of _look()

    # --- called by the built-in commands and by the program

    async def pause(self, reason: str = "") -> None:
        """Take no more commands. Return when the receiver has stopped taking them."""
        self._enter(IntakeState.PAUSED, check_text("reason", reason))
        await self._follow_state()

    def resume(self) -> None:
        """Let :meth:`run` take commands again. Call it in the session's event loop."""
        self._enter(IntakeState.OPEN)

    async def drain(self, reason: str = "") -> bool:
        """Pause, and wait until every command that was taken has ended.

        Return false if the agent was paused, resumed or closed meanwhile.
        """
        check_text("reason", reason)
        run = self._dispatcher.caller
        self._drains.append(run)
        try:
            self._enter(IntakeState.DRAINING, reason)
            await self._follow_state()
            while self.state is IntakeState.DRAINING:
                if self._dispatcher.ended or self._check_drained():
                    break  # a handler that was cancelled at the end has not ended
                with anyio.move_on_after(LOOK_EVERY):
                    await self._dispatcher.change()
        finally:
            self._drains.remove(run)
        return self.state is IntakeState.DRAINED

    async def check_rights(self) -> None:
        """Raise Reject if a paused agent could not take ``resume`` from the list."""
        try:
            await self._searches[0].check_rights()
        except RedisRefusedError as error:
            reason = f"a paused agent could not take 'resume' here: {error}"
            raise Reject(reason) from error
        except RedisUnavailableError:
            pass

    @property
    def instance(self) -> str:
        return self._publisher.instance

    def describe(self) -> JSONObject:
        return {"instance": self.instance, "intake": self.state.value}

    # --- states

    def _enter(self, state: IntakeState, reason: str = "") -> None:
        reason = cut_text(self._redact(reason), REASON_LIMIT)
        is_done = state is IntakeState.DRAINING and self.state is IntakeState.DRAINED
        if is_done or (state is self.state and reason == self._reason):
            return
        self.state, self._reason = state, reason
        self._changed_at = time.monotonic()
        self._changed.set()
        text = _TEXTS[state] + (reason and f": {reason}")
        self._announce(text, {"intake": state.value})

    async def _follow_state(self) -> None:
        """Let the dispatcher stop or start to take commands, as the state requires.

        A caller of :meth:`pause` may be cancelled while the dispatcher stops. Then the
        next call continues, or lets the dispatcher take commands again.
        """
        async with self._lock:
            taking = self._dispatcher.taking
            if self.state is IntakeState.OPEN:
                if taking is not Taking.YES:
                    self._dispatcher.take()
            elif taking is not Taking.NO:
                await self._dispatcher.hold()

    def _check_drained(self) -> bool:
        is_held = self._dispatcher.taking is Taking.NO
        if self.state is IntakeState.DRAINING and is_held and not self._in_hand:
            self._enter(IntakeState.DRAINED, self._reason)
        return self.state is IntakeState.DRAINED

    @property
    def _in_hand(self) -> int:
        return self._dispatcher.count_in_hand(besides=self._drains)

    # --- the loop

    async def run(self) -> None:
        """Take built-in commands and publish the state, until the agent stops."""
        while not self._dispatcher.stopping:
            with anyio.move_on_after(LOOK_EVERY):
                await self._changed.wait()
            self._changed = anyio.Event()
            await self._follow_state()
            with suppress(RedisUnavailableError):
                await self._look()
            self._check_drained()
            with suppress(RedisUnavailableError):
                await self._publish()

    async def _look(self) -> None:
        """Take the built-in commands of each list, until the state changes."""
        before, received = self._received, self._dispatcher.received
        self._received = received
        if self.state is not IntakeState.OPEN:
            await self._dispatcher.rest()
        elif received == before and not self._dispatcher.count_in_hand():
            return  # an idle agent gets ``pause`` through its receiver
        for search in self._searches:
            # If Redis refuses to read one list, the others are searched. The connection
            # has logged the refusal.
            with suppress(RedisRefusedError):
                await self._take_builtins(search)

    async def _take_builtins(self, search: BuiltinSearch) -> None:
        state, published = self.state, anyio.current_time()

        def is_due() -> bool:
            return self.state is state and not self._dispatcher.stopping

        async def after_page() -> bool:
            """Publish the state if the last report is old; return whether to go on."""
            nonlocal published
            if anyio.current_time() - published > PUBLISH_EVERY:
                with suppress(RedisUnavailableError):
                    await self._publish()
                published = anyio.current_time()
            return is_due()

        whole = state is not IntakeState.OPEN
        for payload in await search.find(after_page, whole=whole):
            if not is_due():
                return
            if payload != self._receiver.standing and await search.take(payload):
                message = Message(payload, mode=search.mode)
                ended = self._dispatcher.run_aside(message)
                with anyio.move_on_after(LOOK_EVERY):
                    await ended.wait()

    def _is_wanted(self, command: str) -> bool:
        names = PAUSING if self.state is IntakeState.OPEN else BUILTINS
        return command in names and self._is_builtin(command)

    async def _publish(self) -> None:
        async with self._publishing:
            if self.state is IntakeState.OPEN or self._dispatcher.stopping:
                await self._publisher.withdraw()
            else:
                await self._publisher.publish(
                    self.state, self._reason, self._changed_at, self._in_hand
                )

    async def close(self) -> None:
        """Remove the published state when the agent stops, if Redis answers."""
        with suppress(RedisUnavailableError):
            await self._publish()


_TEXTS: Final = {
    IntakeState.OPEN: "resumed: commands are taken again",
    IntakeState.PAUSED: "paused: no more commands are taken",
    IntakeState.DRAINING: "draining: no more commands are taken, the running ones end",
    IntakeState.DRAINED: "drained: no command is in hand",
}
