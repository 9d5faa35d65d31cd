"""What the tests of rights share: what was refused, rules less one right, the document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from bls_agent.core.acl import KeyAccess
from tests.harness import execute

DOCUMENT = Path(__file__).parents[1] / "docs/rights.md"


async def refused(admin: Redis) -> list[Any]:
    """What was refused to anybody."""
    return [one[one.index(b"object") + 1] for one in await execute(admin, "ACL", "LOG")]


async def may(admin: Redis, *words: object) -> bool:
    """Whether the agent's user may send a request."""
    said = await execute(admin, "ACL", "DRYRUN", "agent", *words)
    return said in (b"OK", "OK")


def each_right(rights: Sequence[KeyAccess]) -> Iterator[object]:
    """Every command on keys, with its row."""
    for place, right in enumerate(rights):
        for command in right.commands.split() if right.keys else ():
            yield pytest.param(right, command, id=f"{place}-{command}")


def rules_without(
    rights: Sequence[KeyAccess], right: KeyAccess, command: str
) -> list[str]:
    """The rules for reading, or for writing, less one command of a row."""
    rules = ["-@all"]
    for one in rights:
        if one.keys and one.writes is not right.writes:
            continue
        words = [
            word for word in one.commands.split() if (one, word) != (right, command)
        ]
        if one.keys and words:
            rules.append(one._replace(commands=" ".join(words)).selector)
        elif not one.keys:
            rules += [f"+{word}" for word in words]
    return rules


def documented_rules() -> list[str]:
    """The lines of rules that docs/rights.md shows."""
    return re.findall(r"^-@all .*$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
