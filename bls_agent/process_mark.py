"""By what a process is known on its machine, and whether a former one surely is dead.

A worker that died without a word is often started again on the same machine within a
second, long before its lease ends. Its operating system knows that it is dead; nobody
has to wait for a TTL then. Whatever is not surely known counts as alive: another
machine, another container, a system without ``/proc``.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from functools import cache
from pathlib import Path
from typing import Final

from bls_agent.forking import register

__all__ = ["Marks", "belongs_to_dead", "make_token"]

_GONE: Final = frozenset("ZXx")  # states of a process that will never run again


class Marks:
    """The mark of this process: ``<machine>.<pid>.<start>.<program>``, or nothing.

    The last part tells the programs apart that one process runs one after the other; it
    is the same in every interpreter of a process, and for each copy of this module.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._mark: str | None = None
        register(self)

    def forget_parent(self) -> None:
        """In a forked child: it is another process."""
        self._mark = None

    @property
    def own(self) -> str:
        """The mark; ``""`` where nobody could tell by it whether we live."""
        if self._mark is None:
            machine, pid = _name_machine(), os.getpid()
            started = _read_start(pid)[0] if machine else ""
            known = f"{machine}.{pid}.{started}.{_name_program(machine)}"
            self._mark = known if machine and started else ""
        return self._mark

    def is_dead(self, mark: str) -> bool:
        """Tell whether the process of a mark surely lives no more."""
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
    """Give when a process was started, in ticks, and its state; nothing if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    words = text.rpartition(")")[2].split()  # its name may hold anything
    return (words[19], words[0]) if len(words) > 19 else ("", "")  # noqa: PLR2004 - proc(5): starttime is the 22nd


def _name_program(machine: str) -> str:
    """Name what an exec has put in place: the kernel lays out each anew, by chance.

    Where it does not, or does not tell, one that followed an exec counts as the former
    one, which lives: its id is free after the TTL.
    """
    try:
        layout = Path("/proc/self/auxv").read_bytes()
    except OSError:
        layout = b""
    return hashlib.sha256(machine.encode() + layout).hexdigest()[:8]


@cache
def _name_machine() -> str:
    """Name the space in which process ids mean the same; nothing if nobody knows."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        space = str(Path("/proc/self/ns/pid").readlink())
    except (OSError, ValueError):
        return ""
    named = f"{boot} {space} {socket.gethostname()}"
    return hashlib.sha256(named.encode()).hexdigest()[:16]


_MARKS: Final = Marks()


def make_token(ttl: float) -> str:
    """Make the token of an owner, by which its machine can tell whether it lives.

    Args:
        ttl: Seconds of its lease. The token tells them, too, so that others can see that
            a lease has become longer than it was made.
    """
    milliseconds = max(1, int(ttl * 1000))
    return f"{secrets.token_hex(16)}.{milliseconds}@{_MARKS.own}".removesuffix("@")


def belongs_to_dead(token: str) -> bool:
    """Tell whether the owner of a token was a process of this machine and is dead."""
    return _MARKS.is_dead(token.rpartition("@")[2])
