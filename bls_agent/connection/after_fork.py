"""What a forked child inherits and must not touch: connections, locks, event loops.

A child's descriptors are the parent's open files: a write into a connection arrives as
the parent's, and a transport that is closed through its event loop leaves the selector
that both processes share, which makes the *parent* deaf. So what is registered here
drops what it inherited, without calling the loop, and is as if it had just been made.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakValueDictionary

logger = logging.getLogger(__name__)


class ForkAware(Protocol):
    """An object that a forked child inherits and only the parent can go on using."""

    def reset_after_fork(self) -> None:
        """Begin afresh; called in the child, in its only thread. Must not wait."""
        ...


_FORK_AWARE: Final[WeakValueDictionary[int, ForkAware]] = WeakValueDictionary()
# Objects that the child must keep: a finaliser would be noisy, or worse.
_INHERITED: Final[list[object]] = []


def register(instance: ForkAware) -> None:
    """Have ``instance.reset_after_fork()`` called in each child; keeps a weak reference."""
    _FORK_AWARE[id(instance)] = instance


def _reset_all() -> None:
    """Reset the youngest first: the connections of a session before the session."""
    for reference in reversed(_FORK_AWARE.valuerefs()):
        instance = reference()
        if instance is None:
            continue
        try:
            instance.reset_after_fork()
        except Exception:  # the others must not suffer
            logger.exception("%r could not be reset after a fork", instance)


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_reset_all)


def never_finalize(inherited: object) -> None:
    """Never release an inherited object, so that no finaliser runs on it."""
    _INHERITED.append(inherited)


def detach_fd(descriptor: int) -> None:
    """Close a socket without its transport, which belongs to the parent's loop.

    The descriptor then leads to ``/dev/null``: a transport that closes it later closes
    no other file, and no selector finds the parent's entry by it.
    """
    if os.name != "posix":
        return  # there are no children, and a socket is no descriptor
    with suppress(OSError):  # closed already, or no descriptor is left
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nowhere, descriptor, inheritable=False)
            os.close(nowhere)


def exit_if_child(error: BaseException | None, parent: int) -> None:
    """End a child of the process ``parent`` in which a handler has called ``sys.exit``.

    The exception cannot unwind the event loop, because its selector is the parent's.
    """
    if not isinstance(error, SystemExit) or os.getpid() == parent:
        return
    code = error.code
    with suppress(Exception):  # there may be no streams
        if not isinstance(code, int | None):
            sys.stderr.write(f"{code}\n")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0 if isinstance(code, int | None) else 1)
