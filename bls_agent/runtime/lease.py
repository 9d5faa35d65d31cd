"""Leases: one process owns a key for as long as it renews its lease.

A second key holds the token of the owner and has a TTL. An owner that dies, freezes or
loses its connection loses the lease after at most one TTL. Besides random digits, the
token contains two values:

* the length of the lease, because a server whose clock is set back would keep the key
  for longer
* a mark of the process, so that a process that was killed and starts again on the same
  machine need not wait for the TTL

:class:`LeaseState` makes the decisions without I/O. :class:`Lease` is a lease without a
value. :class:`ValueLease` is a lease on a value that the owner writes repeatedly.
Modules that renew many leases at once, or take a lease as part of a larger step, have
their own scripts. Scripts that judge the lease of another process use ``lease.lua``.
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
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from bls_agent.connection.after_fork import register
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import MAY_ARRIVE, Argument, Reply
from bls_agent.connection.scripts import END_LEASE, HOLD_LEASE
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.core.keys import OWNER, place_beside

# The owner stops using its lease when this share of the TTL is left.
MARGIN: Final = 0.1
LONGEST_MARGIN: Final = 1.0  # largest such time in seconds
RENEWALS: Final = 3  # renewals in one TTL
_TOKEN: Final = re.compile(rb"[0-9a-f]+\.(\d{1,15})(?:[@ ]|$)")  # see lease.lua
_ENDED: Final = frozenset("ZXx")  # states in /proc of a process that has ended

Run = tuple[list[str], Sequence[Argument]]  # keys and arguments of a script


def boot_seconds() -> float:
    """Return the seconds of a clock that also counts while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def valid_until(sent_at: float, ttl: float) -> float:
    """Return until when a lease that was requested at ``sent_at`` is surely ours."""
    return sent_at + ttl - min(LONGEST_MARGIN, ttl * MARGIN)


def make_token(ttl: float) -> str:
    """Return a new token with the length of the lease and the mark of this process."""
    return f"{secrets.token_hex(16)}.{_milliseconds(ttl)}@{own_mark()}".rstrip("@")


def length_of(token: bytes | None) -> float | None:
    """Return the length of a lease in seconds from its token; ``None`` if missing."""
    found = _TOKEN.match(token or b"")
    return int(found[1]) / 1000 if found else None


def belongs_to_dead(token: str) -> bool:
    """Return whether a token belongs to a process of this machine that is dead."""
    return is_dead(token.rpartition("@")[2])


def digest_of(value: bytes) -> str:
    return hashlib.sha1(value, usedforsecurity=False).hexdigest()


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))


class Ownership(StrEnum):
    """Who owns a key, as far as this process knows."""

    UNKNOWN = "unknown"  # no reply yet, or our lease has ended and no other began
    OURS = "ours"  # this process owns the key
    HELD = "held"  # another process owns the key
    STANDS = "stands"  # no process owns the key, but another program wrote its value
    WRONG_TYPE = "wrong_type"  # the key, or the key of the lease, has a wrong type


_STANDINGS: Final = {
    **{one.value: one for one in Ownership},
    "written": Ownership.OURS,
    "refreshed": Ownership.OURS,
}


class LeaseReply(NamedTuple):
    """The reply of a script that takes or keeps a lease."""

    # ``ours``, ``held``, ``lapsed``, ``ended``, or a result of ``beat.lua``.
    what: str
    # Seconds until the other owner's lease or value ends; ``None`` for never.
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
    """The lease of one owner on one key, without I/O: makes requests, reads replies.

    The owner checks :attr:`valid` before each action that only the owner may do.
    :attr:`valid` is true only while the server surely has the lease, because the time
    is counted from *before* the last request.
    """

    def __init__(
        self,
        key: str,
        ttl: float,
        token: str = "",
        *,
        is_dead: Callable[[str], bool] = belongs_to_dead,
    ) -> None:
        self.key = key  # the owned key
        # The key of the owner's token.
        self.owner_key: str = OWNER.locate(place=place_beside(key))
        self.ttl = ttl  # seconds until the lease ends if it is not renewed
        self.token: str = token or make_token(ttl)
        self.standing: Ownership = Ownership.UNKNOWN  # according to the last reply
        self.losses: int = 0  # how often another process has taken our key
        self._is_dead = is_dead
        self._dead_owner = ""
        self._valid_until = -inf
        # Until when a lost request of ours may arrive; infinite without a later reply.
        self._may_arrive_until = -inf
        # Writes are numbered, so that the script can ignore a write that arrives late.
        self._numbers = itertools.count(1)

    @property
    def valid(self) -> bool:
        return boot_seconds() < self._valid_until

    @property
    def arguments(self) -> tuple[str, int, str]:
        """The first arguments of each script that takes or keeps a lease."""
        return self.token, _milliseconds(self.ttl), self._dead_owner

    def handle_reply(self, reply: LeaseReply, *, sent_at: float, now: float) -> bool:
        """Record a reply; return whether to send the request again at once.

        Returns true if our lease has lapsed, or if the next request names a dead owner.
        """
        if self._may_arrive_until == inf:
            self._may_arrive_until = now + MAY_ARRIVE
        former, self._dead_owner = self._dead_owner, ""
        if reply.what == "late":
            return False
        before = self.standing
        self.standing = _STANDINGS.get(reply.what, Ownership.UNKNOWN)
        if self.standing is Ownership.OURS:
            self.record_renewed(sent_at)
            return False
        self._valid_until = -inf
        if before is Ownership.OURS and reply.what in ("held", "stands"):
            self.losses += 1
        if reply.what == "held" and reply.detail != former:
            self._dead_owner = reply.detail if self._is_dead(reply.detail) else ""
        return reply.what == "lapsed" or bool(self._dead_owner)

    def record_renewed(self, sent_at: float) -> None:
        """Record that a request sent at ``sent_at`` has renewed the lease."""
        self._valid_until = max(self._valid_until, valid_until(sent_at, self.ttl))

    def record_failure(self, *, ambiguous: bool) -> None:
        """Record a failed request; if ``ambiguous``, Redis may have executed it."""
        # A renewal that arrives too late changes nothing. Any other late request may
        # take the key.
        if ambiguous and self.standing is not Ownership.OURS:
            self._may_arrive_until = inf

    def end_request(self, now: float) -> Run:
        """Return the request that ends the lease if it is ours."""
        stays = int(MAY_ARRIVE * 1000) if now < self._may_arrive_until else 0
        return [self.owner_key], (self.token, stays)

    def end(self) -> None:
        """Drop the lease in this process only, without a request to the server."""
        self.standing = Ownership.UNKNOWN
        self._valid_until = -inf


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
        self.token: str = ""  # empty while the lease is surely not ours
        self._connection = connection
        register(self)

    async def acquire(self) -> bool:
        """Take the lease if no live process has it; return whether it is ours.

        After an ambiguous failure, call this again to find out whether the lease is
        ours.
        """
        self.token = self.token or make_token(self.ttl)
        return await self._hold(takes=True)

    async def renew(self) -> bool:
        """Restart the TTL if the lease is still ours; return whether it is ours.

        After ``False`` the lease is lost and has to be acquired again.
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
            with suppress(RedisUnavailableError):  # the next renewal may succeed
                await self.renew()
            if not self.valid:
                return

    async def give_back(self) -> None:
        """End the lease if it is ours; another process may then take it at once."""
        token, run = self.token, self.end_request(boot_seconds())
        self.forget()
        if token:
            await END_LEASE.run(self._connection, *run)

    def step_down(self) -> None:
        """Make :attr:`valid` false until the server confirms the lease again."""
        self._valid_until = -inf

    def forget(self) -> None:
        """Stop using the lease without a request; at the server the lease expires."""
        self.token = ""
        self.end()

    reset_after_fork = forget  # after a fork the lease stays with the parent


class ValueLease(LeaseState):
    """The lease on a key whose value its owner writes repeatedly.

    An object is for one lease, and cannot be used again after the lease has ended.
    """

    digest: str = ""  # SHA-1 of the value in the last write request

    def write_request(self, value: bytes, *, true: bool = True) -> Run:
        """Return the request that writes a value, and first takes the key if needed.

        ``true`` means that consoles may still show the former value. If the server is
        out of memory, the TTL of the former value is then renewed instead.
        """
        former, self.digest = self.digest, digest_of(value)
        takes = self.standing is not Ownership.OURS
        number = next(self._numbers)
        how = int(takes), former, int(true)
        return [self.key, self.owner_key], (*self.arguments, number, value, *how)

    def end_request(self, now: float) -> Run:
        """Return the request that ends the lease and removes the value, if both are ours."""
        keys, arguments = super().end_request(now)
        return [*keys, self.key], arguments


def own_mark() -> str:
    """Return the mark of this process: ``<machine>.<pid>.<start>.<program>``.

    Returns ``""`` if no other process could use the mark to check whether this process
    runs. The last part changes if the process replaces its program by ``exec``.
    """
    return _mark_of(os.getpid())


@cache  # by process id, because a forked child needs its own mark
def _mark_of(pid: int) -> str:
    machine = _name_machine()
    started = _read_start(pid)[0] if machine else ""
    known = f"{machine}.{pid}.{started}.{_name_program(machine)}"
    return known if machine and started else ""


def is_dead(mark: str) -> bool:
    """Return whether the process of a mark is surely dead.

    Returns false in doubt, such as for a process of another machine or container.
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
    """Return the start of a process in clock ticks, and its state; ``""`` in doubt."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    words = text.rpartition(")")[2].split()  # a process name may contain ")"
    return (words[19], words[0]) if len(words) > 19 else ("", "")  # noqa: PLR2004 - proc(5): starttime is the 22nd


def _name_program(machine: str) -> str:
    """Return a digest of the memory layout, which the kernel randomizes at each exec."""
    try:
        layout = Path("/proc/self/auxv").read_bytes()
    except OSError:
        layout = b""
    return hashlib.sha256(machine.encode() + layout).hexdigest()[:8]


@cache
def _name_machine() -> str:
    """Return a digest of machine, boot and process namespace; ``""`` if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        space = str(Path("/proc/self/ns/pid").readlink())
    except (OSError, ValueError):
        return ""
    named = f"{boot} {space} {socket.gethostname()}"
    return hashlib.sha256(named.encode()).hexdigest()[:16]
