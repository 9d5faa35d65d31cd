"""Users and their passwords, logins and their sessions.

The users' file has one line for each user: ``name:$argon2id$…`` or
``name:$argon2id$…:roles``. Blank lines and lines that begin with ``#`` are ignored. A
program has a token instead of a password, and its line contains ``$token$`` and the
token's digest. A quick hash is enough for a token, because the token is random.

The check of a password takes 64 MiB and some ten milliseconds, to slow down attackers.
Only a few passwords are checked at once, never on the event loop. For an unknown user the
check takes as long as for a known user.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import Argon2Error, InvalidHashError

from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import check_name
from bls_agent.ops.web.rights import EVERY_ROLE, Grants

SHORTEST: Final = 8  # characters of a new password
LONGEST: Final = 1_024  # bytes of a password that is checked
_USERS_FILE: Final = 1_000_000  # bytes of the users' file that are read
_TOKEN: Final = "$token$"  # noqa: S105 - before the digest of a token
_DIGEST: Final = re.compile(r"\$token\$[0-9a-f]{64}")
_NAME: Final = re.compile(r"[^:\s#][^:]{0,63}")
TOKEN_BYTES: Final = 32


def hash_password(password: str) -> str:
    """Make the hash of a new password (argon2id, the library's defaults)."""
    if len(password) < SHORTEST or len(_bytes(password)) > LONGEST:
        rule = f"a password has at least {SHORTEST} characters, at most {LONGEST} bytes"
        raise ConfigurationError("password", "***", rule)
    return PasswordHasher().hash(_bytes(password))


@dataclass(frozen=True)
class User:
    """The hash of a user's password or token, and the user's roles."""

    hash: str = field(repr=False)
    grants: Grants = EVERY_ROLE


def user_line(name: str, password: str, roles: str = "") -> str:
    """Return the line of a user; :meth:`Grants.parse` describes ``roles``."""
    words = f":{roles}" if roles else ""
    return f"{_check_user(name)}:{hash_password(password)}{words}"


def token_line(name: str, token: str, roles: str) -> str:
    """Return the line of a program that sends ``token`` as its credentials."""
    return f"{_check_user(name)}:{hash_token(token)}:{roles}"


def hash_token(token: str) -> str:
    return _TOKEN + hashlib.sha256(_bytes(token)).hexdigest()


def _check_user(name: str) -> str:
    check_name("user", name)
    if not _NAME.fullmatch(name):
        rule = "a user's name has up to 64 characters, no colon, and no # at its start"
        raise ConfigurationError("user", name, rule)
    return name


def parse_users(text: str) -> dict[str, User]:
    """Read the lines of a users' file; a user without roles gets every role.

    No error message contains a hash.
    """
    users: dict[str, User] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        place = f"users, line {number}"
        name, _, rest = line.strip().partition(":")
        value, colon, roles = rest.partition(":")
        if not _is_argon2(value) and not _DIGEST.fullmatch(value):
            rule = "a line is a name, a colon and an argon2 hash, perhaps a colon and roles"
            remedy = (
                "Make it with `bls-agent console password NAME` or `… token NAME FILE`."
            )
            raise ConfigurationError(place, "***", rule, remedy)
        if _check_user(name) in users:
            rule = "a user has one line"
            raise ConfigurationError(place, name, rule)
        users[name] = User(value, Grants.parse(place, roles) if colon else EVERY_ROLE)
    return users


def _is_argon2(value: str) -> bool:
    try:
        extract_parameters(value)
    except (InvalidHashError, ValueError):
        return False
    return value.startswith("$argon2id$")


def read_users(path: Path) -> dict[str, User]:
    """Read a users' file; other users of this machine must have no access to the file.

    Raises ``ConfigurationError`` if the file cannot be read, if others may read or
    change it, or if it is empty or wrong.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(_USERS_FILE)
    except OSError as error:
        reason = f"it cannot be read ({error.strerror})"
        raise ConfigurationError("users", str(path), reason) from None
    if os.name == "posix" and mode & (stat.S_IRWXO | stat.S_IWGRP):
        rule = f"others may read or change it (mode {mode:03o})"
        raise ConfigurationError("users", str(path), rule, f"chmod 600 {path}")
    try:
        users = parse_users(content.decode())
    except UnicodeDecodeError:
        raise ConfigurationError("users", str(path), "it is no UTF-8 text") from None
    if not users:
        rule = "there is no user in it"
        remedy = f"bls-agent console password NAME >> {path}"
        raise ConfigurationError("users", str(path), rule, remedy)
    return users


class Verifier:
    """Checks passwords, only a few at once, and in the same time for every user."""

    def __init__(self, users: Mapping[str, User], *, at_once: int) -> None:
        self._users = {
            name: user
            for name, user in users.items()
            if not user.hash.startswith(_TOKEN)
        }
        self._limiter = anyio.CapacityLimiter(at_once)
        self._hasher = PasswordHasher()

    async def check(self, user: str, password: str) -> bool:
        return await anyio.to_thread.run_sync(
            self._verify, user, password, limiter=self._limiter
        )

    def _verify(self, user: str, password: str) -> bool:
        """Verify a password.

        For an unknown user, another user's hash is used, so that the check takes as long.
        """
        if not self._users:
            return False
        known = self._users.get(user)
        compared = known if known is not None else next(iter(self._users.values()))
        try:
            self._hasher.verify(compared.hash, _bytes(password)[:LONGEST])
        except Argon2Error:
            return False
        return known is not None and len(_bytes(password)) <= LONGEST


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@dataclass
class Session:
    """One login."""

    user: str
    since: float
    seen: float
    over: bool = False  # if true, the streams of this session must end


class Sessions:
    """The sessions of all users, by token.

    If there are too many sessions, a new session replaces the one whose last request is the oldest.
    A stream counts as a request when it begins.
    Only a keyed digest of each token is stored, because nobody can log in with a digest
    from leaked memory. A program keeps no cookie, so the name and password that it sends
    are the token of its session.
    """

    def __init__(self, *, most: int, idle: float, lifetime: float) -> None:
        self._most = most
        self._idle = idle
        self._lifetime = lifetime
        self._sessions: dict[bytes, Session] = {}  # in the order of their last request
        self._secret = secrets.token_bytes(TOKEN_BYTES)

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self, user: str, now: float, token: str = "") -> str:
        """Start a session with ``token``, or with a new token; return the token."""
        self._make_room()
        token = token or secrets.token_urlsafe(TOKEN_BYTES)
        self._sessions[self._digest(token)] = Session(user, now, now)
        return token

    def find(self, token: str, now: float) -> Session | None:
        key = self._digest(token)
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
        session = self._sessions.pop(self._digest(token), None)
        if session is not None:
            session.over = True

    def is_over(self, session: Session, now: float) -> bool:
        idle, age = now - session.seen, now - session.since
        return session.over or idle > self._idle or age > self._lifetime

    def _digest(self, token: str) -> bytes:
        encoded = token.encode("utf-8", "surrogateescape")
        return hmac.digest(self._secret, encoded, hashlib.sha256)

    def _make_room(self) -> None:
        while len(self._sessions) >= self._most:
            self._sessions.pop(next(iter(self._sessions))).over = True


def cookie_name(*, secure: bool) -> str:
    """Return the name of the session's cookie.

    Over TLS the name has a prefix, so that browsers let only this host set the cookie.
    """
    return "__Host-bls_session" if secure else "bls_session"
