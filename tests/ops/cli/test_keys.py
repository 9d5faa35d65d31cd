"""The table of keys, and what a given key is; without any Redis."""

from __future__ import annotations

import orjson
import pytest

from bls_agent.core.keys import KEYS
from bls_agent.ops.cli.commands.keys import key_bytes
from tests.ops.cli.conftest import Bls


async def test_the_table_is_complete(bls: Bls) -> None:
    """Each row of the table, once, with contract, type, TTL and purpose."""
    ran = await bls.bare("keys")
    rows = [line.split("\t") for line in ran.text.splitlines()]
    assert [row[4] for row in rows] == [*KEYS]
    for row, template in zip(rows, KEYS.values(), strict=True):
        seconds = "-" if template.ttl is None else f"{template.ttl} s"
        assert row[:3] == [template.template, template.contract, template.type or "-"]
        assert row[3].startswith("(lease)" if row[4] == "owner" else seconds)
        assert template.ttl_from in row[3]
        assert row[5]
    told = [
        orjson.loads(line)
        for line in (await bls.bare("keys", "--json")).out.splitlines()
    ]
    assert [one["row"] for one in told] == [*KEYS]


@pytest.mark.parametrize(
    ("key", "row", "readings"),
    [
        ("订单系统_项目状态", "project_status", [{"project": "订单系统"}]),
        ("a_控制_控制", "control", [{"project": "a_控制"}]),
        ("bls_agent:{订单系统_控制}:dead", "dead_letters", [{"place": "{订单系统_控制}"}]),
        ("asset:index", "asset_index", [{}]),
        ("ginkgo_func_cache_a_b_c", "func_cache", [{"func": "a", "key": "b_c"}, {"func": "a_b", "key": "c"}]),
        (r"\xe8\xae\xa2_\xe6\x8e\xa7\xe5\x88\xb6", "control", [{"project": "订"}]),
    ],
)  # fmt: skip
async def test_explain(
    bls: Bls, key: str, row: str, readings: list[dict[str, str]]
) -> None:
    """Row and every reading."""
    ran = await bls.bare("keys", "explain", key, "--json")
    assert ran.code == 0
    found = {one["row"]: one for one in orjson.loads(ran.out)["rows"]}
    assert sorted(map(str, found[row]["readings"])) == sorted(map(str, readings))
    assert found[row]["contract"] == KEYS[row].contract
    shown = await bls.bare("keys", "explain", key)
    assert KEYS[row].template in shown.text
    assert ("more than one way" in shown.said) is (len(found) > 1 or len(readings) > 1)


async def test_a_key_that_is_none(bls: Bls) -> None:
    """Exit code 1."""
    assert (await bls.bare("keys", "explain", "订单系统_项目状況")).code == 1


async def test_a_key_in_another_encoding(bls: Bls) -> None:
    """GBK, as redis-cli shows it: said what was meant."""
    key = "".join(f"\\x{byte:02x}" for byte in "订单系统_控制".encode("gbk"))
    ran = await bls.bare("keys", "explain", key)
    assert ran.code == 1
    assert "订单系统_控制 was meant" in ran.said


def test_escapes() -> None:
    """Bytes as redis-cli writes them; everything else stays."""
    assert key_bytes(r"a\xff\xE8b\n") == b"a\xff\xe8b\\n"
    assert key_bytes("订") == "订".encode()
