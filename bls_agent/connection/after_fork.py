"""Reset of objects that a forked child inherits: connections, locks, event loops.

A child shares the open sockets of its parent, and the server cannot distinguish their
writes. If the child closes a transport through its event loop, the loop removes the
socket from the selector that both processes share, and the *parent* receives no more
data. So each object that is registered here drops its connections without using the
loop, and becomes like a new object.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakValueDictionary

logger: logging.Logger = logging.getLogger(__name__)


class ForkAware(Protocol):
    """An object whose state only the parent can use after a fork."""

    def reset_after_fork(self) -> None:
        """Reset the object without waiting; the only thread of the child calls this."""
        ...


_FORK_AWARE: Final[WeakValueDictionary[int, ForkAware]] = WeakValueDictionary()
# Objects that a child never releases, because their finalisers would disturb the
# parent.
_INHERITED: Final[list[object]] = []


def register(instance: ForkAware) -> None:
    """Call ``instance.reset_after_fork()`` in each child; keep a weak reference."""
    _FORK_AWARE[id(instance)] = instance


def _reset_all() -> None:
    """Reset all objects, the newest first: first connections, then their session."""
    for reference in reversed(_FORK_AWARE.valuerefs()):
        instance = reference()
        if instance is None:
            continue
        try:
            instance.reset_after_fork()
        except Exception:  # the other objects must be reset, too
            logger.exception("%r could not be reset after a fork", instance)


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_reset_all)


def never_finalize(inherited: object) -> None:
    """Keep a reference to an inherited object, so that its finaliser never runs."""
    _INHERITED.append(inherited)


def detach_fd(descriptor: int) -> None:
    """Close a socket, but not its transport, which belongs to the parent's loop.

    The descriptor then refers to ``/dev/null``. If the transport closes the descriptor
    later, no other file is closed, and the parent's entry in the selector stays.
    """
    if os.name != "posix":
        return  # Windows has no fork, and its sockets are no file descriptors
    with suppress(OSError):  # closed already, or no descriptor is left
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nowhere, descriptor, inheritable=False)
            os.close(nowhere)


def exit_if_child(error: BaseException | None, parent: int) -> None:
    """End this process at once, if it is a forked child and ``error`` is a SystemExit.

    A handler has forked and has called ``sys.exit`` in the child. The exception must
    not reach the event loop of the child, because the loop shares its selector with the
    process ``parent``.
    """
    if not isinstance(error, SystemExit) or os.getpid() == parent:
        return
    code = error.code
    with suppress(Exception):  # the standard streams may be missing
        if not isinstance(code, int | None):
            sys.stderr.write(f"{code}\n")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0 if isinstance(code, int | None) else 1)
