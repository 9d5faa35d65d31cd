"""One key, one owner, for as long as the owner renews its lease.

The owner's token stands beside the key, and the server counts its TTL: an owner that
dies, freezes or loses its connection has lost the lease after at most one TTL. The token
holds the length of its lease, because a server whose clock is set back would keep it for
longer; and the mark of its process, so that one that was killed and started again on the
same machine does not wait for the TTL.

:class:`LeaseState` decides, without I/O. A lease that stands alone is a :class:`Lease`;
one whose value its owner writes again and again, a :class:`ValueLease`; a room that
renews many leases, or takes one within a larger step, has a script of its own for that.
All of them stand on ``lease.lua``.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from bls_agent.connection.after_fork import register
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.scripts import END_LEASE, HOLD_LEASE
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.core.keys import OWNER, place_beside

MARGIN: Final = 0.1  # of the TTL: we step down before the server ends the lease
LONGEST_MARGIN: Final = 1.0  # seconds
MAY_ARRIVE: Final = 25.0  # seconds after a loss in which a request may still be served
RENEWALS: Final = 3  # in one TTL
_TOKEN: Final = re.compile(rb"[0-9a-f]+\.(\d{1,15})(?:[@ ]|$)")  # see lease.lua
_ENDED: Final = frozenset("ZXx")  # states of a process that will never run again

Run = tuple[list[str], Sequence[Argument]]  # keys and arguments of a script


def boot_seconds() -> float:
    """Seconds of a clock that goes on while the machine sleeps, as leases do."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def valid_until(sent_at: float, ttl: float) -> float:
    """Until when a lease requested at ``sent_at`` is surely ours."""
    return sent_at + ttl - min(LONGEST_MARGIN, ttl * MARGIN)


def make_token(ttl: float) -> str:
    """Make the token of an owner, with the length of its lease and its process's mark."""
    return f"{secrets.token_hex(16)}.{_milliseconds(ttl)}@{own_mark()}".rstrip("@")


def length_of(token: bytes | None) -> float | None:
    """The seconds of a lease that stand in its token, ``None`` without."""
    found = _TOKEN.match(token or b"")
    return int(found[1]) / 1000 if found else None


def belongs_to_dead(token: str) -> bool:
    """Whether the owner of a token was a process of this machine and is dead."""
    return is_dead(token.rpartition("@")[2])


def digest_of(value: bytes) -> str:
    return hashlib.sha1(value, usedforsecurity=False).hexdigest()


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))


class Ownership(StrEnum):
    """The owner of a key, as far as we know."""

    UNKNOWN = "unknown"  # no reply yet, or our lease has ended and no other began
    OURS = "ours"  # we own it
    HELD = "held"  # another process owns it
    STANDS = "stands"  # no process owns it, but a stranger's value stands there
    WRONG_TYPE = "wrong_type"  # it, or the key of its lease, holds another type


_STANDINGS: Final = {
    **{one.value: one for one in Ownership},
    "written": Ownership.OURS,
    "refreshed": Ownership.OURS,
}


class LeaseReply(NamedTuple):
    """The reply of a script that takes or keeps a lease."""

    # ``ours``, ``held``, ``lapsed``, ``ended``, or a word of ``beat.lua``.
    what: str
    # Seconds until the other lease or value ends; ``None`` for never.
    remaining: float | None = 0.0
    strange: bool = False  # whether another process had overwritten the value
    detail: str = ""  # the token of the owner, or the key of the wrong type

    @classmethod
    def of(cls, reply: Reply) -> LeaseReply:
        what, number, detail = reply
        return cls(
            what.decode(),
            None if number < 0 else number / 1000,
            strange=what == b"written" and number == 1,
            detail=detail.decode("utf-8", "replace"),
        )


class LeaseState:
    """One owner's lease on one key: what to request, what replies mean; no I/O.

    The owner checks :attr:`valid` before each thing that only the owner may do: it is
    true as long as the server surely agrees, by our clock from *before* the last request.
    """

    def __init__(
        self,
        key: str,
        ttl: float,
        token: str = "",
        *,
        is_dead: Callable[[str], bool] = belongs_to_dead,
    ) -> None:
        self.key = key  # what is owned
        # Where the owner's token stands.
        self.owner_key = OWNER.locate(place=place_beside(key))
        self.ttl = ttl  # seconds until the lease ends if it is not renewed
        self.token = token or make_token(ttl)  # ours
        self.standing = Ownership.UNKNOWN  # by the last reply
        self.losses = 0  # how often another process has got the key from us
        self._is_dead = is_dead
        self._dead_owner = ""
        self._valid_until = float("-inf")
        self._in_doubt = False
        self._harmless_at = float("-inf")
        self._numbers = itertools.count(1)  # of requests, where a late one does nothing

    def is_valid(self, now: float) -> bool:
        return now < self._valid_until

    @property
    def valid(self) -> bool:
        return boot_seconds() < self._valid_until

    @property
    def arguments(self) -> tuple[str, int, str]:
        """The first arguments of each script that takes or keeps a lease."""
        return self.token, _milliseconds(self.ttl), self._dead_owner

    def handle_reply(self, reply: LeaseReply, *, sent_at: float, now: float) -> bool:
        """Record a reply; return whether to send the request once more, at once.

        That is so if our lease has lapsed, and if the next request names a dead owner.
        """
        if self._in_doubt:
            self._in_doubt, self._harmless_at = False, now + MAY_ARRIVE
        former, self._dead_owner = self._dead_owner, ""
        if reply.what == "late":
            return False
        before = self.standing
        self.standing = _STANDINGS.get(reply.what, Ownership.UNKNOWN)
        if self.standing is Ownership.OURS:
            self.record_renewed(sent_at)
            return False
        self._valid_until = float("-inf")
        if before is Ownership.OURS and reply.what in ("held", "stands"):
            self.losses += 1
        if reply.what == "held" and reply.detail != former:
            self._dead_owner = reply.detail if self._is_dead(reply.detail) else ""
        return reply.what == "lapsed" or bool(self._dead_owner)

    def record_renewed(self, sent_at: float) -> None:
        """Record that a request which was sent then has renewed the lease."""
        self._valid_until = max(self._valid_until, valid_until(sent_at, self.ttl))

    def record_failure(self, *, ambiguous: bool) -> None:
        """Record that a request had no reply; if ``ambiguous``, it may be executed."""
        # One that keeps a key does nothing once our lease has ended.
        if ambiguous and self.standing is not Ownership.OURS:
            self._in_doubt = True

    def end_request(self, now: float) -> Run:
        """Request to end the lease if it is ours."""
        in_doubt = self._in_doubt or now < self._harmless_at
        stays = int(MAY_ARRIVE * 1000) if in_doubt else 0
        return [self.owner_key], (self.token, stays)

    def end(self) -> None:
        """Own nothing any more, without a request to the server."""
        self.standing = Ownership.UNKNOWN
        self._valid_until = float("-inf")


class Lease(LeaseState):
    """The right to be the only process that works on a key."""

    def __init__(
        self,
        connection: Connection,
        key: str,
        ttl: float,
        *,
        is_dead: Callable[[str], bool] = belongs_to_dead,
    ) -> None:
        super().__init__(key, ttl, is_dead=is_dead)
        self.token = ""  # also once the lease is surely not ours any more
        self._connection = connection
        register(self)

    async def acquire(self) -> bool:
        """Take the lease if no living process has it, and return whether it is ours.

        Called again after an ambiguous failure, it finds out whether it is.
        """
        self.token = self.token or make_token(self.ttl)
        return await self._hold(takes=True)

    async def renew(self) -> bool:
        """Begin the TTL anew if the lease is still ours, and return whether it is.

        ``False`` is final: acquire it again.
        """
        return bool(self.token) and await self._hold(takes=False)

    async def _hold(self, *, takes: bool) -> bool:
        again = True
        while again:
            sent_at = boot_seconds()
            arguments = (*self.arguments, int(takes))
            try:
                reply = await HOLD_LEASE.run(
                    self._connection, [self.owner_key], arguments
                )
            except BaseException as error:
                self.record_failure(ambiguous=getattr(error, "ambiguous", True))
                raise
            answer = LeaseReply.of(reply)
            again = self.handle_reply(answer, sent_at=sent_at, now=boot_seconds())
            again = again and takes
        if self.standing is not Ownership.OURS:
            self.forget()
        return bool(self.token)

    async def keep(self) -> None:
        """Renew the lease three times in its TTL, and return when it is lost."""
        while True:
            await anyio.sleep(self.ttl / RENEWALS)
            with suppress(RedisUnavailableError):  # the next one may succeed
                await self.renew()
            if not self.valid:
                return

    async def give_back(self) -> None:
        """End the lease if it is ours; another process may have it at once."""
        token, run = self.token, self.end_request(boot_seconds())
        self.forget()
        if token:
            await END_LEASE.run(self._connection, *run)

    def step_down(self) -> None:
        """Not be :attr:`valid` until the server has confirmed the lease again."""
        self._valid_until = float("-inf")

    def forget(self) -> None:
        """Let the lease end by itself, without a request to the server."""
        self.token = ""
        self.end()

    reset_after_fork = forget  # in a forked child the lease is the parent's


class ValueLease(LeaseState):
    """The lease on a key whose value its owner writes again and again; works once."""

    digest = ""  # SHA-1 of the value that was last asked to be written

    def write_request(self, value: bytes, *, true: bool = True) -> Run:
        """Request to write a value; where the key is not ours yet, to take it.

        With ``true``, the value written before may be kept alive where memory is out.
        """
        former, self.digest = self.digest, digest_of(value)
        takes = self.standing is not Ownership.OURS
        number = next(self._numbers)
        how = int(takes), former, int(true)
        return [self.key, self.owner_key], (*self.arguments, number, value, *how)

    def end_request(self, now: float) -> Run:
        """Request to end the lease and to remove the value if they are ours."""
        keys, arguments = super().end_request(now)
        return [*keys, self.key], arguments


def own_mark() -> str:
    """The mark of this process: ``<machine>.<pid>.<start>.<program>``, or nothing.

    ``""`` where no process could check by it whether this one runs. The last part
    differs between programs that one process runs one after the other.
    """
    return _mark_of(os.getpid())


@cache  # by process: a forked child is another one
def _mark_of(pid: int) -> str:
    machine = _name_machine()
    started = _read_start(pid)[0] if machine else ""
    known = f"{machine}.{pid}.{started}.{_name_program(machine)}"
    return known if machine and started else ""


def is_dead(mark: str) -> bool:
    """Whether the process of a mark is surely dead.

    In doubt it is not: another machine or container, a system without ``/proc``.
    """
    parts, own = mark.split("."), own_mark().split(".")
    if len(parts) != len(own) or parts[0] != own[0] or not parts[1].isdecimal():
        return False
    pid = int(parts[1])
    if pid == os.getpid():
        return parts[2:] != own[2:]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    started, state = _read_start(pid)
    return bool(started) and (started != parts[2] or state in _ENDED)


def _read_start(pid: int) -> tuple[str, str]:
    """When a process was started, in ticks, and its state; ``""`` if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    words = text.rpartition(")")[2].split()  # its name may hold anything
    return (words[19], words[0]) if len(words) > 19 else ("", "")  # noqa: PLR2004 - proc(5): starttime is the 22nd


def _name_program(machine: str) -> str:
    """Digest the memory layout, which the kernel chooses by chance at each exec."""
    try:
        layout = Path("/proc/self/auxv").read_bytes()
    except OSError:
        layout = b""
    return hashlib.sha256(machine.encode() + layout).hexdigest()[:8]


@cache
def _name_machine() -> str:
    """Name the space in which process ids mean the same; ``""`` if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        space = str(Path("/proc/self/ns/pid").readlink())
    except (OSError, ValueError):
        return ""
    named = f"{boot} {space} {socket.gethostname()}"
    return hashlib.sha256(named.encode()).hexdigest()[:16]
