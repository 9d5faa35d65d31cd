"""Who is logged in: a bounded table of random tokens, decided without I/O.

Only a digest of a token is kept: what leaks from memory opens nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Final

__all__ = ["Session", "Sessions", "cookie_name"]

TOKEN_BYTES: Final = 32
USER_SESSIONS: Final = 50  # of one user; the one used longest ago makes room


@dataclass
class Session:
    """One login.

    Attributes:
        user: Whose.
        since: When it began.
        seen: When it was last used.
        over: Whether it was ended: whoever still holds it must stop.
    """

    user: str
    since: float
    seen: float
    over: bool = False


class Sessions:
    """Tokens and whom they belong to.

    Args:
        most: Sessions at most; then the one used longest ago makes room.
        idle: Seconds without use after which one ends.
        lifetime: Seconds after which one ends in any case.
    """

    def __init__(self, *, most: int, idle: float, lifetime: float) -> None:
        """Begin with nobody."""
        self._most = most
        self._idle = idle
        self._lifetime = lifetime
        self._sessions: dict[bytes, Session] = {}  # the one used last at the end

    def __len__(self) -> int:
        """Count the sessions that are remembered."""
        return len(self._sessions)

    def start(self, user: str, now: float) -> str:
        """Begin a session and give its token."""
        self._make_room(user, now)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._sessions[_digest(token)] = Session(user, now, now)
        return token

    def find(self, token: str, now: float) -> Session | None:
        """Give the session of a token, which counts as used by that."""
        key = _digest(token)
        session = self._sessions.pop(key, None)
        if session is None:
            return None
        if self.is_over(session, now):
            session.over = True
            return None
        session.seen = now
        self._sessions[key] = session
        return session

    def end(self, token: str) -> None:
        """End a session, if there is one."""
        session = self._sessions.pop(_digest(token), None)
        if session is not None:
            session.over = True

    def is_over(self, session: Session, now: float) -> bool:
        """Tell whether a session has ended, or its time is up."""
        idle, age = now - session.seen, now - session.since
        return session.over or idle > self._idle or age > self._lifetime

    def _make_room(self, user: str, now: float) -> None:
        gone = [key for key, one in self._sessions.items() if self.is_over(one, now)]
        left = len(self._sessions) - len(gone)
        own = [key for key, one in self._sessions.items() if one.user == user]
        gone += own[: max(0, len(own) - USER_SESSIONS + 1)]
        if left >= self._most:
            gone += list(self._sessions)[: left - self._most + 1]
        for key in set(gone):
            self._sessions.pop(key).over = True


def cookie_name(*, secure: bool) -> str:
    """Name the cookie; over TLS no other host and no plain page can set it."""
    return "__Host-bls_session" if secure else "bls_session"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
