"""Who is logged in: random tokens, their ends, and a table that does not grow."""

from __future__ import annotations

from bls_agent.web.door.sessions import USER_SESSIONS, Sessions, cookie_name


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


def test_who_holds_a_session_learns_of_its_end() -> None:
    """A stream that is open sees the logout."""
    sessions = make()
    token = sessions.start("operator", 0.0)
    session = sessions.find(token, 1.0)
    assert session is not None
    sessions.end(token)
    sessions.end(token)
    assert sessions.is_over(session, 1.0)
    assert sessions.find(token, 1.0) is None


def test_the_table_is_bounded() -> None:
    """The one used longest ago makes room, of the same user first."""
    sessions = make(most=3)
    tokens = [sessions.start(f"user{n}", float(n)) for n in range(3)]
    assert sessions.find(tokens[0], 5.0) is not None
    sessions.start("another", 6.0)
    assert len(sessions) == 3
    assert sessions.find(tokens[1], 7.0) is None
    assert sessions.find(tokens[0], 7.0) is not None

    sessions = make(most=1_000)
    other = sessions.start("auditor", 0.0)
    for n in range(USER_SESSIONS * 2):
        sessions.start("operator", float(n) / 10)
    assert len(sessions) == USER_SESSIONS + 1
    assert sessions.find(other, 10.0) is not None


def test_the_cookie_of_tls_belongs_to_the_host() -> None:
    """The prefix makes browsers refuse it from anywhere else."""
    assert cookie_name(secure=True).startswith("__Host-")
    assert not cookie_name(secure=False).startswith("__")
