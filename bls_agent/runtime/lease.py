"""One key, one owner, for as long as the owner renews its lease.

The owner's token stands beside the key, and the server counts its TTL: two machines'
clocks are never compared, and an owner that dies, freezes or loses its connection has
lost the lease after at most one TTL. A server whose clock is set back would keep a dead
owner's lease for longer. So the token holds the length of its lease, and the first
process that wants a lease with more time left cuts it to that length.

A killed worker is often started again on the same machine within a second, and its
operating system knows that the former process is dead. With the process's identity in
the token no process has to wait for the TTL then.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import socket
import time
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from bls_agent.connection.after_fork import register
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.scripts import END_LEASE, RENEW_LEASE
from bls_agent.core.keys import OWNER, place_beside

__all__ = [
    "Lease",
    "LeaseReply",
    "LeaseState",
    "Ownership",
    "ProcessIdentity",
    "Run",
    "belongs_to_dead",
    "boot_seconds",
    "digest_of",
    "length_of",
    "make_token",
    "ttl_of",
    "valid_until",
]

MARGIN: Final = 0.1  # of the TTL: we step down before the server ends the lease
LONGEST_MARGIN: Final = 1.0  # seconds
MAY_ARRIVE: Final = 25.0  # seconds after a loss in which a request may still be served
_DIGITS: Final = 16
_TTL_WORD: Final = 3  # the place of the milliseconds in a lease, see beat.lua
_GONE: Final = frozenset("ZXx")  # states of a process that will never run again

Run = tuple[list[str], Sequence[Argument]]  # keys and arguments of a script


def boot_seconds() -> float:
    """Seconds of a clock that goes on while the machine sleeps, as leases do."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def valid_until(sent_at: float, ttl: float) -> float:
    """Until when a lease requested at ``sent_at`` is surely ours."""
    return sent_at + ttl - min(LONGEST_MARGIN, ttl * MARGIN)


def length_of(token: bytes | None) -> float | None:
    """The seconds of a lease that stand in its token, ``None`` without."""
    found = (token or b"").partition(b"@")[0].partition(b".")[2]
    return int(found) / 1000 if found.isdigit() and len(found) < _DIGITS else None


class Lease:
    """The right to be the only process that works on a key.

    The holder has to check :attr:`valid` before each thing that only the owner may do:
    it is true only as long as the server surely still agrees, by our own clock from the
    moment *before* the last request was sent.
    """

    def __init__(self, connection: Connection, key: str, ttl: float) -> None:
        self._connection = connection
        self.key = key  # what is owned
        # Where the owner's token stands.
        self.owner_key = OWNER.locate(place=place_beside(key))
        self.ttl = ttl  # seconds until the lease ends if it is not renewed
        self.token = ""  # ours, ``""`` once the lease is surely not ours any more
        self._valid_until = float("-inf")
        register(self)

    @property
    def valid(self) -> bool:
        """Whether the lease is surely still ours."""
        return boot_seconds() < self._valid_until

    async def acquire(self) -> bool:
        """Take the lease if no process has it, and return whether it is ours.

        Called again after an ambiguous failure, it finds out whether it is ours
        already.
        """
        self.token = self.token or f"{secrets.token_hex(16)}.{self._ttl_ms}"
        sent_at = boot_seconds()
        request = ("SET", self.owner_key, self.token, "NX", "PX", self._ttl_ms)
        if await self._connection.call(*request) is not None:
            self._valid_until = valid_until(sent_at, self.ttl)
            return True
        return await self.renew()

    async def renew(self) -> bool:
        """Begin the TTL anew if the lease is still ours, and return whether it is.

        ``False`` is final: acquire it again, with a new token. RedisUnavailableError
        leaves :attr:`valid` as it was.
        """
        sent_at, token = boot_seconds(), self.token
        if token and await RENEW_LEASE.run(
            self._connection, [self.owner_key], [token, self._ttl_ms]
        ):
            self._valid_until = valid_until(sent_at, self.ttl)
            return True
        self.forget()
        return False

    async def give_back(self) -> None:
        """End the lease if it is ours; another process may have it at once.

        After RedisUnavailableError it ends by itself, at the end of its TTL.
        """
        token = self.token
        self.forget()
        if token:
            await END_LEASE.run(self._connection, [self.owner_key], [token])

    def step_down(self) -> None:
        """Not be :attr:`valid` until the server has confirmed the lease again."""
        self._valid_until = float("-inf")

    def forget(self) -> None:
        """Let the lease end by itself, without a request to the server."""
        self.token = ""
        self.step_down()

    def forget_parent(self) -> None:
        """In a forked child the lease is the parent's."""
        self.forget()

    @property
    def _ttl_ms(self) -> int:
        return max(1, int(self.ttl * 1000))


class Ownership(StrEnum):
    """The owner of a key, as far as we know."""

    UNKNOWN = "unknown"  # no reply yet, or our lease has ended and no other began
    OURS = "ours"  # we own it
    HELD = "held"  # another process owns it
    STANDS = "stands"  # no process owns it, but a stranger's value stands there
    WRONG_TYPE = "wrong_type"  # it, or the key of its lease, holds another type


class LeaseReply(NamedTuple):
    """The reply of ``beat.lua``."""

    # Of the script: ``written``, ``refreshed``, ``held``, ``stands``, ``lapsed``,
    # ``late``, ``wrong_type``.
    what: str
    # Seconds until the other lease or value ends; ``None`` for never.
    remaining: float | None = 0.0
    strange: bool = False  # whether another process had overwritten the value
    whose: str = ""  # the token of the owner, or the key of the wrong type

    @classmethod
    def of(cls, reply: Reply) -> LeaseReply:
        """Read the reply of ``beat.lua``."""
        what, number, whose = reply
        name = what.decode()
        remaining = max(number, 0) / 1000
        return cls(
            name,
            None if name in _OTHERS and number < 0 else remaining,
            strange=name == "written" and number == 1,
            whose=whose.decode("utf-8", "replace"),
        )


_OTHERS: Final = {
    "held": Ownership.HELD,
    "stands": Ownership.STANDS,
    "wrong_type": Ownership.WRONG_TYPE,
}


class LeaseState:
    """The lease on a key whose value its owner writes again and again; works once.

    Value and lease are renewed in one step, and many of them in one write. This decides
    what to request and what the replies mean, without I/O. Only a write that takes a
    key needs care afterwards: one that keeps it does nothing once our lease has ended.
    """

    def __init__(self, key: str, ttl: float, token: str = "") -> None:
        self.key = key  # what is owned
        # Where the owner's token stands.
        self.owner_key = OWNER.locate(place=place_beside(key))
        self.ttl = ttl  # seconds until key and lease end without another write
        self.token = token or secrets.token_hex(16)  # ours; made here if none is given
        self.standing = Ownership.UNKNOWN  # by the last reply
        self.losses = 0  # how often another process has got the key from us
        self._numbers = itertools.count(1)
        self.digest = ""  # SHA-1 of the value that was last asked to be written
        self._valid_until = float("-inf")
        self._in_doubt = False
        self._harmless_at = float("-inf")

    def is_valid(self, now: float) -> bool:
        """Whether the key is surely ours, by :func:`boot_seconds`."""
        return now < self._valid_until

    def write_request(self, value: bytes, *, true: bool = True, dead: str = "") -> Run:
        """Request to write a value; where the key is not ours yet, to take it.

        With ``true``, the value written before may be kept alive where memory is out;
        ``dead`` is the token of an owner that is surely dead.
        """
        takes = self.standing is not Ownership.OURS
        former = self.digest
        self.record_written(value)
        return self._run(value, takes=takes, former=former, dead=dead, true=true)

    def record_written(self, value: bytes) -> None:
        """Record a value of ours that may stand there, however it was written."""
        self.digest = digest_of(value)

    def keep_request(self, value: bytes) -> Run:
        """Request to write only while the key is ours; from any thread.

        Nothing changes here: the reply needs no :meth:`handle_reply`.
        """
        return self._run(value, takes=False, true=False)

    def _run(
        self, value: bytes, *, takes: bool, true: bool, former: str = "", dead: str = ""
    ) -> Run:
        number, ttl = next(self._numbers), int(self.ttl * 1000)
        return [self.key, self.owner_key], (
            self.token, number, value, ttl, int(takes), former, dead, int(true),
        )  # fmt: skip

    def handle_reply(self, reply: LeaseReply, *, sent_at: float, now: float) -> bool:
        """Record the reply to :meth:`write_request`; return whether it has written."""
        if self._in_doubt:
            self._in_doubt, self._harmless_at = False, now + MAY_ARRIVE
        if reply.what in ("written", "refreshed"):
            self.standing = Ownership.OURS
            self._valid_until = valid_until(sent_at, self.ttl)
            return reply.what == "written"
        if reply.what == "late":
            return False
        if self.standing is Ownership.OURS and reply.what in ("held", "stands"):
            self.losses += 1
        self.standing = _OTHERS.get(reply.what, Ownership.UNKNOWN)
        self._valid_until = float("-inf")
        return False

    def record_failure(self, *, ambiguous: bool) -> None:
        """Record that a request had no reply; if ``ambiguous``, it may be executed."""
        if ambiguous and self.standing is not Ownership.OURS:
            self._in_doubt = True

    def end_request(self, now: float) -> Run:
        """Request to end the lease and to remove the key if they are ours."""
        in_doubt = self._in_doubt or now < self._harmless_at
        stays = int(MAY_ARRIVE * 1000) if in_doubt else 0
        return [self.key, self.owner_key], (self.token, stays)

    def end(self) -> None:
        """Own nothing any more, without a request to the server."""
        self.standing = Ownership.UNKNOWN
        self._valid_until = float("-inf")


def ttl_of(lease: object) -> float | None:
    """The seconds for which an owner's writes count, as they stand in its lease."""
    words = lease.split() if isinstance(lease, bytes) else []
    found = words[_TTL_WORD] if len(words) > _TTL_WORD else b""
    return int(found) / 1000 if found.isdigit() and len(found) < _DIGITS else None


def digest_of(value: bytes) -> str:
    """The SHA-1 of a value, as the script computes it."""
    return hashlib.sha1(value, usedforsecurity=False).hexdigest()


class ProcessIdentity:
    """The mark of this process: ``<machine>.<pid>.<start>.<program>``, or nothing.

    The last part differs between programs that one process runs one after the other; it
    is the same in every interpreter of a process, and for each copy of this module.
    """

    def __init__(self) -> None:
        self._mark: str | None = None
        register(self)

    def forget_parent(self) -> None:
        """A forked child is another process."""
        self._mark = None

    @property
    def own(self) -> str:
        """The mark; ``""`` where no process could check by it whether this one runs."""
        if self._mark is None:
            machine, pid = _name_machine(), os.getpid()
            started = _read_start(pid)[0] if machine else ""
            known = f"{machine}.{pid}.{started}.{_name_program(machine)}"
            self._mark = known if machine and started else ""
        return self._mark

    def is_dead(self, mark: str) -> bool:
        """Whether the process of a mark is surely dead.

        In doubt it is not: another machine or container, a system without ``/proc``.
        """
        parts, own = mark.split("."), self.own.split(".")
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
        return bool(started) and (started != parts[2] or state in _GONE)


def _read_start(pid: int) -> tuple[str, str]:
    """When a process was started, in ticks, and its state; ``""`` if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    words = text.rpartition(")")[2].split()  # its name may hold anything
    return (words[19], words[0]) if len(words) > 19 else ("", "")  # noqa: PLR2004 - proc(5): starttime is the 22nd


def _name_program(machine: str) -> str:
    """Digest the memory layout, which the kernel chooses by chance at each exec.

    Where it does not, a program after an exec counts as the former one, still alive:
    its id is free after the TTL.
    """
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


_IDENTITY: Final = ProcessIdentity()


def make_token(ttl: float) -> str:
    """Make the token of an owner: the length of its lease and its process's identity.

    Other processes see by it whether the lease became longer, or the owner is dead.
    """
    milliseconds = max(1, int(ttl * 1000))
    return f"{secrets.token_hex(16)}.{milliseconds}@{_IDENTITY.own}".removesuffix("@")


def belongs_to_dead(token: str) -> bool:
    """Whether the owner of a token was a process of this machine and is dead."""
    return _IDENTITY.is_dead(token.rpartition("@")[2])
