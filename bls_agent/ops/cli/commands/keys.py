"""``bls-agent keys``: every key of the five contracts, and what a given key is."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated, Any, Final

from typer import Argument

from bls_agent.core.keys import KEYS, find_templates
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit, Failure
from bls_agent.ops.cli.output import Invocation
from bls_agent.ops.terminal import Column

__all__ = ["explain", "find_nearest", "key_bytes", "keys"]

NEAREST: Final = 3  # rows that are named for a key that is none
LIKENESS: Final = 0.3
TWIN: Final = "gbk"  # an encoding in which clients on Chinese systems write by mistake
_ESCAPE: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")


@command("keys", group=True)
def keys(invocation: Invocation) -> Exit:
    """Print the table of every key; needs no Redis."""
    texts = invocation.texts
    if invocation.json:
        for name in KEYS:
            invocation.out.json(_describe(invocation, name))
        return Exit.DONE
    columns = [
        Column(texts["key_template"], 24),
        Column(texts["contract"], 4),
        Column(texts["type"], 6),
        Column(texts["ttl"], 4),
        Column(texts["row"], 10),
        Column(texts["purpose"], 16),
    ]
    rows: list[list[str]] = []
    for name in KEYS:
        told = _describe(invocation, name)
        rows.append([told["template"], told["contract"], *_type_and_ttl(told)])
        rows[-1] += [name, told["purpose"]]
    invocation.out.table(columns, rows)
    return Exit.DONE


@command("keys explain")
def explain(
    invocation: Invocation,
    key: Annotated[str, Argument(metavar="KEY")],
) -> Exit:
    """Explain a key: contract, row, parts, type, TTL, and every way to read it."""
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
    for number, told in enumerate(described):
        if number:
            invocation.out.write("")
        _show(invocation, told)
    if len(described) > 1 or len(described[0]["readings"]) > 1:
        invocation.hint("hint_ambiguous")
    return Exit.DONE


def key_bytes(text: str) -> bytes:
    r"""Read a typed key: ``\xNN`` stands for a byte, as redis-cli shows it."""
    raw = text.encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), raw)


def find_nearest(raw: bytes) -> list[str]:
    """Find the forms of keys that an unknown key resembles."""
    text = raw.decode("utf-8", "replace")
    forms = {row.template: row.template for row in KEYS.values()}
    forms |= {re.sub(r"\{[^{}]*\}", "", form): form for form in [*forms]}
    found = get_close_matches(text, forms, n=2 * NEAREST, cutoff=LIKENESS)
    return [*dict.fromkeys(forms[form] for form in found)][:NEAREST]


def _no_key(raw: bytes) -> Failure:
    shown = raw.decode("utf-8", "backslashreplace")
    try:
        twin = raw.decode(TWIN)
    except UnicodeDecodeError:
        twin = ""
    if twin and twin != shown and find_templates(twin):
        return Failure("key_gbk", key=shown, twin=twin, encoding=TWIN.upper())
    nearest = find_nearest(raw)
    hint = "hint_nearest" if nearest else "hint_keys"
    return Failure("key_unknown", hint=hint, key=shown, names=", ".join(nearest))


def _describe(invocation: Invocation, name: str) -> dict[str, Any]:
    row = KEYS[name]
    return {
        "row": name,
        "template": row.template,
        "contract": row.contract.value,
        "type": None if row.type is None else row.type.value,
        "ttl": row.ttl,
        "purpose": invocation.texts[f"key_{name}"],
    }


def _type_and_ttl(told: dict[str, Any]) -> list[str]:
    return [told["type"] or "-", "-" if told["ttl"] is None else f"{told['ttl']} s"]


def _show(invocation: Invocation, told: dict[str, Any]) -> None:
    texts = invocation.texts
    kind, ttl = _type_and_ttl(told)
    contract = texts[f"contract_{told['contract']}"]
    rows = [
        [texts["key_template"], told["template"]],
        [texts["row"], told["row"]],
        [texts["contract"], contract],
        [texts["type"], texts["left_open"] if kind == "-" else kind],
        [texts["ttl"], texts["for_ever"] if ttl == "-" else ttl],
        [texts["purpose"], told["purpose"]],
    ]
    for reading in told["readings"]:
        parts = ", ".join(f"{name} = {value}" for name, value in reading.items())
        rows.append([texts["parts"], parts or texts["no_parts"]])
    invocation.out.table([Column(""), Column("", 20)], rows, header=False)
