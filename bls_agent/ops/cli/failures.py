"""How a failed command ends: one sentence, perhaps a second one, and an exit code.

:func:`judge` decides without I/O; a traceback is shown for faults of this package alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bls_agent.core.errors import (
    BlsError,
    ConfigurationError,
    MissingExtraError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.core.redaction import redact_traceback
from bls_agent.ops.cli.exits import Exit, Failure
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.screen import ReaderGone
from bls_agent.ops.texts import Texts

__all__ = ["Verdict", "judge", "tell", "unwrap"]

# Answers after which nothing can be read or written at all.
_SHUT_OUT: Final = frozenset({"auth", "tls", "not_redis", "protocol"})


@dataclass(frozen=True)
class Verdict:
    """What is said about a failure.

    Attributes:
        code: The exit code.
        text: What is wrong.
        hint: What to do, or ``""``.
        internal: Whether it is a fault of this package.
    """

    code: int
    text: str
    hint: str = ""
    internal: bool = False


def tell(error: BaseException, invocation: Invocation) -> int:
    """Say on standard error why a command has failed, and give its exit code."""
    error = unwrap(error)
    if isinstance(error, ReaderGone):
        return Exit.BROKEN_PIPE
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    verdict = judge(error, invocation.texts, os.environ, redis=invocation.redis)
    err = invocation.err
    details = error.details if isinstance(error, Failure) else ""
    if verdict.internal:
        details = redact_traceback(error)
    for line in details.splitlines():
        err.line(line)
    err.paragraph(invocation.say("error", text=verdict.text), "red")
    if verdict.hint:
        err.paragraph(verdict.hint)
    return verdict.code


def unwrap(error: BaseException) -> BaseException:
    """Take the one error out of the groups that task groups make of it."""
    inner: list[BaseException] = [*getattr(error, "exceptions", ())]
    return unwrap(inner[0]) if len(inner) == 1 else error


def judge(
    error: BaseException,
    texts: Texts,
    environ: Mapping[str, str],
    *,
    redis: str | None,
) -> Verdict:
    """Decide what to say.

    Args:
        error: What was raised.
        texts: The catalogue ``cli``.
        environ: The environment.
        redis: What ``--redis`` said.
    """
    if isinstance(error, Failure):
        hint = texts[error.hint].format(**error.values) if error.hint else ""
        return Verdict(error.code, texts[error.text].format(**error.values), hint)
    if hasattr(error, "format_message"):
        return _judge_usage(error, texts)
    if isinstance(error, RedisUnavailableError):
        return _judge_outage(error, texts, environ, redis)
    if isinstance(error, BlsError | OSError):
        code = Exit.USAGE if isinstance(error, ConfigurationError) else Exit.FAILED
        return Verdict(code, _text_of(error, texts))
    return Verdict(Exit.FAILED, texts["internal"], internal=True)


def _text_of(error: Exception, texts: Texts) -> str:
    if isinstance(error, WrongTypeError):
        return texts["wrong_type"].format(key=error.key, expected=error.expected)
    if isinstance(error, MissingExtraError):
        return texts["missing_extra"].format(**vars(error))
    return str(error)


def _judge_outage(
    error: RedisUnavailableError,
    texts: Texts,
    environ: Mapping[str, str],
    redis: str | None,
) -> Verdict:
    values = {"address": error.address, "kind": error.kind, "reason": error.reason}
    shut_out = error.kind in _SHUT_OUT or error.connecting
    if isinstance(error, RedisRefusedError) and not shut_out:
        hint = texts["hint_rights"] if error.kind == "no_permission" else ""
        return Verdict(Exit.FAILED, texts["refused"].format(**values), hint)
    hint = texts["hint_sent_perhaps"] if error.ambiguous else ""
    if error.kind == "auth":
        hint = texts["hint_password"]
    elif not redis and not environ.get("BLS_REDIS_URL"):
        hint = texts["hint_default_redis"]
    elif not hint:
        hint = texts["hint_address"]
    text = "refused" if isinstance(error, RedisRefusedError) else "unavailable"
    return Verdict(Exit.UNAVAILABLE, texts[text].format(**values), hint)


def _judge_usage(error: Any, texts: Texts) -> Verdict:
    """Say what typer did not understand, in the reader's language where we can."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "bls-agent"
    hint = texts["hint_help"].format(command=path)
    return Verdict(Exit.USAGE, _usage_text(error, texts), hint)


def _usage_text(error: Any, texts: Texts) -> str:
    kind = type(error).__name__
    param = getattr(error, "param", None)
    name = param.get_error_hint() if param is not None else ""
    values = {"name": str(name).replace("'", ""), "message": error.format_message()}
    if kind == "MissingParameter" and name:
        return texts["usage_missing"].format(**values)
    if kind == "NoSuchOption":
        values["name"] = error.option_name
        likely = ", ".join(sorted(error.possibilities or ()))
        text = texts["usage_no_option"].format(**values)
        advice = texts["did_you_mean"].format(names=likely) if likely else ""
        return f"{text} {advice}".rstrip()
    text = str(values["message"]).replace("Value error, ", "")
    for pattern, key in _USAGE:
        if found := pattern.search(text):
            told = {
                name: word.replace("'", "") for name, word in found.groupdict().items()
            }
            return texts[key].format(**{**values, **told})
    return text


# What the parser says, in its words, and the sentences of the catalogue for it.
_USAGE: Final = tuple(
    (re.compile(pattern), key)
    for pattern, key in (
        (r"unexpected extra argument\S* \((?P<word>.*)\)$", "usage_extra"),
        (r"^No such command '(?P<word>.*)'\.$", "no_such_command"),
        (r"^Option '(?P<name>.*)' requires an argument", "usage_value_missing"),
        (r"^Option '(?P<name>.*)' does not take a value", "usage_no_value"),
        (r"'(?P<word>[^']*)' is not one of (?P<choices>.*)\.$", "usage_choice"),
        (r"should be a valid integer", "usage_integer"),
        (r"should be a valid number", "usage_number"),
        (r"greater than or equal to (?P<least>\S+)$", "usage_least"),
    )
)
