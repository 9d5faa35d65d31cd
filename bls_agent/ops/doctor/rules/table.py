"""The table of the rules about keys: those of every row, and those of each contract."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from bls_agent.ops.doctor.rule import Rule
from bls_agent.ops.doctor.rules.assets import RULES as ASSETS
from bls_agent.ops.doctor.rules.crawl import RULES as CRAWL
from bls_agent.ops.doctor.rules.generic import GENERIC_RULES
from bls_agent.ops.doctor.rules.project import RULES as PROJECT
from bls_agent.ops.doctor.rules.runs import RULES as RUNS
from bls_agent.ops.doctor.rules.workers import RULES as WORKERS

__all__ = ["KEY_RULES", "RULES_OF"]

KEY_RULES: Final[Sequence[Rule]] = (
    *GENERIC_RULES,
    *PROJECT,
    *RUNS,
    *WORKERS,
    *ASSETS,
    *CRAWL,
)


def _by_row() -> Mapping[str, Sequence[Rule]]:
    found: dict[str, list[Rule]] = defaultdict(list)
    for rule in KEY_RULES:
        found[rule.row].append(rule)
    return dict(found)


RULES_OF: Final = _by_row()
