"""``bls-agent acl``: the rights of an agent, or another program, as an ACL line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

from typer import Argument, Option

from bls_agent.core.acl import (
    acl_rules,
    asset_acl_rules,
    console_acl_rules,
    crawl_acl_rules,
    run_acl_rules,
    worker_acl_rules,
)
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit, Failure, normalise
from bls_agent.ops.cli.output import Invocation

__all__ = ["ModeName", "acl"]

USERS: Final = {  # in a hint: named after the rights
    "agent": "order-agent",
    "console": "operator",
    "workers": "backtest-worker",
    "runs": "run-writer",
    "assets": "asset-syncer",
    "crawl": "crawler",
}
RULES: Final = {
    "workers": worker_acl_rules,
    "runs": run_acl_rules,
    "assets": asset_acl_rules,
}


class ModeName(StrEnum):
    """The values of ``--mode``."""

    AUTO = "auto"
    BLOCKING = "blocking"
    COMPAT = "compat"
    RELIABLE = "reliable"


@command("acl")
def acl(
    invocation: Invocation,
    project: Annotated[str, Argument(metavar="PROJECT")] = "",
    mode: Annotated[ModeName, Option(metavar="MODE")] = ModeName.AUTO,
    *,
    replicas: bool = False,
    console: bool = False,
    workers: bool = False,
    runs: bool = False,
    assets: bool = False,
    crawl: bool = False,
    read_only: bool = False,
    no_selectors: bool = False,
    forget: bool = False,
    user: Annotated[str, Option(metavar="NAME")] = "",
    shell: bool = False,
) -> Exit:
    """Print the rights; changes nothing, needs no Redis."""
    project = normalise(invocation, project) if project else ""
    selectors, send = not no_selectors, not read_only
    rooms = {"workers": workers, "runs": runs, "assets": assets, "crawl": crawl}
    asked = [room for room, wanted in rooms.items() if wanted]
    _check_place(read_only, console or bool(asked), "acl_read_only", "hint_read_only")
    _check_place(forget, console, "acl_forget", "hint_forget")
    if asked and (console or (project and not crawl) or replicas or asked[1:]):
        option = f"--{asked[0]}"
        text = "acl_crawl_alone" if crawl else "acl_alone"
        raise Failure(text, Exit.USAGE, hint="hint_acl_alone", option=option)
    if crawl:
        rules = crawl_acl_rules(project or None, write=send, selectors=selectors)
    elif asked:
        rules = RULES[asked[0]](write=send, selectors=selectors)
    elif console:
        rules = console_acl_rules(
            project or None, send=send, forget=forget, selectors=selectors
        )
    elif not project:
        raise Failure("acl_for_whom", Exit.USAGE, hint="hint_acl")
    else:
        rules = acl_rules(project, mode.value, replicas=replicas, selectors=selectors)
    if any(letter.isspace() or not letter.isprintable() for letter in user):
        raise Failure("bad_user", Exit.USAGE, user=user)
    name = user or USERS[[*asked, *["console"] * console, "agent"][0]]
    line = _line(rules, user, name if shell else "", selectors=selectors)
    invocation.result({"rules": rules, "line": line}, line)
    if not user and not shell:
        invocation.hint("hint_acl_use", user=name)
    else:
        invocation.hint("hint_acl_password", user=name)
    return Exit.DONE


def _check_place(given: bool, fits: bool, text: str, hint: str) -> None:  # noqa: FBT001 - one line each
    """Refuse an option that belongs to other rights and would have no effect."""
    if given and not fits:
        raise Failure(text, Exit.USAGE, hint=hint)


def _line(rules: Sequence[str], user: str, shell: str, *, selectors: bool) -> str:
    """Write the rules alone, as a line of users.acl, or for a shell.

    No password is made up: a user without one cannot log in.
    """
    if shell:
        before = ["resetkeys", "resetchannels", *["clearselectors"] * selectors]
        words = ["redis-cli", "ACL", "SETUSER", shell, "on", *before, *rules]
        return shlex.join(words)
    if any("'" in rule or '"' in rule for rule in rules):
        raise Failure("acl_quotes", Exit.USAGE, hint="hint_shell")
    return " ".join([*(["user", user, "on"] if user else ()), *rules])
