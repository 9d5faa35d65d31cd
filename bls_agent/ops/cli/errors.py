"""How a command fails: exit codes, sentences, and suggestions of similar names."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from bls_agent.core.errors import (
    BlsError,
    ConfigurationError,
    MissingExtraError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.core.redaction import redact_traceback
from bls_agent.ops.cli.output import Invocation
from bls_agent.ops.terminal import ReaderGone
from bls_agent.ops.texts import Texts

if TYPE_CHECKING:
    from bls_agent.console import Console

# Kinds of errors after which nothing can be read or written at all.
_SHUT_OUT: Final = frozenset({"auth", "tls", "not_redis", "protocol"})
# Errors with a sentence in the catalogue; other errors print their English text.
_SENTENCES: Final[Mapping[type[BaseException], str]] = {
    WrongTypeError: "wrong_type",
    MissingExtraError: "missing_extra",
}
MOST: Final = 3  # names that are suggested
LIKENESS: Final = 0.5  # least ratio of difflib, which is 1 for equal names


class Exit(IntEnum):
    """How a command ended; the codes are the same for every command."""

    DONE = 0
    FAILED = 1  # the command could not do its work
    USAGE = 2  # wrong arguments, names, URLs or variables
    UNHEALTHY = 3  # a check has found a problem
    UNAVAILABLE = 4  # Redis does not answer, or refuses the login
    INTERRUPTED = 130  # Ctrl-C
    BROKEN_PIPE = 141  # the reader of the output has closed the pipe
    TERMINATED = 143  # SIGTERM


class Failure(Exception):  # noqa: N818 - a way to end a command, no error of the program
    """Ends a command with a sentence for people and an exit code.

    ``text`` and ``hint`` are keys of the catalogue ``cli``, and ``values`` are the values
    for both texts. The hint is a second sentence, with advice. ``details``, such as the
    traceback of a user's code, are printed before the sentences.
    """

    def __init__(
        self,
        text: str,
        code: Exit = Exit.FAILED,
        /,
        *,
        hint: str = "",
        **values: object,
    ) -> None:
        self.text = text
        self.code = code
        self.hint = hint
        self.values = values
        self.details = ""
        super().__init__(text)


@dataclass(frozen=True)
class Verdict:
    """The exit code of a failure, and the texts that are printed."""

    code: int
    text: str
    hint: str = ""
    details: str = ""  # traceback of a user's code, or of an error in this package


def report_failure(error: BaseException, invocation: Invocation) -> int:
    """Print on standard error why a command has failed; return its exit code."""
    error = unwrap(error)
    if isinstance(error, ReaderGone):
        return Exit.BROKEN_PIPE
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    by_default = not (invocation.redis or os.environ.get("BLS_REDIS_URL"))
    verdict = decide(error, invocation.texts, by_default=by_default)
    err = invocation.err
    for line in verdict.details.splitlines():
        err.line(line)
    err.paragraph(invocation.say("error", text=verdict.text), "red")
    if verdict.hint:
        err.paragraph(verdict.hint)
    return verdict.code


def unwrap(error: BaseException) -> BaseException:
    """Return the single error within nested exception groups."""
    inner: list[BaseException] = [*getattr(error, "exceptions", ())]
    return unwrap(inner[0]) if len(inner) == 1 else error


def decide(error: BaseException, texts: Texts, *, by_default: bool = False) -> Verdict:
    """Decide what to print, without I/O.

    ``by_default`` is whether the default address of Redis was used.
    """
    if isinstance(error, Failure):
        hint = texts[error.hint].format(**error.values) if error.hint else ""
        text = texts[error.text].format(**error.values)
        return Verdict(error.code, text, hint, error.details)
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "bls-agent"
        hint = texts["hint_help"].format(command=path)
        return Verdict(Exit.USAGE, _usage_text(error, texts), hint)
    if isinstance(error, RedisUnavailableError):
        return _decide_outage(error, texts, by_default=by_default)
    if isinstance(error, BlsError | OSError):
        code = Exit.USAGE if isinstance(error, ConfigurationError) else Exit.FAILED
        name = _SENTENCES.get(type(error))
        text = texts[name].format(**vars(error)) if name else str(error)
        return Verdict(code, text)
    return Verdict(Exit.FAILED, texts["internal"], details=redact_traceback(error))


def _decide_outage(
    error: RedisUnavailableError, texts: Texts, *, by_default: bool
) -> Verdict:
    """Decide about an outage.

    The hint is the first of these that fits:

    1. Redis refuses a request, but not the connection: which rights are needed.
    2. The password is wrong, or missing.
    3. The request may have been executed.
    4. The default address was used.
    5. The address.
    """
    values = {"address": error.address, "kind": error.kind, "reason": error.reason}
    shut_out = error.kind in _SHUT_OUT or error.connecting
    if isinstance(error, RedisRefusedError) and not shut_out:
        hint = texts["hint_rights"] if error.kind == "no_permission" else ""
        return Verdict(Exit.FAILED, texts["refused"].format(**values), hint)
    if error.kind == "auth":
        hint = "hint_password"
    elif error.ambiguous:
        hint = "hint_sent_perhaps"
    elif by_default:
        hint = "hint_default_redis"
    else:
        hint = "hint_address"
    text = "refused" if isinstance(error, RedisRefusedError) else "unavailable"
    return Verdict(Exit.UNAVAILABLE, texts[text].format(**values), texts[hint])


def _usage_text(error: Any, texts: Texts) -> str:
    """Return a sentence for what typer could not parse.

    The sentence is in the reader's language if typer's message is a known one.
    """
    param = getattr(error, "param", None)
    name = str(param.get_error_hint()) if param is not None else ""
    message = str(error.format_message())
    for pattern, key in _USAGE:
        if found := pattern.search(message):
            values = {"name": name, **found.groupdict()}
            bare = {word: value.replace("'", "") for word, value in values.items()}
            text = texts[key].format(**bare)
            likely = ", ".join(sorted(getattr(error, "possibilities", None) or ()))
            if key == "usage_extra":
                likely = _pairs_as_options(error, bare["word"])
            advice = texts["did_you_mean"].format(names=likely) if likely else ""
            return f"{text} {advice}".rstrip()
    return message.replace("Value error, ", "")


def _pairs_as_options(error: Any, words: str) -> str:
    """Return the words ``n=3 force=true`` as options ``--arg``.

    Return ``""`` if the command has no such option, or if the words are no pairs.
    """
    pairs = re.split(r" (?=[^\s=]+=)", words)
    params = getattr(getattr(error, "ctx", None), "command", None)
    takes_pairs = any(one.name == "arg" for one in getattr(params, "params", ()))
    if not takes_pairs or not all("=" in pair.partition(" ")[0] for pair in pairs):
        return ""
    return " ".join(f"--arg {shlex.quote(pair)}" for pair in pairs)


# Patterns of the parser's messages, and the keys of the sentences that replace them.
_USAGE: Final = tuple(
    (re.compile(pattern), key)
    for pattern, key in (
        (r"^Missing \w+ '", "usage_missing"),
        (r"^No such option: (?P<name>\S+)", "usage_no_option"),
        (r"unexpected extra argument\S* \((?P<word>.*)\)$", "usage_extra"),
        (r"^Option '(?P<name>.*)' requires an argument", "usage_value_missing"),
        (r"^Option '(?P<name>.*)' does not take a value", "usage_no_value"),
        (r"'(?P<word>[^']*)' is not one of (?P<choices>.*)\.$", "usage_choice"),
        (r"should be a valid integer", "usage_integer"),
        (r"should be a valid number", "usage_number"),
        (r"greater than or equal to (?P<least>\S+)$", "usage_least"),
        (r"less than or equal to (?P<most>\S+)$", "usage_most"),
    )
)


def normalise(invocation: Invocation, name: str) -> str:
    """Return a name in the form NFC, which agents use; print a note about a change.

    Some input methods and file names use another form of Unicode that looks the same.
    """
    if not name:  # such as a shell variable that is not set
        raise Failure("empty_name", Exit.USAGE)
    whole = unicodedata.normalize("NFC", name)
    if whole != name:
        invocation.hint("name_normalised", project=whole)
    return whole


async def unknown_project(console: Console, name: str) -> Failure:
    likely = await likely_names(console, name)
    return misspelt("no_such_project", likely, "hint_projects", project=name)


def misspelt(
    text: str,
    likely: Sequence[str],
    otherwise: str,
    code: Exit = Exit.FAILED,
    /,
    **values: object,
) -> Failure:
    """Make the failure for an unknown name, with the similar names as its hint.

    Without similar names, the hint is the text ``otherwise``.
    """
    hint = "did_you_mean" if likely else otherwise
    return Failure(text, code, hint=hint, names=", ".join(likely), **values)


async def failure_in(console: Console, project: str, text: str, number: str) -> Failure:
    """Make a failure; its hint has similar names if there is no such project."""
    names = await likely_names(console, project)
    if project in names:
        return Failure(text, id=number, project=project)
    return misspelt(text, names, "hint_projects", id=number, project=project)


async def likely_names(console: Console, name: str) -> list[str]:
    known: list[str] = []
    with suppress(RedisRefusedError):  # the Redis user may not SCAN
        known = [*await console.projects()]
    return [name] if name in known else find_likely(name, known)


async def hint_likely(invocation: Invocation, console: Console, name: str) -> None:
    names = await likely_names(console, name)
    if name not in names:
        text = "did_you_mean" if names else "hint_projects"
        invocation.hint(text, names=", ".join(names))


def find_likely(name: str, known: Iterable[str]) -> list[str]:
    """Return similar names, the most similar first, then names that contain ``name``."""
    by_fold = {_fold(one): one for one in known}
    wanted = _fold(name)
    found = get_close_matches(wanted, by_fold, n=MOST, cutoff=LIKENESS)
    holding = (fold for fold in sorted(by_fold) if wanted and wanted in fold)
    return [by_fold[fold] for fold in [*dict.fromkeys([*found, *holding])][:MOST]]


def _fold(name: str) -> str:
    """Normalise width, case and blanks, because people overlook them in names."""
    return unicodedata.normalize("NFKC", name).casefold().strip()
