"""``bls-agent console``: the console in the browser, and the passwords of its users."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from typer import Argument, Option

from bls_agent.connection.reconnect import Reminders
from bls_agent.core.errors import ConfigurationError
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit, Failure
from bls_agent.ops.cli.interrupts import interrupts_end_the_process
from bls_agent.ops.cli.output import Invocation
from bls_agent.ops.terminal import visible
from bls_agent.ops.web import need_web

if TYPE_CHECKING:
    from bls_agent.ops.web.config import WebConfig

TOKEN_BYTES: Final = 32
LONGEST_LINE: Final = 2_000  # characters of a password that comes through a pipe


@command("console", group=True)
def console(
    invocation: Invocation,
    *,
    host: Annotated[str, Option(metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, Option(metavar="NUMBER")] = 8765,
    users: Annotated[Path | None, Option(metavar="FILE")] = None,
    allowed_host: Annotated[list[str] | None, Option(metavar="NAME")] = None,
    behind_proxy: bool = False,
    root_path: Annotated[str, Option(metavar="PATH")] = "",
    title: Annotated[str, Option(metavar="TEXT")] = "",
    webhook: Annotated[str | None, Option(metavar="URL")] = None,
    keep_changes: bool = False,
    trace_url: Annotated[str, Option(metavar="URL")] = "",
) -> Exit:
    """Serve the console until SIGINT or SIGTERM."""
    with interrupts_end_the_process():
        need_web()
        from bls_agent.ops.web.app import create_app
        from bls_agent.ops.web.auth import read_users
        from bls_agent.ops.web.config import WEBHOOK_SECRET, WebConfig, WebhookTarget
        from bls_agent.ops.web.server import serve

    secret = os.environ.get(WEBHOOK_SECRET, "")
    config = WebConfig(
        redis=invocation.redis,
        host=host,
        port=port,
        users=read_users(users) if users is not None else {},
        allowed_hosts=tuple(allowed_host or ()),
        behind_proxy=behind_proxy,
        root_path=root_path,
        title=title,
        webhook=None if webhook is None else WebhookTarget(webhook, secret),
        keep_changes=keep_changes,
        trace_url=trace_url,
        language=invocation.wanted_language,
    )
    _log_to_stderr()
    serve(create_app(config), lambda urls: _say_where(invocation, config, urls))
    return Exit.DONE


@command("console password")
def password(
    invocation: Invocation,
    name: Annotated[str, Argument(metavar="NAME")],
    role: Annotated[list[str] | None, Option(metavar="ROLE[=GLOB]")] = None,
) -> Exit:
    """Print the line of a user for the file of ``--users``."""
    need_web()
    from bls_agent.ops.web.auth import user_line
    from bls_agent.ops.web.rights import Grants

    roles = " ".join(role or ())
    if role:
        Grants.parse("role", roles)
    line = user_line(name, _ask_password(invocation), roles)
    invocation.record({"line": line}, line)
    return Exit.DONE


@command("console token")
def token(
    invocation: Invocation,
    name: Annotated[str, Argument(metavar="NAME")],
    file: Annotated[Path, Argument(metavar="FILE")],
    role: Annotated[list[str] | None, Option(metavar="ROLE[=GLOB]")] = None,
) -> Exit:
    """Write a new token into a file, and print its line for the file of ``--users``."""
    need_web()
    from bls_agent.ops.web.auth import token_line
    from bls_agent.ops.web.rights import Grants

    roles = " ".join(role or ["viewer"])
    Grants.parse("role", roles)
    secret = secrets.token_urlsafe(TOKEN_BYTES)
    line = token_line(name, secret, roles)
    try:
        with open(file, "x", opener=_open_private, encoding="ascii") as written:
            written.write(f"{secret}\n")
    except OSError as error:
        rule = f"a new file has to be written there ({error.strerror})"
        raise ConfigurationError("file", str(file), rule) from None
    invocation.record({"line": line, "file": str(file)}, line)
    return Exit.DONE


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Visible(logging.Formatter):
    """Escapes control characters, because tracebacks may contain any character."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(visible, super().format(record).splitlines()))


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Visible("%(asctime)s %(levelname)s %(message)s"))
    reminders = Reminders()

    def is_due(record: logging.LogRecord) -> bool:
        """Whether to log a record of asyncio, which repeats some of them.

        It does so while file descriptors are missing, and clients must not fill the disk
        with such records. Later lines of a message name the socket or task.
        """
        return reminders.is_due(str(record.msg).partition("\n")[0])

    logging.getLogger("asyncio").addFilter(is_due)
    # Log only errors of uvicorn, because it warns about each client that sends no HTTP.
    levels = {"bls_agent": logging.INFO, "uvicorn": logging.ERROR}
    for name, level in (levels | {"asyncio": logging.ERROR}).items():
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)


def _say_where(invocation: Invocation, config: WebConfig, urls: Sequence[str]) -> None:
    """Print the URLs, whether there is a login, and a warning if TLS is missing."""
    from bls_agent.ops.web.config import is_loopback

    if invocation.json:
        invocation.out.json({"urls": list(urls), "users": len(config.users)})
        return
    for url in urls:
        invocation.out.line(invocation.say("console_ready", url=url))
    if config.users:
        names = ", ".join(sorted(config.users))
        invocation.hint("console_users", names=names)
    else:
        invocation.hint("console_everybody")
    if config.webhook is not None:
        invocation.hint("console_webhook", place=config.webhook.place)
    if not is_loopback(config.host) and not config.behind_proxy:
        invocation.warn("console_in_clear")


def _ask_password(invocation: Invocation) -> str:
    """Read a password, twice from a terminal, or one line from a pipe."""
    if sys.stdin is None or not sys.stdin.isatty():
        try:
            line = sys.stdin.readline(LONGEST_LINE).rstrip("\r\n") if sys.stdin else ""
            line.encode()  # fails if Python has kept invalid bytes as surrogates
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            rule = f"it has to be text in {error.encoding}"
            raise ConfigurationError("password", "***", rule) from None
        if not line:
            raise Failure("console_no_password", Exit.USAGE)
        return line
    from getpass import getpass

    try:
        first = getpass(invocation.say("console_ask_password"))
        again = getpass(invocation.say("console_ask_again"))
    except EOFError:  # Ctrl-D
        raise Failure("console_no_password", Exit.USAGE) from None
    if first != again:
        raise Failure("console_two_passwords", Exit.USAGE)
    return first
