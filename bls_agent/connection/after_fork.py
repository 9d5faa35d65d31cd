"""Reset of objects that a forked child inherits: connections, locks, event loops.

A child shares the open files of its parent. The server takes a child's write for a write
of the parent. A transport that is closed through its event loop leaves the selector that
both processes share, so that the *parent* receives no more data. So each object that is
registered here drops what it inherited, without the loop, and becomes like a new object.
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
        """Reset the object; called in the only thread of the child. Must not wait."""
        ...


_FORK_AWARE: Final[WeakValueDictionary[int, ForkAware]] = WeakValueDictionary()
# Objects that a child never releases, because their finalisers would do harm.
_INHERITED: Final[list[object]] = []


def register(instance: ForkAware) -> None:
    """Have ``instance.reset_after_fork()`` called in each child; keeps a weak reference."""
    _FORK_AWARE[id(instance)] = instance


def _reset_all() -> None:
    """Reset all objects, youngest first: a session's connections before the session."""
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
    """Close a socket without its transport, which belongs to the parent's loop.

    The descriptor then leads to ``/dev/null``. So a transport that closes the descriptor
    later closes no other file, and no selector finds the parent's entry by it.
    """
    if os.name != "posix":
        return  # no fork there, and a socket is no file descriptor
    with suppress(OSError):  # closed already, or no descriptor is left
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nowhere, descriptor, inheritable=False)
            os.close(nowhere)


def exit_if_child(error: BaseException | None, parent: int) -> None:
    """End the process at once, if it is a forked child of the process ``parent``.

    A handler has called ``sys.exit`` in the child. The exception cannot unwind the
    event loop of the child, because the loop shares its selector with the parent.
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
