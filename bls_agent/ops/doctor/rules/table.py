"""The table of all rules about keys, and the rules about the type and TTL of any key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bls_agent.core.keys import KEYS, Contract, KeyTemplate
from bls_agent.ops.doctor.reading import is_loose
from bls_agent.ops.doctor.rule import Rule, Sample, Severity, Source, Values
from bls_agent.ops.doctor.rules.assets import RULES as ASSETS
from bls_agent.ops.doctor.rules.crawl import RULES as CRAWL
from bls_agent.ops.doctor.rules.project import RULES as PROJECT
from bls_agent.ops.doctor.rules.runs import RULES as RUNS
from bls_agent.ops.doctor.rules.workers import RULES as WORKERS

FAR: Final = 10  # a TTL is too long above this multiple of the protocol's TTL

# The protocol only recommends a TTL, or programs set it late. Other rules check the keys.
TTL_ADVISED: Final = frozenset({"project_status", "run_events"})
# The protocol defines no TTL, or the key is one of this package and has varying TTLs.
TTL_OPEN: Final = frozenset(
    {
        "deliveries", "seen", "broadcast", "intake", "instances", "owner",
        "project_config", "pending_tasks", "queued_task_status",
        "crawl_failed_retries", "crawl_filter_fingerprint", "crawl_item_fingerprint",
    }
)  # fmt: skip
# The template's TTL is only a default, because the user of the cache sets the TTL.
TTL_DEFAULT: Final = frozenset({"func_cache"})
# If one of these keys expires, data is lost without notice.
_LOST: Final = frozenset({"inflight", "inflight_lists", "dead_letters"})

_SOURCES: Final = {
    Contract.ASSETS: Source.ASSETS,
    Contract.WORKERS: Source.WORKERS,
    Contract.CONSOLE: Source.PROJECT,
    Contract.RUNS: Source.RUNS,
    Contract.CRAWL: Source.CRAWL,
    Contract.OWN: Source.OWN,
}


def _wrong_type(sample: Sample) -> Values | None:
    expected = str(KEYS[sample.row].type)
    if sample.type == expected:
        return None
    return {"type": sample.type, "expected": expected}


def _missing_ttl(sample: Sample) -> Values | None:
    return {"expected": f"{KEYS[sample.row].ttl}"} if sample.ttl is None else None


def _long_ttl(sample: Sample) -> Values | None:
    expected = KEYS[sample.row].ttl or 0
    if sample.ttl is None or sample.ttl <= FAR * expected:
        return None
    return {"ttl": f"{sample.ttl:,.0f}", "expected": f"{expected}"}


def _unwanted_ttl(sample: Sample) -> Values | None:
    return None if sample.ttl is None else {"ttl": f"{sample.ttl:,.0f}"}


def _rules_of(name: str, row: KeyTemplate) -> Iterator[Rule]:
    source = _SOURCES[row.contract]
    loose, lost = is_loose(row), name in _LOST or row.contract is Contract.ASSETS
    warning = Severity.NOTE if loose else Severity.WARNING
    error = Severity.NOTE if loose else Severity.ERROR
    if row.type is None:
        return
    yield Rule("wrong-type", name, error, source, _wrong_type)
    if name in TTL_OPEN:
        return
    if row.ttl is not None:
        if name not in TTL_ADVISED:
            yield Rule("ttl-missing", name, warning, source, _missing_ttl)
        long = Severity.NOTE if name in TTL_DEFAULT else warning
        yield Rule("ttl-long", name, long, source, _long_ttl)
    else:
        severity = Severity.ERROR if lost else Severity.WARNING
        yield Rule("ttl-unwanted", name, severity, source, _unwanted_ttl)


GENERIC_RULES: Final = tuple(
    rule for name, row in KEYS.items() for rule in _rules_of(name, row)
)

KEY_RULES: Final = (*GENERIC_RULES, *PROJECT, *RUNS, *WORKERS, *ASSETS, *CRAWL)
RULES_OF: Final = {
    row: [rule for rule in KEY_RULES if rule.row == row] for row in ("", *KEYS)
}
