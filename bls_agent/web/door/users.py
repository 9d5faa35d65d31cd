"""Who may log in: a file of names and argon2 hashes, and the check of a password.

One user per line, ``name:$argon2id$…``; blank lines and lines after ``#`` are skipped.
A hash costs 64 MiB and some ten milliseconds each time, on purpose: few are verified at
once, never on the event loop, and an unknown name costs as much as a wrong password.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import Argon2Error, InvalidHashError

from bls_agent.errors import BlsError, ConfigurationError
from bls_agent.names import check_name

__all__ = [
    "BusyError",
    "Verifier",
    "hash_password",
    "parse_users",
    "read_users",
    "user_line",
]

SHORTEST: Final = 8  # characters of a new password
LONGEST: Final = 1_024  # bytes of a password that is looked at
WAITING: Final = 32  # verifications that may wait for a thread
REMEMBERED: Final = 256  # passwords of programs that were right a moment ago
FRESH: Final = 60.0  # seconds for which they are believed
_USERS_FILE: Final = 1_000_000  # bytes
_NAME: Final = re.compile(r"[^:\s#][^:]{0,63}")


class BusyError(BlsError):
    """Too many passwords wait to be verified."""


def hash_password(password: str) -> str:
    """Make the hash of a new password (argon2id, the library's defaults).

    Raises:
        ConfigurationError: It is too short, or too long to be looked at.
    """
    if len(password) < SHORTEST:
        rule = f"a password has at least {SHORTEST} characters"
        raise ConfigurationError("password", "***", rule)
    if len(_bytes(password)) > LONGEST:
        rule = f"a password has at most {LONGEST} bytes"
        raise ConfigurationError("password", "***", rule)
    return PasswordHasher().hash(_bytes(password))


def user_line(name: str, password: str) -> str:
    """Make the line of a user for the file.

    Raises:
        ConfigurationError: The name or the password cannot be used.
    """
    return f"{_check_user(name)}:{hash_password(password)}"


def _check_user(name: str) -> str:
    check_name("user", name)
    if not _NAME.fullmatch(name):
        rule = "a user's name has up to 64 characters, no colon, and no # at its start"
        raise ConfigurationError("user", name, rule)
    return name


def parse_users(text: str) -> dict[str, str]:
    """Read the lines of a users' file: name → hash.

    Raises:
        ConfigurationError: A line is none; it is named by its number, its content
            is not shown.
    """
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        place = f"users, line {number}"
        name, colon, value = line.strip().partition(":")
        if not colon or not _is_argon2(value):
            rule = "a line is a name, a colon and an argon2 hash"
            remedy = "Make it with `bls-agent console password NAME`."
            raise ConfigurationError(place, "***", rule, remedy)
        if _check_user(name) in users:
            rule = "a user has one line"
            raise ConfigurationError(place, name, rule)
        users[name] = value
    return users


def _is_argon2(value: str) -> bool:
    try:
        extract_parameters(value)
    except (InvalidHashError, ValueError):
        return False
    return value.startswith("$argon2id$")


def read_users(path: Path) -> dict[str, str]:
    """Read a users' file that nobody else can read or change.

    Raises:
        ConfigurationError: It cannot be read, others may read or change it, or it is
            empty or wrong.
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
    """Checks passwords: few at once, and in the same time whoever is asked for.

    Args:
        users: Name → hash.
        at_once: Threads that verify.
    """

    def __init__(self, users: Mapping[str, str], *, at_once: int) -> None:
        """Remember the users."""
        self._users = users
        self._at_once = at_once
        self._waiting = 0
        self._hasher = PasswordHasher()
        self._right: OrderedDict[bytes, float] = OrderedDict()
        self._secret = secrets.token_bytes(32)

    @cached_property
    def _limiter(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(self._at_once)

    async def check(self, user: str, password: str) -> bool:
        """Tell whether a password is the user's.

        Raises:
            BusyError: Too many others wait for that.
        """
        if self._waiting >= WAITING:
            raise BusyError
        self._waiting += 1
        try:
            return await anyio.to_thread.run_sync(
                self._verify, user, password, limiter=self._limiter
            )
        finally:
            self._waiting -= 1

    def _verify(self, user: str, password: str) -> bool:
        """Verify in any case: for an unknown user against somebody's hash, in vain."""
        known = self._users.get(user)
        compared = known if known is not None else next(iter(self._users.values()))
        try:
            self._hasher.verify(compared, _bytes(password)[:LONGEST])
        except Argon2Error:
            return False
        return known is not None and len(_bytes(password)) <= LONGEST

    def was_right(self, user: str, password: str, now: float) -> bool:
        """Tell whether exactly this was right within the last minute.

        For programs, which send the password with every request.
        """
        until = self._right.get(self._mark(user, password))
        return until is not None and now < until

    def remember(self, user: str, password: str, now: float) -> None:
        """Believe this for a minute."""
        self._right[self._mark(user, password)] = now + FRESH
        while len(self._right) > REMEMBERED:
            self._right.popitem(last=False)

    def _mark(self, user: str, password: str) -> bytes:
        told = _bytes(user) + b"\0" + _bytes(password)
        return hmac.digest(self._secret, told, hashlib.sha256)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
