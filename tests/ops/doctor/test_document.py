"""docs/doctor.md and its Chinese twin: their tables are the tables in the code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from bls_agent.core.keys import KEYS
from bls_agent.devserver import DevServer
from bls_agent.ops.doctor.examine import examine
from bls_agent.ops.doctor.rule import Rule, Source
from bls_agent.ops.doctor.rules.table import GENERIC_RULES, KEY_RULES
from bls_agent.ops.doctor.server import SERVER_RULES
from bls_agent.ops.texts import load_texts
from tests.harness import needs_selectors, url_with_rights

DOCS = Path(__file__).parents[3] / "docs"
DOCUMENTS = {"en": DOCS / "doctor.md", "zh": DOCS / "doctor.zh-CN.md"}
HEADS = {
    "en": (
        "| rule | severity | keys | described in | what is wrong |",
        "| rule | severity | what is wrong | why |",
    ),
    "zh": (
        "| 规则 | 级别 | 键 | 说明 | 哪里不对 |",
        "| 规则 | 级别 | 哪里不对 | 为什么 |",
    ),
}
UNNAMED = {
    "en": ("every kind", "unknown keys"),
    "zh": ("所有种类", "未知的键"),
}
both_languages = pytest.mark.parametrize("language", DOCUMENTS)
GENERIC = {rule.code for rule in GENERIC_RULES}


def kinds(rules: Sequence[Rule], language: str) -> str:
    """The keys that a rule holds for, as they are written."""
    every, foreign = UNNAMED[language]
    if rules[0].code in GENERIC:
        return every
    names = [KEYS[rule.row].template if rule.row else "" for rule in rules]
    return "<br>".join(f"`{name}`" if name else foreign for name in names)


def link(source: Source, language: str) -> str:
    """Return a link to a heading; Chinese anchors are the headings themselves."""
    page, found, anchor = source.partition(".md#")
    if not found:
        return f"`{source}`"
    heading = load_texts("doctor", language)[f"heading_{source.name.lower()}"]
    target = f"{page}.md#{anchor}" if language == "en" else f"{page}.zh-CN.md#{heading}"
    return f"[{heading}]({target})"


def key_table(language: str) -> Iterator[str]:
    texts = load_texts("doctor", language)
    yield HEADS[language][0]
    yield "| --- | --- | --- | --- | --- |"
    for code in dict.fromkeys(rule.code for rule in KEY_RULES):
        rules = [rule for rule in KEY_RULES if rule.code == code]
        severities = ", ".join(dict.fromkeys(rule.severity for rule in rules))
        sources = ", ".join(
            dict.fromkeys(link(rule.source, language) for rule in rules)
        )
        keys, wrong = kinds(rules, language), texts[f"{code}_wrong"]
        yield f"| `{code}` | {severities} | {keys} | {sources} | {wrong} |"


def server_table(language: str) -> Iterator[str]:
    texts = load_texts("doctor", language)
    yield HEADS[language][1]
    yield "| --- | --- | --- | --- |"
    for rule in SERVER_RULES:
        wrong, why = (texts[f"{rule.code}_{part}"] for part in ("wrong", "contract"))
        yield f"| `{rule.code}` | {rule.severity} | {wrong} | {why} |"


@needs_selectors
@both_languages
async def test_the_rights_of_the_document_are_enough(
    admin: Redis, own_server: DevServer, language: str
) -> None:
    """With them everything is looked at, and nothing could be written."""
    (line,) = re.findall(
        r"^-@all .*$", DOCUMENTS[language].read_text("utf-8"), re.MULTILINE
    )
    await admin.set("订单系统_项目状态", "在线", ex=60)
    await admin.set("订单系统_控制", "x")
    url = await url_with_rights(admin, own_server, *line.split())
    report = await examine(url)
    found = {group.rule for group in report.groups}
    assert found == {"wrong-type"}
    with pytest.raises(NoPermissionError):
        async with Redis.from_url(url) as client:
            await client.set("订单系统_项目状态", "离线")


@both_languages
def test_the_tables_are_those_of_the_code(language: str) -> None:
    """Every rule, in the order of the code, and no other."""
    text = DOCUMENTS[language].read_text("utf-8")
    for table in (key_table, server_table):
        assert "\n".join(table(language)) in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    codes = {rule.code for rule in KEY_RULES} | {rule.code for rule in SERVER_RULES}
    named = {row.split("`")[1] for row in rows}
    assert codes <= named
    texts = load_texts("doctor", language)
    others = {name for name in texts if name.endswith("_wrong")}
    assert named == {name.removesuffix("_wrong") for name in others}
