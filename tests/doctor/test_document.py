"""docs/doctor.md says what the doctor does: its tables are the tables in the code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from bls_agent.devserver import DevServer
from bls_agent.diagnosis import Rule
from bls_agent.doctor.examine import examine
from bls_agent.doctor.generic import GENERIC_RULES
from bls_agent.doctor.rules import KEY_RULES
from bls_agent.doctor.server_rules import SERVER_RULES
from bls_agent.keys import KEYS
from bls_agent.texts import load_texts
from tests.harness import needs_selectors, url_with_rights

DOCUMENT = Path(__file__).parents[2] / "docs" / "doctor.md"
TEXTS = load_texts("doctor", "en")
GENERIC = {rule.code for rule in GENERIC_RULES}


def kinds(rules: Sequence[Rule]) -> str:
    """The keys that a rule holds for, as they are written."""
    if rules[0].code in GENERIC:
        return "every kind"
    names = [KEYS[rule.row].template if rule.row else "" for rule in rules]
    return "<br>".join(f"`{name}`" if name else "keys of no contract" for name in names)


def key_table() -> Iterator[str]:
    yield "| rule | severity | keys | contract | what is wrong |"
    yield "| --- | --- | --- | --- | --- |"
    for code in dict.fromkeys(rule.code for rule in KEY_RULES):
        rules = [rule for rule in KEY_RULES if rule.code == code]
        severities = ", ".join(dict.fromkeys(rule.severity for rule in rules))
        sources = ", ".join(dict.fromkeys(rule.source for rule in rules))
        wrong = TEXTS[f"{code}_wrong"]
        yield f"| `{code}` | {severities} | {kinds(rules)} | {sources} | {wrong} |"


def server_table() -> Iterator[str]:
    yield "| rule | severity | what is wrong | why |"
    yield "| --- | --- | --- | --- |"
    for rule in SERVER_RULES:
        wrong, why = (TEXTS[f"{rule.code}_{part}"] for part in ("wrong", "contract"))
        yield f"| `{rule.code}` | {rule.severity} | {wrong} | {why} |"


@needs_selectors
async def test_the_rights_of_the_document_are_enough(
    admin: Redis, own_server: DevServer
) -> None:
    """With them everything is looked at, and nothing could be written."""
    (line,) = re.findall(r"^-@all .*$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    await admin.set("订单系统_项目状态", "在线", ex=60)
    await admin.set("订单系统_控制", "x")
    url = await url_with_rights(admin, own_server, *line.split())
    report = await examine(url)
    found = {group.rule for group in report.groups}
    assert found == {"wrong-type", "right-missing"}
    with pytest.raises(NoPermissionError):
        async with Redis.from_url(url) as client:
            await client.set("订单系统_项目状态", "离线")


def test_the_tables_are_those_of_the_code() -> None:
    """Every rule, in the order of the code, and no other."""
    text = DOCUMENT.read_text("utf-8")
    for table in (key_table, server_table):
        assert "\n".join(table()) in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    codes = {rule.code for rule in KEY_RULES} | {rule.code for rule in SERVER_RULES}
    named = {row.split("`")[1] for row in rows}
    assert codes <= named
    others = {name for name in TEXTS if name.endswith("_wrong")}
    assert named == {name.removesuffix("_wrong") for name in others}
