"""``bls-agent keys`` and ``acl``: all keys, and the rights for them; no Redis needed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final

from typer import Argument, Option

from bls_agent.core.acl import (
    acl_rules,
    asset_acl_rules,
    console_acl_rules,
    crawl_acl_rules,
    run_acl_rules,
    worker_acl_rules,
)
from bls_agent.core.keys import KEYS, Contract, find_templates
from bls_agent.core.settings import Mode
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit, Failure, normalise
from bls_agent.ops.cli.output import Invocation

_ESCAPE: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")
USERS: Final = {  # names of Redis users that hints use as examples
    "agent": "order-agent",
    "console": "operator",
    "workers": "backtest-worker",
    "runs": "run-writer",
    "assets": "asset-syncer",
    "crawl": "crawler",
}
RULES: Final[dict[str, Callable[..., list[str]]]] = {
    "workers": worker_acl_rules,
    "runs": run_acl_rules,
    "assets": asset_acl_rules,
    "crawl": crawl_acl_rules,
}
# With these options, PROJECT may be the id of a worker, or the project of a crawler.
OF_ONE: Final = {"workers", "crawl"}


@command("keys", group=True)
def keys(invocation: Invocation) -> Exit:
    """Print the table of every key; needs no Redis."""
    texts = invocation.texts
    if invocation.json:
        for name in KEYS:
            invocation.out.json(_describe(invocation, name))
        return Exit.DONE
    names = ("key_template", "contract", "type", "ttl", "row", "purpose")
    rows: list[list[str]] = []
    for row in map(partial(_describe, invocation), KEYS):
        place = [row["template"], row["contract"], *_type_and_ttl(row)]
        rows.append([*place, row["row"], row["purpose"]])
    invocation.out.table(rows, [texts[name] for name in names])
    return Exit.DONE


@command("keys explain")
def explain(
    invocation: Invocation,
    key: Annotated[str, Argument(metavar="KEY")],
) -> Exit:
    """Show a key's protocol, template, parts, type, TTL and all possible readings."""
    raw = key_bytes(key)
    names = find_templates(raw)
    if not names:
        raise _no_key(raw)
    described: list[dict[str, Any]] = []
    for name in names:
        readings = KEYS[name].readings(raw)
        described.append({**_describe(invocation, name), "readings": readings})
    if invocation.json:
        shown = raw.decode("utf-8", "surrogateescape")
        invocation.out.json({"key": shown, "rows": described})
        return Exit.DONE
    for number, row in enumerate(described):
        if number:
            invocation.out.write("")
        _show(invocation, row)
    if len(described) > 1 or len(described[0]["readings"]) > 1:
        invocation.hint("hint_ambiguous")
    return Exit.DONE


def key_bytes(text: str) -> bytes:
    r"""Return the bytes of a typed key; ``\xNN`` is one byte, as in redis-cli."""
    raw = text.encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), raw)


def _no_key(raw: bytes) -> Failure:
    from bls_agent.ops.doctor.rules.project import find_meant

    shown = raw.decode("utf-8", "backslashreplace")
    meant = find_meant(raw.decode("utf-8", "surrogateescape"))
    if meant:
        return Failure("key_other_bytes", key=shown, meant=meant)
    return Failure("key_unknown", hint="hint_keys", key=shown)


def _describe(invocation: Invocation, name: str) -> dict[str, Any]:
    row = KEYS[name]
    return {
        "row": name,
        "template": row.template,
        "contract": row.contract.value,
        "type": None if row.type is None else row.type.value,
        "ttl": row.ttl,
        "ttlFrom": row.ttl_from,
        "purpose": invocation.texts[f"key_{name}"],
    }


def _type_and_ttl(row: dict[str, Any]) -> list[str]:
    seconds = "" if row["ttl"] is None else f"{row['ttl']} s"
    setting = f"({row['ttlFrom']})" if row["ttlFrom"] else ""
    return [row["type"] or "-", f"{seconds} {setting}".strip() or "-"]


def _show(invocation: Invocation, row: dict[str, Any]) -> None:
    texts = invocation.texts
    kind, ttl = _type_and_ttl(row)
    contract = texts[f"contract_{row['contract']}"]
    no_ttl = "no_ttl" if row["contract"] == Contract.OWN else "ttl_left_open"
    rows = [
        [texts["key_template"], row["template"]],
        [texts["row"], row["row"]],
        [texts["contract"], contract],
        [texts["type"], texts["left_open"] if kind == "-" else kind],
        [texts["ttl"], texts[no_ttl] if ttl == "-" else ttl],
        [texts["purpose"], row["purpose"]],
    ]
    for reading in row["readings"]:
        parts = ", ".join(f"{name} = {value}" for name, value in reading.items())
        rows.append([texts["parts"], parts or texts["no_parts"]])
    invocation.out.table(rows)


@command("acl")
def acl(
    invocation: Invocation,
    project: Annotated[str, Argument(metavar="PROJECT")] = "",
    mode: Annotated[Mode, Option(metavar="MODE")] = "auto",
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
    project = normalise(invocation, project) if project else ""
    selectors, send = not no_selectors, not read_only
    rooms = {"workers": workers, "runs": runs, "assets": assets, "crawl": crawl}
    asked = [room for room, wanted in rooms.items() if wanted]
    nameless = asked and asked[0] not in OF_ONE
    for is_wrong, text, hint in (
        (read_only and not (console or asked), "acl_read_only", "hint_read_only"),
        (forget and not console, "acl_forget", "hint_forget"),
        (
            asked and (console or replicas or asked[1:] or (project and nameless)),
            "acl_alone",
            "hint_acl_alone",
        ),
        (not (asked or console or project), "acl_for_whom", "hint_acl"),
    ):
        if is_wrong:
            option = f"--{asked[0]}" if asked else ""
            raise Failure(text, Exit.USAGE, hint=hint, option=option)
    if asked:
        names = [project] if project else []
        rules = RULES[asked[0]](*names, write=send, selectors=selectors)
    elif console:
        rules = console_acl_rules(
            project or None, send=send, forget=forget, selectors=selectors
        )
    else:
        rules = acl_rules(project, mode, replicas=replicas, selectors=selectors)
    if any(letter.isspace() or not letter.isprintable() for letter in user):
        raise Failure("bad_user", Exit.USAGE, user=user)
    name = user or USERS[[*asked, *["console"] * console, "agent"][0]]
    line = _line(rules, user, name if shell else "", selectors=selectors)
    invocation.record({"rules": rules, "line": line}, line)
    alone = not user and not shell
    invocation.hint("hint_acl_use" if alone else "hint_acl_password", user=name)
    return Exit.DONE


def _line(rules: Sequence[str], user: str, shell: str, *, selectors: bool) -> str:
    """Return the rules alone, a line of users.acl, or a command for a shell.

    The result contains no password, so the user cannot log in until one is set.
    """
    if shell:
        before = ["resetkeys", "resetchannels", *["clearselectors"] * selectors]
        words = ["redis-cli", "ACL", "SETUSER", shell, "on", *before, *rules]
        return shlex.join(words)
    if any("'" in rule or '"' in rule for rule in rules):
        raise Failure("acl_quotes", Exit.USAGE, hint="hint_shell")
    return " ".join([*(["user", user, "on"] if user else ()), *rules])
