"""Who may log in, and who is logged in: hashes, the file of users, the check, random tokens."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import pytest
from argon2 import PasswordHasher

from bls_agent import ConfigurationError
from bls_agent.ops.web.auth import (
    Sessions,
    User,
    Verifier,
    hash_password,
    parse_users,
    read_users,
    user_line,
)
from tests.ops.web.serving import HASH, PASSWORD, USERS


def test_a_line_that_was_made_is_read() -> None:
    """Names may be Chinese; comments and blank lines are skipped."""
    line = user_line("值班", "correct horse")
    name, _, value = line.partition(":")
    assert name == "值班"
    assert value.startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    assert parse_users(f"# people\n\n  {line}\noperator:{HASH}\n") == {
        "值班": User(value),
        "operator": User(HASH),
    }


@pytest.mark.parametrize(
    "line",
    [
        "operator",
        "operator:geheim",
        "operator:",
        f":{HASH}",
        f"operator:{HASH}\noperator:{HASH}",
        "operator:$argon2i$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$aGFzaA",
        f"oper\x07ator:{HASH}",
        f"{'a' * 65}:{HASH}",
    ],
    ids=[
        "no-hash",
        "plain-password",
        "empty-hash",
        "no-name",
        "twice",
        "argon2i",
        "control-character",
        "long-name",
    ],  # the hash differs from run to run
)
def test_a_wrong_line_is_named_and_not_shown(line: str) -> None:
    """What was taken for a hash may be a password."""
    with pytest.raises(ConfigurationError) as error:
        parse_users(f"# people\n{line}\n")
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize("password", ["", "short", "x" * 1_025, "密" * 400])
def test_a_password_has_bounds(password: str) -> None:
    """Too short is guessed, too long is work for nothing."""
    with pytest.raises(ConfigurationError) as error:
        hash_password(password)
    assert not password or password not in str(error.value)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    """With the remedy in the message."""
    path = tmp_path / "users"
    path.write_text(f"operator:{HASH}\n")
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"mode {mode:03o}.*chmod 600"):
        read_users(path)
    path.chmod(0o640)
    assert read_users(path) == {"operator": User(HASH)}


@pytest.mark.parametrize("content", [b"", b"# nobody\n", b"\xff\xfe"])
def test_a_file_without_users_is_refused(tmp_path: Path, content: bytes) -> None:
    """Nobody could log in; without a file everybody could."""
    path = tmp_path / "users"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="users"):
        read_users(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_users(tmp_path / "absent")


async def test_a_password_is_right_or_wrong() -> None:
    """For its user alone; what argon2 cannot take is wrong, too."""
    verifier = Verifier(USERS, at_once=2)
    assert await verifier.check("operator", PASSWORD)
    assert await verifier.check("值班", PASSWORD)
    for user, password in (
        ("operator", "wrong"),
        ("operator", ""),
        ("", PASSWORD),
        ("stranger", PASSWORD),
        ("Operator", PASSWORD),
        ("operator", "\ud800"),
        ("operator", "x" * 5_000),
    ):
        assert not await verifier.check(user, password)


async def test_an_unknown_user_costs_a_verification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody learns from the time whether a name exists: argon2 runs in any case."""
    verified: list[str] = []
    original = PasswordHasher.verify

    def verify(self: PasswordHasher, value: str, password: bytes) -> bool:
        verified.append(value)
        return bool(original(self, value, password))

    monkeypatch.setattr(PasswordHasher, "verify", verify)
    verifier = Verifier(USERS, at_once=1)
    await verifier.check("operator", "wrong")
    await verifier.check("stranger", "wrong")
    await verifier.check("stranger", PASSWORD)
    assert verified == [HASH] * 3


async def test_few_passwords_are_verified_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In threads, a bounded number of them; the others wait."""
    running, most = 0, 0
    lock, go = threading.Lock(), threading.Event()

    def verify(self: PasswordHasher, value: str, password: bytes) -> bool:
        nonlocal running, most
        assert threading.current_thread() is not threading.main_thread()
        with lock:
            running += 1
            most = max(most, running)
        assert go.wait(10)
        with lock:
            running -= 1
        return True

    monkeypatch.setattr(PasswordHasher, "verify", verify)
    verifier = Verifier(USERS, at_once=2)
    async with anyio.create_task_group() as tasks:
        for _ in range(32):
            tasks.start_soon(verifier.check, "operator", PASSWORD)
        await anyio.wait_all_tasks_blocked()
        go.set()
    assert most == 2
    assert await verifier.check("operator", PASSWORD)


def make(most: int = 10) -> Sessions:
    return Sessions(most=most, idle=100.0, lifetime=1_000.0)


def test_a_token_is_found_and_no_other() -> None:
    """Tokens are long and different, and only a digest is kept."""
    sessions = make()
    tokens = {sessions.start("operator", 0.0) for _ in range(5)}
    assert len(tokens) == 5
    assert all(len(token) >= 43 for token in tokens)
    assert not any(token in repr(vars(sessions)) for token in tokens)
    for token in tokens:
        found = sessions.find(token, 1.0)
        assert found is not None
        assert found.user == "operator"
    assert sessions.find("x" * 43, 1.0) is None
    assert sessions.find("", 1.0) is None
    assert sessions.find("\udcff", 1.0) is None


def test_a_session_ends_when_it_is_idle() -> None:
    """Each use gives it time anew, until its lifetime is over."""
    sessions = make()
    token = sessions.start("operator", 0.0)
    for now in range(0, 1_000, 90):
        assert sessions.find(token, float(now)) is not None
    assert sessions.find(token, 1_001.0) is None  # used, and too old
    token = sessions.start("operator", 0.0)
    session = sessions.find(token, 1.0)
    assert session is not None
    assert not sessions.is_over(session, 101.0)
    assert sessions.is_over(session, 101.1)
    assert sessions.find(token, 101.1) is None
    assert len(sessions) == 0


def test_the_table_is_bounded() -> None:
    """The one used longest ago makes room."""
    sessions = make(most=3)
    tokens = [sessions.start(f"user{n}", float(n)) for n in range(3)]
    assert sessions.find(tokens[0], 5.0) is not None
    sessions.start("another", 6.0)
    assert len(sessions) == 3
    assert sessions.find(tokens[1], 7.0) is None
    assert sessions.find(tokens[0], 7.0) is not None
