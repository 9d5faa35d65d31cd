"""The exceptions: one tree, messages made of fields, nothing foreign on a terminal."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given, settings, strategies as st

from bls_agent.core import errors
from bls_agent.core.errors import (
    ArgumentError,
    BlsError,
    ConfigurationError,
    DecodeError,
    DuplicateHandlerError,
    DuplicateItem,
    ManifestError,
    ManifestFault,
    MissingExtraError,
    NoOutcomeError,
    RedisRefusedError,
    RedisUnavailableError,
    Reject,
    SourceError,
    UnknownCommandError,
    WrongTypeError,
)

CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, Exception)
}

MESSAGES = {
    "configuration": (
        ConfigurationError("status_ttl", -1, "between 1 and 86400 seconds"),
        "status_ttl: '-1' is not allowed; between 1 and 86400 seconds.",
    ),
    "configuration with remedy": (
        ConfigurationError("project", " a", "no blanks around it", "Strip it."),
        "project: ' a' is not allowed; no blanks around it. Strip it.",
    ),
    "missing extra": (
        MissingExtraError("validate", "Order"),
        (
            "Order needs the extra 'validate', which is not installed. "
            "In the checkout of bls-agent: pip install '.[validate]'"
        ),
    ),
    "unavailable": (
        RedisUnavailableError("timeout", "no reply", address="redis://h:6379/0"),
        "Redis at redis://h:6379/0 is unavailable (timeout): no reply",
    ),
    "refused, address unknown": (
        RedisRefusedError("auth", "wrong password"),
        "Redis refuses (auth): wrong password",
    ),
    "wrong type": (
        WrongTypeError("订单系统_控制", "list"),
        (
            "key '订单系统_控制' holds another type than list; it was left alone. "
            "Is the name right? If so, rename or delete the key."
        ),
    ),
    "decode": (
        DecodeError("not_json", b"{,}", "unexpected comma"),
        "not_json (unexpected comma): 3 bytes beginning '{,}'",
    ),
    "decode, no text": (
        DecodeError("not_utf8", b"\xff\n"),
        r"not_utf8: 2 bytes beginning '\xff\n'",
    ),
    "manifest": (
        ManifestError(
            [
                ManifestFault("a.yaml", "it is missing", "Add it.", "id", 1),
                ManifestFault("a.yaml", "the file is empty"),
            ]
        ),
        "a.yaml:1: id: it is missing. Add it\na.yaml: the file is empty",
    ),
    "source": (
        SourceError("github:o/r", "403 for https://u:p@h/", retry_after=59.6),
        "github:o/r: 403 for https://***@h/; try again in 60 s",
    ),
    "unknown command": (
        UnknownCommandError("relaod"),
        "no handler is registered for 'relaod'",
    ),
    "arguments": (
        ArgumentError("reload", {"force": "is missing", "x": "is not known"}),
        "arguments of 'reload': 'force' is missing; 'x' is not known",
    ),
    "duplicate handler": (
        DuplicateHandlerError("reload"),
        "'reload' already has a handler; choose another name",
    ),
    "no outcome": (
        NoOutcomeError("reload", "cmd-1-abcdef", 2.5),
        (
            "no outcome of 'reload' (cmd-1-abcdef) within 2.5 s; "
            "it may still be waiting, running, or done"
        ),
    ),
    "duplicate item": (
        DuplicateItem("9f86d08"),
        "an item with the fingerprint 9f86d08 was there before",
    ),
    "reject": (Reject("closed on sundays"), "closed on sundays"),
}
every_error = pytest.mark.parametrize(
    ("error", "message"), MESSAGES.values(), ids=list(MESSAGES)
)


def drawn_tree() -> dict[str, str]:
    """Read the tree in the module's docstring: class → the class above it."""
    above: dict[int, str] = {}
    tree: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ([│├└─ ]*)([A-Z]\w+)(  |$)", line):
            depth = len(found[1])
            tree[found[2]] = above.get(depth - 3, "")
            above[depth] = found[2]
    return tree


def test_the_drawn_tree_is_the_real_one() -> None:
    """The tree in the docstring shows every class under the class it derives from."""
    assert drawn_tree() == {
        name: base if (base := kind.__mro__[1].__name__) in CLASSES else ""
        for name, kind in CLASSES.items()
    }


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ConfigurationError, ValueError),
        (DuplicateHandlerError, ValueError),
        (NoOutcomeError, TimeoutError),
    ],
)
def test_an_error_is_also_the_builtin_for_it(
    error: type[BlsError], builtin: type[Exception]
) -> None:
    """Who does not know the package can catch the builtin exception."""
    assert issubclass(error, builtin)


def test_reject_is_no_error() -> None:
    """`except BlsError` in a handler does not swallow the signal to turn it down."""
    assert not issubclass(Reject, BlsError)


@every_error
def test_the_message_is_made_of_the_fields(error: Exception, message: str) -> None:
    """Each class builds its sentence from what it is given."""
    assert str(error) == message


@every_error
def test_an_error_survives_another_process(error: Exception, message: str) -> None:
    """An error keeps its class, fields and message when a process pool hands it on."""
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), vars(copy), str(copy)) == (type(error), vars(error), message)


def test_a_wrong_value_is_not_repeated_at_length() -> None:
    """The message shows the beginning of a long value; the field keeps all of it."""
    error = ConfigurationError("project", "x" * 10_000, "shorter")
    assert len(str(error)) < 200
    assert error.value == "x" * 10_000


def test_a_payload_is_not_kept_at_length() -> None:
    """A refused payload of any size costs 64 bytes, but its size is told."""
    error = DecodeError("too_large", b"{" * 1_000_000)
    assert (len(error.payload), error.size) == (64, 1_000_000)


@settings(deadline=None)
@given(st.text())
def test_foreign_text_is_escaped(text: str) -> None:
    """Names that came from outside stand escaped in every message."""
    for error in (
        ConfigurationError("project", text, "another one"),
        WrongTypeError(text, "list"),
        UnknownCommandError(text),
        ArgumentError(text, {text: "is not known"}),
        DuplicateHandlerError(text),
        DecodeError("not_json", text.encode("utf-8", "surrogatepass")),
    ):
        assert str(error).isprintable()


def test_a_long_foreign_name_is_cut() -> None:
    """A name of a megabyte does not become a message of a megabyte."""
    name = "x" * 1_000_000
    assert len(str(UnknownCommandError(name))) < 200
    assert len(str(ArgumentError(name, {name: "is not known"}))) < 300
